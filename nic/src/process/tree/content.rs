//! The files and links of a tree, and their contents. Names and formats are those of the kernel
//! (`drivers/infiniband/core`: `sysfs.c`, `device.c`, `uverbs_main.c`).

use super::view::View;
use crate::process::{GidLayout, ProcessConfig, speed};
use qp::Gid;
use rnic_core::engine::DropReason;
use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};

/// A file: its path below the root of the tree, and its content.
type File = (String, String);

/// Which files are asked for: to make one takes long if the tree is on a disk.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted<'a> {
    All,
    /// One at this path, or those below it.
    At(&'a Path),
}

impl Wanted<'_> {
    /// Whether this file is.
    fn file(self, path: &str) -> bool {
        match self {
            Self::All => true,
            Self::At(at) => Path::new(path).starts_with(at),
        }
    }

    /// Whether any file of this folder may be.
    pub(super) fn any_in(self, folder: &str) -> bool {
        match self {
            Self::All => true,
            Self::At(at) => at.starts_with(folder) || Path::new(folder).starts_with(at),
        }
    }
}

/// The paths of a device: its folder, and that of its interface for programs.
pub(super) fn folders(name: &str, number: usize) -> [String; 2] {
    [format!("sys/class/infiniband/{name}"), format!("sys/class/infiniband_verbs/uverbs{number}")]
}

/// Where the kernel would have devices that are on no bus. Each has a folder here, and in that the folders to which those in
/// [`folders`] are links.
pub(super) const DEVICES: &str = "sys/devices/virtual/rnic";

/// The targets of the links in [`folders`].
pub(super) fn homes(name: &str, number: usize) -> [String; 2] {
    let device = format!("{DEVICES}/{name}");
    [format!("{device}/infiniband/{name}"), format!("{device}/infiniband_verbs/uverbs{number}")]
}

/// The path, by [`folders`], of what is at this path.
pub(super) fn by_class(path: &Path) -> Cow<'_, Path> {
    let mut parts = path.strip_prefix(DEVICES).unwrap_or(Path::new("")).components();
    let Some(Component::Normal(device)) = parts.next() else { return path.into() };
    let rest = parts.as_path();
    for class in ["infiniband", "infiniband_verbs"] {
        if let Ok(inside) = rest.strip_prefix(class)
            && inside != Path::new("")
        {
            return Path::new("sys/class").join(class).join(inside).into();
        }
    }
    Path::new("sys/class/infiniband").join(device).join("device").join(rest).into()
}

/// The files that all devices share.
pub(super) fn of_process(process: &ProcessConfig) -> Vec<File> {
    // The version of the interface between rdma-core and the kernel's uverbs: IB_USER_VERBS_ABI_VERSION.
    let mut files = vec![("sys/class/infiniband_verbs/abi_version".to_owned(), "6\n".to_owned())];
    // That between librdmacm and the kernel's connection manager: RDMA_USER_CM_ABI_VERSION.
    files.push(("sys/class/misc/rdma_cm/abi_version".to_owned(), "4\n".to_owned()));
    // A program that opens one gets /dev/null, or a channel of the connection manager; these exist to be listed.
    files.push(("dev/infiniband/rdma_cm".to_owned(), String::new()));
    files.extend((0..process.devices.len()).map(|n| (format!("dev/infiniband/uverbs{n}"), String::new())));
    files
}

/// The files of a device.
pub(super) fn files(view: &View<'_>, number: usize, wanted: Wanted<'_>) -> impl Iterator<Item = File> {
    let all = fixed(view, number).into_iter().chain(live(view, wanted));
    all.filter(move |(path, _)| wanted.file(path))
}

/// The files of a device that never change.
fn fixed(view: &View<'_>, number: usize) -> Vec<File> {
    let [device, verbs] = folders(&view.device.name, number);
    let port = format!("{device}/ports/1");
    let guid = guid(view.device.guid);
    let name = &view.device.name;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let at = |folder: &str, name: &str, text: &str| (format!("{folder}/{name}"), format!("{text}\n"));
    vec![
        at(&device, "node_type", "1: CA"),
        at(&device, "node_guid", &guid),
        at(&device, "sys_image_guid", &guid),
        at(&device, "fw_ver", env!("CARGO_PKG_VERSION")),
        at(&device, "hw_rev", "0"),
        at(&device, "hca_type", "rnic"),
        at(&device, "board_id", "rnic"),
        at(&device, "node_desc", &format!("{} {name}", host.trim_end())),
        // There is no PCI device. Reading from a missing one gives all ones.
        at(&device, "device/vendor", "0xffff"),
        at(&device, "device/device", "0xffff"),
        at(&device, "device/numa_node", numa_node()),
        at(&port, "lid", "0x0"),
        at(&port, "sm_lid", "0x0"),
        at(&port, "sm_sl", "0"),
        at(&port, "lid_mask_count", "0"),
        // IB_PORT_CM_SUP only.
        at(&port, "cap_mask", "0x00010000"),
        at(&port, "link_layer", "Ethernet"),
        at(&port, "rate", speed(view.device.config.link.rate).text()),
        at(&verbs, "ibdev", name),
        at(&verbs, "abi_version", "1"),
        // IB_UVERBS_MAJOR and IB_UVERBS_BASE_MINOR.
        at(&verbs, "dev", &format!("231:{}", 192 + number)),
    ]
}

