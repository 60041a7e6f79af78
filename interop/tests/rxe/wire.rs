//! What rnic sends to a peer that is not rnic: nothing but RoCEv2. The guest's packet filter counts any other packets,
//! from the first test on.

use crate::Test;
use crate::guest::{self, Ip};
use std::net::{SocketAddr, UdpSocket};

/// These run after the others, because they check the packets of the others.
pub(crate) const TESTS: &[Test] = &[("wire::rnic_says_nothing_but_rocev2_to_rxe", nothing_else_was_said)];

/// The counters: a name, and an nftables expression for the packets. A BTH begins 64 bits into the transport header:
/// the opcode, 8 bits, and after 32 more bits the destination queue pair, 24 bits (IBTA 9.2).
const RULES: [(&str, &str); 5] = [
    ("any", ""),
    // Services that rxe does not know: CNP, and what rnic ports send only to each other.
    ("services", "@th,64,3 > 3"),
    // Management datagrams: connections here are made without them.
    ("management", "@th,104,24 1"),
    // ECN bits of a sender that reacts to congestion notifications.
    ("marked_v4", "ip ecn != not-ect"),
    ("marked_v6", "ip6 ecn != not-ect"),
];

/// Starts the counters.
pub(crate) fn watch() {
    let rules: String = RULES.iter().map(|(_, rule)| format!("udp dport 4791 {rule} counter\\n")).collect();
    guest::run(&format!(
        "modprobe crc32c_generic && modprobe nf_tables && printf 'table inet wire {{\\nchain in {{\\n\
         type filter hook prerouting priority 0\\n{rules}}}\\n}}\\n' | nft -f -"
    ));
}

fn counts() -> Vec<u64> {
    guest::packets(&guest::run("nft list table inet wire"))
}

fn nothing_else_was_said() {
    let said = counts();
    assert!(said[0] > 1000, "the filter saw {} packets only", said[0]);
    assert_eq!(said[1..], [0; 4], "packets of {:?}", &RULES[1..]);

    // Each rule must match its packets: one each, to queue pairs that rxe does not have.
    say(Ip::V4, 0x81, NOBODY, 0);
    say(Ip::V6, 0x64, 1, 0);
    say(Ip::V4, 0x04, NOBODY, 2);
    say(Ip::V6, 0x04, NOBODY, 1);
    assert_eq!(counts()[1..], [1; 4]);
}

/// A queue pair that rxe does not have.
const NOBODY: u32 = 0xff_fff0;

/// Sends the guest a packet with this opcode, destination queue pair and ECN bits.
fn say(ip: Ip, opcode: u8, qpn: u32, ecn: u32) {
    let socket = UdpSocket::bind(SocketAddr::new(ip.program(), 0)).expect("a socket");
    let options = socket2::SockRef::from(&socket);
    let set = if ip == Ip::V4 { options.set_tos_v4(ecn) } else { options.set_tclass_v6(ecn) };
    set.expect("a socket option");
    let [_, high, middle, low] = qpn.to_be_bytes();
    // A BTH, and room for the rest of a datagram.
    let mut packet = vec![opcode, 0, 0xff, 0xff, 0, high, middle, low];
    packet.resize(32, 0);
    socket.send_to(&packet, SocketAddr::new(ip.guest(), 4791)).expect("a datagram leaves");
}
