//! Lending, recalling and returning blocks; and many senders at one buffer, over channels that lose and delay.

mod crowd;

use super::*;
use crate::credits::{CreditSender, MASK};
use crate::vl::Vl;

const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn config() -> PoolConfig {
    PoolConfig {
        blocks: 100,
        packet_blocks: 10,
        share_blocks: 100,
        fcp_on_free_blocks: u16::MAX,
        fcp_period: 100,
        idle: 100,
        lease: 1000,
        settle: 3000,
        member_blocks: 0,
        reserve_blocks: 0,
        read_blocks: 0,
        newcomers: 0,
    }
}

fn update(op: Op, fctbs: u16, fccl: u16) -> FlowControlPacket {
    FlowControlPacket { op, vl: Vl::new(0).expect("a lane"), fctbs, fccl }
}

fn told(pool: &mut Pool, now: Instant) -> Vec<(Member, u16)> {
    let told = std::iter::from_fn(|| pool.poll_limit(now)).collect();
    pool.audit();
    told
}

impl Pool {
    /// Every block is in exactly one state, and all counts agree with the lanes.
    fn audit(&self) {
        let of_lane = |l: &Lane| l.outstanding() + l.occupied;
        assert_eq!(self.bank + self.lanes.iter().map(of_lane).sum::<u32>(), self.config.blocks);
        let members = || self.lanes.iter().filter(|l| l.is_member);
        assert_eq!(self.members as usize, members().count());
        assert_eq!(self.active as usize, members().filter(|l| l.waits || l.lent > 0).count());
        assert!(members().all(|l| l.lent == 0 || l.holds && l.listed));
        assert_eq!(self.low.len(), self.low.iter().collect::<std::collections::HashSet<_>>().len());
    }
}

#[test]
fn a_pool_that_holds_no_packet_is_refused() {
    let refused = |c: PoolConfig| Pool::new(c).map(|_| ()).map_err(|e| (e.blocks, e.share, e.packet));
    assert_eq!(refused(PoolConfig { blocks: 9, ..config() }), Err((9, 100, 10)));
    assert_eq!(refused(PoolConfig { share_blocks: 9, ..config() }), Err((100, 9, 10)));
    assert!(Pool::new(PoolConfig { blocks: 10, share_blocks: 10, ..config() }).is_ok());
    let default: PoolConfig = toml::from_str("blocks = 5000").expect("a table");
    assert_eq!(default, PoolConfig { blocks: 5000, ..PoolConfig::default() });
    assert_eq!("blocks=5000".parse(), Ok(default));
}

#[test]
fn an_only_member_is_lent_all_and_of_many_nobody_takes_it_from_the_others() {
    let start = Instant::now();
    let large = PoolConfig { blocks: 4096, packet_blocks: 66, share_blocks: WINDOW, ..config() };
    for (peers, most, at_once) in [(1, 2047, 1), (2, 2047, 2), (8, 512, 8), (64, 512, 20)] {
        let mut pool = Pool::new(large).expect("large enough");
        // They join before any of them sends.
        let members: Vec<_> = (0..peers).map(|_| pool.join(start)).collect();
        let _ = told(&mut pool, start);
        let mut lent = Vec::new();
        for member in members {
            pool.handle_update(start, member, &update(Op::Stalled, 0, 0));
            let _ = told(&mut pool, start);
            lent.push(pool.lane(member).expect("a member").lent);
        }
        let served: Vec<_> = lent.into_iter().filter(|n| *n > 0).collect();
        println!(
            "{peers} peers begin to send, one after the other: without waiting these are lent {served:?}"
        );
        assert!(served.iter().max() <= Some(&most) && served.len() >= at_once, "{peers} peers");
    }
}

/// A pool whose first member has been told that it has all blocks, and whose second member wants some.
fn all_with_the_first(now: Instant) -> (Pool, Member, Member) {
    let mut pool = Pool::new(config()).expect("large enough");
    let first = pool.join(now);
    assert_eq!(told(&mut pool, now), [(first, 100)]);
    let second = pool.join(now);
    assert_eq!(told(&mut pool, now), [(second, 0)]);
    pool.handle_update(now, second, &update(Op::Stalled, 0, 0));
    (pool, first, second)
}

