//! Lost packets and lost ranks: results stay right, and no rank hangs. All in virtual time, so every run is the same.

use rnic_collectives::{
    Algorithm, Collective, CollectiveError, Communicator, Element, Plan, Settings, peers,
};
use rnic_core::engine::PartnerSetup;
use rnic_core::sim::{DeviceSetup, Net};
use rnic_core::{ConnectOptions, Device};
use std::collections::BTreeMap;
use std::time::Duration;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

const ALL: [(Collective, Algorithm); 7] = [
    (Collective::AllReduce, Algorithm::Ring),
    (Collective::AllReduce, Algorithm::Tree),
    (Collective::AllReduce, Algorithm::RecursiveDoubling),
    (Collective::AllReduce, Algorithm::HalvingDoubling),
    (Collective::AllGather, Algorithm::Ring),
    (Collective::ReduceScatter, Algorithm::Ring),
    (Collective::AllToAll, Algorithm::Pairwise),
];

/// No operation takes longer, in virtual time: some hundred timeouts of 67 ms, one after the other.
const BOUND: Duration = Duration::from_secs(10);

/// Ranks that are connected, each on a device of its own.
struct Group {
    net: Net,
    devices: Vec<Device>,
    /// Those that are left.
    ranks: BTreeMap<usize, Communicator>,
    plan: Plan,
    count: usize,
}

