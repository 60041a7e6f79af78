//! Runs the actions of a script.

use super::Check;
use super::conn::{Opening, State};
use super::host::{all_rights, refused};
use super::ledger::Sent;
use super::plan::{self, Action, Service, What};
use super::recv::Kind;
use super::rng::Rng;
use super::world::World;
use rnic::{Access, QpAttr, QpState, Rereg, WcOpcode, WcStatus};
use std::time::Duration;

impl World<'_> {
    /// Runs an action, if it is possible now.
    pub(crate) fn act(&mut self, action: &Action) -> Check {
        let (c, side) = (action.conn, action.side);
        if c >= self.conns.len() || side > 1 {
            return Ok(());
        }
        let mut rng = Rng::new(action.salt);
        let host = self.conns[c].ends[side].host;
        match action.what {
            What::Recv => {
                for _ in 0..action.times * 3 {
                    self.post_recv(c, side, Kind::Long)?;
                }
                Ok(())
            }
            What::ShortRecv => {
                let kind = if rng.percent(50) { Kind::Short } else { Kind::WrongKey };
                self.post_recv(c, side, kind).map(|_| ())
            }
            What::Poll => self.serve_host(host),
            What::Break => self.break_one(c, side),
            What::Drain => self.drain(c, side, &mut rng),
            What::Recover => self.recover(c, &mut rng),
            What::Renew => {
                self.take_down(c)?;
                self.recover(c, &mut rng)
            }
            What::Abrupt => {
                self.cut(c)?;
                self.recover(c, &mut rng)
            }
            What::Vanish => self.vanish(c, side),
            What::Deregister | What::Restrict | What::Reregister => self.register_anew(c, side, action.what),
            What::Unplug => self.unplug(host, &mut rng),
            What::Fatal => self.fail_device(host),
            What::Restart => self.replace_host(host),
            What::Forge => self.forge(c, side, action.times, &mut rng),
            What::Fault => self.pass_fault(host, &mut rng),
            What::Check => self.check_memory(),
            _ => self.post(action),
        }
    }

    fn break_one(&mut self, c: usize, side: usize) -> Check {
        if self.conns[c].state != State::Up {
            return Ok(());
        }
        self.conns[c].state = State::Broken;
        self.note(|| format!("conn {c} side {side} to ERR"));
        self.break_end(c, side)
    }

    fn drain(&mut self, c: usize, side: usize, rng: &mut Rng) -> Check {
        let conn = &self.conns[c];
        if conn.state != State::Up || conn.plan.service == Service::Xrc && side == 1 {
            return Ok(());
        }
        let Some(qp) = &conn.ends[side].qp else { return Ok(()) };
        if qp.state() != QpState::Rts {
            return Ok(());
        }
        qp.modify(&QpAttr::to_state(QpState::Sqd)).map_err(refused("to SQD"))?;
        self.cover.hit("SQD");
        self.run_for(Duration::from_nanos(rng.below(100_000)))?;
        if let Some(qp) = self.conns[c].ends[side].qp.as_ref().filter(|qp| qp.state() == QpState::Sqd) {
            qp.modify(&QpAttr::to_state(QpState::Rts)).map_err(refused("back to RTS"))?;
            self.witness.resume((c, side));
        }
        Ok(())
    }

    /// Sets up a connection again if it failed.
    pub(crate) fn recover(&mut self, c: usize, rng: &mut Rng) -> Check {
        if self.conns[c].state == State::Up {
            return Ok(());
        }
        // Packets in flight when a side fails often still arrive.
        if rng.percent(50) {
            self.run_for(Duration::from_nanos(rng.below(200_000)))?;
        }
        self.take_down(c)?;
        self.bring_up(c, [rng.percent(50), rng.percent(50)])
    }

    fn register_anew(&mut self, c: usize, side: usize, what: What) -> Check {
        if self.conns[c].state != State::Up || !self.conns[c].plan.service.is_reliable() {
            return Ok(());
        }
        let needs_memory = |sent: &Sent| sent.opcode != WcOpcode::Send;
        let peer_is_busy = self.conns[c].ends[1 - side].sends.entries.iter().any(needs_memory);
        let end = &mut self.conns[c].ends[side];
        let Some(region) = &mut end.lane_region else { return Ok(()) };
        // A bind or an invalidation in progress would fail.
        if end.window.as_ref().is_some_and(|w| !matches!(w.opening, Opening::Open | Opening::Closed)) {
            return Ok(());
        }
        match what {
            What::Reregister => {
                match region.rereg(Rereg::new().access(
                    all_rights() & !if end.restricted { Access::REMOTE_WRITE } else { Access::empty() },
                )) {
                    Ok(()) => {}
                    // Windows are bound to it.
                    Err(rnic::Error::Resource(_)) => return Ok(()),
                    Err(error) => return Err(format!("rereg: {error}")),
                }
            }
            What::Restrict => match region.rereg(Rereg::new().access(all_rights() & !Access::REMOTE_WRITE)) {
                Ok(()) => end.restricted = true,
                Err(rnic::Error::Resource(_)) => return Ok(()),
                Err(error) => return Err(format!("rereg: {error}")),
            },
            _ => {
                end.lane_region = None;
                // This invalidates the window that was bound to it.
                if let Some(window) = end.window.as_mut().filter(|w| w.opening == Opening::Open) {
                    (window.opening, window.stale) = (Opening::Closed, Some(window.key));
                }
            }
        }
        self.cover.hit(format!("{what:?}"));
        self.note(|| format!("conn {c} side {side}: {what:?}, busy {peer_is_busy}"));
        if what != What::Reregister && peer_is_busy {
            self.witness.let_be(c);
            self.foresee(c, WcStatus::RemAccessErr);
        }
        Ok(())
    }

    /// Packets to and from a device are lost from now on, for a while.
    fn unplug(&mut self, host: usize, rng: &mut Rng) -> Check {
        for conn in &mut self.conns {
            if conn.ends.iter().any(|end| end.host == host) {
                conn.lossy = true;
            }
        }
        self.cover.hit("port down");
        let address = self.hosts[host].device.address();
        self.witness.plug(self.net.elapsed(), address, false);
        self.hosts[host].device.inject_port_state(false).map_err(refused("port down"))?;
        self.run_for(Duration::from_nanos(rng.below(2_000_000)))?;
        self.witness.plug(self.net.elapsed(), address, true);
        self.hosts[host].device.inject_port_state(true).map_err(refused("port up"))
    }

    /// A device fails: all its queue pairs flush, and nothing works there until it is replaced.
    fn fail_device(&mut self, host: usize) -> Check {
        self.cover.hit("device failed");
        self.hosts[host].failed = true;
        self.hosts[host].device.inject_device_fatal().map_err(refused("fatal"))?;
        let now = self.net.elapsed();
        for c in 0..self.conns.len() {
            for side in [0, 1] {
                if self.conns[c].ends[side].host == host && !matches!(self.conns[c].state, State::Down(_)) {
                    let conn = &mut self.conns[c];
                    conn.state = State::Broken;
                    conn.ends[side].broken_by_program = true;
                    conn.ends[1 - side].alone_since.get_or_insert(now);
                }
            }
        }
        Ok(())
    }

    /// A device is removed with all its resources, and another takes its place.
    pub(crate) fn replace_host(&mut self, number: usize) -> Check {
        self.cover.hit("device restarted");
        self.note(|| format!("host {number} starts anew"));
        let now = self.net.elapsed();
        for c in 0..self.conns.len() {
            for side in [0, 1] {
                if self.conns[c].ends[side].host != number {
                    continue;
                }
                self.leave(c, side, now)?;
            }
        }
        self.passing.retain(|(_, host, _)| *host != number);
        if self.waits_for_links {
            // Credits that a peer had lent to the device return a lease later; until then others have to wait,
            // possibly for longer than their retries last.
            self.lossy = true;
            self.conns.iter_mut().for_each(|conn| conn.lossy = true);
        }
        let stays = self.hosts[number].plan.keeps_address;
        self.cover.hit(if stays { "restarted at its address" } else { "restarted elsewhere" });
        let new = self.new_host(number, stays)?;
        if new.slot != self.hosts[number].slot && stays {
            self.cover.hit("restarted as another program");
        }
        self.witness.remove(now, self.hosts[number].device.address());
        self.witness.plug(now, new.device.address(), true);
        let old = std::mem::replace(&mut self.hosts[number], new);
        self.tally(&old)?;
        drop(old);
        for c in 0..self.conns.len() {
            for side in [0, 1] {
                if self.conns[c].ends[side].host == number {
                    // Its memory no longer exists and is not checked.
                    self.conns[c].ends[1 - side].lost.clear();
                    self.conns[c].ends[1 - side].flying.clear();
                    self.conns[c].ends[1 - side].sends.entries.iter_mut().for_each(|s| {
                        s.takes = false;
                        s.shared = None;
                    });
                }
            }
        }
        Ok(())
    }

    /// Takes down a side together with its device.
    fn leave(&mut self, c: usize, side: usize, now: Duration) -> Check {
        let was_down = matches!(self.conns[c].state, State::Down(_));
        if !was_down {
            self.conns[c].state = State::Broken;
            self.conns[c].ends[1 - side].alone_since.get_or_insert(now);
        }
        let end = &mut self.conns[c].ends[side];
        end.qp = None;
        end.window = None;
        end.way = None;
        end.lane_region = None;
        end.pool_region = None;
        end.inbox_region = None;
        self.forget(c, side)
    }

    /// Adds a fault for a while.
    fn pass_fault(&mut self, host: usize, rng: &mut Rng) -> Check {
        let rule = plan::fault(rng.word());
        let name = self.hosts[host].device.add_fault(rule).map_err(refused(rule))?;
        let until = self.net.elapsed() + Duration::from_nanos(rng.below(3_000_000));
        self.passing.push((until, host, name.to_string()));
        Ok(())
    }
}
