//! The judgements, on made-up hosts.

use super::port::{Bound, Owner, bound_to, socket_inode};
use super::*;
use proptest::prelude::*;

/// `/proc/net/udp` of a little-endian host, and of a big-endian one where that is what we run on.
const UDP: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  112: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4711 2 0000000000000000 0
  113: 00000000:0044 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4712 2 0000000000000000 0
  114: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4713 2 0000000000000000 9
";

const UDP6: &str = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  112: 00000000000000000000000001000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 99 2 0000000000000000 0
";

fn bound(address: &str) -> Bound {
    Bound { address: address.parse().unwrap(), uid: 1000, inode: 4711 }
}

#[test]
#[cfg(target_endian = "little")]
fn sockets_on_the_port_are_found() {
    let rows = bound_to(4791, UDP);
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0], bound("127.0.0.1:4791"));
    assert_eq!(rows[1], Bound { address: "0.0.0.0:4791".parse().unwrap(), uid: 0, inode: 4713 });
    let rows = bound_to(4791, UDP6);
    assert_eq!(rows, [Bound { address: "[::1]:4791".parse().unwrap(), uid: 0, inode: 99 }]);
}

#[test]
fn our_own_socket_is_in_the_kernels_table() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let rows = bound_to(address.port(), &fs::read_to_string("/proc/net/udp").unwrap());
    assert!(rows.iter().any(|row| row.address == address), "{rows:?}");
}

#[test]
fn links_of_descriptors_name_sockets() {
    assert_eq!(socket_inode("socket:[12345]"), Some(12345));
    for other in ["pipe:[12345]", "socket:[x]", "socket:[1", "/dev/null", ""] {
        assert_eq!(socket_inode(other), None);
    }
}

#[test]
fn a_wildcard_is_a_problem_and_one_address_is_not() {
    let process = Owner::Process { pid: 7, name: "ib_write_bw".into() };
    let one = port::judge(&bound("127.0.0.1:4791"), &process, false);
    assert_eq!(one.severity, Severity::Note);
    assert_eq!(one.what, "UDP 127.0.0.1:4791 is in use by process 7 (ib_write_bw)");
    let group = port::judge(&bound("239.1.2.3:4791"), &process, false);
    assert_eq!((group.severity, group.what.ends_with("which programs share")), (Severity::Ok, true));
    let rxe = port::judge(&bound("0.0.0.0:4791"), &Owner::Kernel, true);
    assert_eq!(rxe.severity, Severity::Problem);
    assert!(rxe.what.contains("the kernel, for rdma_rxe"), "{rxe:?}");
    assert!(rxe.remedy.unwrap().contains("rdma link delete"));
    let hidden = port::judge(&bound("[::]:4791"), &Owner::Hidden, true);
    assert_eq!(hidden.severity, Severity::Problem);
    assert!(hidden.what.contains("user 1000"), "{hidden:?}");
}

#[test]
fn modules_and_devices_of_the_kernel_are_reported() {
    let modules = "rdma_rxe 200704 0 - Live 0x0000000000000000\nib_core 500000 1 rdma_rxe, Live 0x0\n";
    assert!(has_module(modules, "rdma_rxe"));
    assert!(!has_module(modules, "rdma"), "whole names only");
    let findings = rdma_stack(modules, &["mlx5_0".into(), "rxe0".into()]);
    assert_eq!(findings.len(), 2);
    assert!(findings[0].what.contains("rdma_rxe"));
    assert!(findings[1].what.ends_with("mlx5_0, rxe0"));
    assert_eq!(rdma_stack("", &[])[0].severity, Severity::Ok);
}

#[test]
fn receive_buffers_are_judged_by_what_fits() {
    let stock = receive_buffer(425_984, Some(8448), Some(212_992));
    assert_eq!(stock.severity, Severity::Note);
    let expected =
        "receive buffers have 425984 bytes and hold 50 single packets of 4 KiB (net.core.rmem_max is 212992)";
    assert_eq!(stock.what, expected);
    assert_eq!(receive_buffer(425_983, Some(8448), None).severity, Severity::Warning);
    let large = receive_buffer(425_985, Some(0), None);
    assert_eq!(large.severity, Severity::Ok);
    assert!(large.what.contains("at most 6 full trains"), "{large:?}");
}

