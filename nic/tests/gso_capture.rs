//! What a capture on a network interface shows of segmentation-offloaded trains. Needs root and iproute2.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};
use rnic::capture::{Decoder, Summary};
use rnic::{ConnectOptions, DeviceConfig, Mtu, RcEnd, WcStatus};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;

/// Two network namespaces joined by a veth pair, removed when dropped.
struct Cable {
    names: [String; 2],
}

impl Cable {
    /// `None`, with the reason on stderr, where namespaces are not allowed.
    fn lay() -> Option<Self> {
        let tag: u32 = rand::random();
        let cable = Self { names: ["l", "r"].map(|side| format!("rnic-{side}{tag:08x}")) };
        let [left, right] = &cable.names;
        let steps = [
            format!("netns add {left}"),
            format!("netns add {right}"),
            format!("-n {left} link add veth0 type veth peer name veth0 netns {right}"),
            format!("-n {left} addr add 10.99.1.1/24 dev veth0"),
            format!("-n {right} addr add 10.99.1.2/24 dev veth0"),
            format!("-n {left} link set veth0 up"),
            format!("-n {right} link set veth0 up"),
        ];
        for step in &steps {
            let run = Command::new("ip").args(step.split(' ')).output();
            if !run.as_ref().is_ok_and(|output| output.status.success()) {
                eprintln!("SKIPPED: needs root and iproute2: `ip {step}`: {run:?}");
                return None;
            }
        }
        Some(cable)
    }

    /// Runs `f` in a thread in one of the namespaces.
    fn inside<T: Send + 'static>(&self, side: usize, f: impl FnOnce() -> T + Send + 'static) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.names[side])).unwrap();
        let run = move || {
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            f()
        };
        std::thread::spawn(run).join().unwrap()
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for name in &self.names {
            // A failure cannot be handled here, and the namespace may not exist.
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// A pcap file of all frames that are queued at a packet socket, and the length of the longest.
fn drain(sniffer: &OwnedFd) -> (Vec<u8>, usize) {
    let header = [0xa1b2_c3d4, 0x0002_0004, 0, 0, 0x4_0000, 1];
    let mut file: Vec<u8> = header.into_iter().flat_map(u32::to_be_bytes).collect();
    let (mut frame, mut longest) = (vec![0; 1 << 17], 0);
    while let Ok(len) = recv(sniffer.as_raw_fd(), &mut frame, MsgFlags::MSG_DONTWAIT) {
        longest = longest.max(len);
        file.extend([0, 0, len as u32, len as u32].into_iter().flat_map(u32::to_be_bytes));
        file.extend(&frame[..len]);
    }
    (file, longest)
}

/// Writes 20 packets of 1024 bytes over the cable. Returns the capture at the sender's interface, and its longest
/// frame.
fn capture_of_a_write(cable: &Cable, gso: Option<bool>) -> (Vec<u8>, usize) {
    let device = move |address: &str| {
        let config = DeviceConfig { gso, ..DeviceConfig::at(address.parse().unwrap()) };
        move || config.open().unwrap()
    };
    let (a, b) = (cable.inside(0, device("10.99.1.1")), cable.inside(1, device("10.99.1.2")));
    let sniffer = cable.inside(0, || {
        let all = SockProtocol::EthAll;
        socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, all).unwrap()
    });
    let options = ConnectOptions { mtu: Some(Mtu::B1024), ..ConnectOptions::default() };
    let (left, right) = RcEnd::pair_with(&a, &b, &options).unwrap();
    let source = left.register(&[7; 20 * 1024]).unwrap();
    let target = right.register_remote(20 * 1024).unwrap();
    left.qp.write(1, source.all(), target.remote(0)).unwrap();
    assert_eq!(left.wait().unwrap().status, WcStatus::Success);
    drain(&sniffer)
}

fn summary(file: &[u8]) -> (Summary, Vec<rnic::capture::DecodedPacket>) {
    let mut decoder = Decoder::new(file).unwrap();
    let packets = decoder.by_ref().map(Result::unwrap).collect();
    (decoder.summary(), packets)
}

#[test]
fn a_capture_on_a_veth_shows_trains_which_decode_splits_or_packets_without_gso() {
    let Some(cable) = Cable::lay() else { return };
    let (file, longest) = capture_of_a_write(&cable, None);
    let (seen, packets) = summary(&file);
    if longest < 1500 {
        eprintln!("SKIPPED: the kernel does not hand trains to a veth");
    } else {
        assert!(seen.trains > 0 && seen.packets > 20 && seen.bad_icrc == 0, "{seen}");
        for packet in packets.iter().filter(|packet| packet.segment.is_some()) {
            assert_eq!(packet.ip_id, packet.segment, "segment i has identification i");
            assert!(packet.icrc.is_some_and(rnic::capture::IcrcCheck::is_ok));
        }
    }
    let (file, longest) = capture_of_a_write(&cable, Some(false));
    let (seen, _) = summary(&file);
    assert!((1024..1500).contains(&longest), "a frame of {longest} bytes is no single packet");
    assert!(seen.packets > 20 && seen.trains == 0 && seen.bad_icrc == 0, "{seen}");
}
