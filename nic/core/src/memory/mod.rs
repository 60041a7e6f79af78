//! Registered memory, which the application lends to the device, and the only code that accesses it.
//!
//! Remote peers write into registered memory while the application reads it, and the application may unmap or protect
//! it while it is registered. A Rust reference allows neither, so no reference ever points into registered memory.
//! Three functions access it, all in `copy.rs`: copy out, copy in, and atomic update. They survive unmapped memory:
//! the access returns a [`Fault`], which the transport turns into LOC_PROT_ERR or a NAK, and the process goes on.
//!
//! * [`RegionTable`] maps keys to regions and memory windows, and makes every access check. It is the transport's
//!   [`qp::Memory`].
//! * [`UserMemory`] is memory that can be registered. It is the one place where a program vouches for its own
//!   addresses.
//! * [`MemoryBuffer`] is page-aligned memory of the library with safe racy access, for programs in Rust.
//! * [`install`] and [`refresh`] manage the signal handler for fault recovery.
//!
//! A copy out can compute the CRC-32 of what it copies (`copy/x86_64/fold.rs`): the ICRC of a long packet then takes no
//! pass of its own. Processors without AVX-512 and VPCLMULQDQ take two passes.
//!
//! # What an application can rely on
//!
//! * **The end of a write comes last.** Programs poll the last byte of a message. The last 1, 2, 4 or 8 bytes
//!   (the largest naturally aligned word that ends where the write ends) are stored last, by one instruction
//!   and with release order: a thread that sees the last byte sees all bytes.
//! * **Aligned words of 1, 2, 4 or 8 bytes that are written or read as a whole message are never torn.** Real devices
//!   behave like this, and programs rely on it to exchange counters and flags, although the InfiniBand architecture
//!   guarantees it only for atomic operations. Words in the middle of a longer message may be torn.
//! * **RDMA atomics are processor atomics**, so they are atomic with respect to the application's own.
//!
//! On the slow path below, the second guarantee does not hold, and the first one only for the last byte.
//!
//! # Faults
//!
//! On x86-64 the copies are assembly routines at known addresses. A handler for SIGSEGV and SIGBUS moves a thread
//! that faults in them to their recovery point. Every other fault goes to the handler that the program had installed
//! before. So a copy costs nothing extra, and a fault costs about 4 us. On the slow path the kernel copies
//! (`process_vm_readv` and `process_vm_writev` on the process itself, more than 1 us per call). The slow path is used
//! if the program replaced the handler afterwards, and on other processors.
//!
//! Real hardware pins registered pages and silently keeps writing to them after the program has unmapped them. Here
//! the peer gets an error. Nothing is ever pinned, so every region behaves like one with on-demand paging. The right
//! ON_DEMAND makes no difference, except that [`RegionTable::advise`] requires it, as the kernel does.

#[cfg(test)]
mod child_tests;
mod copy;
mod path;
mod region;
mod table;
mod user;

#[cfg(target_arch = "x86_64")]
pub use copy::recovery_point;
pub use copy::{Advice, Fault};
pub use path::{install, refresh};
pub use region::{BufferError, MemoryBuffer};
pub use table::{Change, KeySource, Keys, MwType, Region, RegionTable, RegisterError};
pub use user::UserMemory;
