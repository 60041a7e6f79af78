//! Flow and congestion control between ports on real sockets: credits that keep a stock buffer from overrunning, peers that
//! are not ours and notice nothing, notifications of congestion, and partners that die and come back.

mod congestion;
mod foreign;
mod load;
mod overrun;
mod restart;

use rnic::{Device, DeviceConfig};
use rnic_tests::counter;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// What an unprivileged program gets of a stock kernel, whose `net.core.rmem_max` this is; the kernel doubles it.
const STOCK_RMEM_MAX: usize = 212_992;

/// Longer than anything here takes, whatever the machine does meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);

/// A port with a stock socket buffer, this link and this congestion control.
fn config(address: IpAddr, link: &str, cc: &str) -> DeviceConfig {
    DeviceConfig {
        link: link.parse().expect("a link"),
        cc: cc.parse().expect("an algorithm"),
        recv_buffer: Some(STOCK_RMEM_MAX),
        ..DeviceConfig::at(address)
    }
}

fn device(address: IpAddr, link: &str, cc: &str) -> Device {
    Device::open(&config(address, link, cc)).expect("a device")
}

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// All counters of a device that are not zero, for messages.
fn moved(device: &Device) -> Vec<(&'static str, u64)> {
    device.counters().iter().filter(|(_, value)| *value > 0).collect()
}

/// How many partners a device has met.
fn met(device: &Device) -> u64 {
    counter(device, "partners_met")
}
