//! `libibverbs.so.1` and `librdmacm.so.1` over rnic, for programs as they are.
//!
//! A program that was built for rdma-core finds these symbols, versions and structures where it looks for those of
//! rdma-core, and gets a RoCEv2 device in software. This crate converts: it takes C arguments apart, calls [`rnic`], and
//! gives an errno back. What the transport does is not its matter.
//!
//! - `abi`: the structures, as the headers have them, and what is asserted of them.
//! - `call`: the boundary. Pointers become references there, results become errnos, and no panic goes through.
//! - `explain`: why a call fails, for people.
//! - `cancel`: what a thread that is cancelled in a verb leaves behind: nothing.
//! - `export`: which symbol, of which version, is which function.
//! - `hub`: the devices of this process. All contexts of one share one socket.
//! - The rest is named after the objects of verbs.

pub mod abi;
mod ah;
mod call;
mod cancel;
mod channel;
mod cm;
mod context;
mod cq;
mod cq_ex;
mod create;
mod devices;
mod dm;
mod ece;
mod errno;
mod events;
mod explain;
mod export;
mod fork;
mod gate;
mod gid;
mod handles;
mod hub;
mod import;
mod kern;
mod mr;
mod parent;
mod pd;
mod poll;
mod post;
mod qp;
mod qp_ex;
mod query;
mod slot;
mod srq;
mod strings;
mod stubs;
mod trampoline;
mod tree;
mod window;
mod xrc;
