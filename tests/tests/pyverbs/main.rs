//! The cases of rdma-core's pyverbs test suite, under the same names: a module for each of its files, a test for each of
//! its cases, so that results can be compared case by case with those of another device.
//!
//! Each does what the case of that name does, with what this API has in place of what C has: a value that a type cannot
//! hold needs no refusal, and an errno is a variant of [`rnic::Error`]. Where a case asks for something that
//! there is no counterpart of, its module says so.

mod base;
mod players;

mod addr;
mod atomic;
mod cq;
mod cq_events;
mod cqex;
mod device;
mod mr;
mod mw;
mod odp;
mod parent_domain;
mod pd;
mod qp;
mod qpex;
mod relaxed_ordering;
mod srq;
mod xrc;