#[test]
fn a_sender_whose_packets_the_network_copied_does_not_wait_for_ever() {
    let start = Instant::now();
    let (mut pool, first, second) = all_with_the_first(start);
    assert_eq!(told(&mut pool, start), [(first, 50)]);
    pool.handle_update(start, first, &update(Op::Yielded, 0, 50));
    assert_eq!(told(&mut pool, start), [(second, 25)]);
    // It sent 20 blocks, which the network duplicated: no more than 5 of the 30 would be left to it.
    pool.handle_packet(start, second, 20).expect("lent");
    assert!(pool.handle_packet(start, second, 20).is_err(), "more than it was lent");
    pool.handle_packet(start, second, 5).expect("a copy of a part");
    pool.release(second, 25);
    let _ = told(&mut pool, start);
    let at = start + us(10);
    // It has sent 18, 2 more, and waits: an update that data overtook would report the same, but the next one would
    // not.
    let before = pool.lane(second).expect("a member").outstanding();
    pool.handle_update(at, second, &update(Op::Normal, 18, 0));
    assert_eq!(pool.lane(second).expect("a member").outstanding(), before);
    pool.handle_update(at, second, &update(Op::Stalled, 20, 0));
    assert_eq!(pool.lane(second).expect("a member").outstanding(), before + 5, "what it may send in fact");
    let limits = told(&mut pool, at);
    assert!(limits.iter().any(|(member, _)| *member == second), "{limits:?}: it is told how far it may go");
}

/// A limit that is too far ahead of the sent count is one behind it.
#[test]
fn a_sender_whose_packets_were_counted_twice_goes_on_with_the_highest_limit_that_there_is() {
    let start = Instant::now();
    let config = PoolConfig { blocks: 10_000, share_blocks: u16::MAX, fcp_on_free_blocks: 1, ..config() };
    let mut pool = Pool::new(config).expect("large enough");
    let member = pool.join(start);
    let mut sender = CreditSender::new(None);
    let sends = |sender: &mut CreditSender, limits: Vec<(Member, u16)>| {
        for (_, limit) in limits {
            sender.handle_update(start, &update(Op::Normal, 0, limit));
        }
        sender.try_take(start, 10)
    };
    assert!(sends(&mut sender, told(&mut pool, start)));
    for _ in 0..2 {
        pool.handle_packet(start, member, 10).expect("lent");
        pool.release(member, 10);
    }
    assert!(!sends(&mut sender, told(&mut pool, start)), "it is 2057 beyond what was sent");
    let stalled = update(Op::Stalled, sender.fctbs(), 0);
    for _ in 0..2 {
        pool.handle_update(start, member, &stalled);
    }
    assert!(sends(&mut sender, told(&mut pool, start)));
    pool.handle_packet(start, member, 10).expect("lent");
}

/// Its answer to a recall is ignored while its count seems to be an old one.
#[test]
fn a_sender_that_was_counted_twice_is_believed_while_something_is_taken_back() {
    let start = Instant::now();
    let (mut pool, first, _) = all_with_the_first(start);
    assert_eq!(told(&mut pool, start), [(first, 50)]);
    pool.handle_packet(start, first, 10).expect("lent");
    pool.handle_packet(start, first, 10).expect("a copy");
    pool.release(first, 20);
    pool.handle_update(start, first, &update(Op::Yielded, 10, 50));
    assert_eq!(pool.lane(first).expect("a member").outstanding(), 80, "it was taken for an old one");
    pool.handle_update(start, first, &update(Op::Stalled, 10, 0));
    assert_eq!(pool.lane(first).expect("a member").outstanding(), 90, "it sent no more than 10");
    pool.handle_update(start, first, &update(Op::Yielded, 10, 50));
    assert_eq!(pool.lane(first).expect("a member").outstanding(), 50);
    pool.audit();
}

