//! Seeded worlds judged by the oracle: fixed seeds with known coverage, and fresh ones, which are printed.
//!
//! `RNIC_WORLD=n` runs a single seed, `RNIC_WORLDS=n` runs n fresh ones. Use `rnic-worlds` for long runs.

use rnic_tests::worlds::{Coverage, Options, Plan, run};
use std::time::{SystemTime, UNIX_EPOCH};

/// Fixed seeds: 1 to this. About 25 s of processor time in the development profile.
const FIXED: u64 = 60;

/// Number of fresh seeds by default: about a minute of processor time in the development profile.
const FRESH: u64 = 300;

/// Minimum coverage of the fixed seeds: half of what they reached when this was written.
const FLOORS: &[(&str, u64)] = &[
    ("0 elements", 4189),
    ("1 elements", 21618),
    ("2 elements", 3045),
    ("3 elements", 3084),
    ("4 elements", 3091),
    ("Beyond", 25),
    ("Deregister", 46),
    ("FENCE", 2547),
    ("Misaligned", 21),
    ("OtherDomain", 19),
    ("RC ATOMIC_CMP_AND_SWP", 1087),
    ("RC ATOMIC_FETCH_AND_ADD", 2532),
    ("RC ATOMIC_WRITE", 860),
    ("RC BIND_MW", 349),
    ("RC FLUSH", 535),
    ("RC LOCAL_INV", 21),
    ("RC RDMA_READ", 3395),
    ("RC RDMA_WRITE", 5011),
    ("RC RDMA_WRITE_WITH_IMM", 1705),
    ("RC SEND", 5643),
    ("RC SEND_WITH_IMM", 1619),
    ("RC SEND_WITH_INV", 43),
    ("RC receive LOC_ACCESS_ERR", 5),
    ("RC receive LOC_LEN_ERR", 2),
    ("RC receive SUCCESS", 7191),
    ("RC receive WR_FLUSH_ERR", 3090),
    ("RC receive posted Long", 10782),
    ("RC receive posted Short", 12),
    ("RC receive posted WrongKey", 4),
    ("RC received SEND", 4489),
    ("RC received SEND imm", 1329),
    ("RC received SEND inv", 39),
    ("RC received WRITE imm", 1333),
    ("RC send LOC_PROT_ERR", 20),
    ("RC send REM_ACCESS_ERR", 75),
    ("RC send REM_INV_REQ_ERR", 14),
    ("RC send RETRY_EXC_ERR", 111),
    ("RC send RNR_RETRY_EXC_ERR", 51),
    ("RC send SUCCESS", 13437),
    ("RC send WR_FLUSH_ERR", 3579),
    ("Reregister", 56),
    ("Restrict", 34),
    ("SIGNALED", 21005),
    ("SOLICITED", 7037),
    ("SQD", 150),
    ("UC RDMA_WRITE", 1461),
    ("UC RDMA_WRITE_WITH_IMM", 789),
    ("UC SEND", 1654),
    ("UC SEND_WITH_IMM", 565),
    ("UC receive SUCCESS", 1991),
    ("UC receive WR_FLUSH_ERR", 308),
    ("UC receive posted Long", 2364),
    ("UC received SEND", 1107),
    ("UC received SEND imm", 381),
    ("UC received WRITE imm", 502),
    ("UC send LOC_PROT_ERR", 6),
    ("UC send SUCCESS", 3322),
    ("UC send WR_FLUSH_ERR", 50),
    ("UD SEND", 1567),
    ("UD SEND_WITH_IMM", 452),
    ("UD receive SUCCESS", 1398),
    ("UD receive WR_FLUSH_ERR", 147),
    ("UD receive posted Long", 1573),
    ("UD received SEND", 1088),
    ("UD received SEND imm", 310),
    ("UD send SUCCESS", 1404),
    ("UD send WR_FLUSH_ERR", 12),
    ("WrongKey", 22),
    ("WrongLocalKey", 31),
    ("XRC ATOMIC_CMP_AND_SWP", 294),
    ("XRC ATOMIC_FETCH_AND_ADD", 712),
    ("XRC RDMA_READ", 894),
    ("XRC RDMA_WRITE", 1363),
    ("XRC RDMA_WRITE_WITH_IMM", 536),
    ("XRC SEND", 1499),
    ("XRC SEND_WITH_IMM", 435),
    ("XRC receive SUCCESS", 1824),
    ("XRC receive posted Long", 1919),
    ("XRC received SEND", 1125),
    ("XRC received SEND imm", 316),
    ("XRC received WRITE imm", 382),
    ("XRC send REM_ACCESS_ERR", 13),
    ("XRC send REM_INV_REQ_ERR", 2),
    ("XRC send RETRY_EXC_ERR", 14),
    ("XRC send RNR_RETRY_EXC_ERR", 20),
    ("XRC send SUCCESS", 2776),
    ("XRC send WR_FLUSH_ERR", 1318),
    ("ack_deferred", 4650),
    ("completion queue overrun", 4),
    ("credit_stalls", 116),
    ("device failed", 29),
    ("device restarted", 59),
    ("dropped_bad_icrc", 157),
    ("dropped_no_qp", 87),
    ("dropped_no_receive", 1504),
    ("dropped_stale_duplicate", 3),
    ("dropped_unreliable", 2727),
    ("duplicate_request", 1226),
    ("fault corrupt", 38),
    ("fault delay", 100),
    ("fault drop", 344),
    ("fault dup", 508),
    ("fault mark", 12),
    ("fault reorder", 57),
    ("foreseen LOC_PROT_ERR", 28),
    ("foreseen REM_ACCESS_ERR", 77),
    ("foreseen REM_INV_REQ_ERR", 14),
    ("ghost_responses", 721),
    ("implied_nak_seq_err", 82),
    ("local_ack_timeout_err", 417),
    ("np_ecn_marked_roce_packets", 77),
    ("out_of_buffer", 36481),
    ("out_of_seq_request", 46661),
    ("port down", 54),
    ("rcvd_rnr_err", 34954),
    ("rcvd_seq_err", 296),
    ("recovery", 728),
    ("req_cqe_flush_error", 5057),
    ("resp_cqe_flush_error", 3577),
    ("resp_local_length_error", 5),
    ("resp_remote_access_errors", 96),
    ("retransmitted_pkts", 81635),
    ("setup", 75),
    ("through a memory window", 1285),
    ("tx_flow_control", 5171),
    ("window_stalls", 688),
];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Plays seeds, and fails at the first violation.
fn play(seeds: impl Iterator<Item = u64>) -> (u64, u64, Coverage) {
    let (mut worlds, mut operations, mut coverage) = (0, 0, Coverage::default());
    for seed in seeds {
        let outcome = run(&Plan::new(seed), &Options::default());
        if let Some(violation) = outcome.violation {
            panic!(
                "seed {seed}: {violation}\n`rnic-worlds --seed {seed} --trace` shows it, --shrink FILE makes it short"
            );
        }
        worlds += 1;
        operations += outcome.operations;
        coverage.merge(&outcome.coverage);
    }
    (worlds, operations, coverage)
}

