//! Lending, taking back and returning blocks; and many senders at one buffer, over channels that lose and delay.

mod crowd;

use super::*;
use crate::credits::{CreditSender, Kind};

const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn lane() -> Vl {
    Vl::new(0).expect("a lane")
}

fn config() -> PoolConfig {
    PoolConfig {
        blocks: 100,
        packet_blocks: 10,
        idle: us(100),
        lease: us(1000),
        transit: us(2000),
        ..PoolConfig::default()
    }
}

/// Ask `number` of a lane that has sent nothing, for a packet of `want` blocks, after grant `echo`.
fn ask(number: u16, want: u16, echo: u16) -> CreditMessage {
    CreditMessage { kind: Kind::Ask, vl: lane(), want, number, echo, count: 0, limit: 0 }
}

impl Pool {
    /// All counts agree with the lanes.
    fn audit(&self) {
        let taken = |l: &Lane| u64::from(l.outstanding() + l.occupied);
        assert_eq!(self.taken, self.lanes.iter().map(taken).sum::<u64>());
        assert_eq!(self.on_trial, self.lanes.iter().filter(|l| l.is_on_trial).map(taken).sum::<u64>());
        let members = || self.lanes.iter().filter(|l| l.is_member && !l.is_on_trial);
        assert_eq!(self.members as usize, members().count());
        assert_eq!(self.active as usize, members().filter(|l| l.want > 0 || l.lent() > 0).count());
        assert_eq!(self.low.len(), self.low.iter().collect::<std::collections::HashSet<_>>().len());
    }
}

/// All grants that are due, with the blocks that each lane may send.
fn granted(pool: &mut Pool, now: Instant) -> Vec<(Member, u32)> {
    let grants: Vec<_> = std::iter::from_fn(|| pool.poll_grant(now)).collect();
    pool.audit();
    grants.into_iter().map(|(member, grant)| (member, grant.limit - grant.count)).collect()
}

#[test]
fn a_pool_that_holds_no_packet_is_refused() {
    let refused = |c: PoolConfig| Pool::new(c).map(|_| ()).map_err(|e| (e.blocks, e.packet));
    assert_eq!(refused(PoolConfig { blocks: 9, ..config() }), Err((9, 10)));
    assert!(Pool::new(PoolConfig { blocks: 10, ..config() }).is_ok());
}

#[test]
fn an_only_member_is_lent_all_and_of_many_nobody_takes_it_from_the_others() {
    let (mut pool, now) = (Pool::new(config()).expect("a pool"), Instant::EPOCH);
    let first = pool.join(now, lane());
    assert_eq!(granted(&mut pool, now), [], "nothing is granted unasked");
    pool.handle_ask(now, first, &ask(1, 3, 0));
    assert_eq!(granted(&mut pool, now), [(first, 100)]);
    let mut pool = Pool::new(config()).expect("a pool");
    let members = [(); 5].map(|()| pool.join(now, lane()));
    pool.handle_ask(now, members[0], &ask(1, 3, 0));
    assert_eq!(granted(&mut pool, now), [(members[0], 20)], "one part of five");
}

#[test]
fn a_lane_that_sends_is_told_of_more_when_two_thirds_are_used() {
    let small = PoolConfig { packet_blocks: 4, ..config() };
    let (mut pool, now) = (Pool::new(small).expect("a pool"), Instant::EPOCH);
    let first = pool.join(now, lane());
    pool.handle_ask(now, first, &ask(1, 3, 0));
    assert_eq!(granted(&mut pool, now), [(first, 100)]);
    for (blocks, lent) in [(65, None), (1, Some(100)), (65, None), (10, Some(100))] {
        pool.handle_packet(now, first, blocks).expect("granted");
        pool.release(first, blocks);
        assert_eq!(granted(&mut pool, now), Vec::from_iter(lent.map(|lent| (first, lent))));
    }
    // What arrived and was not read is not lent again.
    pool.handle_packet(now, first, 99).expect("granted");
    assert_eq!(granted(&mut pool, now), []);
    pool.release(first, 14);
    assert_eq!(granted(&mut pool, now), [], "less than a quarter of how far it may lag");
    pool.release(first, 2);
    assert_eq!(granted(&mut pool, now), [(first, 17)]);
}