#[test]
fn what_exceeds_a_share_comes_back_with_the_yield() {
    let start = Instant::now();
    let (mut pool, first, second) = all_with_the_first(start);
    assert_eq!(told(&mut pool, start), [(first, 50)]);
    assert_eq!(pool.free(), 0, "it may still arrive");
    assert_eq!(pool.handle_packet(start, first, 30), Ok(()), "as this does");
    pool.release(first, 30);
    let at = start + us(1);
    assert_eq!(told(&mut pool, at), [(second, 15)]);
    pool.handle_update(at, first, &update(Op::Yielded, 30, 50));
    // It sent none of the 50 that it kept, but 30 of the 50 that were recalled.
    assert_eq!((pool.free(), told(&mut pool, at)), (35, vec![(first, 80)]));
}

#[test]
fn time_alone_frees_nothing_that_may_lie_unread() {
    let start = Instant::now();
    let (mut pool, first, second) = all_with_the_first(start);
    assert_eq!(told(&mut pool, start), [(first, 50)]);
    pool.set_backlog(true);
    // Silent for a lease: the rest is recalled too, and settles later.
    let _ = told(&mut pool, start + us(1001));
    let later = start + us(5000);
    let gets = |pool: &mut Pool, at| told(pool, at).iter().any(|(m, limit)| *m == second && *limit > 0);
    assert!(!gets(&mut pool, later), "what the first has sent may not have been read");
    assert!(pool.poll_timeout().is_none_or(|at| at > later), "a timer in the past");
    pool.set_backlog(false);
    assert!(gets(&mut pool, later));
}

#[test]
fn what_members_say_has_room_beside_what_is_lent() {
    let start = Instant::now();
    let config = PoolConfig { member_blocks: 4, reserve_blocks: 8, ..config() };
    let mut pool = Pool::new(config).expect("large enough");
    let lent = |pool: &mut Pool, at| told(pool, at).iter().map(|(_, limit)| u32::from(*limit)).sum::<u32>();
    let members: Vec<_> = (0..12).map(|_| pool.join(start)).collect();
    for member in &members {
        pool.handle_update(start, *member, &update(Op::Stalled, 0, 0));
    }
    // For two members the reserve suffices; ten occupy up to 40 of the 100 blocks.
    assert_eq!(lent(&mut pool, start), 60);
    assert_eq!(pool.free(), 40);
    for member in &members[2..] {
        pool.leave(start, *member);
    }
    assert!(pool.available() > 0, "it is lent again when they are gone");
}

#[test]
fn newcomers_find_a_packet_whatever_the_others_were_lent() {
    let start = Instant::now();
    let config = PoolConfig { blocks: 160, newcomers: 2, share_blocks: 200, ..config() };
    let mut pool = Pool::new(config).expect("large enough");
    let first = pool.join(start);
    assert_eq!(told(&mut pool, start), [(first, 140)]);
    assert!(pool.handle_packet(start, first, 131).is_ok());
    pool.handle_update(start, first, &update(Op::Stalled, 131, 0));
    // It may use up the blocks kept for members with less than a packet, and no more.
    assert_eq!(told(&mut pool, start), [(first, 141)]);
    pool.handle_update(start, first, &update(Op::Stalled, 131, 0));
    let _ = told(&mut pool, start);
    assert_eq!(pool.free(), 19);
    let second = pool.join(start);
    pool.handle_update(start, second, &update(Op::Stalled, 0, 0));
    assert!(told(&mut pool, start).contains(&(second, 10)));
}

#[test]
fn what_members_said_and_was_read_has_room_too() {
    let start = Instant::now();
    let config = PoolConfig { member_blocks: 4, reserve_blocks: 8, read_blocks: 15, ..config() };
    let mut pool = Pool::new(config).expect("large enough");
    let first = pool.join(start);
    assert_eq!(pool.blocks(), 96, "one member said 4 blocks that may be held back");
    let others: Vec<_> = (0..11).map(|_| pool.join(start)).collect();
    assert_eq!(pool.blocks(), 45, "beside 40 that wait, 15 of 48 that were read");
    for member in others.into_iter().chain([first]) {
        pool.leave(start, member);
    }
    assert_eq!(pool.blocks(), 100);
}

