//! A running world: time, completions, and invariants.

use super::conn::{Conn, State};
use super::coverage::Coverage;
use super::host::Host;
use super::ledger::Sent;
use super::plan::{ConnPlan, Plan};
use super::rng::{Rng, mix};
use super::wire::rnr_delay;
use super::witness::Witness;
use super::{Check, Options, Outcome};
use rnic::sim::Net;
use rnic::{WcStatus, WorkCompletion};
use rnic_fabric::network::Shared;
use std::time::Duration;

/// Number of events at one instant that indicates an endless loop: far more than the packets that can be in flight.
const STEPS_AT_ONCE: u32 = 100_000;

/// The longest wait of a link: for credit from a peer that no longer answers, including the last request for it,
/// and for the end of a pause until the watchdog acts.
const LINK_PATIENCE: Duration = Duration::from_millis(4_000);

/// The longest time that packets which are never acknowledged take room in a window: the time after which they are
/// considered lost, and a tenth of it, because that is not looked at all the time.
const HOLD: Duration = Duration::from_millis(550);

/// The longest time that a connection waits for room in a window: until what is in flight counts as lost, and for the turn
/// of each queue pair that was there before, until that is answered, sent again or lost as well. It does so once: retries
/// need no room.
pub(crate) fn room_patience(plan: &Plan, conn: &ConnPlan) -> Duration {
    let reliable = || plan.conns.iter().filter(|conn| conn.service.is_reliable());
    if !plan.hosts.iter().any(|host| host.window > 0) && reliable().all(|conn| conn.timeout > 0) {
        return Duration::ZERO;
    }
    let pair = |[a, b]: [usize; 2]| (a.min(b), a.max(b));
    let is_beside = |other: &&ConnPlan| pair(other.hosts) == pair(conn.hosts);
    let turn = |other: &ConnPlan| other.timeout().map_or(HOLD, |timeout| timeout.min(HOLD));
    let turns: Duration = reliable().filter(is_beside).map(turn).sum();
    // A device that is connected to itself has both sides of its connections in one line.
    let sides = if conn.hosts[0] == conn.hosts[1] { 2 } else { 1 };
    HOLD + turns * sides
}

/// A successful SEND: its receive must have completed by now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receipt {
    pub(crate) conn: usize,
    pub(crate) side: usize,
    /// Number of messages that must have been delivered.
    pub(crate) messages: usize,
    /// Identifies the life of the connection.
    pub(crate) since: Duration,
}

pub(crate) struct World<'p> {
    pub(crate) plan: &'p Plan,
    options: &'p Options,
    pub(crate) net: Net,
    fabric: Option<Shared>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) conns: Vec<Conn>,
    pub(crate) rng: Rng,
    pub(crate) lossy: bool,
    /// After this time, no earlier packets are in flight.
    pub(crate) air: Duration,
    /// The longest time for which a link may hold packets back, apart from the window.
    pub(crate) stall: Duration,
    /// Whether its links make packets wait for credit, or for the end of a pause.
    pub(crate) waits_for_links: bool,
    pub(crate) cover: Coverage,
    pub(crate) operations: u64,
    pub(crate) next_id: u64,
    pub(crate) receipts: Vec<Receipt>,
    pub(crate) lives: u64,
    /// Temporary faults, with their end times: device and name.
    pub(crate) passing: Vec<(Duration, usize, String)>,
    pub(crate) witness: Witness,
    hash: u64,
    trace: Vec<String>,
    steps: (Duration, u32),
}

/// The longest time for which packets of unreliable connections, which nothing holds back, wait in a fabric: five ports with an
/// alpha of 1/4 take 5/9 of the switch's 32 MB before all of their hosts are paused, and 1 Gb/s carries that in 142 ms.
const QUEUES: Duration = Duration::from_millis(150);

