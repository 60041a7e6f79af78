//! Addresses of registered memory in virtual time.
//!
//! The kernel maps memory at other addresses in every run. A device in virtual time names the memory that it allocates by
//! addresses that follow from the order of its registrations, so that packets which carry an address, and their ICRCs, are
//! the same in every run of a program.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

/// The unit in which addresses are given out, in bytes: a page.
const PAGE: u64 = 4096;

/// The addresses of one device: 64 GiB, after which they go on into those of the next, which does no harm.
const SPAN_BITS: u32 = 36;

/// The address space of a device. Addresses are never given out again.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    next: AtomicU64,
}

impl AddressSpace {
    /// That of the device with this address: each device of a network has one of its own, so that a reader of a capture
    /// sees whose memory is meant.
    pub(crate) fn of(address: IpAddr) -> Self {
        let number = match address {
            IpAddr::V4(v4) => u32::from(v4) & 0xff_ffff,
            IpAddr::V6(_) => 1,
        };
        Self { next: AtomicU64::new(u64::from(number) << SPAN_BITS) }
    }

    /// A place for `len` bytes. It begins with a page, as fresh memory does, and a free page follows it.
    pub(crate) fn place(&self, len: usize) -> u64 {
        // A length that wraps is refused with the registration.
        let pages = (len as u64).div_ceil(PAGE) + 1;
        self.next.fetch_add(pages.wrapping_mul(PAGE), Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_from_the_order_and_do_not_touch() {
        let space = AddressSpace::of([10, 0, 0, 2].into());
        let places = [1, 4096, 4097, 0].map(|len| space.place(len));
        assert_eq!(places, [0x20_0000_0000, 0x20_0000_2000, 0x20_0000_4000, 0x20_0000_7000]);
        assert_eq!(AddressSpace::of([10, 0, 0, 1].into()).place(1), 0x10_0000_0000);
        // The length is refused later, and the addresses go on.
        space.place(usize::MAX);
        assert_eq!(space.place(1) % PAGE, 0);
    }
}