#[test]
fn what_is_lent_to_a_sender_that_is_gone_for_certain_is_free_at_once() {
    let start = Instant::now();
    for recalled in [false, true] {
        let (mut pool, first, second) = all_with_the_first(start);
        if recalled {
            // It was asked to give some blocks back, and did not answer.
            pool.handle_update(start, second, &update(Op::Stalled, 0, 0));
            told(&mut pool, start);
        }
        assert_eq!(pool.free(), 0);
        pool.end(start, first);
        assert_eq!(pool.free(), 100, "recalled: {recalled}");
        pool.audit();
    }
}

#[test]
fn a_silent_lane_gives_everything_back() {
    let start = Instant::now();
    let (mut pool, first, second) = all_with_the_first(start);
    let later = start + us(101);
    assert!(told(&mut pool, later).contains(&(first, 0)));
    pool.handle_update(later, first, &update(Op::Yielded, 0, 0));
    assert_eq!(told(&mut pool, later), [(second, 50)]);
}

#[test]
fn a_lane_that_does_not_answer_has_given_back_when_it_has_settled() {
    let start = Instant::now();
    let (mut pool, first, second) = all_with_the_first(start);
    assert_eq!(told(&mut pool, start), [(first, 50)]);
    // Silent for a lease: the rest is recalled too, which does not delay the use of the blocks recalled first.
    assert!(told(&mut pool, start + us(1001)).contains(&(first, 0)));
    assert!(told(&mut pool, start + us(2999)).iter().all(|(m, limit)| *m != second || *limit == 0));
    assert!(told(&mut pool, start + us(3001)).contains(&(second, 25)));
    assert_eq!(pool.free(), 25);
    let _ = told(&mut pool, start + us(4001));
    assert_eq!(pool.free(), 75);
}

#[test]
fn a_yield_that_repeats_another_limit_is_no_answer() {
    let start = Instant::now();
    let (mut pool, first, _) = all_with_the_first(start);
    pool.handle_update(start, first, &update(Op::Yielded, 0, 100));
    assert_eq!(pool.free(), 0, "nobody asked");
    assert_eq!(told(&mut pool, start), [(first, 50)]);
    for other in [0, 49, 51, 100, 2098, MASK] {
        pool.handle_update(start, first, &update(Op::Yielded, 0, other));
        assert_eq!(pool.free(), 0, "it was told 50, not {other}");
    }
    // A packet that follows the first one, which was lost.
    assert_eq!(pool.handle_packet(start, first, 10), Ok(()));
    pool.release(first, 10);
    let _ = told(&mut pool, start + us(100));
    pool.handle_update(start, first, &update(Op::Yielded, 10, 60));
    assert_eq!(pool.free(), 40);
}

#[test]
fn a_late_answer_is_not_taken_for_that_to_the_next_question() {
    let start = Instant::now();
    let (mut pool, first, _) = all_with_the_first(start);
    let _ = told(&mut pool, start);
    // No answer arrives in time.
    let settled = start + us(3000);
    pool.handle_update(settled, first, &update(Op::Stalled, 0, 0));
    let _ = told(&mut pool, settled);
    let lent = pool.lane(first).expect("a member").lent;
    assert!(lent >= 50, "it has {lent}");
    // It leaves open whether it received this limit.
    pool.take_back(settled, first, 50 - 1);
    let _ = told(&mut pool, settled);
    let free = pool.free();
    for obeyed in 49..=50 {
        pool.handle_update(settled, first, &update(Op::Yielded, 0, obeyed));
    }
    assert_eq!(pool.free(), free, "the old one may be on its way");
    let _ = told(&mut pool, settled + us(3000));
    pool.audit();
}

#[test]
fn what_was_not_told_yet_is_free_at_once() {
    let start = Instant::now();
    let mut pool = Pool::new(config()).expect("large enough");
    let member = pool.join(start);
    pool.lend(start);
    assert_eq!(pool.free(), 0);
    pool.take_back(start, member, 40);
    assert_eq!((pool.free(), told(&mut pool, start)), (60, vec![(member, 40)]));
}