/// A pool with everything lent to the first of two members, which has heard of it.
fn all_with_the_first(now: Instant) -> (Pool, Member, Member) {
    let mut pool = Pool::new(config()).expect("a pool");
    let first = pool.join(now, lane());
    pool.handle_ask(now, first, &ask(1, 10, 0));
    assert_eq!(granted(&mut pool, now), [(first, 100)]);
    let second = pool.join(now, lane());
    (pool, first, second)
}

#[test]
fn what_exceeds_a_share_comes_back_with_the_answer() {
    let now = Instant::EPOCH;
    let (mut pool, first, second) = all_with_the_first(now);
    pool.handle_ask(now, second, &ask(1, 10, 0));
    // Both want something: 50 for each. Nothing is free before the first has answered.
    assert_eq!((granted(&mut pool, now), pool.free()), (vec![(first, 50)], 0));
    let stale = CreditMessage { limit: 100, ..ask(2, 0, 1) };
    pool.handle_ask(now, first, &stale);
    assert_eq!((granted(&mut pool, now), pool.free()), (vec![(first, 50)], 0), "it has not heard of it");
    // It sent 30 blocks meanwhile, of which 10 were lost.
    pool.handle_packet(now, first, 20).expect("granted");
    pool.release(first, 20);
    let answer = CreditMessage { count: 30, limit: 50, ..ask(3, 0, 2) };
    pool.handle_ask(now, first, &answer);
    assert_eq!(granted(&mut pool, now).last(), Some(&(second, 40)), "half of the 80 that are free");
}

#[test]
fn what_was_granted_to_one_that_is_gone_is_free_when_it_is_void() {
    let now = Instant::EPOCH;
    let (mut pool, first, second) = all_with_the_first(now);
    pool.leave(first);
    pool.handle_ask(now, second, &ask(1, 10, 0));
    assert_eq!(granted(&mut pool, now), []);
    // Lease and transit: 3 ms; a search each 100 us.
    let void = now + us(3000);
    assert_eq!(granted(&mut pool, void - us(101)), []);
    pool.set_backlog(true);
    assert_eq!(granted(&mut pool, void), [], "it may lie unread");
    pool.set_backlog(false);
    assert_eq!(granted(&mut pool, void + us(100)), [(second, 100)]);
}

#[test]
fn what_is_lent_to_a_sender_that_is_gone_for_certain_is_free_at_once() {
    let now = Instant::EPOCH;
    let (mut pool, first, second) = all_with_the_first(now);
    pool.end(first);
    pool.handle_ask(now, second, &ask(1, 10, 0));
    assert_eq!(granted(&mut pool, now), [(second, 100)]);
}

/// The network made copies, which were counted as data: the sender's own count sets that right.
#[test]
fn a_sender_whose_packets_the_network_copied_gets_back_what_it_did_not_send() {
    let now = Instant::EPOCH;
    let (mut pool, first, _) = all_with_the_first(now);
    for _ in 0..2 {
        pool.handle_packet(now, first, 50).expect("granted");
        pool.release(first, 50);
    }
    while pool.poll_grant(now).is_some() {}
    let half = CreditMessage { count: 50, limit: 100, ..ask(2, 10, 1) };
    pool.handle_ask(now, first, &half);
    pool.audit();
    assert!(
        pool.lane(first).is_some_and(|lane| lane.lent() >= 50),
        "what it was granted counts from what it sent"
    );
    // More than was granted is reported, and accounted for.
    let outstanding = pool.lane(first).map_or(0, |lane| lane.outstanding());
    assert_eq!(
        pool.handle_packet(now, first, outstanding + 1),
        Err(Overrun { blocks: outstanding + 1, free: outstanding })
    );
    pool.release(first, outstanding + 1);
    pool.audit();
}

