//! Which programs to show.

use super::Seen;
use rnic::engine::QpSnapshot;

/// Which programs and queue pairs to show. Each option narrows the choice; one with several values allows any of them.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Programs and their queue pairs")]
pub(crate) struct Filter {
    /// Only devices of this process. Repeat for several.
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// Only programs of this user, by name or number. Repeat for several.
    #[arg(long, value_name = "USER")]
    user: Vec<Pattern>,
    /// Only programs in this container, by its ID. Repeat for several.
    #[arg(long, value_name = "PATTERN")]
    container: Vec<Pattern>,
    /// Only devices of programs whose name matches, such as `ib_write_bw` or `ib_*`. Repeat for several.
    #[arg(long, value_name = "PATTERN")]
    program: Vec<Pattern>,
    /// Only devices whose name or address matches, such as `rnic0` or `127.0.0.*`. Repeat for several.
    #[arg(long, value_name = "PATTERN")]
    device: Vec<Pattern>,
    /// Only queue pairs with this number, such as `0x12`. Repeat for several.
    #[arg(long, value_name = "QPN", value_parser = qpn)]
    lqpn: Vec<u32>,
    /// Only queue pairs in this state, such as `RTS` or `ERR`. Repeat for several.
    #[arg(long, value_name = "STATE")]
    state: Vec<Pattern>,
    /// Only queue pairs of this type, such as `RC`. Repeat for several.
    #[arg(long = "type", value_name = "TYPE")]
    qp_type: Vec<Pattern>,
    /// Only queue pairs whose peer's address matches. Repeat for several.
    #[arg(long, value_name = "PATTERN")]
    peer: Vec<Pattern>,
}

/// A name in which `*` stands for any text and `?` for any character.
#[derive(Clone, Debug)]
pub(crate) struct Pattern(Vec<char>);

impl From<&str> for Pattern {
    fn from(text: &str) -> Self {
        Self(text.chars().collect())
    }
}

impl Pattern {
    fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (&self.0, name.chars().collect::<Vec<_>>());
        let (mut at, mut done) = (0, 0);
        // The latest `*`, and how much of the name the text before `at` consumes. On a mismatch the `*` consumes one
        // more character.
        let mut star = None;
        while done < name.len() {
            match pattern.get(at) {
                Some('*') => {
                    star = Some((at, done));
                    at += 1;
                }
                Some(wanted) if *wanted == '?' || *wanted == name[done] => (at, done) = (at + 1, done + 1),
                _ => {
                    let Some((place, taken)) = star else { return false };
                    star = Some((place, taken + 1));
                    (at, done) = (place + 1, taken + 1);
                }
            }
        }
        pattern[at..].iter().all(|rest| *rest == '*')
    }
}

/// Whether one of the patterns matches one of the names, or there is no pattern.
pub(crate) fn any(patterns: &[Pattern], names: &[&str]) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| names.iter().any(|name| pattern.matches(name)))
}

impl Filter {
    /// Whether to show a device.
    pub(crate) fn takes(&self, one: &Seen) -> bool {
        (self.pid.is_empty() || self.pid.contains(&one.pid))
            && any(&self.user, &[&one.user, &one.uid.to_string()])
            && any(&self.container, &[one.container.as_deref().unwrap_or("")])
            && any(&self.program, &[&one.comm])
            && any(&self.device, &[&one.device, &one.address.to_string()])
    }

    /// Whether to show a queue pair.
    pub(crate) fn takes_qp(&self, qp: &QpSnapshot) -> bool {
        let peer = qp.peer.map(|(address, _)| address.to_string()).unwrap_or_default();
        (self.lqpn.is_empty() || self.lqpn.contains(&qp.qpn))
            && any(&self.state, &[&qp.state])
            && any(&self.qp_type, &[&qp.qp_type])
            && any(&self.peer, &[&peer])
    }
}