impl<'p> World<'p> {
    /// Plays a plan to its end, or to the first violation.
    pub(crate) fn play(plan: &'p Plan, options: &'p Options) -> Outcome {
        let latency = plan.hosts.iter().map(|host| host.latency).max().unwrap_or(0);
        let links = |word: &str| plan.hosts.iter().any(|host| host.link.contains(word));
        let waits_for_links = links("ib-credits") || links("pfc");
        let fabric = match plan.fabric.as_ref().map(|fabric| fabric.build(plan.seed)).transpose() {
            Ok(fabric) => fabric,
            Err(why) => return Outcome::failed(why),
        };
        let net = match &fabric {
            Some(fabric) => Net::joined_by(Box::new(fabric.clone()), plan.seed),
            None => Net::with_seed(plan.seed),
        };
        let mut world = Self {
            plan,
            options,
            net,
            fabric,
            hosts: Vec::new(),
            conns: Vec::new(),
            rng: Rng::new(plan.seed ^ 0x0acc_1de7),
            lossy: plan.is_lossy(),
            // The round trip, the delays of faults (10 ms and 3 ms), and the queue of a slow port.
            air: Duration::from_nanos(latency * 2)
                + Duration::from_millis(if plan.is_lossy() { 40 } else { 2 })
                + if plan.fabric.is_some() { QUEUES } else { Duration::ZERO },
            stall: if waits_for_links { LINK_PATIENCE } else { Duration::ZERO },
            waits_for_links,
            cover: Coverage::default(),
            operations: 0,
            next_id: 1,
            receipts: Vec::new(),
            lives: 0,
            passing: Vec::new(),
            witness: Witness::default(),
            hash: plan.seed,
            trace: Vec::new(),
            steps: (Duration::ZERO, 0),
        };
        let result = world.run().and_then(|()| world.check_fabric());
        let now = world.net.elapsed();
        let violation = result.err().map(|what| format!("at {now:?}: {what}"));
        for host in &world.hosts {
            host.device.stop_captures();
        }
        Outcome {
            violation,
            operations: world.operations,
            hash: world.hash,
            elapsed: now,
            coverage: world.cover,
            trace: world.trace,
        }
    }

    fn run(&mut self) -> Check {
        let plan = self.plan;
        plan.hosts.iter().for_each(|host| self.note(|| format!("{host:?}")));
        plan.conns.iter().for_each(|conn| self.note(|| format!("{conn:?}")));
        for number in 0..self.plan.hosts.len() {
            let host = self.new_host(number, false)?;
            self.hosts.push(host);
        }
        for index in 0..self.plan.conns.len() {
            let conn = self.new_conn(index);
            self.conns.push(conn);
        }
        for index in 0..self.conns.len() {
            if !self.conns[index].plan.late {
                self.bring_up(index, [true; 2])?;
            }
        }
        for (number, action) in self.plan.script.iter().enumerate() {
            self.run_for(Duration::from_nanos(u64::from(action.after)))?;
            self.act(action)?;
            if number % 64 == 63 {
                self.check_memory()?;
            }
        }
        self.finish()
    }

    fn check_fabric(&mut self) -> Check {
        match (&self.plan.fabric, &self.fabric) {
            (Some(plan), Some(fabric)) => plan.check(fabric, &mut self.cover),
            _ => Ok(()),
        }
    }

    /// A device with number `number`, at the address of the one before it or at a new one.
    pub(crate) fn new_host(&mut self, number: usize, keeps_address: bool) -> Check<Host> {
        let before = self.hosts.get(number).filter(|_| keeps_address);
        let host = Host::new(&self.net, self.plan, number, self.lives, before, &self.witness)?;
        self.lives += 1;
        if let Some(stem) = &self.options.captures {
            let mut path = stem.clone().into_os_string();
            path.push(format!(".{}.pcapng", host.device.name()));
            host.device.capture(path).map_err(|e| e.to_string())?;
        }
        Ok(host)
    }

    /// A new work request ID.
    pub(crate) fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Adds to the trace, if requested.
    pub(crate) fn note(&mut self, what: impl FnOnce() -> String) {
        if self.options.trace {
            let now = self.net.elapsed();
            self.trace.push(format!("{:>12.3} us  {}", now.as_nanos() as f64 / 1e3, what()));
        }
    }

    /// Adds to the hash that a second run must reproduce.
    pub(crate) fn observe(&mut self, values: &[u64]) {
        for value in values {
            self.hash = mix(self.hash.rotate_left(5) ^ value);
        }
    }

