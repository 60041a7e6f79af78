//! What must hold at the end of a world.

use super::side::{Life, Side};
use super::stranger::is_forged;
use super::world::{Answer, PORT, World};
use rnic::QpState;
use rnic::cm::protocol::{DisconnectCause, Endpoint};
use rnic::cm::{ConnectError, ConnectionEvent};
use std::time::Duration;

impl World {
    pub(super) fn judge(&mut self) -> Result<(), String> {
        self.mend()?;
        self.all_were_told()?;
        self.answers_were_heard()?;
        let (pairs, unaware) = self.pairs()?;
        self.messages_arrive(&pairs)?;
        self.the_unaware_learn(&unaware)?;
        self.nothing_is_left()
    }

    fn sides(&self) -> impl Iterator<Item = &Side> {
        self.hosts.iter().flat_map(|host| &host.sides)
    }

    /// Nobody waits without end.
    fn all_were_told(&mut self) -> Result<(), String> {
        match self.sides().find(|side| !side.is_open() && !side.is_over()) {
            Some(side) => Err(format!("{} was told nothing", side.name())),
            None => Ok(()),
        }
    }

    /// What the active sides learned is what the passive programs said.
    fn answers_were_heard(&mut self) -> Result<(), String> {
        let mut reached = Vec::new();
        for side in self.sides() {
            if is_forged(side.nonce) && !side.has_closed && side.end.is_some() {
                reached.push("a stranger's request is accepted, and fails");
            }
            let Some(attempt) = self.attempts.get(&side.nonce) else { continue };
            let accepted = attempt.ever_accepted;
            match side.events.first() {
                Some(ConnectionEvent::Established) => {
                    reached.push("a connection is established");
                    if side.is_active && !(accepted && attempt.ever_listened) {
                        return Err(format!("{} is connected, but nobody accepted", side.name()));
                    }
                }
                Some(ConnectionEvent::Failed(ConnectError::NobodyListens { .. })) => {
                    reached.push("nobody listens");
                    if attempt.always_listened {
                        return Err(format!("{} was told that nobody listens", side.name()));
                    }
                }
                Some(ConnectionEvent::Failed(ConnectError::Unreachable { .. })) => {
                    reached.push("nobody answers")
                }
                _ => {}
            }
            let answered = ConnectionEvent::Disconnected(DisconnectCause::Answered);
            if side.events.get(1) == Some(&answered) {
                reached.push("both sides know of the end");
            }
        }
        reached.into_iter().for_each(|situation| self.reach(situation));
        Ok(())
    }

    /// Every open side has an open peer, unless the peer's life has ended. Returns where both sides of each pair are, and
    /// the sides that do not know that their peer is gone.
    fn pairs(&mut self) -> Result<(Vec<[Place; 2]>, Vec<Place>), String> {
        let (mut pairs, mut unaware, mut lost) = (Vec::new(), Vec::new(), 0);
        for (place, side) in self.places() {
            if !side.is_open() {
                continue;
            }
            let Some(end) = &side.end else { continue };
            let attr = end.qp.query();
            let address = self.hosts[place.0].device.address();
            if attr.qp_state != Some(QpState::Rts) {
                return Err(format!("{} is open, its queue pair in {:?}", side.name(), attr.qp_state));
            }
            let is_peer = |other: &Side| {
                let qpn = other.end.as_ref().map(|end| end.qp.qpn());
                other.nonce == side.nonce && other.is_active != side.is_active && qpn == attr.dest_qp_num
            };
            // The passive side, or its program, gave up before it heard RTU. If its REJ is lost as well, nobody repeats
            // anything.
            let is_given_up = side.is_active && self.given_up.contains(&side.nonce);
            match self.places().find(|(_, other)| is_peer(other)) {
                Some((peer, other)) if other.is_open() => {
                    if side.is_active {
                        pairs.push([place, peer]);
                    }
                }
                _ if is_given_up => unaware.push(place),
                None if self.ear.has_lost_the_end_of(address, end.qp.qpn()) => {
                    unaware.push(place);
                    lost += 1;
                }
                Some((_, other)) => {
                    return Err(format!(
                        "{} is open, but {} is over: {:?}",
                        side.name(),
                        other.name(),
                        other.events
                    ));
                }
                None if self.peer_lives(side).iter().any(|life| self.ended.contains(life)) => {
                    unaware.push(place)
                }
                None => return Err(format!("{} is open, but its peer is gone", side.name())),
            }
        }
        pairs.iter().for_each(|_| self.reach("a connection survives to the end"));
        (0..lost).for_each(|_| self.reach("all DREQs are lost"));
        Ok((pairs, unaware))
    }

