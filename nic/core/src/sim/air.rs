//! The smallest network: every port has a cable to every other.

use super::agenda::Agenda;
use super::network::{Network, Packet, Reached, Target};
use std::net::IpAddr;
use time::{Duration, Instant};

/// Packets in flight, each of which takes the latency of its receiver.
pub(super) struct Air {
    flying: Agenda<Flying>,
    latency: Duration,
    /// By port: its own latency for packets to it, if it has one.
    own: Vec<Option<Duration>>,
}

/// A packet in flight.
struct Flying {
    to: Target,
    packet: Packet,
}

impl Air {
    pub(super) fn new(latency: Duration) -> Self {
        Self { flying: Agenda::default(), latency, own: Vec::new() }
    }

    /// Sets the latency of packets that are sent from now on: to one port, or to all that have none of their own.
    pub(super) fn set_latency(&mut self, site: Option<usize>, latency: Duration) {
        match site {
            None => self.latency = latency,
            Some(site) => {
                if let Some(own) = self.own.get_mut(site) {
                    *own = Some(latency);
                }
            }
        }
    }

    fn latency_to(&self, site: usize) -> Duration {
        self.own.get(site).copied().flatten().unwrap_or(self.latency)
    }
}

impl Network for Air {
    fn attach(&mut self, _: IpAddr) {
        self.own.push(None);
    }

    fn send(&mut self, now: Instant, _: Option<usize>, to: Target, packet: Packet) {
        match to {
            // The members are determined when the packet arrives, which may be at a different time for each port.
            Target::Members if self.own.iter().any(Option::is_some) => {
                for site in 0..self.own.len() {
                    let flying = Flying { to: Target::Member(site), packet: packet.clone() };
                    self.flying.set(now + self.latency_to(site), flying);
                }
            }
            Target::Members | Target::Address => self.flying.set(now + self.latency, Flying { to, packet }),
            Target::Site(site) | Target::Member(site) => {
                self.flying.set(now + self.latency_to(site), Flying { to, packet });
            }
        }
    }

    fn next(&mut self) -> Option<Instant> {
        self.flying.next()
    }

    fn run(&mut self, until: Instant, reached: &mut Vec<(Target, Reached)>) -> Option<Instant> {
        let at = self.flying.next().filter(|at| *at <= until)?;
        while let Some(Flying { to, packet }) = self.flying.take(at) {
            reached.push((to, Reached::Packet(packet)));
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qp::wire::IpHeader;

    /// Picoseconds after the epoch.
    const fn at(picos: u128) -> Instant {
        Instant::EPOCH.plus_picos(picos)
    }

    fn packet(byte: u8) -> Packet {
        Packet::new(IpHeader::default(), &[byte])
    }

    /// When the next packets arrive, for whom, and which.
    fn arrive(air: &mut Air) -> Option<(Instant, Vec<(Target, u8)>)> {
        let mut reached = Vec::new();
        let now = air.run(at(u128::MAX), &mut reached)?;
        let byte = |what| match what {
            Reached::Packet(packet) => packet.byte(0),
            Reached::Room => panic!("it is always there"),
        };
        Some((now, reached.into_iter().map(|(to, what)| (to, byte(what))).collect()))
    }

    #[test]
    fn packets_arrive_after_the_latency_of_their_receiver() {
        let mut air = Air::new(Duration::from_nanos(10));
        (0..2).for_each(|n| air.attach([10, 0, 0, n].into()));
        air.set_latency(Some(1), Duration::from_nanos(15));
        for (sent, site, byte) in [(0, 1, 1), (0, 0, 2), (5_000, 0, 3), (500, 0, 4)] {
            air.send(at(sent), None, Target::Site(site), packet(byte));
        }
        assert_eq!(air.next(), Some(at(10_000)));
        assert!(air.run(at(9_999), &mut Vec::new()).is_none());
        let [zero, one] = [0, 1].map(Target::Site);
        let seen: Vec<_> = std::iter::from_fn(|| arrive(&mut air)).collect();
        assert_eq!(
            seen,
            [
                (at(10_000), vec![(zero, 2)]),
                (at(10_500), vec![(zero, 4)]),
                (at(15_000), vec![(one, 1), (zero, 3)]),
            ]
        );
        assert_eq!(air.next(), None);
    }

    #[test]
    fn a_group_is_reached_at_once_unless_latencies_differ() {
        let mut air = Air::new(Duration::from_nanos(10));
        (0..2).for_each(|n| air.attach([10, 0, 0, n].into()));
        air.send(at(0), None, Target::Members, packet(1));
        air.set_latency(Some(0), Duration::from_nanos(3));
        air.send(at(0), None, Target::Members, packet(2));
        let seen: Vec<_> = std::iter::from_fn(|| arrive(&mut air)).collect();
        let first = (at(3_000), vec![(Target::Member(0), 2)]);
        assert_eq!(seen, [first, (at(10_000), vec![(Target::Members, 1), (Target::Member(1), 2)])]);
    }
}
