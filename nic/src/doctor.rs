//! An examination of the host: obstacles to RoCEv2 over its UDP sockets, and their remedies.
//!
//! [`examine`] reads `/proc`, `/sys` and a few sockets of its own. It changes nothing and needs no privilege, though
//! it sees less without one. The verdicts are functions of the texts found there.

mod library;
mod nat;
mod port;

#[cfg(test)]
mod tests;

pub use library::find_library;
pub use port::{Owner, PortHolder, port_holders};

use crate::net::{
    BindError, Capabilities, Gso, Interface, MAX_TRAIN_BYTES, RoceSocket, SocketConfig, interfaces,
    receive_charge,
};
use nix::sys::uio::{RemoteIoVec, process_vm_writev};
use nix::unistd::Pid;
use serde::Serialize;
use std::fs;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr};

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Works, but could be better; or cannot be determined.
    Note,
    /// Some uses will fail or be slow.
    Warning,
    /// Nothing will work until this is fixed.
    Problem,
}

/// One line about the host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// The finding.
    pub what: String,
    /// The remedy, if there is one.
    pub remedy: Option<String>,
}

impl Finding {
    fn new(severity: Severity, what: impl Into<String>, remedy: Option<&str>) -> Self {
        Self { severity, what: what.into(), remedy: remedy.map(Into::into) }
    }

    fn ok(what: impl Into<String>) -> Self {
        Self::new(Severity::Ok, what, None)
    }

    fn note(what: impl Into<String>, remedy: &str) -> Self {
        Self::new(Severity::Note, what, Some(remedy))
    }

    fn warning(what: impl Into<String>, remedy: &str) -> Self {
        Self::new(Severity::Warning, what, Some(remedy))
    }

    fn problem(what: impl Into<String>, remedy: &str) -> Self {
        Self::new(Severity::Problem, what, Some(remedy))
    }
}

/// Examines this host, in the network namespace of the calling thread.
#[must_use]
pub fn examine() -> Vec<Finding> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let modules = read("/proc/modules").unwrap_or_default();
    let mut findings = rdma_stack(&modules, &names_in("/sys/class/infiniband"));
    findings.push(library::connection_manager(find_library("librdmacm.so.1").as_deref()));
    findings.extend(port::examine(has_module(&modules, "rdma_rxe")));
    match RoceSocket::bind_first_free_loopback(&SocketConfig::new(Ipv4Addr::LOCALHOST.into())) {
        Ok(socket) => {
            findings.push(Finding::ok(format!("the default address of programs is {}", socket.ip())));
            findings.extend(offloads(&socket.capabilities()));
            let charge = receive_charge(socket.ip(), 0, MAX_PACKET).ok();
            findings.push(receive_buffer(
                socket.rcvbuf(),
                charge,
                number(read("/proc/sys/net/core/rmem_max").as_deref()),
            ));
        }
        Err(error) => findings.push(no_socket(&error)),
    }
    findings.extend(send_buffer(number(read("/proc/sys/net/core/wmem_default").as_deref())));
    let cards = names_in("/sys/class/net").into_iter();
    let cards = cards.filter(|name| fs::exists(format!("/sys/class/net/{name}/device")).unwrap_or(false));
    findings.extend(busy_read(
        number(read("/proc/sys/net/core/busy_read").as_deref()),
        &cards.collect::<Vec<_>>(),
    ));
    findings.extend(overruns(&read("/proc/net/snmp").unwrap_or_default()));
    findings.extend(interface_list(&interfaces().unwrap_or_default()));
    findings.extend(nat::judge(
        read("/proc/net/ip_tables_names").as_deref(),
        read("/proc/net/nf_conntrack").as_deref(),
        has_module(&modules, "nft_chain_nat"),
    ));
    findings.push(ipv6_loopback(read("/proc/net/if_inet6").as_deref()));
    findings.push(user_namespaces(
        read("/proc/sys/user/max_user_namespaces").as_deref(),
        read("/proc/sys/kernel/unprivileged_userns_clone").as_deref(),
        read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").as_deref(),
    ));
    findings.push(own_memory(write_own_memory()));
    findings
}

/// The longest packet of the largest path MTU: 4096 bytes, BTH, RETH and ICRC.
const MAX_PACKET: usize = 4096 + 12 + 16 + 4;

/// The number in a file of one number.
fn number(text: Option<&str>) -> Option<u64> {
    text?.trim().parse().ok()
}