#[test]
fn a_limit_that_was_lowered_by_all_that_was_lent_is_not_read_as_a_higher_one() {
    let now = Instant::now();
    let config = PoolConfig { blocks: 10_000, share_blocks: u16::MAX, ..config() };
    let mut pool = Pool::new(config).expect("large enough");
    let member = pool.join(now);
    let mut sender = CreditSender::new(Some(us(1000)));
    let (_, limit) = pool.poll_limit(now).expect("it is told");
    assert!(!sender.handle_update(now, &update(Op::Normal, 0, limit)));
    assert!(sender.try_take(now, 2047) && sender.available(now) == 0);
    pool.take_back(now, member, 0);
    let (_, limit) = pool.poll_limit(now).expect("it is told");
    assert!(sender.handle_update(now, &update(Op::Normal, 0, limit)));
    assert_eq!(sender.available(now), 0);
}

#[test]
fn what_was_not_lent_is_refused() {
    let start = Instant::now();
    let mut pool = Pool::new(config()).expect("large enough");
    let member = pool.join(start);
    assert_eq!(pool.handle_packet(start, member, 1), Err(Overrun { blocks: 1, free: 0 }));
    let _ = told(&mut pool, start);
    assert_eq!(pool.handle_packet(start, member, 101), Err(Overrun { blocks: 101, free: 100 }));
    assert_eq!(pool.handle_packet(start, member, u32::MAX), Err(Overrun { blocks: u32::MAX, free: 100 }));
    assert_eq!(pool.handle_packet(start, member, 100), Ok(()));
    pool.handle_update(start, member, &update(Op::Normal, 2000, 0));
    assert_eq!(pool.free(), 0, "a count that cannot be");
    pool.audit();
}

/// A lane that may send 100 blocks and sends them ten at a time gets a new limit when half of them are gone, or when
/// as many are gone as the limit may lag.
#[test]
fn limits_lag_no_further_than_they_may() {
    let start = Instant::now();
    let updates = |fcp_on_free_blocks| {
        let mut pool = Pool::new(PoolConfig { fcp_on_free_blocks, ..config() }).expect("large enough");
        let member = pool.join(start);
        assert_eq!(told(&mut pool, start), [(member, 100)]);
        let after = |n: u16| {
            pool.handle_packet(start, member, 10).expect("it was lent them");
            pool.release(member, 10);
            told(&mut pool, start).into_iter().map(|(_, limit)| (n, limit)).collect::<Vec<_>>()
        };
        (1..=12).flat_map(after).collect::<Vec<_>>()
    };
    assert_eq!(updates(u16::MAX), [(6, 160), (12, 220)]);
    assert_eq!(updates(25), [(3, 130), (6, 160), (9, 190), (12, 220)]);
    assert_eq!(updates(0), (1..=12).map(|n| (n, 100 + 10 * n)).collect::<Vec<_>>());
}

#[test]
fn packets_that_are_read_late_are_made_up_for_one_by_one() {
    let start = Instant::now();
    let mut pool = Pool::new(PoolConfig { fcp_on_free_blocks: 0, ..config() }).expect("large enough");
    let member = pool.join(start);
    assert_eq!(told(&mut pool, start), [(member, 100)]);
    for _ in 0..3 {
        pool.handle_packet(start, member, 10).expect("it was lent them");
    }
    assert_eq!(told(&mut pool, start), [], "all of it is in the buffer");
    for limit in [110, 120, 130] {
        pool.release(member, 10);
        assert_eq!(told(&mut pool, start), [(member, limit)]);
    }
}