    fn places(&self) -> impl Iterator<Item = (Place, &Side)> {
        let of_host = |host: usize| self.hosts[host].sides.iter().enumerate();
        (0..self.hosts.len()).flat_map(move |host| of_host(host).map(move |(at, side)| ((host, at), side)))
    }

    /// The lives that may be at the other end of a connection.
    fn peer_lives(&self, side: &Side) -> Vec<Life> {
        let Some(attempt) = self.attempts.get(&side.nonce) else { return Vec::new() };
        if !side.is_active {
            return vec![attempt.from];
        }
        let accepted = attempt.answers.iter().filter(|(_, (answer, _))| *answer == Answer::Accepted);
        accepted.map(|(life, _)| *life).collect()
    }

    fn messages_arrive(&mut self, pairs: &[[Place; 2]]) -> Result<(), String> {
        let before: Vec<_> = pairs.iter().map(|pair| pair.map(|place| self.at(place).received)).collect();
        for place in pairs.iter().flatten() {
            self.at(*place).send().map_err(|error| error.to_string())?;
        }
        // Earlier messages that were lost are repeated every 67 ms.
        self.net.run_for(Duration::from_secs(2));
        self.look()?;
        for (pair, before) in pairs.iter().zip(before) {
            for (place, before) in pair.iter().zip(before) {
                let side = self.at(*place);
                if side.received <= before {
                    return Err(format!("{} received nothing: {:?}", side.name(), side.events));
                }
            }
        }
        Ok(())
    }

    fn the_unaware_learn(&mut self, unaware: &[Place]) -> Result<(), String> {
        for place in unaware {
            self.at(*place).send().map_err(|error| error.to_string())?;
        }
        // Eight transmissions, and then the repetitions of DREQ.
        self.net.run_for(Duration::from_secs(60));
        self.look()?;
        for place in unaware {
            let side = self.at(*place);
            if !side.is_over() {
                return Err(format!("{} did not learn that its peer is gone", side.name()));
            }
            self.reach("a side learns of a lost peer by sending");
        }
        Ok(())
    }

    fn at(&self, (host, at): Place) -> &Side {
        &self.hosts[host].sides[at]
    }

    fn nothing_is_left(&mut self) -> Result<(), String> {
        for host in 0..self.hosts.len() {
            self.hosts[host].sides.clear();
            let port = self.hosts[host].device.counters().port.cm;
            for (count, situation) in [
                (port.retries, "a message is repeated by a timer"),
                (port.repeated, "a message is repeated because its cause came again"),
            ] {
                (0..count).for_each(|_| self.reach(situation));
            }
        }
        self.net.run_for(Duration::from_secs(200));
        for host in &self.hosts {
            let sizes = host.device.connection_manager().and_then(|manager| manager.look(Endpoint::sizes));
            let sizes = sizes.map_err(|error| error.to_string())?;
            let queue_pairs = rnic_core::port::of(&host.device).inspect(|engine| engine.qp_count());
            if (sizes, queue_pairs) != ((0, 0, 0), Some(0)) {
                let what = format!("{sizes:?} connections and {queue_pairs:?} queue pairs");
                return Err(format!("host {} is left with {what}", host.number));
            }
            host.device.listen(PORT).map_err(|error| format!("port {PORT} is not free: {error}"))?;
        }
        Ok(())
    }
}

/// A host, and which of its sides.
type Place = (usize, usize);
