//! The most serious problem: what an engineer would look at first.

use super::model::Line;
use rnic::engine::DropReason;

/// A counter whose increase is a problem, and what it means.
type Sign = (&'static str, &'static str);

/// The most serious comes first, and a cause before its effects.
const SIGNS: [Sign; 13] = [
    ("retry_exceeded_err", "its peer does not answer: requests failed after all retries"),
    ("retry_rnr_exceeded_err", "its peer posted no receives: requests failed after all RNR retries"),
    ("req_remote_access_errors", "its peer refused a request: no rights for that memory, or a wrong key"),
    (
        "resp_remote_access_errors",
        "it refused a request: the peer has no rights for that memory, or a wrong key",
    ),
    (
        "socket_rx_overrun",
        "its receive buffer overflowed in the kernel: raise net.core.rmem_max (see `rnic doctor`)",
    ),
    ("socket_tx_refused", "the kernel refuses to send its packets: no route, or a firewall"),
    ("pause_storms", "a peer pauses it without end"),
    ("link_rx_dropped", "the buffer of its emulated port overflows"),
    ("send_rnr_err", "it posts too few receives: its peers have to wait (RNR NAK)"),
    ("rcvd_rnr_err", "its peer posts too few receives: it has to wait (RNR NAK)"),
    (
        "local_ack_timeout_err",
        "acknowledgements do not come in time: packets are lost, or the peer is stopped",
    ),
    ("rcvd_seq_err", "packets to its peer get lost: it sends them again"),
    ("rp_cnp_handled", "it sends more slowly, because its peers report congestion (CNPs)"),
];

/// The most serious problem.
pub(super) fn first(lines: &[Line]) -> Option<String> {
    let failed = || lines.iter().find_map(failed_queue_pair);
    let sign = || SIGNS.iter().find_map(|sign| lines.iter().find_map(|line| shows(line, sign)));
    failed().or_else(sign).or_else(|| lines.iter().find_map(drops))
}

fn owner(line: &Line) -> String {
    format!("{} (pid {})", line.now.comm, line.now.pid)
}

fn failed_queue_pair(line: &Line) -> Option<String> {
    let qp = line.queue_pairs().iter().find(|qp| qp.last_failure.is_some())?;
    Some(format!("{}: queue pair {:#08x} failed: {}", owner(line), qp.qpn, qp.last_failure.as_deref()?))
}

fn shows(line: &Line, (counter, meaning): &Sign) -> Option<String> {
    let rate = line.rate(counter).filter(|rate| *rate > 0.0)?;
    Some(format!("{}: {meaning} ({counter}, {rate:.1}/s)", owner(line)))
}

fn drops(line: &Line) -> Option<String> {
    let reason =
        DropReason::ALL.iter().find(|reason| line.rate(reason.name()).is_some_and(|rate| rate > 0.0))?;
    let rate = line.rate(reason.name())?;
    Some(format!("{}: it drops packets ({}, {rate:.1}/s): {}", owner(line), reason.name(), reason.explain()))
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::{after, seen};
    use super::*;
    use rnic::Counters;

    #[test]
    fn each_sign_is_a_counter_that_exists_and_is_told_when_it_moves() {
        for (counter, meaning) in SIGNS {
            assert!(Counters::describe().any(|(name, _)| name == counter), "{counter}");
            let model = after(vec![seen(7, &[(counter, 1)])], vec![seen(7, &[(counter, 5)])]);
            let told = model.problem().expect("a problem");
            assert_eq!(told, format!("rping (pid 7): {meaning} ({counter}, 2.0/s)"));
            let model = after(vec![seen(7, &[(counter, 5)])], vec![seen(7, &[(counter, 5)])]);
            assert_eq!(model.problem(), None, "what is over is no problem any more");
        }
    }

    #[test]
    fn the_cause_is_told_before_its_effect() {
        let both = |n| seen(7, &[("rcvd_seq_err", n), ("link_rx_dropped", n), ("dropped_bad_icrc", n)]);
        let model = after(vec![both(0)], vec![both(8)]);
        assert!(model.problem().expect("a problem").contains("emulated port overflows"));
        let icrc = |n| seen(7, &[("dropped_bad_icrc", n)]);
        let model = after(vec![icrc(0)], vec![icrc(2)]);
        assert!(model.problem().expect("a problem").contains("The ICRC does not match"));
    }
}