    /// Runs until `end`, checking after every event.
    pub(crate) fn run_until(&mut self, end: Duration) -> Check {
        while self.net.elapsed() < end {
            let before = self.net.elapsed();
            self.step(end)?;
            if self.net.elapsed() == before {
                self.steps.1 += 1;
                if self.steps.1 > STEPS_AT_ONCE {
                    return Err(format!("{STEPS_AT_ONCE} steps at one instant"));
                }
            } else {
                self.steps = (before, 0);
            }
        }
        Ok(())
    }

    /// One event, and its effects on programs.
    fn step(&mut self, end: Duration) -> Check {
        let before = self.net.elapsed();
        if !self.net.step_within(end.saturating_sub(before)) {
            // No event is left.
            self.net.run_for(end.saturating_sub(before));
        }
        if self.net.elapsed() < before {
            return Err("time went back".to_owned());
        }
        self.serve(false)?;
        self.tick()
    }

    pub(crate) fn run_for(&mut self, time: Duration) -> Check {
        self.run_until(self.net.elapsed() + time)
    }

    /// Programs poll for completions: slow ones only if `all` is set.
    pub(crate) fn serve(&mut self, all: bool) -> Check {
        for number in 0..self.hosts.len() {
            if self.hosts[number].plan.slow && !all {
                continue;
            }
            self.serve_host(number)?;
        }
        self.check_receipts(all)
    }

    pub(crate) fn serve_host(&mut self, number: usize) -> Check {
        let mut found = [WorkCompletion::default(); 16];
        self.mind_overruns();
        for queue in [0, 1] {
            while !self.hosts[number].cqs[queue].is_empty() {
                let count = self.hosts[number].cqs[queue].poll(&mut found);
                for wc in &found[..count] {
                    self.completed(number, wc)?;
                }
            }
            if self.hosts[number].cqs[queue].is_overrun() {
                return self.overran(number, queue);
            }
        }
        Ok(())
    }

    /// If a completion queue overran, the queue pairs and shared receive queues that use it have failed, whether
    /// their program has noticed or not: the flushes may be in its other queue, or at the peers.
    fn mind_overruns(&mut self) {
        for (number, host) in self.hosts.iter().enumerate() {
            if host.cqs.iter().any(rnic::CompletionQueue::is_overrun) {
                let conns = self.conns.iter_mut();
                for conn in conns.filter(|conn| conn.ends.iter().any(|end| end.host == number)) {
                    conn.give_reason(&[WcStatus::WrFlushErr, WcStatus::RemOpErr]);
                }
            }
        }
    }

    /// A completion queue overran: everything on its device is restarted.
    fn overran(&mut self, number: usize, queue: usize) -> Check {
        if self.plan.hosts[number].cqe == 0 {
            return Err(format!("completion queue {queue} of host {number} overran, and has room for all"));
        }
        self.cover.hit("completion queue overrun");
        self.note(|| format!("completion queue {queue} of host {number} overran"));
        self.replace_host(number)
    }

    /// Checks the invariants.
    fn tick(&mut self) -> Check {
        let now = self.net.elapsed();
        while let Some((_, host, name)) = self.passing.iter().find(|(end, ..)| *end <= now).cloned() {
            self.passing.retain(|(_, at, of)| (*at, of) != (host, &name));
            let faults = self.hosts[host].device.faults();
            self.tally_faults(&faults.into_iter().filter(|f| *f.name == *name).collect::<Vec<_>>());
            self.hosts[host].device.remove_fault(&name);
        }
        self.judge_retries(now)?;
        for c in 0..self.conns.len() {
            self.check_patience(c, now)?;
            for side in [0, 1] {
                let peer = self.conns[c].ends[1 - side].host;
                while let Some((_, id)) =
                    self.conns[c].ends[side].flying.pop_front_if(|(until, _)| *until < now)
                {
                    self.hosts[peer].arena.expire(id)?;
                }
            }
        }
        Ok(())
    }

    /// Checks the retransmissions and failures of requesters.
    pub(crate) fn judge_retries(&mut self, now: Duration) -> Check {
        for (c, conn) in self.conns.iter().enumerate() {
            for (side, end) in conn.ends.iter().enumerate() {
                // Its program learns only later that it failed.
                if self.hosts[end.host].plan.slow && conn.has_failed(side) {
                    self.witness.freeze((c, side), now);
                }
            }
        }
        for c in self.witness.fresh() {
            self.mind_signs(c);
        }
        let explained = self.witness.judge(now)?;
        self.cover.add("sign of a loss", explained);
        Ok(())
    }