/// A queue pair number, decimal or hexadecimal.
fn qpn(text: &str) -> Result<u32, String> {
    let hex = text.strip_prefix("0x").map(|digits| u32::from_str_radix(digits, 16));
    let number = hex.unwrap_or_else(|| text.parse());
    number.map_err(|_| "a queue pair number is decimal, or hexadecimal after 0x".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rnic::process::{NetNamespace, Published};
    use std::time::SystemTime;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, matches) in [
            ("rcvd_*", "rcvd_pkts", true),
            ("rcvd_*", "sent_pkts", false),
            ("*drop*", "link_rx_dropped", true),
            ("*pkts", "rcvd_pkts_total", false),
            ("ib_?rite_bw", "ib_write_bw", true),
            ("sent", "sent_pkts", false),
            ("*a*b*c", "xxaybzbwc", true),
            ("*a*b*c", "xxaybzbw", false),
            ("*", "", true),
            ("?", "", false),
            ("é*", "éa", true),
        ] {
            assert_eq!(Pattern::from(pattern).matches(name), matches, "{pattern} {name}");
        }
    }

    fn device(comm: &str, pid: u32, address: &str, running: bool) -> Seen {
        let published = Published {
            device: "rnic0".to_owned(),
            address: address.parse().expect("an address"),
            namespace: NetNamespace::current(),
            pid,
            comm: comm.to_owned(),
            running,
            updated: SystemTime::UNIX_EPOCH,
            counters: vec![("sent_pkts".to_owned(), 1), ("rcvd_pkts".to_owned(), 0)],
        };
        Seen {
            device: published.device.clone(),
            address: published.address,
            pid,
            comm: comm.to_owned(),
            slot: None,
            uid: pid * 1000,
            user: if pid == 7 { "alice" } else { "bob" }.to_owned(),
            container: (pid == 8).then(|| "0123456789ab".to_owned()),
            running,
            counters: Some(published),
            queue_pairs: None,
        }
    }

    #[test]
    fn filters_choose_devices_by_process_program_and_device() {
        let all = [
            device("ib_write_bw", 7, "127.0.0.1", true),
            device("ib_write_bw", 8, "127.0.0.2", true),
            device("ucx_perftest", 9, "10.0.0.1", false),
        ];
        let taken = |filter: Filter| -> Vec<u32> {
            all.iter().filter(|one| filter.takes(one)).map(|one| one.pid).collect()
        };
        let patterns = |texts: &[&str]| texts.iter().copied().map(Pattern::from).collect::<Vec<_>>();
        assert_eq!(taken(Filter::default()), [7, 8, 9]);
        assert_eq!(taken(Filter { pid: vec![8, 9], ..Filter::default() }), [8, 9]);
        assert_eq!(taken(Filter { program: patterns(&["ib_*"]), ..Filter::default() }), [7, 8]);
        assert_eq!(taken(Filter { device: patterns(&["127.0.0.2", "10.*"]), ..Filter::default() }), [8, 9]);
        assert!(taken(Filter { device: patterns(&["rnic1"]), ..Filter::default() }).is_empty());
        let both = Filter { program: patterns(&["ib_*"]), pid: vec![8], ..Filter::default() };
        assert_eq!(taken(both), [8], "options narrow the choice together");
        assert_eq!(taken(Filter { user: patterns(&["bob"]), ..Filter::default() }), [8, 9]);
        assert_eq!(taken(Filter { user: patterns(&["7000"]), ..Filter::default() }), [7]);
        assert_eq!(taken(Filter { container: patterns(&["0123*"]), ..Filter::default() }), [8]);
    }

    #[test]
    fn filters_choose_queue_pairs_by_number_state_type_and_peer() {
        let qp = |qpn, state: &'static str, qp_type: &'static str, peer: &str| QpSnapshot {
            qpn,
            qp_type: qp_type.into(),
            state: state.into(),
            peer: peer.parse().ok().map(|address| (address, 9)),
            next_psn: 0,
            unacked_psn: 0,
            expected_psn: 0,
            sends: 0,
            recvs: 0,
            retries_left: 7,
            rnr_retries_left: 7,
            last_failure: None,
        };
        let all =
            [qp(0x12, "RTS", "RC", "10.0.0.1"), qp(0x13, "ERR", "RC", "10.0.0.2"), qp(0x14, "RTS", "UD", "")];
        let taken = |filter: Filter| -> Vec<u32> {
            all.iter().filter(|qp| filter.takes_qp(qp)).map(|qp| qp.qpn).collect()
        };
        let patterns = |text: &str| vec![Pattern::from(text)];
        assert_eq!(taken(Filter::default()), [0x12, 0x13, 0x14]);
        assert_eq!(taken(Filter { lqpn: vec![qpn("0x13").expect("a number")], ..Filter::default() }), [0x13]);
        assert_eq!(taken(Filter { state: patterns("RTS"), ..Filter::default() }), [0x12, 0x14]);
        assert_eq!(taken(Filter { qp_type: patterns("UD"), ..Filter::default() }), [0x14]);
        assert_eq!(taken(Filter { peer: patterns("10.*"), ..Filter::default() }), [0x12, 0x13]);
        assert!(qpn("0xyz").is_err() && qpn("18") == Ok(18));
    }
}
