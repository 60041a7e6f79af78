//! The devices, as their files below `/sys/class/infiniband` show them: whoever asks in both ways is told the same.

use crate::devices::config;
use rnic::engine::QpSnapshot;
use rnic::process::{NamedDevice, ProcessConfig, PublishedQueuePairs, published_queue_pairs};
use std::path::{Path, PathBuf};

/// A device with one port. What a file does not tell is missing.
#[derive(Clone, Default, Debug)]
pub(super) struct Shown {
    pub(super) name: String,
    pub(super) firmware: Option<String>,
    pub(super) node_guid: Option<u64>,
    pub(super) sys_image_guid: Option<u64>,
    pub(super) node_type: Option<u8>,
    pub(super) port_state: Option<u8>,
    pub(super) physical_state: Option<u8>,
    /// The index and the name of the network interface.
    pub(super) netdev: Option<(u32, String)>,
}

/// A queue pair of a program.
#[derive(Clone, Debug)]
pub(super) struct ShownQp {
    /// The process that has it.
    pub(super) pid: u32,
    pub(super) qp: QpSnapshot,
}

/// What is known of devices.
pub(super) trait Devices {
    /// All, in the order of their indexes.
    fn all(&self) -> Vec<Shown>;

    /// The counters of a port of one, and their values now, in any order.
    fn counters(&self, device: &str) -> Vec<(String, u64)>;

    /// The queue pairs of one, of all programs that run.
    fn queue_pairs(&self, device: &str) -> Vec<ShownQp>;
}

/// The devices of this process.
pub(super) struct Own;

impl Devices for Own {
    fn all(&self) -> Vec<Shown> {
        let all = config().into_iter();
        all.flat_map(|config| config.devices.iter().map(|device| shown(config, &device.name))).collect()
    }

    fn counters(&self, device: &str) -> Vec<(String, u64)> {
        let folder = PathBuf::from(format!("/sys/class/infiniband/{device}/ports/1/hw_counters"));
        let Some(folder) = config().and_then(|config| config.map_path(&folder)) else { return Vec::new() };
        std::fs::read_dir(folder).map_or_else(|_| Vec::new(), |files| files.filter_map(counter).collect())
    }

    fn queue_pairs(&self, device: &str) -> Vec<ShownQp> {
        let all = config().into_iter().flat_map(|config| &config.devices);
        all.filter(|named| named.name == device).flat_map(queue_pairs).collect()
    }
}

/// Queue pairs of the devices that have the address of this one; if it takes the first address that is free, of those of its
/// name.
fn queue_pairs(device: &NamedDevice) -> Vec<ShownQp> {
    let all = device.run_dir.as_deref().and_then(|dir| published_queue_pairs(dir).ok()).unwrap_or_default();
    let is_it = |one: &PublishedQueuePairs| match device.addresses.as_slice() {
        [only] => one.address == only.ip,
        _ => one.device == device.name,
    };
    let shown =
        |one: PublishedQueuePairs| one.queue_pairs.into_iter().map(move |qp| ShownQp { pid: one.pid, qp });
    all.into_iter().filter(is_it).flat_map(shown).collect()
}

/// The counter in a file. How long the kernel caches counters is no counter.
fn counter(file: std::io::Result<std::fs::DirEntry>) -> Option<(String, u64)> {
    let file = file.ok()?;
    let name = file.file_name().into_string().ok().filter(|name| name != "lifespan")?;
    let value = std::fs::read_to_string(file.path()).ok()?.trim_end().parse().ok()?;
    Some((name, value))
}

fn shown(config: &ProcessConfig, name: &str) -> Shown {
    let folder = PathBuf::from(format!("/sys/class/infiniband/{name}"));
    let file = |path: &str| std::fs::read_to_string(config.map_path(&folder.join(path))?).ok();
    Shown {
        name: name.to_owned(),
        firmware: file("fw_ver").map(|text| text.trim_end().to_owned()),
        node_guid: file("node_guid").and_then(|text| guid(&text)),
        sys_image_guid: file("sys_image_guid").and_then(|text| guid(&text)),
        node_type: file("node_type").and_then(|text| number(&text)),
        port_state: file("ports/1/state").and_then(|text| number(&text)),
        physical_state: file("ports/1/phys_state").and_then(|text| number(&text)),
        netdev: config.map_path(&folder.join("device/net")).and_then(|folder| netdev(&folder)),
    }
}

/// A GUID in the form of the kernel: four groups of four digits.
pub(super) fn guid(text: &str) -> Option<u64> {
    u64::from_str_radix(&text.trim_end().replace(':', ""), 16).ok()
}

/// The number in front of its meaning, as in `4: ACTIVE`.
pub(super) fn number(text: &str) -> Option<u8> {
    text.split(':').next()?.trim().parse().ok()
}

/// The interface that the folder has a link to.
fn netdev(folder: &Path) -> Option<(u32, String)> {
    let name = std::fs::read_dir(folder).ok()?.next()?.ok()?.file_name().into_string().ok()?;
    let index = nix::net::if_::if_nametoindex(name.as_str()).ok()?;
    Some((index, name))
}