/// A lane that reports twice that it waits, without having sent anything in between, missed the update with its
/// credit.
#[test]
fn a_limit_that_was_lost_is_told_again() {
    let start = Instant::now();
    let mut pool = Pool::new(config()).expect("large enough");
    let member = pool.join(start);
    assert_eq!(told(&mut pool, start), [(member, 100)]);
    pool.handle_update(start, member, &update(Op::Stalled, 0, 0));
    assert_eq!(told(&mut pool, start), [], "it may not have heard yet");
    pool.handle_update(start, member, &update(Op::Stalled, 0, 0));
    assert_eq!(told(&mut pool, start), [(member, 100)]);
    pool.handle_packet(start, member, 10).expect("it was lent them");
    pool.handle_update(start, member, &update(Op::Stalled, 10, 0));
    assert_eq!(told(&mut pool, start), [], "it has sent something since");
}

#[test]
fn who_waits_hears_from_time_to_time_that_somebody_is_there() {
    let mut now = Instant::now();
    let (mut pool, holder, other) = all_with_the_first(now);
    // The first member's loan has arrived, and is not read.
    let lent = pool.lane(holder).expect("a member").lent;
    pool.handle_packet(now, holder, lent.into()).expect("it was lent that");
    pool.handle_update(now, other, &update(Op::Stalled, 0, 0));
    let begin = now;
    let mut heard = Vec::new();
    while now < begin + us(10_000) {
        now += us(50);
        heard.extend(
            told(&mut pool, now).into_iter().filter(|(member, _)| *member == other).map(|_| now - begin),
        );
    }
    // It was lent less than what was available at first. It gets more once in a lease of a millisecond, or the next
    // time that the pool examines it.
    assert!(heard.iter().any(|at| *at > us(3_000)), "{heard:?}");
    let late: Vec<_> = heard.iter().filter(|at| **at > us(1_500)).collect();
    assert!(late.windows(2).all(|pair| (us(1_000)..us(1_150)).contains(&(*pair[1] - *pair[0]))), "{heard:?}");
    assert!((7..=9).contains(&late.len()), "{heard:?}");
    pool.release(holder, lent.into());
    assert!(told(&mut pool, now).iter().any(|(member, limit)| *member == other && *limit > 0));
}

#[test]
fn lanes_that_leave_give_everything_back() {
    let start = Instant::now();
    let mut pool = Pool::new(config()).expect("large enough");
    let old = pool.join(start);
    let _ = told(&mut pool, start);
    assert_eq!(pool.handle_packet(start, old, 40), Ok(()));
    pool.leave(start, old);
    pool.audit();
    assert_eq!(pool.handle_packet(start, old, 1), Err(Overrun { blocks: 1, free: 0 }), "it is gone");
    assert_eq!(pool.poll_limit(start + us(3000)), None);
    assert_eq!(pool.free(), 60);
    pool.release(old, 40);
    assert_eq!(pool.free(), 100);
    let new = pool.join(start + us(3000));
    assert_ne!(new, old);
    pool.release(old, 40);
    assert_eq!(pool.free(), 100, "no stranger gives anything back");
    pool.audit();
}

#[test]
fn lanes_that_each_wait_with_less_than_a_packet_give_that_up_for_one_another() {
    let start = Instant::now();
    let mut pool = Pool::new(config()).expect("large enough");
    let members: Vec<_> = (0..50).map(|_| pool.join(start)).collect();
    let mut counts = [0; 50];
    let mut now = start;
    // Each leaves 2 blocks of every packet's worth unused, until none of them could send.
    for round in 0..3 {
        for (n, member) in members.iter().enumerate() {
            pool.handle_update(now, *member, &update(Op::Stalled, counts[n], 0));
        }
        for _ in 0..200 {
            now += us(10);
            for (member, limit) in told(&mut pool, now) {
                let n = member.index();
                let room = crate::credits::distance(counts[n], limit);
                if (10..=WINDOW).contains(&room) {
                    assert_eq!(pool.handle_packet(now, member, 8), Ok(()));
                    pool.release(member, 8);
                    counts[n] += 8;
                } else {
                    pool.handle_update(now, member, &update(Op::Yielded, counts[n], limit));
                }
                pool.handle_update(now, member, &update(Op::Stalled, counts[n], 0));
            }
        }
        let least = counts.iter().min();
        assert!(least >= Some(&(8 * (round + 1))), "round {round}: {counts:?}");
    }
}