#[test]
fn send_buffers_hold_two_trains() {
    assert_eq!(send_buffer(None), None);
    assert_eq!(send_buffer(Some(131_013)).unwrap().severity, Severity::Warning);
    assert_eq!(send_buffer(Some(131_014)).unwrap().severity, Severity::Ok);
}

#[test]
fn polling_of_cards_is_a_hint_where_there_is_a_card() {
    let card = ["eth0".to_owned()];
    let hint = busy_read(Some(0), &card).unwrap();
    assert_eq!(hint.severity, Severity::Note);
    assert!(hint.what.contains("eth0") && hint.remedy.unwrap().contains("net.core.busy_read=50"));
    assert_eq!(busy_read(Some(50), &card).unwrap().severity, Severity::Ok);
    assert_eq!(busy_read(Some(0), &[]), None, "loopback and veth have nothing to poll");
    assert_eq!(busy_read(None, &card), None, "the kernel has no such setting");
}

#[test]
fn overruns_are_read_by_name() {
    let snmp = "Ip: Forwarding\nIp: 1\nUdp: InDatagrams NoPorts RcvbufErrors SndbufErrors\nUdp: 1 2 891 4\nUdpLite: a\nUdpLite: 1\n";
    assert!(overruns(snmp).unwrap().what.contains(" 891 UDP datagrams"));
    assert_eq!(overruns(&snmp.replace("891", "0")), None);
    assert_eq!(overruns("Udp: RcvbufErrors\n"), None);
    assert_eq!(overruns("Udp: RcvbufErrors\nUdp: many\n"), None);
}

#[test]
fn mtus_become_path_mtus() {
    assert_eq!(path_mtu("lo", 65536).severity, Severity::Ok);
    assert_eq!(path_mtu("eth0", 1500).what, "eth0: MTU 1500 supports path MTU 1024 at most");
    assert_eq!(path_mtu("tun0", 355).severity, Severity::Warning);
    assert_eq!(path_mtu("tun0", 356).severity, Severity::Note);
}

#[test]
fn interfaces_count_when_they_are_up() {
    let interface = |name: &str, up| Interface {
        name: name.into(),
        mtu: 1500,
        up,
        loopback: name == "lo",
        addresses: Vec::new(),
    };
    let findings =
        interface_list(&[interface("eth0", false), interface("eth1", true), interface("lo", true)]);
    assert_eq!(findings.len(), 2);
    assert!(findings[0].what.starts_with("eth1:"));
    let findings = interface_list(&[interface("lo", false)]);
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].severity, Severity::Problem);
}

#[test]
fn what_keeps_a_socket_from_being_made_is_said_once() {
    let taken = no_socket(&BindError::NoFreeLoopback { port: 4791 });
    assert_eq!(taken.what, "UDP port 4791 is in use on all loopback addresses");
    let other = no_socket(&BindError::NoFamily(Ipv4Addr::LOCALHOST.into()));
    assert!(other.what.contains("no IPv4"), "{other:?}");
}

/// A flow through a masquerading gateway, and one that is left alone.
const MASQUERADED: &str = "ipv4     2 udp      17 29 src=172.17.0.2 dst=10.0.0.9 sport=49152 dport=PORT [UNREPLIED] src=10.0.0.9 dst=10.0.0.1 sport=PORT dport=49152 mark=0 zone=0 use=2";
const UNTOUCHED: &str = "ipv4     2 tcp      6 431999 ESTABLISHED src=10.0.0.1 dst=10.0.0.9 sport=4000 dport=22 src=10.0.0.9 dst=10.0.0.1 sport=22 dport=4000 [ASSURED] mark=0 use=1";

