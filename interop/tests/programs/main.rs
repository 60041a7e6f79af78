//! Programs as they are, from elsewhere, on devices of rnic: both ends of each under `rnic run`.
//!
//! `tests/run` installs them. A test whose program is missing says so and is skipped.

mod apart;
mod bugs;
mod c;
mod capture;
mod cm;
mod ibv;
mod lab;
mod launcher;
mod mpi;
mod paths;
mod perftest;
mod pyverbs;
mod sideway;
mod tools;
mod ucx;
