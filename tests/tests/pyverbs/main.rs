//! The cases of rdma-core's pyverbs test suite, under the same names: a module for each of its files, and a test
//! for each of its cases, so that results can be compared case by case with those of another device.
//!
//! Each does what the case of that name does, with the counterparts of the C interface in this API: a value that a
//! type cannot represent needs no check, and an errno is a variant of [`rnic::Error`]. If a case needs something
//! without a counterpart, its module says so.

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
