//! Addresses for tests that run in parallel.

use rnic::net::BindError;
use rnic::{Device, DeviceConfig, Error};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A loopback address that no other test uses: 127.128.0.0/9, with 15 bits of the process ID and 8 of a counter.
/// Devices that take the first free address start at 127.0.0.1 and never get this far.
///
/// # Panics
///
/// Panics after 254 addresses in one process.
#[must_use]
pub fn fresh_address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let nth = NEXT.fetch_add(1, Ordering::Relaxed);
    assert!(nth < 255, "this process has used up its addresses");
    let process = std::process::id() & 0x7fff;
    IpAddr::V4(Ipv4Addr::from(127 << 24 | 1 << 23 | process << 8 | nth))
}

/// A device of this process at an address of its own.
///
/// # Panics
///
/// Panics if it cannot be opened.
#[must_use]
pub fn open() -> Device {
    DeviceConfig::at(fresh_address()).open().expect("a device at a fresh address")
}

/// A device at an address whose last device this process has just dropped. A process that another test is starting
/// may hold a copy of its sockets until it executes its program, so the address may be in use a moment longer.
///
/// # Panics
///
/// Panics if it cannot be opened, or the address is not free after 30 seconds.
#[must_use]
pub fn reopen(config: &DeviceConfig) -> Device {
    let begin = Instant::now();
    loop {
        match config.clone().open() {
            Err(Error::Open(BindError::AddressInUse(_))) if begin.elapsed() < Duration::from_secs(30) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return opened.expect("a device"),
        }
    }
}
