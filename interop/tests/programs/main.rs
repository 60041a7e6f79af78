//! Unmodified programs from elsewhere on rnic devices: both ends of each under `rnic run`.
//!
//! `tests/run` installs the programs. A test whose program is missing prints a message and is skipped.

mod apart;
mod bugs;
mod c;
mod capture;
mod ceph;
mod daemon;
mod dapl;
mod engines;
mod fio;
mod hardship;
mod hosts;
mod ibv;
mod iser;
mod lab;
mod labs;
mod launcher;
mod migration;
mod mpi;
mod paths;
mod perftest;
mod pyverbs;
mod rdma_cm;
mod restart;
mod sideway;
mod tools;
mod ucx;
mod watch;
