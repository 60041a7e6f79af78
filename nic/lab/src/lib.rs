//! Labs: experiments for courses, whose parameters follow from the ID of a student, and a judge of what the student found.
//!
//! A lab is a folder of text ([`Lab`]). Its `lab.toml` is a [`Definition`]: parameters, experiments, questions and a task. Its
//! texts name parameters as `$(name)`, which [`template`] fills in. An [`experiment`] runs in virtual time, with rnic's own engine,
//! so that it gives the same numbers on every machine. [`judge`] runs what the lab defines, and not what the student's folder
//! says, and holds it against the answers.

#![forbid(unsafe_code)]

mod builtin;
pub mod definition;
mod error;
pub mod experiment;
pub mod expression;
pub mod judge;
pub mod program;
pub mod sheet;
pub mod template;
pub mod value;

pub use builtin::{Builtin, LABS, Lab, find};
pub use definition::Definition;
pub use error::LabError;
pub use value::{Value, Values};
