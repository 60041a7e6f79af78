//! `libibverbs.so.1` over rnic, for unmodified programs.
//!
//! A program that was built for rdma-core finds these symbols, versions and structures where it looks for those of
//! rdma-core, and gets a RoCEv2 device in software. This crate only converts: it unpacks C arguments, calls [`rnic`],
//! and returns an errno. The transport is not its concern.
//!
//! - `abi`: the structures of the headers, and assertions about their layout.
//! - `call`: the boundary. It turns pointers into references and results into errnos, and stops panics.
//! - `explain`: messages for users about why a call fails.
//! - `cancel`: cancellation inside a verb, which leaves no lock held and no state behind.
//! - `export`: the exported symbols, their versions, and their functions.
//! - `ucma`: the device of the connection manager, under the librdmacm of the system.
//! - `nldev`: answers to tools that ask the kernel about RDMA devices by netlink.
//! - `hub`: the devices of this process. All contexts of a device share one socket.
//! - The other modules are named after the objects of verbs.

pub mod abi;
mod ah;
mod call;
mod cancel;
mod channel;
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
mod nldev;
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
mod ucma;
mod window;
mod xrc;