/// A number of a rank's vector.
fn input(rank: usize, index: usize) -> u64 {
    (rank as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (index as u64).wrapping_mul(0xD1B5_4A32_D192_ED03)
}

impl Group {
    fn new(
        count: usize,
        (collective, algorithm): (Collective, Algorithm),
        is_selective: bool,
    ) -> Outcome<Self> {
        let net = Net::with_seed(11);
        let plan = Plan { collective, algorithm, element: Element::U64, count: 2003 };
        let setup = DeviceSetup { partner: PartnerSetup::offering(is_selective), ..DeviceSetup::default() };
        let devices = (0..count).map(|_| net.device_with(&setup)).collect::<Result<Vec<_>, _>>()?;
        // Small pieces, so that slots are used again and again.
        let settings = Settings { piece: 512, ..Settings::default() };
        let mut ranks = BTreeMap::new();
        for (rank, device) in devices.iter().enumerate() {
            let of = peers(&plan, rank, count)?;
            let ours = Communicator::new(device, rank, count, &of, plan.bytes(rank, count), &settings)?;
            for index in 0..plan.count {
                ours.data().store_u64(8 * index, input(rank, index))?;
            }
            ranks.insert(rank, ours);
        }
        for rank in 0..count {
            for peer in peers(&plan, rank, count)? {
                let offer = ranks[&peer.rank].offer(rank)?;
                ranks.get_mut(&rank).ok_or("a rank")?.connect(&offer, &ConnectOptions::default())?;
            }
        }
        Ok(Self { net, devices, ranks, plan, count })
    }

    fn start(&mut self) -> Outcome {
        let now = self.net.elapsed();
        Ok(self.ranks.values_mut().try_for_each(|rank| rank.start(&self.plan, now))?)
    }

    /// Polls all ranks once, and moves time on to what happens next. What has become of each rank that has ended.
    fn step(&mut self) -> BTreeMap<usize, Result<(), CollectiveError>> {
        let now = self.net.elapsed();
        let mut ended = BTreeMap::new();
        for (number, rank) in &mut self.ranks {
            match rank.poll(now) {
                Ok(false) => {}
                Ok(true) => drop(ended.insert(*number, Ok(()))),
                Err(why) => drop(ended.insert(*number, Err(why))),
            }
        }
        let next = self.ranks.values().filter_map(Communicator::deadline).min().unwrap_or(BOUND);
        let wait = next.saturating_sub(now);
        if !self.net.step_within(wait) {
            self.net.run_for(wait);
        }
        ended
    }

    /// Runs until every rank that is left has ended. `leaves`: one that fails is gone at once.
    fn end(&mut self, leaves: bool) -> BTreeMap<usize, Result<(), CollectiveError>> {
        let mut all = BTreeMap::new();
        while self.ranks.keys().any(|rank| !all.contains_key(rank)) {
            assert!(self.net.elapsed() < BOUND, "{:?}: only {:?} have ended", self.plan, all.keys());
            for (rank, how) in self.step() {
                if leaves && how.is_err() {
                    self.ranks.remove(&rank);
                }
                all.entry(rank).or_insert(how);
            }
        }
        all
    }

    /// Nothing reaches this rank any more, and nothing comes from it.
    fn kill(&mut self, rank: usize) -> Outcome {
        ["tx p=1 drop", "rx p=1 drop"]
            .iter()
            .try_for_each(|rule| self.devices[rank].add_fault(rule).map(drop))?;
        self.ranks.remove(&rank);
        Ok(())
    }

    /// Checks every number of every rank against what it should be, computed directly.
    fn verify(&self) -> Outcome {
        let (plan, count) = (&self.plan, self.count);
        let part = |rank: usize| plan.count * rank / count..plan.count * (rank + 1) / count;
        let sum = |index: usize| (0..count).fold(0_u64, |sum, rank| sum.wrapping_add(input(rank, index)));
        for (rank, ours) in &self.ranks {
            let at = |index: usize| ours.data().load_u64(8 * index);
            match plan.collective {
                Collective::AllReduce | Collective::ReduceScatter => {
                    let is_all = plan.collective == Collective::AllReduce;
                    for index in if is_all { 0..plan.count } else { part(*rank) } {
                        assert_eq!(at(index)?, sum(index));
                    }
                }
                Collective::AllGather => {
                    for (from, index) in
                        (0..count).flat_map(|from| part(from).map(move |index| (from, index)))
                    {
                        assert_eq!(at(index)?, input(from, index));
                    }
                }
                Collective::AllToAll => {
                    let all = (0..count).flat_map(|from| part(*rank).map(move |index| (from, index)));
                    for (place, (from, index)) in all.enumerate() {
                        assert_eq!(at(plan.count + place)?, input(from, index));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whatever is sent again, each message is added once.
#[test]
fn results_are_right_however_much_is_lost() -> Outcome {
    for what in ALL {
        for loss in ["0.01", "0.05"] {
            for is_selective in [false, true] {
                let mut group = Group::new(5, what, is_selective)?;
                for device in &group.devices {
                    device.add_fault(&format!("tx p={loss} drop"))?;
                }
                group.start()?;
                let ended = group.end(false);
                assert!(ended.values().all(Result::is_ok), "{what:?} {loss} {is_selective}: {ended:?}");
                group.verify()?;
                let lost: u64 =
                    group.devices.iter().map(|device| device.counters().qp.retransmitted_pkts).sum();
                println!("{what:?} {loss} {is_selective}: {lost} sent again, {:?}", group.net.elapsed());
                assert!(lost > 0, "nothing was lost");
            }
        }
    }
    Ok(())
}

/// When a rank dies, before the others begin or later, its neighbours notice, and so do the ranks that only wait for those
/// neighbours.
#[test]
fn every_rank_hears_of_one_that_dies() -> Outcome {
    for what in ALL {
        for dead in 0..5 {
            for steps in [0, 5] {
                let mut group = Group::new(5, what, false)?;
                group.start()?;
                // Later, some may be done.
                (0..steps).for_each(|_| drop(group.step()));
                group.kill(dead)?;
                let ended = group.end(false);
                let failed: Vec<usize> =
                    ended.iter().filter(|(_, how)| how.is_err()).map(|(rank, _)| *rank).collect();
                assert!(steps > 0 || failed.len() == 4, "{what:?}: {failed:?}");
                for (rank, how) in ended {
                    let names = match how {
                        Ok(()) => None,
                        Err(CollectiveError::Failed { peer, .. }) => Some(peer),
                        Err(CollectiveError::Lost { rank, .. }) => Some(rank),
                        Err(other) => {
                            return Err(format!("{what:?} {dead} {steps}: {rank} says {other}").into());
                        }
                    };
                    assert!(
                        names.is_none_or(|name| name == dead),
                        "{what:?}, {steps} steps: {rank} says {names:?}"
                    );
                }
                let now = group.net.elapsed();
                for rank in failed {
                    let why = group.ranks.get_mut(&rank).ok_or("a rank")?;
                    let why = why.start(&group.plan, now).expect_err("it is of no use any more").to_string();
                    assert!(why.contains(&format!("rank {dead} is gone")), "{why}");
                }
            }
        }
    }
    Ok(())
}

/// A rank that fails is gone before it can tell anybody: the others find out one after the other.
#[test]
fn ranks_that_are_gone_without_a_word_are_missed() -> Outcome {
    for what in ALL {
        let mut group = Group::new(5, what, false)?;
        group.start()?;
        group.kill(2)?;
        let ended = group.end(true);
        assert!(ended.len() == 4 && ended.values().all(Result::is_err), "{what:?}: {ended:?}");
    }
    Ok(())
}

/// A rank that is there and silent is waited for: it may be slow.
#[test]
fn a_rank_that_takes_its_time_is_waited_for() -> Outcome {
    for what in ALL {
        let mut group = Group::new(5, what, false)?;
        let late = group.ranks.remove(&3).ok_or("a rank")?;
        group.start()?;
        while group.net.elapsed() < Duration::from_secs(5) {
            assert!(group.step().is_empty(), "{what:?}: nobody ends without it");
        }
        let now = group.net.elapsed();
        group.ranks.entry(3).or_insert(late).start(&group.plan, now)?;
        assert!(group.end(false).values().all(Result::is_ok), "{what:?}");
        group.verify()?;
    }
    Ok(())
}
