//! Schedules against an oracle that computes the result directly, for all small numbers of ranks.

use super::tree::place_in;
use super::*;
use crate::plan::Element;
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};

/// What computes what.
const ALL: [(Collective, Algorithm); 7] = [
    (Collective::AllReduce, Algorithm::Ring),
    (Collective::AllReduce, Algorithm::Tree),
    (Collective::AllReduce, Algorithm::RecursiveDoubling),
    (Collective::AllReduce, Algorithm::HalvingDoubling),
    (Collective::AllGather, Algorithm::Ring),
    (Collective::ReduceScatter, Algorithm::Ring),
    (Collective::AllToAll, Algorithm::Pairwise),
];

/// A number that differs from rank to rank and place to place.
fn input(rank: usize, index: usize) -> u64 {
    (rank as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (index as u64).wrapping_mul(0xD1B5_4A32_D192_ED03)
}

/// First element of part `number`: the oracle's own rule, that of a fair division.
fn cut(count: usize, number: usize, parts: usize) -> usize {
    count * number / parts
}

/// Runs all ranks, one message at a time, each in the order of its schedule, with channels that are as long as need be.
/// Returns the data, the messages of each rank and their bytes.
fn run(plan: &Plan, ranks: usize, piece: usize) -> (Vec<Vec<u64>>, Vec<(usize, usize)>) {
    let words = |rank| plan.bytes(rank, ranks) / 8;
    let mut data: Vec<Vec<u64>> = (0..ranks)
        .map(|rank| (0..words(rank)).map(|at| if at < plan.count { input(rank, at) } else { 0 }).collect())
        .collect();
    let mut sent = vec![(0, 0); ranks];
    let mut channels: HashMap<(usize, usize), VecDeque<Vec<u64>>> = HashMap::new();
    let mut left: Vec<_> =
        (0..ranks).map(|rank| Schedule::new(plan, rank, ranks, piece).expect("a plan").peekable()).collect();
    loop {
        let (mut goes_on, mut is_over) = (false, true);
        for rank in 0..ranks {
            while let Some(op) = left[rank].peek().cloned() {
                is_over = false;
                assert!(!op.range.is_empty() && op.range.len() <= piece && op.range.start.is_multiple_of(8));
                let at = op.range.start / 8..op.range.end / 8;
                match op.kind {
                    Kind::Send => {
                        sent[rank].0 += 1;
                        sent[rank].1 += op.range.len();
                        channels.entry((rank, op.peer)).or_default().push_back(data[rank][at].to_vec());
                    }
                    Kind::Copy { from } => {
                        let bytes = data[rank][from / 8..][..at.len()].to_vec();
                        data[rank][at].copy_from_slice(&bytes);
                    }
                    Kind::Add | Kind::Replace => {
                        let Some(message) = channels.get_mut(&(op.peer, rank)).and_then(VecDeque::pop_front)
                        else {
                            break;
                        };
                        assert_eq!(message.len(), at.len(), "both ends agree on the piece");
                        for (ours, theirs) in data[rank][at].iter_mut().zip(message) {
                            *ours = if op.kind == Kind::Add { ours.wrapping_add(theirs) } else { theirs };
                        }
                    }
                }
                left[rank].next();
                goes_on = true;
            }
        }
        if is_over {
            assert!(channels.values().all(VecDeque::is_empty), "every message is received");
            return (data, sent);
        }
        assert!(goes_on, "a schedule has stopped: {plan:?} of {ranks}");
    }
}

/// Checks the result of each rank.
fn check(plan: &Plan, ranks: usize, data: &[Vec<u64>]) {
    let count = plan.count;
    let sum = |at: usize| (0..ranks).fold(0_u64, |sum, rank| sum.wrapping_add(input(rank, at)));
    for (rank, data) in data.iter().enumerate() {
        let own = cut(count, rank, ranks)..cut(count, rank + 1, ranks);
        match plan.collective {
            Collective::AllReduce => {
                assert!((0..count).all(|at| data[at] == sum(at)), "{plan:?} {rank} of {ranks}")
            }
            Collective::ReduceScatter => {
                assert!(own.into_iter().all(|at| data[at] == sum(at)), "{plan:?} {rank} of {ranks}")
            }
            Collective::AllGather => {
                for from in 0..ranks {
                    let mut part = cut(count, from, ranks)..cut(count, from + 1, ranks);
                    assert!(part.all(|at| data[at] == input(from, at)), "{plan:?} {rank} of {ranks}");
                }
            }
            Collective::AllToAll => {
                let expected = (0..ranks).flat_map(|from| own.clone().map(move |at| input(from, at)));
                assert!(data[count..].iter().copied().eq(expected), "{plan:?} {rank} of {ranks}");
            }
        }
    }
}

#[test]
fn every_algorithm_computes_its_result_for_any_number_of_ranks() {
    for (collective, algorithm) in ALL {
        for ranks in 1..=17 {
            for count in [0, 1, 2, ranks - 1, ranks, 5 * ranks + 3, 97] {
                for piece in [8, 24, 1 << 20] {
                    let plan = Plan { collective, algorithm, element: Element::U64, count };
                    let (data, _) = run(&plan, ranks, piece);
                    check(&plan, ranks, &data);
                }
            }
        }
    }
}

#[test]
fn messages_and_bytes_are_those_of_the_formulas() {
    for ranks in [2_usize, 4, 8, 16] {
        let levels = ranks.ilog2() as usize;
        let (count, bytes) = (16 * ranks, 128 * ranks);
        for (algorithm, messages, of_each) in [
            (Algorithm::Ring, 2 * (ranks - 1), 2 * (ranks - 1) * bytes / ranks),
            (Algorithm::RecursiveDoubling, levels, levels * bytes),
            (Algorithm::HalvingDoubling, 2 * levels, 2 * (ranks - 1) * bytes / ranks),
        ] {
            let plan = Plan { collective: Collective::AllReduce, algorithm, element: Element::U64, count };
            let (_, sent) = run(&plan, ranks, usize::MAX);
            assert!(sent.iter().all(|sent| *sent == (messages, of_each)), "{algorithm} of {ranks}: {sent:?}");
        }
        // Each edge of both trees carries half of the vector in both directions.
        let plan = Plan {
            collective: Collective::AllReduce,
            algorithm: Algorithm::Tree,
            element: Element::U64,
            count,
        };
        let (_, sent) = run(&plan, ranks, usize::MAX);
        let total = sent.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        assert_eq!(total, (4 * (ranks - 1), 2 * (ranks - 1) * bytes));
        assert!(sent.iter().all(|(_, sent)| *sent <= 2 * bytes), "{sent:?}");
    }
}

#[test]
fn both_trees_span_all_ranks_and_share_their_inner_nodes() {
    for ranks in 1..=70 {
        let mut inner = vec![0; ranks];
        for tree in [0, 1] {
            let places: Vec<_> = (0..ranks).map(|rank| place_in(tree, rank, ranks)).collect();
            assert_eq!(places.iter().filter(|place| place.parent.is_none()).count(), 1);
            for (rank, place) in places.iter().enumerate() {
                // The root is the one inner node with a single child.
                inner[rank] += usize::from(place.children.iter().all(Option::is_some));
                for child in place.children.into_iter().flatten() {
                    assert_eq!(places[child].parent, Some(rank), "tree {tree} of {ranks}");
                }
                let (mut at, mut steps) = (rank, 0);
                while let Some(parent) = places[at].parent {
                    assert!(places[parent].children.contains(&Some(at)), "tree {tree} of {ranks}");
                    (at, steps) = (parent, steps + 1);
                    assert!(steps <= ranks.ilog2() + 1, "it is no tree, or a deep one: {tree} of {ranks}");
                }
            }
        }
        assert!(inner.iter().all(|trees| *trees <= 1), "{ranks}: {inner:?}");
    }
}

#[test]
fn a_large_ring_has_a_schedule_and_no_list() {
    let plan = Plan {
        collective: Collective::AllReduce,
        algorithm: Algorithm::Ring,
        element: Element::U64,
        count: 1 << 17,
    };
    assert!(size_of::<Schedule>() < 512, "a few numbers: {}", size_of::<Schedule>());
    let schedule = Schedule::new(&plan, 5, 1024, 1 << 16).expect("a plan");
    assert_eq!(schedule.filter(|op| op.kind == Kind::Send).count(), 2 * 1023);
    let part = 8 * (1 << 17) / 1024;
    let next = |rank| Peer { rank, longest: part };
    assert_eq!(peers(&plan, 5, 1024), Ok(vec![next(4), next(6)]));
}

#[test]
fn what_an_algorithm_does_not_compute_is_refused() {
    for collective in Collective::ALL {
        for algorithm in Algorithm::ALL {
            let plan = Plan { collective, algorithm, element: Element::U32, count: 10 };
            let is_there = ALL.contains(&(collective, algorithm));
            assert_eq!(Schedule::new(&plan, 0, 4, 64).is_ok(), is_there, "{plan:?}");
        }
    }
    let plan = Plan {
        collective: Collective::AllReduce,
        algorithm: Algorithm::Ring,
        element: Element::U32,
        count: 10,
    };
    assert_eq!(peers(&plan, 4, 4), Err(PlanError::NoRank { rank: 4, ranks: 4 }));
    assert!("rings".parse::<Algorithm>().is_err() && "ring".parse() == Ok(Algorithm::Ring));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_plan_has_its_result(which in 0..ALL.len(), ranks in 1_usize..40, count in 0_usize..300, piece in 1_usize..40) {
        let (collective, algorithm) = ALL[which];
        let plan = Plan { collective, algorithm, element: Element::U64, count };
        let (data, _) = run(&plan, ranks, 8 * piece);
        check(&plan, ranks, &data);
    }

    #[test]
    fn both_ends_of_a_pair_know_the_same_longest_message(which in 0..ALL.len(), ranks in 1_usize..40, count in 0_usize..300) {
        let (collective, algorithm) = ALL[which];
        let plan = Plan { collective, algorithm, element: Element::U64, count };
        let all: Vec<_> = (0..ranks).map(|rank| peers(&plan, rank, ranks).expect("a plan")).collect();
        for (rank, of) in all.iter().enumerate() {
            for peer in of {
                prop_assert!(all[peer.rank].contains(&Peer { rank, longest: peer.longest }), "{rank}: {peer:?}");
            }
            let schedule = Schedule::new(&plan, rank, ranks, usize::MAX).expect("a plan");
            for op in schedule.filter(|op| !matches!(op.kind, Kind::Copy { .. })) {
                prop_assert!(of.iter().any(|peer| peer.rank == op.peer && op.range.len() <= peer.longest));
            }
        }
    }
}

/// Halving has messages of a half, a quarter, an eighth and so on, each with another rank: together less than the vector.
#[test]
fn the_messages_of_halving_get_shorter() {
    let plan = Plan {
        collective: Collective::AllReduce,
        algorithm: Algorithm::HalvingDoubling,
        element: Element::U64,
        count: 1 << 17,
    };
    let peers = peers(&plan, 7, 1024).expect("a plan");
    let all: usize = peers.iter().map(|peer| peer.longest).sum();
    assert_eq!((peers.len(), all), (10, 8 * (1 << 17) * 1023 / 1024));
}
