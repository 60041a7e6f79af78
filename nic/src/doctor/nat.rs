//! Whether this host rewrites addresses. The ICRC covers the addresses and ports of a packet, so a RoCEv2
//! packet that passes a NAT arrives broken.

use super::Finding;
use crate::net::ROCE_PORT;

/// One direction of a tracked connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Tuple<'a> {
    src: &'a str,
    dst: &'a str,
    sport: &'a str,
    dport: &'a str,
}

impl Tuple<'_> {
    const EMPTY: Self = Tuple { src: "", dst: "", sport: "", dport: "" };

    /// The tuple of the answers, if nobody rewrites anything.
    const fn reversed(self) -> Self {
        Tuple { src: self.dst, dst: self.src, sport: self.dport, dport: self.sport }
    }
}

/// Both directions of a line of `/proc/net/nf_conntrack`, for UDP and TCP.
fn tuples(line: &str) -> Option<(Tuple<'_>, Tuple<'_>)> {
    let mut both = [Tuple::EMPTY; 2];
    let mut seen = 0;
    for (key, value) in line.split_whitespace().filter_map(|field| field.split_once('=')) {
        if key == "src" {
            seen += 1;
        }
        // Fields before the first source address, and behind the second tuple, do not matter.
        let Some(tuple) = both.get_mut(usize::checked_sub(seen, 1)?) else { break };
        match key {
            "src" => tuple.src = value,
            "dst" => tuple.dst = value,
            "sport" => tuple.sport = value,
            "dport" => tuple.dport = value,
            _ => {}
        }
    }
    (!both[0].dport.is_empty() && !both[1].dport.is_empty()).then_some((both[0], both[1]))
}

/// What the connection tracking and the tables of iptables say. `None` is a file that cannot be read: the first
/// needs root, the second too and a kernel that still has it.
pub(super) fn judge(ip_tables_names: Option<&str>, conntrack: Option<&str>, nft_nat: bool) -> Vec<Finding> {
    let translated: Vec<_> = conntrack
        .unwrap_or_default()
        .lines()
        .filter_map(tuples)
        .filter(|(original, reply)| original.reversed() != *reply)
        .collect();
    let port = ROCE_PORT.to_string();
    if let Some((original, reply)) = translated.iter().find(|(original, _)| original.dport == port) {
        return vec![Finding::problem(
            format!(
                "NAT rewrites RoCEv2: {} to {} becomes {} to {}; such packets fail their ICRC",
                original.src, original.dst, reply.dst, reply.src
            ),
            "exempt UDP port 4791 from NAT (iptables -t nat -I POSTROUTING -p udp --dport 4791 -j ACCEPT), or route",
        )];
    }
    let remedy = "RoCEv2 must not pass NAT: use host networking, or a routed or bridged network, for RDMA between hosts";
    if !translated.is_empty() {
        return vec![Finding::warning(
            format!("this host translates addresses (NAT): {} connections now", translated.len()),
            remedy,
        )];
    }
    if ip_tables_names.is_some_and(|names| names.lines().any(|name| name.trim() == "nat")) || nft_nat {
        return vec![Finding::note("this host has NAT tables, which may affect RoCEv2", remedy)];
    }
    let unseen = match (ip_tables_names, conntrack) {
        (Some(_), Some(_)) => "nftables rules and NAT elsewhere on the path cannot be checked",
        _ => "tables (without root) and NAT elsewhere on the path cannot be checked",
    };
    vec![Finding::note(
        format!("no sign of NAT on this host; {unseen}"),
        "if peers count ICRC errors only, look for NAT between them (nft list ruleset, container networks)",
    )]
}