#[test]
fn worlds_of_fixed_seeds_keep_the_rules_and_reach_the_required_coverage() {
    if let Some(seed) = number("RNIC_WORLD") {
        play([seed].into_iter());
        return;
    }
    let (worlds, operations, coverage) = play(1..=FIXED);
    println!("{worlds} worlds, {operations} operations\n{coverage}");
    let missed = coverage.below(FLOORS);
    assert!(missed.is_empty(), "reached less often than they should be (what, how often, floor): {missed:?}");
}

#[test]
fn worlds_of_fresh_seeds_keep_the_rules() {
    let count = number("RNIC_WORLDS").unwrap_or(FRESH);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let first = now * 1000;
    println!("seeds {first}..{}", first + count);
    let (worlds, operations, _) = play(first..first + count);
    println!("{worlds} worlds, {operations} operations");
}

#[test]
fn a_world_is_the_same_every_time() {
    for seed in [3, 11, 27] {
        let [one, two] = [0, 1].map(|_| run(&Plan::new(seed), &Options::default()));
        assert_eq!((one.hash, one.operations), (two.hash, two.operations), "seed {seed}");
        let other = run(&Plan::new(seed + 1), &Options::default());
        assert_ne!(one.hash, other.hash, "the hash is of what happened");
    }
}

/// A shrunk script: on a link with credits, the network duplicated the packets of a live peer. The peer never got
/// credit again, because the amount it had sent seemed less than the amount that had arrived.
#[test]
fn a_peer_whose_packets_were_copied_gets_credit_again() {
    replay(include_str!("worlds/copied_packets_and_credits.json"));
}

/// A shrunk script: a queue pair that waited for credit was destroyed, but its long backoff before the next request
/// for credit stayed, and silenced the next queue pair without credit too.
#[test]
fn a_request_for_credit_is_not_delayed_by_the_backoff_of_another() {
    replay(include_str!("worlds/a_request_for_credit_long_after_the_last.json"));
}

/// A shrunk script: the answers to queue pairs without a timeout were lost, and other queue pairs that send to the
/// same peer waited for them, although there was room.
#[test]
fn queue_pairs_do_not_wait_for_lost_answers_of_another() {
    replay(include_str!("worlds/turns_behind_one_that_waits_for_ever.json"));
}

/// A shrunk script: the window of a peer was nearly full in the middle of a message that had not yet asked for an
/// acknowledgement, so its sender waited for room until it gave up.
#[test]
fn a_sender_that_waits_for_room_has_asked_for_an_acknowledgement() {
    replay(include_str!("worlds/a_small_window_and_its_acknowledgements.json"));
}

/// A shrunk script: the responses to READs took more than one train, and the rest of them waited for room in a
/// window that the READs occupied.
#[test]
fn answers_do_not_wait_for_the_room_of_what_they_answer() {
    replay(include_str!("worlds/answers_behind_a_full_window.json"));
}

/// A shrunk script: a port was unplugged while the other answered its greeting. The other port waited for credit
/// from a partner that did not know of it, and only asked again after 40 ms, although it had been greeted earlier.
#[test]
fn a_partner_that_missed_the_answer_is_met_soon() {
    replay(include_str!("worlds/a_greeting_that_an_unplugged_port_lost.json"));
}

fn replay(script: &str) {
    let plan: Plan = serde_json::from_str(script).expect("a plan");
    assert_eq!(run(&plan, &Options::default()).violation, None);
}