/// The NUMA node of all devices: 0 where the host has no other. Some programs refuse a device without one, which is -1.
fn numa_node() -> &'static str {
    let online = std::fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    if online.trim_end() == "0" { "0" } else { "-1" }
}

/// Symbolic links and their targets. The folders of a device and of its interface are links in the kernel, too.
pub(super) fn links(view: &View<'_>, number: usize) -> Vec<(PathBuf, PathBuf)> {
    let (name, netdev) = (&view.device.name, &view.netdev);
    let link = |path: String, to: String| (PathBuf::from(path), PathBuf::from(to));
    let mut links = vec![link(format!("{DEVICES}/{name}/net/{netdev}"), format!("/sys/class/net/{netdev}"))];
    for (folder, home) in folders(name, number).into_iter().zip(homes(name, number)) {
        links.push(link(format!("{home}/device"), format!("../../../{name}")));
        links.push(link(folder, home.replacen("sys", "../..", 1)));
    }
    links
}

/// The files that may change while a program runs, and of which some are wanted.
fn live(view: &View<'_>, wanted: Wanted<'_>) -> Vec<File> {
    let port = format!("sys/class/infiniband/{}/ports/1", view.device.name);
    let (state, phys_state) =
        if view.active { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
    let mut files = vec![
        (format!("{port}/state"), format!("{state}\n")),
        (format!("{port}/phys_state"), format!("{phys_state}\n")),
    ];
    let [gids, types, netdevs] =
        ["gids", "gid_attrs/types", "gid_attrs/ndevs"].map(|folder| format!("{port}/{folder}"));
    for index in 0..GidLayout::ENTRIES {
        let entry = view.gids.iter().find(|entry| entry.index == index);
        let netdev = entry.and_then(|entry| entry.interface.as_ref()).map(|interface| &*interface.name);
        // The kernel fails a read of type or interface of an empty entry; here the files are empty.
        let line = |text: Option<&str>| text.map(|text| format!("{text}\n")).unwrap_or_default();
        let mut add = |folder: &String, text: &dyn Fn() -> String| {
            if wanted.any_in(folder) {
                files.push((format!("{folder}/{index}"), text()));
            }
        };
        add(&gids, &|| format!("{}\n", gid(entry.map(|entry| entry.gid).unwrap_or_default())));
        add(&types, &|| line(entry.map(|entry| entry.gid_type.name())));
        add(&netdevs, &|| line(netdev));
    }
    let keys = view.pkeys.iter().enumerate();
    files.extend(keys.map(|(index, key)| (format!("{port}/pkeys/{index}"), format!("{:#06x}\n", key.0))));
    let [own, ib] = ["hw_counters", "counters"].map(|folder| format!("{port}/{folder}"));
    if wanted.any_in(&ib) {
        files.extend(port_counters(view).map(|(name, value)| (format!("{ib}/{name}"), format!("{value}\n"))));
    }
    if wanted.any_in(&own) {
        let counters = view.counters.iter();
        files.extend(counters.map(|(name, value)| (format!("{own}/{name}"), format!("{value}\n"))));
        // How long the kernel caches values before it asks the hardware again, in milliseconds. These are always current.
        files.push((format!("{own}/lifespan"), "0\n".to_owned()));
    }
    files
}

/// Whether a path is that of a counter.
pub(super) fn is_counter(inside: &Path) -> bool {
    let folder = inside.parent().and_then(Path::file_name);
    inside.starts_with("sys/class/infiniband")
        && folder.is_some_and(|name| name == "counters" || name == "hw_counters")
}

/// The counters of InfiniBand's PortCounters attribute (IBTA 16.1.3.5) that have a meaning here. Data is counted in units of
/// four bytes.
fn port_counters(view: &View<'_>) -> impl Iterator<Item = (&'static str, u64)> {
    let dropped: u64 = DropReason::ALL.iter().map(|reason| view.counter(reason.name())).sum();
    [
        ("port_xmit_data", view.counter("tx_bytes") / 4),
        ("port_rcv_data", view.counter("rx_bytes") / 4),
        ("port_xmit_packets", view.counter("tx_packets")),
        ("port_rcv_packets", view.counter("rx_packets")),
        ("port_rcv_errors", dropped),
        ("port_xmit_discards", view.counter("tx_port_down")),
        ("excessive_buffer_overrun_errors", view.counter("excessive_buffer_overrun_errors")),
    ]
    .into_iter()
}

/// A GUID as the kernel writes it.
fn guid(guid: [u8; 8]) -> String {
    groups(&guid)
}

/// A GID as the kernel writes it, without shortening zeroes.
fn gid(gid: Gid) -> String {
    groups(&gid.0)
}

fn groups(bytes: &[u8]) -> String {
    let groups =
        bytes.chunks(2).map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    groups.collect::<Vec<_>>().join(":")
}
