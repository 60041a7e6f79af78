//! Either side is killed in the middle of a transfer. The other detects it within the time that its attributes set, and
//! both can continue with other peers.

use crate::Test;
use crate::api::Api;
use crate::case::{Kind, Talk};
use crate::end::{End, Options};
use crate::guest::Ip;
use crate::lines::Lines;
use rnic::{QpType, WcStatus};

pub(crate) const TESTS: &[Test] = &[
    ("death::rust_goes_on_when_its_peer_on_rxe_is_killed", || peer_on_rxe(Api::new(Ip::V4), Ip::V4)),
    ("death::program_goes_on_when_its_peer_on_rxe_is_killed", || {
        peer_on_rxe(Lines::on_rnic(Ip::V6, &[]), Ip::V6);
    }),
    ("death::rxe_goes_on_when_its_peer_on_rnic_is_killed", peer_on_rnic),
];

/// 4.096 us x 2^16 = 268 ms, at most four times that for each of six tries (IBTA 9.7.6.1.3): enough time for a busy
/// host to answer.
fn options() -> Options {
    Options { timeout: 16, retry_cnt: 5, ..Options::default() }
}

const LENGTH: usize = 1 << 20;

/// These messages take two seconds at the 30 MB/s of an emulated host; a kill takes a fraction of a second.
const MESSAGES: usize = 60;

/// Posts more than completes at once, calls `kill`, and checks how the requests end: with one of `errors`.
fn survive(
    survivor: &mut dyn End,
    mut victim: Box<dyn End>,
    kill: impl FnOnce(Box<dyn End>),
    errors: &[WcStatus],
) {
    let qp = {
        let mut talk = Talk::new(survivor, &mut *victim, QpType::Rc, &options(), LENGTH);
        talk.message(Kind::Write, LENGTH);
        for _ in 0..MESSAGES {
            talk.post(Kind::Write, LENGTH);
        }
        talk.qps[0]
    };
    kill(victim);
    let ends = survivor.completions(qp, MESSAGES, 30_000);
    let statuses: Vec<_> = ends.iter().map(|wc| wc.status).collect();
    let done = statuses.iter().take_while(|status| **status == WcStatus::Success).count();
    assert!(statuses.len() == MESSAGES && done < MESSAGES, "{statuses:?}");
    assert!(errors.contains(&statuses[done]), "{statuses:?}");
    assert!(statuses[done + 1..].iter().all(|status| *status == WcStatus::WrFlushErr), "{statuses:?}");
    assert!(survivor.has_failed(qp));
    survivor.destroy(qp);
}

/// The survivor works as before with another peer.
fn go_on(survivor: &mut dyn End, next: &mut dyn End) {
    for kind in Kind::ALL {
        let mut talk = Talk::new(survivor, next, QpType::Rc, &Options::default(), 10_000);
        talk.message(kind, 10_000);
        talk.end();
        let mut talk = Talk::new(next, survivor, QpType::Rc, &Options::default(), 10_000);
        talk.message(kind, 10_000);
        talk.end();
    }
}

fn peer_on_rxe(mut survivor: impl End, ip: Ip) {
    let victim = Box::new(Lines::in_guest(ip));
    // Linux removes the objects of a process one by one: its memory may be gone before its queue pair.
    let errors = [WcStatus::RetryExcErr, WcStatus::RemAccessErr];
    // Dropping it kills it.
    survive(&mut survivor, victim, drop, &errors);
    go_on(&mut survivor, &mut Lines::in_guest(ip));
}

fn peer_on_rnic() {
    let mut survivor = Lines::in_guest(Ip::V4);
    let victim = Box::new(Lines::on_rnic(Ip::V4, &[]));
    survive(&mut survivor, victim, drop, &[WcStatus::RetryExcErr]);
    go_on(&mut survivor, &mut Lines::on_rnic(Ip::V4, &[]));
    go_on(&mut survivor, &mut Api::new(Ip::V4));
}
