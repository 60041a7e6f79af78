//! Connections: how they are set up, taken down, and set up again.

use super::Check;
use super::account::Terms;
use super::host::{all_rights, refused};
use super::ledger::{Messages, Posted, SendQueue};
use super::plan::{ConnPlan, Plan, Service};
use super::witness::Party;
use super::world::World;
use rnic::{
    Access, AddressHandle, AddressVector, MemoryRegion, MemoryWindow, Mtu, MwType, Psn, QKey, QpAttr, QpInit,
    QpState, Qpn, QueuePair, WcStatus,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// The Q_Key of all datagrams.
pub(crate) const QKEY: QKey = QKey(0x1111_2222);

/// Up to this timeout, which is a millisecond, a message that congestion control spreads out may take longer than
/// the timeout.
const PACED_TIMEOUT: u8 = 8;

/// Whether congestion control may keep a packet longer than the timeout. Swift may at any: its smallest window is a packet in 400
/// round trips, and a flow whose target is below the latency of the path rests there.
fn paced_beyond(world: &Plan, timeout: u8) -> bool {
    let with = |cc: &str| world.hosts.iter().any(|host| host.cc.starts_with(cc) && !host.cc.is_empty());
    with("swift") || with("") && timeout <= PACED_TIMEOUT
}

/// The maximum time that an answer waits for credit when nothing is lost, in round-trip times of the most distant
/// ports: to be greeted, to learn that no credit is left, to ask for it, and to wait until others have returned
/// some.
const CREDIT_ROUND_TRIPS: u32 = 6;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Both sides are set up, and neither has failed.
    Up,
    /// A side failed, entered ERR or was removed.
    Broken,
    /// Both sides are out of use. From this instant, none of its packets are in flight.
    Down(Duration),
}

/// The state of a memory window as its owner and its user know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    Closed,
    Asked,
    Open,
    Closing,
}

/// A memory window of one side, for its peer.
pub(crate) struct Window {
    pub(crate) window: MemoryWindow,
    pub(crate) opening: Opening,
    /// The range that it exposes, from the start of the region.
    pub(crate) shows: Range<usize>,
    pub(crate) key: u32,
    /// A previous key of the window.
    pub(crate) stale: Option<u32>,
}

/// One side of a connection.
pub(crate) struct End {
    pub(crate) host: usize,
    pub(crate) qp: Option<QueuePair>,
    pub(crate) sends: SendQueue,
    pub(crate) recvs: VecDeque<Posted>,
    pub(crate) outbox: Messages,
    /// Memory for its sends.
    pub(crate) pool: Range<usize>,
    pub(crate) pool_region: Option<MemoryRegion>,
    /// Memory for its receives.
    pub(crate) inbox: Range<usize>,
    pub(crate) inbox_region: Option<MemoryRegion>,
    /// Memory that its peer may access.
    pub(crate) lane: Range<usize>,
    pub(crate) lane_region: Option<MemoryRegion>,
    /// A key of the lane that is no longer registered.
    pub(crate) lane_key: u32,
    pub(crate) lane_addr: u64,
    pub(crate) restricted: bool,
    pub(crate) window: Option<Window>,
    /// The content of the peer's lane after everything posted here is done.
    pub(crate) ahead: Vec<u8>,
    /// READs of the peer's lane in progress.
    pub(crate) reading: Vec<(u64, Range<usize>)>,
    /// Operations on the peer's lane in progress when the connection failed.
    pub(crate) lost: Vec<u64>,
    /// On unreliable services: what was sent to the peer's lane, and when it must have arrived.
    pub(crate) flying: VecDeque<(Duration, u64)>,
    pub(crate) way: Option<AddressHandle>,
    /// The program moved it to ERR, or its device failed.
    pub(crate) broken_by_program: bool,
    /// Since when its peer no longer exists.
    pub(crate) alone_since: Option<Duration>,
}

/// A connection.
pub(crate) struct Conn {
    pub(crate) plan: ConnPlan,
    pub(crate) state: State,
    pub(crate) ends: [End; 2],
    /// Errors that are expected.
    pub(crate) reasons: Vec<WcStatus>,
    /// Packets of the connection may have been lost.
    pub(crate) lossy: bool,
    /// Its packets may be spread over more time than the timeout.
    pub(crate) slower_than_timeout: bool,
    /// The longest time for a packet and its answer; `None` if answers may be later than the timeout without a loss.
    pub(crate) round_trip: Option<Duration>,
    pub(crate) since: Duration,
}