#[test]
fn an_ask_that_was_overtaken_changes_nothing() {
    let now = Instant::EPOCH;
    let (mut pool, first, _) = all_with_the_first(now);
    pool.handle_packet(now, first, 60).expect("granted");
    pool.handle_ask(now, first, &CreditMessage { count: 60, limit: 100, ..ask(3, 0, 1) });
    let before = pool.lane(first).copied();
    pool.handle_ask(now, first, &CreditMessage { count: 10, limit: 100, ..ask(2, 5, 1) });
    let (before, after) = (before.expect("a lane"), pool.lane(first).copied().expect("a lane"));
    assert_eq!(
        (before.lent(), before.outstanding(), before.want),
        (after.lent(), after.outstanding(), after.want)
    );
}

#[test]
fn newcomers_find_a_packet_whatever_the_others_were_lent() {
    let now = Instant::EPOCH;
    let mut pool = Pool::new(PoolConfig { newcomers: 4, ..config() }).expect("a pool");
    let first = pool.join(now, lane());
    pool.handle_ask(now, first, &ask(1, 10, 0));
    // An eighth of 100 is one packet of 10.
    assert_eq!(granted(&mut pool, now), [(first, 90)]);
    let second = pool.join(now, lane());
    pool.handle_ask(now, second, &ask(1, 10, 0));
    assert!(granted(&mut pool, now).contains(&(second, 10)));
}

#[test]
fn what_members_say_has_room_beside_what_is_lent() {
    let now = Instant::EPOCH;
    let config = PoolConfig { member_blocks: 5, reserve_blocks: 8, read_blocks: 7, ..config() };
    let mut pool = Pool::new(config).expect("a pool");
    assert_eq!(pool.available(), 100);
    pool.join(now, lane());
    assert_eq!(pool.available(), 95, "what was read may still be there");
    pool.join(now, lane());
    // Of 10, 8 are in the reserve; and 7 at most were read.
    assert_eq!(pool.available(), 100 - 2 - 7);
    pool.expect(now);
    assert_eq!(pool.available(), 100 - 7 - 7);
    let later = now + us(3000);
    assert!(pool.poll_grant(later).is_none());
    assert_eq!(pool.available(), 100 - 2 - 7, "whoever was expected did not come");
}

#[test]
fn lanes_on_trial_have_an_eighth_and_take_nothing_from_others() {
    let now = Instant::EPOCH;
    let mut pool = Pool::new(PoolConfig { blocks: 160, ..config() }).expect("a pool");
    let strangers = [(); 5].map(|()| pool.join_on_trial(now, lane()));
    for stranger in strangers {
        pool.handle_ask(now, stranger, &ask(1, 10, 0));
    }
    assert_eq!(granted(&mut pool, now), [(strangers[0], 10), (strangers[1], 10)]);
    let member = pool.join(now, lane());
    pool.handle_ask(now, member, &ask(1, 10, 0));
    assert_eq!(granted(&mut pool, now), [(member, 140)]);
    // They have to give back what they do not use, for one another only.
    let later = now + us(201);
    pool.handle_ask(later, member, &ask(2, 0, 1));
    let told = granted(&mut pool, later);
    assert!(told.contains(&(strangers[0], 0)) && told.contains(&(strangers[1], 0)), "{told:?}");
    assert!(told.iter().all(|(of, lent)| *of != member || *lent == 140), "{told:?}");
    for stranger in &strangers[..2] {
        pool.handle_ask(later, *stranger, &ask(2, 0, 2));
    }
    assert_eq!(granted(&mut pool, later), [(strangers[2], 10), (strangers[3], 10)]);
    // One that turns out to have business here waits like any other, and no longer counts.
    pool.trust(strangers[2]);
    pool.audit();
    assert_eq!((pool.on_trial, pool.members), (10, 2));
}

#[test]
fn a_sender_that_asks_twice_hears_that_somebody_is_there() {
    let now = Instant::EPOCH;
    let (mut pool, first, second) = all_with_the_first(now);
    pool.handle_ask(now, second, &ask(1, 10, 0));
    assert_eq!(granted(&mut pool, now), [(first, 50)]);
    pool.handle_ask(now, second, &ask(2, 10, 0));
    assert_eq!(granted(&mut pool, now), [(second, 0)]);
}

