//! The IPv4 header on a real wire, as a packet socket sees it. Needs root and iproute2.

use super::{RoceSocket, Sent, SocketConfig};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket};
use qp::wire::IpHeader;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Two network namespaces joined by a cable. Removed when dropped.
struct Cable {
    left: String,
    right: String,
}

impl Cable {
    /// `None`, with the reason on stderr, if namespaces cannot be created.
    fn lay() -> Option<Self> {
        let tag: u32 = rand::random();
        let cable = Self { left: format!("rnic-l{tag:08x}"), right: format!("rnic-r{tag:08x}") };
        let (left, right) = (&cable.left, &cable.right);
        let steps = [
            format!("netns add {left}"),
            format!("netns add {right}"),
            format!("-n {left} link add veth0 type veth peer name veth0 netns {right}"),
            // Without this a veth hands the train over unsplit.
            format!("-n {left} link set veth0 gso_max_segs 1"),
            format!("-n {left} addr add 10.99.0.1/24 dev veth0"),
            format!("-n {right} addr add 10.99.0.2/24 dev veth0"),
            format!("-n {left} link set veth0 up"),
            format!("-n {right} link set veth0 up"),
        ];
        for step in &steps {
            let run = Command::new("ip").args(step.split(' ')).output();
            let trouble = match &run {
                Ok(output) if output.status.success() => continue,
                Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
                Err(error) => error.to_string(),
            };
            eprintln!("SKIPPED: needs root and iproute2: `ip {step}`: {}", trouble.trim());
            return None;
        }
        Some(cable)
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for name in [&self.left, &self.right] {
            // Nothing to do about a failure, and the namespace may not exist.
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// Runs `f` inside a network namespace, in a separate thread.
fn inside<T: Send + 'static>(namespace: &str, f: impl FnOnce() -> T + Send + 'static) -> T {
    let namespace = File::open(format!("/run/netns/{namespace}")).unwrap();
    let run = move || {
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
        f()
    };
    thread::spawn(run).join().unwrap()
}

/// The offsets of fields in an Ethernet frame with an IPv4 packet without options.
const IDENTIFICATION: usize = 14 + 4;
const FLAGS: usize = 14 + 6;
const PROTOCOL: usize = 14 + 9;
const UDP_DESTINATION: usize = 14 + 20 + 2;
const UDP_PAYLOAD: usize = 14 + 20 + 8;

#[test]
fn segment_i_carries_identification_i_and_singles_carry_0() {
    let Some(cable) = Cable::lay() else { return };
    let wire = inside(&cable.right, || {
        socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_NONBLOCK, SockProtocol::EthAll).unwrap()
    });
    inside(&cable.left, || {
        let socket = RoceSocket::bind(&SocketConfig::new("10.99.0.1".parse().unwrap())).unwrap();
        assert_eq!(socket.gso_segments(), 64, "this test is about trains");
        let peer = "10.99.0.2".parse().unwrap();
        let send = |segment, bytes: &[u8]| {
            assert_eq!(
                socket.send_train(0, &IpHeader { tos: 2, ..IpHeader::to(peer) }, segment, bytes).unwrap(),
                Sent::All
            );
        };
        send(100, &[0; 100]);
        send(100, &[1; 450]);
        send(100, &[2; 100]);
        send(100, &[3; 200]);
    });
    let mut frame = [0u8; 70_000];
    let mut got = Vec::new();
    let start = Instant::now();
    while got.len() < 9 && start.elapsed() < Duration::from_secs(10) {
        let Ok(len) = recv(wire.as_raw_fd(), &mut frame, MsgFlags::empty()) else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        if len > UDP_PAYLOAD && frame[PROTOCOL] == 17 && word(UDP_DESTINATION) == 4791 {
            got.push((frame[UDP_PAYLOAD], word(IDENTIFICATION), word(FLAGS), len - UDP_PAYLOAD));
        }
    }
    /// Don't fragment, fragment offset 0.
    const DF: u16 = 0x4000;
    let expected = [
        (0, 0, DF, 100),
        (1, 0, DF, 100),
        (1, 1, DF, 100),
        (1, 2, DF, 100),
        (1, 3, DF, 100),
        (1, 4, DF, 50),
        (2, 0, DF, 100),
        (3, 0, DF, 100),
        (3, 1, DF, 100),
    ];
    assert_eq!(got, expected);
}