impl Conn {
    /// Records that these errors are expected from now on.
    pub(crate) fn give_reason(&mut self, statuses: &[WcStatus]) {
        for status in statuses {
            if !self.reasons.contains(status) {
                self.reasons.push(*status);
            }
        }
    }

    /// Whether the queue pair of a side is in ERR; its program may not know the cause yet.
    pub(crate) fn has_failed(&self, side: usize) -> bool {
        self.ends[side].qp.as_ref().is_some_and(|qp| qp.state() == QpState::Err)
    }

    /// Whether an error of a send or receive of one side is expected.
    pub(crate) fn excuses(&self, side: usize, status: WcStatus, receive: bool) -> bool {
        let end = &self.ends[side];
        match status {
            WcStatus::RetryExcErr => {
                !receive
                    && (self.slower_than_timeout
                        || self.lossy
                        || self.state != State::Up
                        || self.has_failed(1 - side))
            }
            WcStatus::RnrRetryExcErr => !receive && self.plan.rnr_retry < 7,
            WcStatus::WrFlushErr => {
                end.broken_by_program || end.sends.failed.is_some() || self.reasons.contains(&status)
            }
            _ => self.reasons.contains(&status),
        }
    }
}

/// Time that is added to the longest round trip: a train of 64 KiB at 10 Gb/s, twice.
const TRAINS: Duration = Duration::from_micros(100);

/// The longest time that a packet waits in the queue of an emulated port: its default length, in time.
const QUEUE: Duration = Duration::from_millis(1);

/// The longest time that a packet and its answer wait in the queues of a fabric that loses nothing: what five peers may send to one
/// with a stock window of 212 KB each, at 1 Gb/s, and the same on the way back.
const FABRIC_QUEUES: Duration = Duration::from_millis(17);

/// The longest time for a packet and its answer, if the timeout is longer, and nothing but a loss can delay them more:
/// credits and pauses of the link and a full window can, and so can the rate for a peer that is not known to be rnic,
/// or that of congestion control with a short timeout.
fn round_trip(world: &Plan, conn: &ConnPlan) -> Option<Duration> {
    let hosts = || conn.hosts.iter().filter_map(|host| world.hosts.get(*host));
    let held = |link: &str| link.contains("ib-credits") || link.contains("pfc");
    if world.hosts.iter().any(|host| held(&host.link) || host.window > 0 || host.foreign)
        || paced_beyond(world, conn.timeout)
    {
        return None;
    }
    let is_reordered = world.fabric.as_ref().is_some_and(|fabric| fabric.lossy);
    if is_reordered {
        // What a switch drops, or sends another way, the ports do not see.
        return None;
    }
    let queued = hosts().any(|host| host.link.contains("rate="));
    let queue = match &world.fabric {
        Some(_) => FABRIC_QUEUES,
        None if queued => QUEUE * 2,
        None => Duration::ZERO,
    };
    let longest = Duration::from_nanos(hosts().map(|host| host.latency).sum()) * 2 + queue + TRAINS;
    (Duration::from_nanos(4096 << conn.timeout) > longest).then_some(longest)
}