#[test]
fn a_grant_that_was_lost_is_repeated() {
    let now = Instant::EPOCH;
    let (mut pool, first, second) = all_with_the_first(now);
    // It asks again, with nothing granted that it knows of.
    pool.handle_ask(now, first, &ask(2, 10, 0));
    assert_eq!(granted(&mut pool, now), [(first, 100)]);
    // A lease goes on with a grant, where something is leased.
    pool.handle_ask(now, first, &CreditMessage { limit: 100, ..ask(3, 0, 2) });
    pool.handle_ask(now, second, &ask(1, 0, 0));
    assert_eq!(granted(&mut pool, now), [(first, 100)]);
}

/// It heard a grant of the pool's earlier life, for example. It has to learn that nothing is left of it.
#[test]
fn a_sender_that_believes_in_credit_that_it_does_not_have_is_told_so() {
    let now = Instant::EPOCH;
    let (mut pool, _, second) = all_with_the_first(now);
    pool.handle_ask(now, second, &CreditMessage { limit: 40, ..ask(1, 0, 0) });
    assert_eq!(granted(&mut pool, now), [(second, 0)]);
    pool.handle_ask(now, second, &ask(2, 0, 0));
    assert_eq!(granted(&mut pool, now), [], "both ends agree that there is no credit");
}

/// The search for void loans finds that of the lane that waits.
#[test]
fn a_sender_that_was_idle_until_its_loan_was_void_is_lent_another_at_once() {
    for on_trial in [false, true] {
        let mut pool = Pool::new(config()).expect("a pool");
        let start = Instant::EPOCH;
        let member = if on_trial { pool.join_on_trial(start, lane()) } else { pool.join(start, lane()) };
        pool.handle_ask(start, member, &ask(1, 10, 0));
        let [(_, first)] = granted(&mut pool, start)[..] else { panic!("a grant") };
        let later = start + us(3000);
        pool.handle_ask(later, member, &CreditMessage { limit: first, ..ask(2, 10, 1) });
        assert_eq!(granted(&mut pool, later), [(member, first)], "on trial: {on_trial}");
    }
}

#[test]
fn places_are_used_again_once_nothing_is_left_there() {
    let now = Instant::EPOCH;
    let (mut pool, first, second) = all_with_the_first(now);
    pool.handle_packet(now, first, 5).expect("granted");
    pool.end(first);
    assert_eq!(pool.join(now, lane()).index(), 2, "a packet has not been read");
    pool.release(first, 5);
    let third = pool.join(now, lane());
    assert_eq!((third.index(), third == first), (first.index(), false));
    pool.end(second);
    assert_eq!(pool.join(now, lane()).index(), second.index());
}

#[test]
fn neither_one_that_left_nor_its_successor_is_told_what_it_asked() {
    let now = Instant::EPOCH;
    for is_replaced in [false, true] {
        let (mut pool, first, _) = all_with_the_first(now);
        pool.handle_ask(now, first, &ask(2, 10, 0));
        if is_replaced {
            pool.end(first);
            assert_eq!(pool.join(now, lane()).index(), first.index());
        } else {
            pool.leave(first);
        }
        assert_eq!(granted(&mut pool, now), [], "replaced: {is_replaced}");
    }
}

/// Somebody spoke in the sender's name, or the ends lost track of each other for another reason.
#[test]
fn an_impossible_count_starts_a_lane_again_with_nothing() {
    let now = Instant::EPOCH;
    let (mut pool, first, _) = all_with_the_first(now);
    pool.handle_ask(now, first, &CreditMessage { count: 2_000_000, limit: 100, ..ask(20_000, 0, 1) });
    assert_eq!((granted(&mut pool, now), pool.free()), (vec![], 100));
    // The sender itself: it is ignored while anything that was granted might be used, for 3 ms.
    let own = CreditMessage { count: 10, limit: 100, ..ask(2, 10, 1) };
    pool.handle_ask(now + us(2999), first, &own);
    assert_eq!(granted(&mut pool, now + us(2999)), []);
    pool.handle_ask(now + us(3000), first, &own);
    let grants: Vec<_> = std::iter::from_fn(|| pool.poll_grant(now + us(3000))).collect();
    let limits: Vec<_> = grants.iter().map(|(_, grant)| (grant.count, grant.limit)).collect();
    assert_eq!(limits, [(10, 60)], "half of the pool for one of two");
    pool.audit();
}