#[test]
fn nat_is_seen_in_connections() {
    let of_roce = nat::judge(None, Some(&MASQUERADED.replace("PORT", "4791")), false);
    assert_eq!(of_roce[0].severity, Severity::Problem);
    assert!(of_roce[0].what.contains("172.17.0.2 to 10.0.0.9 becomes 10.0.0.1 to 10.0.0.9"), "{of_roce:?}");
    let both = format!("{UNTOUCHED}\n{}\n", MASQUERADED.replace("PORT", "53"));
    let other = nat::judge(Some(""), Some(&both), false);
    assert_eq!(other[0].severity, Severity::Warning);
    assert!(other[0].what.contains("1 connections"), "{other:?}");
    assert_eq!(nat::judge(Some(""), Some(UNTOUCHED), false)[0].severity, Severity::Note);
}

#[test]
fn nat_tables_are_a_hint_and_ignorance_is_admitted() {
    assert!(
        nat::judge(Some("filter\nnat\n"), Some(""), false)[0].what.starts_with("this host has NAT tables")
    );
    assert!(nat::judge(Some("filter\n"), Some(""), true)[0].what.starts_with("this host has NAT tables"));
    assert!(nat::judge(None, None, false)[0].what.contains("without root"));
    assert!(nat::judge(Some("filter"), Some(""), false)[0].what.contains("nftables"));
}

#[test]
fn ipv6_is_there_or_not() {
    let lo = "00000000000000000000000000000001 01 80 10 80       lo\n";
    assert_eq!(ipv6_loopback(Some(lo)).severity, Severity::Ok);
    assert_eq!(ipv6_loopback(Some("fe80000000000000 02 40 20 80 eth0\n")).severity, Severity::Note);
    assert_eq!(ipv6_loopback(None).what, "this host has no IPv6");
}

#[test]
fn user_namespaces_depend_on_three_settings() {
    assert_eq!(user_namespaces(Some("96365\n"), None, None).severity, Severity::Ok);
    assert_eq!(user_namespaces(Some("96365\n"), Some("1\n"), Some("0\n")).severity, Severity::Ok);
    for (max, clone, apparmor) in [
        (None, None, None),
        (Some("0\n"), None, None),
        (Some("9"), Some("0\n"), None),
        (Some("9"), Some("1"), Some("1\n")),
    ] {
        let finding = user_namespaces(max, clone, apparmor);
        assert_eq!(finding.severity, Severity::Note, "{max:?} {clone:?} {apparmor:?}");
    }
}

#[test]
fn a_forbidden_process_vm_writev_is_a_warning() {
    assert_eq!(own_memory(Ok(())).severity, Severity::Ok);
    let finding = own_memory(Err(io::Error::from_raw_os_error(libc::EPERM)));
    assert_eq!(finding.severity, Severity::Warning);
    assert!(finding.remedy.unwrap().contains("seccomp"));
}

#[test]
fn missing_offloads_are_warnings() {
    let all = Capabilities {
        gso: Gso::Works,
        gro: true,
        tos: true,
        ttl: true,
        drops: true,
        no_checksum: true,
        rcvbuf: 1,
    };
    assert!(offloads(&all).iter().all(|f| f.severity == Severity::Ok));
    let none = Capabilities { gso: Gso::Refused, gro: false, tos: false, ..all };
    assert_eq!(offloads(&none).iter().filter(|f| f.severity == Severity::Warning).count(), 3);
}

#[test]
fn this_host_is_examined_and_each_trouble_has_a_remedy() {
    let findings = examine();
    assert!(findings.len() >= 8, "{findings:#?}");
    for finding in &findings {
        assert!(!finding.what.contains('\n'), "{finding:?}");
        assert!(finding.severity <= Severity::Note || finding.remedy.is_some(), "{finding:?}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_parsers_panic(text in "\\PC*", lines in "([0-9A-Fa-f:= é\n]|src=|dport=|Udp:)*") {
        for text in [&text, &lines] {
            bound_to(4791, text);
            socket_inode(text);
            has_module(text, "siw");
            overruns(text);
            nat::judge(Some(text), Some(text), false);
            ipv6_loopback(Some(text));
            user_namespaces(Some(text), Some(text), Some(text));
            address_from_hex(text);
            for chunk in text.split_whitespace() {
                address_from_hex(chunk);
            }
        }
    }
}
