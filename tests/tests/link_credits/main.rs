//! Flow and congestion control between ports on real sockets: credits that keep a stock buffer from overflowing,
//! foreign peers that notice nothing, congestion notifications, and partners that die and come back.

mod congestion;
mod foreign;
mod load;
mod overrun;
mod restart;

use rnic::{Device, DeviceConfig};
use rnic_tests::counter;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The socket buffer limit of an unprivileged program on a stock kernel (`net.core.rmem_max`); the kernel doubles
/// it.
const STOCK_RMEM_MAX: usize = 212_992;

/// Longer than anything here takes, however busy the machine is.
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
    config(address, link, cc).open().expect("a device")
}

/// Waits until a condition holds.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// All non-zero counters of a device, for failure messages.
fn moved(device: &Device) -> Vec<(&'static str, u64)> {
    device.counters().iter().filter(|(_, value)| *value > 0).collect()
}

/// Number of partners that a device has met.
fn met(device: &Device) -> u64 {
    counter(device, "partners_met")
}