    /// Signs of loss need no loss if the peer is gone.
    pub(crate) fn mind_signs(&self, c: usize) {
        let conn = &self.conns[c];
        let excused = conn.state != State::Up || [0, 1].iter().any(|side| conn.has_failed(*side));
        self.witness.look(c, excused);
    }

    /// A side that lost its peer gives up when its retries are used up.
    fn check_patience(&self, c: usize, now: Duration) -> Check {
        let conn = &self.conns[c];
        if !conn.plan.service.is_reliable() || conn.state != State::Broken {
            return Ok(());
        }
        let Some(timeout) = conn.plan.timeout() else { return Ok(()) };
        for (side, end) in conn.ends.iter().enumerate() {
            let Some(since) = end.alone_since else { continue };
            // An unsignalled request may have completed earlier without a report.
            let is_outstanding = |sent: &&Sent| sent.signalled || sent.posted > since;
            let Some(oldest) = end.sends.entries.iter().find(is_outstanding) else { continue };
            let begin = since.max(oldest.posted).max(end.sends.ended);
            let limit = timeout * self.plan.waits(&conn.plan)
                + rnr_delay(31)
                + self.air
                + self.stall
                + room_patience(self.plan, &conn.plan);
            if now > begin + limit && !self.hosts[end.host].plan.slow {
                return Err(format!(
                    "conn {c} side {side}: {} {:#x} is outstanding {:?} after its peer went away, and its retries end \
                     after {limit:?}",
                    oldest.name,
                    oldest.id,
                    now - begin
                ));
            }
        }
        Ok(())
    }

    /// Messages that completed at their senders must have been received.
    fn check_receipts(&mut self, all: bool) -> Check {
        let receipts = std::mem::take(&mut self.receipts);
        for receipt in receipts {
            let conn = &self.conns[receipt.conn];
            let peer = conn.ends[1 - receipt.side].host;
            if conn.since != receipt.since || conn.ends[1 - receipt.side].qp.is_none() {
                continue;
            }
            let delivered = conn.ends[receipt.side].outbox.next;
            if delivered >= receipt.messages {
                continue;
            }
            if self.hosts[peer].plan.slow && !all {
                self.receipts.push(receipt);
                continue;
            }
            return Err(format!(
                "conn {} side {}: message {} completed at its sender, and only {delivered} were received",
                receipt.conn, receipt.side, receipt.messages
            ));
        }
        Ok(())
    }

    pub(crate) fn check_memory(&mut self) -> Check {
        for (number, host) in self.hosts.iter_mut().enumerate() {
            host.arena.check().map_err(|what| format!("host {number}: {what}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Service;
    use super::*;

    /// Waiting for room takes a turn of each queue pair to the same peer, however many retries follow.
    #[test]
    fn a_queue_pair_waits_for_room_once_behind_those_beside_it() {
        let mut plan = Plan::new(1_000_404);
        plan.hosts.iter_mut().for_each(|host| host.window = 5000);
        let conn = ConnPlan {
            service: Service::Rc,
            hosts: [0, 1],
            timeout: 5,
            retry_cnt: 7,
            ..plan.conns[0].clone()
        };
        let without_timeout = ConnPlan { hosts: [1, 0], timeout: 0, ..conn.clone() };
        let elsewhere = ConnPlan { hosts: [1, 1], ..without_timeout.clone() };
        let unreliable = ConnPlan { service: Service::Uc, ..without_timeout.clone() };
        plan.conns = vec![conn.clone(), without_timeout.clone(), elsewhere.clone(), unreliable];
        let short = Duration::from_nanos(4096 << 5);
        assert_eq!(room_patience(&plan, &conn), HOLD + short + HOLD);
        assert_eq!(room_patience(&plan, &elsewhere), HOLD + 2 * HOLD, "both sides are in one line");
        plan.hosts.iter_mut().for_each(|host| host.window = 0);
        assert_eq!(room_patience(&plan, &conn), HOLD + short + HOLD, "one holds a window of the usual size");
        plan.conns = vec![conn.clone()];
        assert_eq!(room_patience(&plan, &conn), Duration::ZERO, "nobody fills it");
    }
}