/// The entries of a directory, sorted; none if it does not exist.
fn names_in(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Whether `/proc/modules` lists a module.
fn has_module(modules: &str, name: &str) -> bool {
    modules.lines().any(|line| line.split_whitespace().next() == Some(name))
}

/// RDMA support in the kernel itself.
fn rdma_stack(modules: &str, devices: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (module, what) in
        [("rdma_rxe", "the kernel's software RoCEv2"), ("siw", "the kernel's software iWARP")]
    {
        if has_module(modules, module) {
            let what = format!("the module {module} is loaded ({what})");
            findings.push(Finding::new(Severity::Note, what, None));
        }
    }
    if devices.is_empty() {
        findings.push(Finding::ok("the kernel has no RDMA devices"));
    } else {
        findings.push(Finding::note(
            format!("the kernel has RDMA devices: {}", devices.join(", ")),
            "choose the device in programs that have an option (ib_write_bw -d, UCX_NET_DEVICES)",
        ));
    }
    findings
}

fn no_socket(error: &BindError) -> Finding {
    let remedy = "free port 4791, or use a network namespace (unshare -Urn, then ip link set lo up)";
    match error {
        BindError::NoFreeLoopback { port } => {
            Finding::problem(format!("UDP port {port} is in use on all loopback addresses"), remedy)
        }
        other => Finding::problem(format!("no loopback address can be used: {other}"), remedy),
    }
}

/// The UDP offloads of the kernel.
fn offloads(capabilities: &Capabilities) -> Vec<Finding> {
    let mut findings = vec![match capabilities.gso {
        Gso::Works => Finding::ok("UDP segmentation offload (GSO) works"),
        Gso::Unknown => Finding::note(
            "UDP segmentation offload (GSO) could not be tested",
            "look for a firewall rule that drops UDP from this host to itself",
        ),
        Gso::Refused => Finding::warning(
            "no UDP segmentation offload (GSO): sending is about 4 times slower",
            "use Linux 4.18 or later; gVisor and similar sandboxes do not support it",
        ),
    }];
    findings.push(if capabilities.gro {
        Finding::ok("UDP receive offload (GRO) works")
    } else {
        Finding::warning(
            "no UDP receive offload (GRO): receiving is about 3 times slower",
            "use Linux 5.0 or later",
        )
    });
    if !capabilities.tos {
        findings.push(Finding::warning(
            "the kernel does not report the TOS of received packets: ECN and congestion control (DCQCN) do not work",
            "use a kernel with IP_RECVTOS",
        ));
    }
    findings
}

/// The capacity of the effective receive buffer, `charge` being what the kernel charges for a packet of 4 KiB.
fn receive_buffer(effective: usize, charge: Option<u32>, rmem_max: Option<u64>) -> Finding {
    /// What an unconfigured Linux grants: twice its `rmem_max` of 212,992.
    const STOCK: usize = 2 * 212_992;
    let fits = match charge {
        Some(charge @ 1..) => format!("{} single packets of 4 KiB", effective / charge as usize),
        _ => format!("at most {} full trains", effective / MAX_TRAIN_BYTES),
    };
    let limit = rmem_max.map_or_else(String::new, |max| format!(" (net.core.rmem_max is {max})"));
    let what = format!("receive buffers have {effective} bytes and hold {fits}{limit}");
    // What it brings on one host: see `PeerWindow::on_host`.
    let remedy = "for bursts from many peers, and for large messages between programs on this host, run sysctl -w \
                  net.core.rmem_max=8388608 on the host";
    match effective {
        ..STOCK => Finding::warning(what, remedy),
        STOCK => Finding::note(what, remedy),
        _ => Finding::ok(what),
    }
}

/// Whether a socket's send buffer takes a train and the one behind it.
fn send_buffer(wmem_default: Option<u64>) -> Option<Finding> {
    let bytes = wmem_default?;
    Some(if bytes < 2 * MAX_TRAIN_BYTES as u64 {
        Finding::warning(
            format!("send buffers have {bytes} bytes (net.core.wmem_default), less than two full trains"),
            "run sysctl -w net.core.wmem_default=212992 (the kernel's default)",
        )
    } else {
        Finding::ok(format!("send buffers have {bytes} bytes (net.core.wmem_default)"))
    })
}

/// Whether a program that polls its socket looks at the queues of network cards. `cards`: interfaces with hardware behind
/// them; loopback and veth have no queues to look at.
fn busy_read(micros: Option<u64>, cards: &[String]) -> Option<Finding> {
    let (micros, [first, ..]) = (micros?, cards) else { return None };
    Some(if micros == 0 {
        Finding::note(
            format!(
                "a poll does not look at the card behind {first}, but waits for its interrupt (net.core.busy_read is 0)"
            ),
            "for lower latency between hosts, try sysctl -w net.core.busy_read=50 and compare with rnic perf --test lat",
        )
    } else {
        Finding::ok(format!("polls look at network cards for up to {micros} us (net.core.busy_read)"))
    })
}

/// Losses that the kernel counted in `/proc/net/snmp`: pairs of lines, names and values.
fn overruns(snmp: &str) -> Option<Finding> {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Udp:"));
    let (names, values) = (lines.next()?.split_whitespace(), lines.next()?.split_whitespace());
    let (_, value) = names.zip(values).find(|(name, _)| *name == "RcvbufErrors")?;
    let lost: u64 = value.parse().ok()?;
    (lost > 0).then(|| {
        Finding::note(
            format!("full receive buffers have dropped {lost} UDP datagrams of all programs since the host started"),
            "if the number grows while RDMA runs (nstat UdpRcvbufErrors), increase net.core.rmem_max",
        )
    })
}

/// The MTUs of the interfaces that are up, and whether loopback is up.
fn interface_list(all: &[Interface]) -> Vec<Finding> {
    let mut findings: Vec<_> = all.iter().filter(|i| i.up).map(|i| path_mtu(&i.name, i.mtu)).collect();
    if !all.iter().any(|i| i.loopback && i.up) {
        findings.push(Finding::problem(
            "the loopback interface is down: programs on this host cannot reach each other",
            "run ip link set lo up",
        ));
    }
    findings
}

/// The effect of an interface's MTU on RDMA.
fn path_mtu(name: &str, mtu: u32) -> Finding {
    match qp::Mtu::for_interface(mtu) {
        Some(qp::Mtu::B4096) => Finding::ok(format!("{name}: MTU {mtu} supports path MTU 4096")),
        Some(path) => Finding::note(
            format!("{name}: MTU {mtu} supports path MTU {} at most", path.bytes()),
            "use jumbo frames if switches and peers support them; an MTU of 4200 supports path MTU 4096",
        ),
        None => Finding::warning(
            format!("{name}: MTU {mtu} is too small for RoCEv2"),
            "use an MTU of at least 356, for path MTU 256",
        ),
    }
}

/// Whether `/proc/net/if_inet6` lists ::1.
fn ipv6_loopback(if_inet6: Option<&str>) -> Finding {
    /// ::1 in the format of the file.
    const LOOPBACK: &str = "00000000000000000000000000000001";
    let remedy = "only IPv6 needs this: run sysctl -w net.ipv6.conf.all.disable_ipv6=0 and ip link set lo up";
    match if_inet6 {
        None => Finding::note("this host has no IPv6", remedy),
        Some(text) if text.lines().any(|l| l.split_whitespace().next() == Some(LOOPBACK)) => {
            Finding::ok("IPv6 loopback (::1) is available, for one process at a time")
        }
        Some(_) => Finding::note("this host has IPv6, but not its loopback address ::1", remedy),
    }
}

/// Whether users may create network namespaces, according to the settings.
fn user_namespaces(max: Option<&str>, debian_clone: Option<&str>, apparmor: Option<&str>) -> Finding {
    let what = "unprivileged users cannot create network namespaces";
    let why = "two IPv6 programs on one host then need two addresses other than ::1";
    if number(max) == Some(0) || max.is_none() {
        return Finding::note(
            format!("{what}: {why}"),
            "run sysctl -w user.max_user_namespaces=15000 on a kernel with CONFIG_USER_NS",
        );
    }
    if number(debian_clone) == Some(0) {
        return Finding::note(format!("{what}: {why}"), "run sysctl -w kernel.unprivileged_userns_clone=1");
    }
    if number(apparmor) == Some(1) {
        return Finding::note(
            format!("{what} where AppArmor confines them: {why}"),
            "run sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or use an AppArmor profile with userns",
        );
    }
    Finding::ok("unprivileged users may create network namespaces (unless a container forbids it)")
}

/// Writes a byte of our own memory by `process_vm_writev`.
fn write_own_memory() -> io::Result<()> {
    let mut target = [0u8];
    let remote = [RemoteIoVec { base: target.as_mut_ptr().expose_provenance(), len: 1 }];
    process_vm_writev(Pid::this(), &[IoSlice::new(&[1])], &remote)?;
    if std::hint::black_box(&target) == &[1] { Ok(()) } else { Err(io::ErrorKind::Other.into()) }
}

/// The meaning of a failure of [`write_own_memory`].
fn own_memory(outcome: io::Result<()>) -> Finding {
    match outcome {
        Ok(()) => Finding::ok("process_vm_writev works"),
        Err(error) => Finding::warning(
            format!("process_vm_writev fails ({error}): a program that unmaps registered memory may crash"),
            "allow process_vm_writev in the container's seccomp profile",
        ),
    }
}

/// How a socket of `/proc/net/udp` shows an address: words in the host's byte order, printed in hexadecimal.
fn address_from_hex(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| Some(u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    match hex.len() {
        8 => Some(IpAddr::from(word(0)?)),
        32 => {
            let mut octets = [0; 16];
            for (i, part) in octets.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(8 * i)?);
            }
            Some(IpAddr::from(octets))
        }
        _ => None,
    }
}
