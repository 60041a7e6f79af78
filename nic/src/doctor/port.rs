//! Which program has UDP port 4791.

use super::{Finding, Severity, address_from_hex};
use crate::net::ROCE_PORT;
use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};

/// Which program has UDP port 4791 on an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortHolder {
    /// What the socket is bound to; a wildcard address takes all of its family.
    pub address: SocketAddr,
    /// The user it belongs to.
    pub uid: u32,
    /// The program that has it, as far as it can be known.
    pub owner: Owner,
}

impl PortHolder {
    /// Whether nobody else can serve `ip` while this socket is there.
    #[must_use]
    pub fn blocks(&self, ip: IpAddr) -> bool {
        match self.address.ip() {
            IpAddr::V4(any) if any.is_unspecified() => ip.is_ipv4(),
            // Unless it is for IPv6 only, which the kernel's list does not tell.
            IpAddr::V6(any) if any.is_unspecified() => true,
            one => one.to_canonical() == ip.to_canonical(),
        }
    }
}

/// The sockets of this network namespace that are bound to UDP port 4791.
///
/// # Errors
/// When `/proc` does not list sockets.
pub fn port_holders() -> std::io::Result<Vec<PortHolder>> {
    let mut bound = bound_to(ROCE_PORT, &fs::read_to_string("/proc/net/udp")?);
    // A kernel without IPv6 has no such file.
    bound.extend(bound_to(ROCE_PORT, &fs::read_to_string("/proc/net/udp6").unwrap_or_default()));
    let inodes: Vec<_> = bound.iter().map(|b| b.inode).collect();
    let owners = owners(&inodes);
    let owner = |inode| owners.get(inode).cloned().unwrap_or(Owner::Hidden);
    Ok(bound.iter().map(|b| PortHolder { address: b.address, uid: b.uid, owner: owner(&b.inode) }).collect())
}

/// A bound UDP socket, as `/proc/net/udp` and `/proc/net/udp6` list it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bound {
    /// What it is bound to.
    pub(super) address: SocketAddr,
    /// The user it belongs to.
    pub(super) uid: u32,
    /// The inode number of the socket.
    pub(super) inode: u64,
}

/// The owner of a socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A process with this name.
    Process {
        /// Process id.
        pid: u32,
        /// The first 15 bytes of its name.
        name: String,
    },
    /// No process has it, and we saw them all: the kernel.
    Kernel,
    /// Not among the processes we may look at.
    Hidden,
}

/// The sockets bound to `port` in the text of `/proc/net/udp` or `/proc/net/udp6`. Lines that make no sense
/// are passed over.
pub(super) fn bound_to(port: u16, table: &str) -> Vec<Bound> {
    let parse = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let (ip, number) = fields.get(1)?.split_once(':')?;
        let address = SocketAddr::new(address_from_hex(ip)?, u16::from_str_radix(number, 16).ok()?);
        Some(Bound { address, uid: fields.get(7)?.parse().ok()?, inode: fields.get(9)?.parse().ok()? })
    };
    table.lines().filter_map(parse).filter(|bound| bound.address.port() == port).collect()
}

/// The inode number in the target of a link such as `socket:[12345]`.
pub(super) fn socket_inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Looks for the processes that hold the sockets with these inodes.
fn owners(inodes: &[u64]) -> BTreeMap<u64, Owner> {
    let mut found = BTreeMap::new();
    let mut all_seen = true;
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else {
            // A process that just ended is nothing to worry about.
            all_seen &= !process.path().exists();
            continue;
        };
        let links = descriptors.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        for inode in links.filter_map(|link| socket_inode(link.to_str()?)) {
            if inodes.contains(&inode) {
                let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                found.insert(inode, Owner::Process { pid, name: name.trim().to_owned() });
            }
        }
    }
    let absent = if all_seen { Owner::Kernel } else { Owner::Hidden };
    for inode in inodes {
        found.entry(*inode).or_insert_with(|| absent.clone());
    }
    found
}

/// One line for each socket on the port.
pub(super) fn judge(bound: &Bound, owner: &Owner, rxe_loaded: bool) -> Finding {
    let by = match owner {
        Owner::Process { pid, name } => format!("process {pid} ({name})"),
        Owner::Kernel if rxe_loaded => "the kernel, for rdma_rxe".to_owned(),
        // Processes of other PID namespaces are invisible even to root.
        Owner::Kernel => "the kernel (rdma_rxe?) or another container".to_owned(),
        Owner::Hidden => format!("the kernel or a process of user {} that is not visible", bound.uid),
    };
    let what = |extra: &str| format!("UDP {} is in use by {by}{extra}", bound.address);
    let free = match owner {
        Owner::Process { .. } => "stop that process, or use a network namespace",
        Owner::Kernel if rxe_loaded => {
            "delete the rxe links (rdma link show, rdma link delete NAME), or use a network namespace"
        }
        Owner::Kernel | Owner::Hidden => {
            "run `rnic doctor` as root on the host to learn more, or use a network namespace"
        }
    };
    match bound.address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Finding::problem(what(": no IPv4 address is left"), free),
        IpAddr::V6(ip) if ip.is_unspecified() => Finding::problem(
            what(": no IPv6 address is left, and no IPv4 address either unless it is IPv6-only"),
            free,
        ),
        ip if ip.is_multicast() => Finding::ok(what(": a multicast group, which programs share")),
        _ => Finding::new(Severity::Note, what(""), Some("use another address of this host")),
    }
}

/// Looks at this host.
pub(super) fn examine(rxe_loaded: bool) -> Vec<Finding> {
    let tables = ["/proc/net/udp", "/proc/net/udp6"].map(|path| fs::read_to_string(path).ok());
    if tables.iter().all(Option::is_none) {
        return vec![Finding::note(
            format!("cannot find out which programs use UDP port {ROCE_PORT}: /proc/net/udp is not readable"),
            "mount /proc",
        )];
    }
    let bound: Vec<_> = tables.iter().flatten().flat_map(|table| bound_to(ROCE_PORT, table)).collect();
    if bound.is_empty() {
        return vec![Finding::ok(format!("UDP port {ROCE_PORT} is free on all addresses"))];
    }
    let inodes: Vec<_> = bound.iter().map(|b| b.inode).collect();
    let owners = owners(&inodes);
    bound.iter().map(|b| judge(b, owners.get(&b.inode).unwrap_or(&Owner::Hidden), rxe_loaded)).collect()
}
