//! Topologies: their sizes, and what files say.

mod builtin;
mod config;
