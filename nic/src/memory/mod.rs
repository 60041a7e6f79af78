//! Registered memory: what the application lends to the device, and the only code that touches it.
//!
//! Remote peers write into registered memory while the application reads it, and the application may unmap
//! or protect it while it is registered. Both are outside what a Rust reference may promise, so no reference
//! ever points into registered memory. Three functions touch it, all in `copy.rs`: copy out, copy in, atomic
//! update. They survive memory that went away: the access ends in a [`Fault`], which the transport turns into
//! LOC_PROT_ERR or a NAK, and the process lives on.
//!
//! * [`RegionTable`]: keys to regions and memory windows, with every access check; it is the transport's
//!   [`qp::Memory`].
//! * [`UserMemory`]: what can be registered, the one place where a program vouches for addresses of its own.
//! * [`MemoryBuffer`]: page-aligned memory of our own with safe racy access, for programs written in Rust.
//! * [`install`] and [`refresh`]: the signal handler behind fault recovery, and its supervision.
//!
//! # What an application can rely on
//!
//! * **The end of a write comes last.** Programs poll the last byte of a message. The last 1, 2, 4 or 8 bytes
//!   (the largest naturally aligned word that ends where the write ends) are stored last, by one instruction
//!   and with release order: who sees the last byte sees all bytes.
//! * **Aligned words of 1, 2, 4 or 8 bytes that are written or read as a whole message are never torn.** Real
//!   devices behave so and programs exchange counters and flags on that ground, though the InfiniBand
//!   architecture promises it for atomic operations only. Words in the middle of a longer message have no such promise.
//! * **RDMA atomics are processor atomics**, so they are atomic with respect to the application's own.
//!
//! The second promise, and the word size in the first (one byte remains), do not hold on the slow path below.
//!
//! # Faults
//!
//! On x86-64 the copies are assembly routines at known addresses, and a handler for SIGSEGV and SIGBUS moves a
//! thread that faults in them to their recovery point. Every other fault goes to the handler that the program
//! had installed before. A copy costs nothing extra that way; a fault costs about 4 us. The slow path asks the
//! kernel to copy (`process_vm_readv` and `process_vm_writev` on ourselves, above 1 us a call). It is taken
//! where the program replaced our handler afterwards, and on other processors.
//!
//! Real hardware pins registered pages and would go on writing to them, unseen, after the program unmapped
//! them. Here the peer is told. Nothing is ever pinned, so every region is what verbs call on-demand paging; the right
//! ON_DEMAND makes no difference but that [`RegionTable::advise`] asks for it, as the kernel does.

#[cfg(test)]
mod child_tests;
mod copy;
mod region;
mod signal;
mod table;
mod user;

pub use copy::{Advice, Fault};
pub use region::{BufferError, MemoryBuffer};
pub use signal::{install, refresh};
pub use table::{Change, KeySource, Keys, MwType, Region, RegionTable, RegisterError};
pub use user::UserMemory;