impl World<'_> {
    pub(crate) fn new_conn(&self, index: usize) -> Conn {
        let plan = self.plan.conns[index].clone();
        let ends = [0, 1].map(|side| {
            let host = plan.hosts[side];
            let [pool, inbox, lane] = self.hosts[host].layout.ends[&(index, side)].clone();
            End {
                host,
                qp: None,
                sends: SendQueue::default(),
                recvs: VecDeque::new(),
                outbox: Messages::default(),
                pool,
                pool_region: None,
                inbox,
                inbox_region: None,
                lane,
                lane_region: None,
                lane_key: 0,
                lane_addr: 0,
                restricted: false,
                window: None,
                ahead: Vec::new(),
                reading: Vec::new(),
                lost: Vec::new(),
                flying: VecDeque::new(),
                way: None,
                broken_by_program: false,
                alone_since: None,
            }
        });
        let lent = self.plan.hosts.iter().any(|host| host.link.contains("ib-credits"));
        let furthest = self.plan.hosts.iter().map(|host| host.latency).max().unwrap_or(0);
        let credit = Duration::from_nanos(4 * furthest) * CREDIT_ROUND_TRIPS;
        let patience = Duration::from_nanos(4096 << plan.timeout) * (u32::from(plan.retry_cnt) + 1);
        let round_trip = round_trip(self.plan, &plan);
        let queued = self.plan.fabric.is_some() && round_trip.is_none();
        let late = paced_beyond(self.plan, plan.timeout) || lent && patience < credit || queued;
        Conn {
            slower_than_timeout: plan.timeout > 0 && late,
            round_trip,
            plan,
            state: State::Down(Duration::ZERO),
            ends,
            reasons: Vec::new(),
            lossy: self.lossy,
            since: Duration::ZERO,
        }
    }

    /// Sets up a connection whose sides are out of use, once none of its earlier packets are in flight.
    pub(crate) fn bring_up(&mut self, c: usize, renew: [bool; 2]) -> Check {
        let State::Down(ready) = self.conns[c].state else { return Ok(()) };
        while self.net.elapsed() < ready {
            self.run_until(ready)?;
        }
        self.serve(true)?;
        for side in [0, 1] {
            let host = self.conns[c].ends[side].host;
            if self.hosts[host].failed {
                self.replace_host(host)?;
            }
        }
        self.resolve(c)?;
        for side in [0, 1] {
            self.make_end(c, side, renew[side])?;
        }
        let first = self.conns[c].since == Duration::ZERO;
        let psn = if first { self.conns[c].plan.psn } else { [0, 1].map(|_| self.rng.below(1 << 24) as u32) };
        for side in [0, 1] {
            self.connect(c, side, psn)?;
        }
        self.begin_account(c, psn)?;
        let lossy = self.lossy;
        let now = self.net.elapsed();
        let conn = &mut self.conns[c];
        conn.state = State::Up;
        conn.reasons.clear();
        conn.lossy = lossy;
        conn.since = now.max(Duration::from_nanos(1));
        for end in &mut conn.ends {
            end.sends = SendQueue { ended: now, ..SendQueue::default() };
            end.outbox = Messages::default();
            end.reading.clear();
            end.broken_by_program = false;
            end.alone_since = None;
        }
        for side in [0, 1] {
            let peer = &self.conns[c].ends[1 - side];
            let ahead = self.hosts[peer.host].arena.shadow(peer.lane.clone()).to_vec();
            self.conns[c].ends[side].ahead = ahead;
            self.mind_short_receives(c, side);
            self.refill(c, side)?;
        }
        self.cover.hit(if first { "setup" } else { "recovery" });
        self.note(|| format!("conn {c} up, PSNs {psn:x?}, renewed {renew:?}"));
        Ok(())
    }

    /// From now on the retries of a connection are judged.
    fn begin_account(&mut self, c: usize, psn: [u32; 2]) -> Check {
        let conn = &self.conns[c];
        let plan = &conn.plan;
        if !plan.service.is_reliable() {
            return Ok(());
        }
        let party = |side: usize| {
            let end = &conn.ends[side];
            let requests = plan.service == Service::Rc || side == 0;
            // With selective repeat a requester never goes back: it has no passes that could be judged.
            let is_judged = requests && !self.plan.hosts[end.host].selective;
            let terms = Terms {
                psn: psn[side],
                mtu: plan.mtu,
                timeout: plan.timeout(),
                retry_cnt: plan.retry_cnt.into(),
                rnr_retry: plan.rnr_retry.into(),
            };
            Some(Party {
                address: self.hosts[end.host].device.address(),
                qpn: end.qp.as_ref()?.qpn().value(),
                terms: is_judged.then_some(terms),
            })
        };
        let (Some(left), Some(right)) = (party(0), party(1)) else { return Err("no queue pair".into()) };
        self.witness.begin(c, [left, right], conn.round_trip)
    }

    /// Checks the effects of operations that were in progress when the connection failed.
    fn resolve(&mut self, c: usize) -> Check {
        for side in [0, 1] {
            let peer = self.conns[c].ends[1 - side].host;
            let mtu = self.conns[c].plan.mtu as usize;
            let lost = std::mem::take(&mut self.conns[c].ends[side].lost);
            let flying = std::mem::take(&mut self.conns[c].ends[side].flying);
            let arena = &mut self.hosts[peer].arena;
            if self.conns[c].plan.service.is_reliable() {
                arena.resolve(&lost, mtu).map_err(|what| format!("conn {c} side {side}: {what}"))?;
            } else {
                flying.iter().map(|(_, id)| *id).chain(lost).try_for_each(|id| arena.expire(id))?;
            }
        }
        Ok(())
    }

    /// Creates or resets a side's queue pair, and its resources.
    fn make_end(&mut self, c: usize, side: usize, renew: bool) -> Check {
        let Self { conns, hosts, .. } = self;
        let Conn { plan, ends, .. } = &mut conns[c];
        let end = &mut ends[side];
        let host = &mut hosts[end.host];
        end.window = None;
        match end.qp.as_ref().filter(|_| !renew) {
            Some(qp) => qp.modify(&QpAttr::to_state(QpState::Reset)).map_err(refused("to RESET"))?,
            None => {
                if let Some(old) = end.qp.take() {
                    host.by_qpn.remove(&old.qpn().value());
                    old.destroy().map_err(|e| format!("destroying: {}", e.error))?;
                }
                let (send_cq, recv_cq) = (&host.cqs[0], &host.cqs[c % 2]);
                let mut init = match (plan.service, side) {
                    (Service::Rc, _) => QpInit::rc(send_cq, recv_cq),
                    (Service::Uc, _) => QpInit::uc(send_cq, recv_cq),
                    (Service::Ud, _) => QpInit::ud(send_cq, recv_cq),
                    (Service::Xrc, 0) => QpInit::xrc_send(send_cq),
                    (Service::Xrc, _) => QpInit::xrc_recv(&host.xrcd),
                };
                if plan.srq[side] && plan.service != Service::Xrc {
                    init = init.with_srq(&host.srq.queue);
                }
                init.cap.max_send_wr = plan.sends;
                init.cap.max_recv_wr = plan.recvs;
                init.sq_sig_all = plan.sig_all[side];
                let made = match (plan.service, side) {
                    (Service::Xrc, 1) => host.device.create_qp(&init),
                    _ => host.pd.create_qp(&init),
                };
                let qp = made.map_err(refused("a queue pair"))?;
                host.by_qpn.insert(qp.qpn().value(), (c, side));
                host.top = host.top.max(qp.qpn().value() & 0xffff);
                end.qp = Some(qp);
            }
        }
        let register = |range: &Range<usize>, rights| {
            let va = Some(0x4000_0000 + range.start as u64);
            host.pd
                .register_memory(host.arena.memory(range.clone()), va, rights)
                .map_err(refused("a memory region"))
        };
        if end.pool_region.is_none() {
            end.pool_region = Some(register(&end.pool, Access::LOCAL_WRITE)?);
        }
        if end.inbox_region.is_none() {
            end.inbox_region = Some(register(&end.inbox, Access::LOCAL_WRITE)?);
        }
        if end.lane_region.is_none() || end.restricted {
            end.lane_region = None;
            end.lane_region = Some(register(&end.lane, all_rights())?);
        }
        if let Some(region) = &end.lane_region {
            (end.lane_key, end.lane_addr) = (region.rkey(), region.addr());
        }
        end.restricted = false;
        if plan.service == Service::Rc {
            let mw_type = if plan.type1 { MwType::Type1 } else { MwType::Type2 };
            let window = host.pd.alloc_mw(mw_type).map_err(refused("a memory window"))?;
            let key = window.rkey();
            end.window = Some(Window { window, opening: Opening::Closed, shows: 0..0, key, stale: None });
        }
        Ok(())
    }

    fn connect(&mut self, c: usize, side: usize, psn: [u32; 2]) -> Check {
        let (plan, ends) = (&self.conns[c].plan, &self.conns[c].ends);
        let (Some(qp), Some(peer)) = (&ends[side].qp, &ends[1 - side].qp) else {
            return Err("no queue pair".into());
        };
        let there = &self.hosts[ends[1 - side].host];
        let way = AddressVector::new(there.device.gid(), 0);
        let modify = |attr: QpAttr| qp.modify(&attr).map_err(refused("modify"));
        let to_rts = QpAttr::to_rts(Psn::new(psn[side]));
        if plan.service == Service::Ud {
            modify(QpAttr::to_init_datagram(1, 0, QKEY))?;
            modify(QpAttr::to_state(QpState::Rtr))?;
            modify(to_rts)?;
            let way = self.hosts[ends[side].host].pd.create_ah(&way).map_err(refused("an address handle"))?;
            self.conns[c].ends[side].way = Some(way);
            return Ok(());
        }
        let rights = all_rights() & !Access::MW_BIND;
        let mtu = Mtu::from_bytes(plan.mtu).ok_or("no such MTU")?;
        let mut to_rtr = QpAttr::to_rtr(way, mtu, Qpn::new(peer.qpn().value()), Psn::new(psn[1 - side]));
        let (sends, receives) = match (plan.service, side) {
            (Service::Uc, _) => (false, false),
            (Service::Xrc, side) => (side == 0, side == 1),
            _ => (true, true),
        };
        if receives {
            to_rtr = to_rtr.max_dest_rd_atomic(plan.rd_atomic).min_rnr_timer(plan.rnr_timer);
        }
        let mut to_rts = to_rts;
        if plan.service.is_reliable() {
            to_rts = to_rts.timeout(plan.timeout);
        }
        if sends {
            to_rts = to_rts.retry_cnt(plan.retry_cnt).rnr_retry(plan.rnr_retry).max_rd_atomic(plan.rd_atomic);
        }
        modify(QpAttr::to_init(1, 0, rights))?;
        modify(to_rtr)?;
        modify(to_rts)
    }

    /// Moves both sides to ERR: everything must be flushed at once.
    pub(crate) fn take_down(&mut self, c: usize) -> Check {
        if matches!(self.conns[c].state, State::Down(_)) {
            return Ok(());
        }
        self.conns[c].state = State::Broken;
        for side in [0, 1] {
            self.break_end(c, side)?;
        }
        self.run_for(Duration::from_nanos(100))?;
        self.serve(true)?;
        for side in [0, 1] {
            let end = &mut self.conns[c].ends[side];
            let quiet = end.sends.entries.iter().all(|sent| !sent.signalled);
            let (sends, recvs) = (end.sends.entries.len(), end.recvs.len());
            if end.qp.is_some() && (recvs > 0 || !quiet) {
                return Err(format!(
                    "conn {c} side {side} is in ERR, and {sends} sends and {recvs} receives were not flushed"
                ));
            }
            // Those without a flush had completed before.
            for sent in std::mem::take(&mut end.sends.entries) {
                self.end_send(c, side, &sent, WcStatus::Success)?;
            }
        }
        self.is_down(c);
        Ok(())
    }

    fn is_down(&mut self, c: usize) {
        self.conns[c].state = State::Down(self.net.elapsed() + self.air);
    }

    /// The program moves a side to ERR.
    pub(crate) fn break_end(&mut self, c: usize, side: usize) -> Check {
        let failed = self.hosts[self.conns[c].ends[side].host].failed;
        let end = &mut self.conns[c].ends[side];
        let Some(qp) = &end.qp else { return Ok(()) };
        end.broken_by_program = true;
        if !failed {
            qp.modify(&QpAttr::to_state(QpState::Err)).map_err(refused("to ERR"))?;
        }
        Ok(())
    }

    /// Ends both sides without ERR: outstanding work requests do not complete.
    pub(crate) fn cut(&mut self, c: usize) -> Check {
        if matches!(self.conns[c].state, State::Down(_)) {
            return Ok(());
        }
        self.serve(true)?;
        if matches!(self.conns[c].state, State::Down(_)) {
            return Ok(());
        }
        for side in [0, 1] {
            if let Some(qp) = &self.conns[c].ends[side].qp
                && !self.hosts[self.conns[c].ends[side].host].failed
            {
                qp.modify(&QpAttr::to_state(QpState::Reset)).map_err(refused("to RESET"))?;
            }
        }
        self.conns[c].state = State::Broken;
        self.is_down(c);
        // Completions up to this point still arrive.
        self.serve(true)?;
        for side in [0, 1] {
            self.forget(c, side)?;
        }
        Ok(())
    }

    /// A side's queue pair was destroyed or reset: its work requests end without completions.
    pub(crate) fn forget(&mut self, c: usize, side: usize) -> Check {
        let sends = std::mem::take(&mut self.conns[c].ends[side].sends.entries);
        for sent in sends {
            self.end_send(c, side, &sent, WcStatus::WrFlushErr)?;
        }
        let end = &mut self.conns[c].ends[side];
        let host = &mut self.hosts[end.host];
        for recv in std::mem::take(&mut end.recvs) {
            host.arena.give_up(recv.id)?;
            host.arena.release(recv.at);
        }
        // A message in progress had consumed one, or might have.
        if self.conns[c].plan.srq[side] {
            host.srq.lost += 1;
        }
        if self.conns[c].plan.service == Service::Xrc && side == 1 {
            host.xrc_srq.lost += 1;
        }
        Ok(())
    }

    /// Destroys a side's queue pair. Its peer is alone from now on.
    pub(crate) fn vanish(&mut self, c: usize, side: usize) -> Check {
        self.serve(true)?;
        let now = self.net.elapsed();
        let conn = &mut self.conns[c];
        if conn.ends[side].qp.is_none() || matches!(conn.state, State::Down(_)) {
            return Ok(());
        }
        conn.state = State::Broken;
        conn.ends[1 - side].alone_since.get_or_insert(now);
        let end = &mut conn.ends[side];
        if let Some(qp) = end.qp.take() {
            self.hosts[end.host].by_qpn.remove(&qp.qpn().value());
            qp.destroy().map_err(|e| format!("destroying: {}", e.error))?;
        }
        conn.ends[side].window = None;
        self.forget(c, side)
    }
}
