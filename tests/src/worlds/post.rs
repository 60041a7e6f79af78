//! Work requests, and their required effects.

use super::Check;
use super::conn::{Opening, QKEY, State};
use super::host::{Addition, all_rights};
use super::ledger::{Expect, Message, Sent, WindowChange};
use super::plan::{Action, Service, What};
use super::rng::{Rng, pattern};
use super::world::World;
use rnic::{Access, Destination, FlushKind, Gather, Operation, Remote, SendFlags, SendWr, Sge, WcStatus};
use std::ops::Range;

/// Number of events that a program waits for when a queue is full.
const PATIENCE: u32 = 40;
/// Number of uncertain additions to a shared word before another word is used.
const UNCERTAIN: usize = 10;
/// Maximum length of inline data in bytes.
const INLINE: usize = 256;

/// A key without a region: its index is beyond the table.
const NO_KEY: u32 = 0xffff_ff07;

/// The remote target of an operation under construction.
struct Target {
    remote: Remote,
    /// Offset from the start of the lane.
    offset: usize,
    through_window: bool,
    /// Whether the access will be denied.
    denied: bool,
    expect: Expect,
}

impl World<'_> {
    /// Posts operations of one kind, as often as the action says.
    pub(crate) fn post(&mut self, action: &Action) -> Check {
        let (c, side) = (action.conn, action.side);
        for time in 0..action.times {
            let mut rng = Rng::new(action.salt.wrapping_add(u64::from(time) << 48));
            if !self.make_room(c, side, &mut rng)? {
                return Ok(());
            }
            self.post_one(c, side, action.what, &mut rng)?;
        }
        Ok(())
    }

    /// Whether the queue pair has room in its send queue, possibly after a wait.
    fn make_room(&mut self, c: usize, side: usize, rng: &mut Rng) -> Check<bool> {
        for _ in 0..PATIENCE {
            let conn = &self.conns[c];
            let end = &conn.ends[side];
            if end.qp.is_none() || conn.plan.service == Service::Xrc && side == 1 {
                return Ok(false);
            }
            // Requests to a failed connection are flushed; this is tested too, but less often.
            if conn.state != State::Up && !(conn.state == State::Broken && rng.percent(30)) {
                return Ok(false);
            }
            if end.sends.entries.len() < conn.plan.sends as usize {
                return Ok(true);
            }
            let now = self.net.elapsed();
            self.run_until(now + std::time::Duration::from_micros(2))?;
            if self.hosts[self.conns[c].ends[side].host].plan.slow && rng.percent(20) {
                self.serve(true)?;
            }
        }
        Ok(false)
    }

    fn post_one(&mut self, c: usize, side: usize, what: What, rng: &mut Rng) -> Check {
        match what {
            What::Send | What::SendImm | What::SendInv => self.post_message(c, side, what, rng),
            What::Write | What::WriteImm => self.post_write(c, side, what, rng),
            What::Read => self.post_read(c, side, rng),
            What::SharedAdd => self.post_shared_add(c, side, rng),
            What::FetchAdd | What::CompareSwap | What::AtomicWrite => self.post_word(c, side, what, rng),
            What::Flush => self.post_flush(c, side, rng),
            What::Bind => self.post_bind(c, side, rng),
            What::LocalInv => self.post_local_inv(c, side, rng),
            _ => self.post_wrong(c, side, what, rng),
        }
    }

    /// A length up to `longest`: mostly small, often close to a multiple of the path MTU.
    pub(crate) fn length(&self, c: usize, rng: &mut Rng) -> usize {
        let (mtu, longest) = (self.conns[c].plan.mtu as usize, self.conns[c].plan.longest);
        let len = match rng.below(20) {
            0 => 0,
            1..8 => rng.size(1, 64),
            8..13 => rng.size(1, mtu),
            13..18 => (mtu * rng.size(1, 4) + rng.size(0, 2)).saturating_sub(1),
            _ => rng.size(0, longest),
        };
        len.min(longest)
    }

    /// Local memory for a request, filled with these bytes: its offset, and its elements.
    fn source(
        &mut self,
        c: usize,
        side: usize,
        bytes: &[u8],
        rng: &mut Rng,
    ) -> Check<Option<(usize, Gather)>> {
        let end = &self.conns[c].ends[side];
        let arena = &mut self.hosts[end.host].arena;
        let Some(at) = arena.take(&end.pool, bytes.len().max(1), 1, rng) else { return Ok(None) };
        arena.write(at, bytes)?;
        Ok(Some((at, self.elements(c, side, at, bytes.len(), rng))))
    }

    /// Local memory as one to four elements.
    pub(crate) fn elements(&self, c: usize, side: usize, at: usize, len: usize, rng: &mut Rng) -> Gather {
        let end = &self.conns[c].ends[side];
        let Some(region) = &end.pool_region else { return Gather::Empty };
        let start = region.addr() + (at - end.pool.start) as u64;
        split(start, len, region.lkey(), rng)
    }

    /// A target in the peer's lane, by its key or through the window.
    fn target(
        &self,
        c: usize,
        side: usize,
        len: usize,
        align: usize,
        right: Access,
        rng: &mut Rng,
    ) -> Target {
        let conn = &self.conns[c];
        let peer = &conn.ends[1 - side];
        let window =
            peer.window.as_ref().filter(|w| w.opening == Opening::Open && w.shows.len() >= len + align);
        let region = Range { start: 0, end: peer.lane.len() };
        let through = window.filter(|_| rng.percent(60));
        let within = through.map_or(region, |w| w.shows.clone());
        let room = within.len() - len - (align - 1);
        let room = if rng.percent(50) { room.min(256) } else { room };
        let offset = (within.start + rng.size(0, room)).next_multiple_of(align);
        let key = through.map_or(peer.lane_key, |w| w.key);
        let denied = peer.lane_region.is_none() || peer.restricted && right == Access::REMOTE_WRITE;
        let told = conn.plan.service.is_reliable();
        let expect =
            if denied && told && len > 0 { Expect::Failure(WcStatus::RemAccessErr) } else { Expect::Success };
        Target {
            remote: Remote { addr: peer.lane_addr + offset as u64, rkey: key },
            offset,
            through_window: through.is_some(),
            denied,
            expect,
        }
    }

    /// Whether a change of these bytes of the peer's lane has to wait for READs of them.
    fn needs_fence(&self, c: usize, side: usize, range: &Range<usize>) -> bool {
        let reading = &self.conns[c].ends[side].reading;
        reading.iter().any(|(_, read)| read.start < range.end && range.start < read.end)
    }

    fn post_message(&mut self, c: usize, side: usize, what: What, rng: &mut Rng) -> Check {
        let service = self.conns[c].plan.service;
        let id = self.id();
        let bytes = pattern(id, self.length(c, rng));
        let imm = (what == What::SendImm).then(|| rng.word() as u32);
        let invalidate = if what == What::SendInv && service == Service::Rc {
            self.key_to_invalidate(c, side)
        } else {
            None
        };
        let inline = bytes.len() <= INLINE && rng.percent(25);
        let (place, data) = if inline {
            (None, Gather::Inline(bytes.clone().into()))
        } else {
            let Some((at, data)) = self.source(c, side, &bytes, rng)? else { return Ok(()) };
            (Some(at), data)
        };
        let mut sent = self.draft(id, Operation::Send { imm, invalidate });
        sent.place = place;
        sent.window = invalidate.map(WindowChange::ClosePeers);
        let message = Message { id, bytes, imm, invalidated: invalidate, is_write: false, delivered: 0 };
        // A READ through the window may be answered later, or repeated.
        let fence = invalidate.is_some() && !self.conns[c].ends[side].reading.is_empty();
        let flags = if fence { SendFlags::FENCE } else { SendFlags::empty() };
        self.submit(c, side, sent, Operation::Send { imm, invalidate }, data, flags, Some(message), rng)
    }

    /// The key of the peer's window if it can be invalidated; marks it as being invalidated.
    fn key_to_invalidate(&mut self, c: usize, side: usize) -> Option<u32> {
        if self.conns[c].plan.type1 || self.conns[c].state != State::Up {
            return None;
        }
        let window = self.conns[c].ends[1 - side].window.as_mut().filter(|w| w.opening == Opening::Open)?;
        window.opening = Opening::Closing;
        window.stale = Some(window.key);
        Some(window.key)
    }

    fn post_write(&mut self, c: usize, side: usize, what: What, rng: &mut Rng) -> Check {
        let id = self.id();
        let bytes = pattern(id, self.length(c, rng));
        let target = self.target(c, side, bytes.len(), 1, Access::REMOTE_WRITE, rng);
        let imm = (what == What::WriteImm).then(|| rng.word() as u32);
        let inline = bytes.len() <= INLINE && rng.percent(25);
        let (place, data) = if inline {
            (None, Gather::Inline(bytes.clone().into()))
        } else {
            let Some((at, data)) = self.source(c, side, &bytes, rng)? else { return Ok(()) };
            (Some(at), data)
        };
        let operation = Operation::Write { remote: target.remote, imm };
        let mut sent = self.draft(id, operation);
        sent.place = place;
        let flags = self.change_lane(c, side, &mut sent, &target, &bytes);
        let doomed = matches!(target.expect, Expect::Failure(_));
        let message = imm.filter(|_| !doomed).map(|_| Message {
            id,
            bytes,
            imm,
            invalidated: None,
            is_write: true,
            delivered: 0,
        });
        self.submit(c, side, sent, operation, data, flags, message, rng)
    }

    /// Records that a request will change the peer's lane; returns the flags that it needs.
    fn change_lane(
        &mut self,
        c: usize,
        side: usize,
        sent: &mut Sent,
        target: &Target,
        bytes: &[u8],
    ) -> SendFlags {
        sent.expect = target.expect;
        sent.through_window = target.through_window;
        let range = target.offset..target.offset + bytes.len();
        let fence = self.needs_fence(c, side, &range);
        if let Expect::Failure(status) = target.expect {
            self.foresee(c, status);
        } else if !target.denied {
            let conn = &mut self.conns[c];
            conn.ends[side].ahead[range.clone()].copy_from_slice(bytes);
            let peer = &conn.ends[1 - side];
            self.hosts[peer.host].arena.expect(sent.id, peer.lane.start + range.start, bytes.to_vec());
            sent.takes = true;
        }
        if fence { SendFlags::FENCE } else { SendFlags::empty() }
    }

    /// Records an expected error: at this side, at the other, and its effect on other requests.
    pub(crate) fn foresee(&mut self, c: usize, status: WcStatus) {
        let reliable = self.conns[c].plan.service.is_reliable();
        if reliable {
            // The resulting statuses of the responder's own requests and receives when the peer's request is
            // invalid.
            self.conns[c].give_reason(&[status, WcStatus::WrFlushErr, WcStatus::LocAccessErr]);
        }
    }

    fn post_read(&mut self, c: usize, side: usize, rng: &mut Rng) -> Check {
        let id = self.id();
        let len = self.length(c, rng);
        let target = self.target(c, side, len, 1, Access::REMOTE_READ, rng);
        let end = &mut self.conns[c].ends[side];
        let host = &mut self.hosts[end.host];
        let Some(at) = host.arena.take(&end.pool, len.max(1), 1, rng) else { return Ok(()) };
        let range = target.offset..target.offset + len;
        let operation = Operation::Read { remote: target.remote };
        let bytes = end.ahead[range.clone()].to_vec();
        end.reading.push((id, range));
        let mut sent = self.draft(id, operation);
        (sent.place, sent.brings, sent.byte_len) = (Some(at), true, len as u32);
        (sent.expect, sent.through_window) = (target.expect, target.through_window);
        self.hosts[self.conns[c].ends[side].host].arena.expect(id, at, bytes);
        if let Expect::Failure(status) = target.expect {
            self.foresee(c, status);
        }
        let data = self.elements(c, side, at, len, rng);
        self.submit(c, side, sent, operation, data, SendFlags::empty(), None, rng)
    }

    /// Local memory for the 8 bytes that an atomic returns.
    fn result_place(&mut self, c: usize, side: usize, rng: &mut Rng) -> Option<usize> {
        let end = &self.conns[c].ends[side];
        self.hosts[end.host].arena.take(&end.pool, 8, 1, rng)
    }

    fn post_shared_add(&mut self, c: usize, side: usize, rng: &mut Rng) -> Check {
        let Some(at) = self.result_place(c, side, rng) else { return Ok(()) };
        let id = self.id();
        let here = self.conns[c].ends[side].host;
        let there = &mut self.hosts[self.conns[c].ends[1 - side].host];
        let certain = |cell: &Vec<Addition>| cell.iter().filter(|a| a.before.is_none()).count() < UNCERTAIN;
        let Some(cell) = there.cells.iter().position(certain) else { return Ok(()) };
        // Large enough that two subsets hardly ever have the same sum, and small enough not to overflow.
        let add = (rng.word() >> 24) | 1;
        let remote = there.cells_region.remote(cell as u64 * 8);
        there.cells[cell].push(Addition { id, add, before: None, uncertain: false });
        self.hosts[here].arena.expect_any(id, at, 8);
        let operation = Operation::FetchAdd { remote, add };
        let mut sent = self.draft(id, operation);
        (sent.place, sent.shared, sent.byte_len) = (Some(at), Some(cell), 8);
        let data = self.elements(c, side, at, 8, rng);
        self.submit(c, side, sent, operation, data, SendFlags::empty(), None, rng)
    }

    /// A change of 8 bytes in the peer's lane.
    fn post_word(&mut self, c: usize, side: usize, what: What, rng: &mut Rng) -> Check {
        if what == What::AtomicWrite && self.conns[c].plan.service != Service::Rc {
            return Ok(());
        }
        let right = if what == What::AtomicWrite { Access::REMOTE_WRITE } else { Access::REMOTE_ATOMIC };
        let target = self.target(c, side, 8, 8, right, rng);
        let word = &self.conns[c].ends[side].ahead[target.offset..target.offset + 8];
        let old = word.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
        let id = self.id();
        let Some(at) = self.result_place(c, side, rng) else { return Ok(()) };
        let here = self.conns[c].ends[side].host;
        let remote = target.remote;
        let (operation, new) = match what {
            What::FetchAdd => {
                let add = rng.word();
                (Operation::FetchAdd { remote, add }, old.wrapping_add(add))
            }
            What::CompareSwap => {
                let compare = if rng.percent(60) { old } else { rng.word() };
                let swap = rng.word();
                (Operation::CompareSwap { remote, compare, swap }, if compare == old { swap } else { old })
            }
            _ => (Operation::AtomicWrite { remote }, rng.word()),
        };
        let mut sent = self.draft(id, operation);
        sent.place = Some(at);
        if what == What::AtomicWrite {
            self.hosts[here].arena.write(at, &new.to_ne_bytes())?;
        } else {
            self.hosts[here].arena.expect(id, at, old.to_ne_bytes().to_vec());
            (sent.brings, sent.byte_len) = (true, 8);
        }
        let flags = self.change_lane(c, side, &mut sent, &target, &new.to_ne_bytes());
        let data = self.elements(c, side, at, 8, rng);
        self.submit(c, side, sent, operation, data, flags, None, rng)
    }

    fn post_flush(&mut self, c: usize, side: usize, rng: &mut Rng) -> Check {
        if self.conns[c].plan.service != Service::Rc {
            return Ok(());
        }
        let len = rng.size(1, 64);
        let target = self.target(c, side, len, 1, Access::FLUSH_GLOBAL, rng);
        if target.through_window {
            // A window gives no right to flush.
            return Ok(());
        }
        let flush = FlushKind { global: true, ..FlushKind::default() };
        let operation = Operation::Flush { remote: target.remote, len: len as u32, flush };
        let id = self.id();
        let mut sent = self.draft(id, operation);
        sent.expect = target.expect;
        if let Expect::Failure(status) = target.expect {
            self.foresee(c, status);
        }
        self.submit(c, side, sent, operation, Gather::Empty, SendFlags::empty(), None, rng)
    }

    fn post_bind(&mut self, c: usize, side: usize, rng: &mut Rng) -> Check {
        let conn = &mut self.conns[c];
        let type1 = conn.plan.type1;
        let up = conn.state == State::Up;
        let in_use = conn.ends[1 - side].sends.entries.iter().any(|sent| sent.through_window);
        let end = &mut conn.ends[side];
        let (Some(window), Some(region)) = (&mut end.window, &end.lane_region) else { return Ok(()) };
        // A type 2 window is bound only when it is invalid; a type 1 window is moved if no request is using it.
        let may = window.opening == Opening::Closed || type1 && window.opening == Opening::Open && !in_use;
        if !up || !may || end.restricted {
            return Ok(());
        }
        let from = rng.size(0, end.lane.len() / 2);
        let shows = from..rng.size(from + 16, end.lane.len());
        let rights = all_rights() & !(Access::LOCAL_WRITE | Access::MW_BIND | Access::FLUSH_GLOBAL);
        let Ok(bind) = window.window.bind_to(region, shows.clone(), rights) else { return Ok(()) };
        let bind = rnic::Bind {
            window: window.key,
            key: window.key & !0xff | u32::from((window.key as u8).wrapping_add(1)),
            ..bind
        };
        if window.opening == Opening::Open {
            window.stale = Some(window.key);
        }
        (window.opening, window.shows, window.key) = (Opening::Asked, shows, bind.key);
        let operation = Operation::BindWindow(bind);
        let id = self.id();
        let mut sent = self.draft(id, operation);
        sent.window = Some(WindowChange::Open);
        self.submit(c, side, sent, operation, Gather::Empty, SendFlags::empty(), None, rng)
    }

    fn post_local_inv(&mut self, c: usize, side: usize, rng: &mut Rng) -> Check {
        let conn = &mut self.conns[c];
        let up = conn.state == State::Up && !conn.plan.type1;
        let in_use = conn.ends[1 - side].sends.entries.iter().any(|sent| sent.through_window);
        let Some(window) = &mut conn.ends[side].window else { return Ok(()) };
        if !up || window.opening != Opening::Open || in_use && !rng.percent(20) {
            return Ok(());
        }
        (window.opening, window.stale) = (Opening::Closing, Some(window.key));
        let operation = Operation::LocalInvalidate { key: window.key };
        if in_use {
            // A request that is using it may be refused.
            self.witness.let_be(c);
            self.foresee(c, WcStatus::RemAccessErr);
        }
        let id = self.id();
        let mut sent = self.draft(id, operation);
        sent.window = Some(WindowChange::Close);
        self.submit(c, side, sent, operation, Gather::Empty, SendFlags::empty(), None, rng)
    }

    /// A request that must fail without changing anything.
    fn post_wrong(&mut self, c: usize, side: usize, what: What, rng: &mut Rng) -> Check {
        let service = self.conns[c].plan.service;
        let status = match what {
            What::WrongLocalKey => WcStatus::LocProtErr,
            // Nothing is sent, and that is not an error (IBTA C10-93.1.1): nothing may arrive.
            What::TooLong => WcStatus::Success,
            // The key is checked first.
            What::Misaligned if self.conns[c].ends[1 - side].lane_region.is_some() => WcStatus::RemInvReqErr,
            _ => WcStatus::RemAccessErr,
        };
        let fits = match what {
            What::TooLong => service == Service::Ud,
            What::WrongLocalKey => true,
            _ => service.is_reliable(),
        };
        if !fits || self.conns[c].state != State::Up {
            return Ok(());
        }
        let conn = &self.conns[c];
        let (peer, pool) = (&conn.ends[1 - side], conn.ends[side].pool.clone());
        let there = &self.hosts[peer.host];
        let len = if what == What::TooLong {
            there.plan.mtu.max(self.hosts[conn.ends[side].host].plan.mtu) as usize + 1
        } else {
            rng.size(1, 40)
        };
        let inside = peer.lane.len() - 64;
        let remote = match what {
            What::Beyond => {
                Remote { addr: peer.lane_addr + (peer.lane.len() - len + 1) as u64, rkey: peer.lane_key }
            }
            What::OtherDomain => there.other_region.remote(0),
            What::StaleWindow => {
                match peer.window.as_ref().and_then(|w| w.stale.map(|key| (key, w.shows.start))) {
                    Some((rkey, start)) => Remote { addr: peer.lane_addr + start as u64, rkey },
                    None => return Ok(()),
                }
            }
            What::WrongKey => Remote { addr: peer.lane_addr + rng.size(0, inside) as u64, rkey: NO_KEY },
            _ => {
                Remote { addr: peer.lane_addr + 8 * rng.size(0, inside / 8) as u64 + 4, rkey: peer.lane_key }
            }
        };
        let stale_is_closed = what != What::StaleWindow || self.window_is_settled(c, 1 - side);
        let id = self.id();
        let operation = match (what, rng.below(3)) {
            (What::TooLong, _) => Operation::Send { imm: None, invalidate: None },
            (What::WrongLocalKey, _) if !service.is_reliable() => {
                Operation::Send { imm: None, invalidate: None }
            }
            (What::Misaligned, _) => Operation::FetchAdd { remote, add: 1 },
            (What::WrongLocalKey, _) | (_, 0) => Operation::Write { remote, imm: None },
            (_, 1) => Operation::Read { remote },
            _ => Operation::Write { remote, imm: None },
        };
        let len = if what == What::Misaligned { 8 } else { len };
        let Some(at) = self.hosts[self.conns[c].ends[side].host].arena.take(&pool, len, 1, rng) else {
            return Ok(());
        };
        let mut data = self.elements(c, side, at, len, rng);
        if what == What::WrongLocalKey {
            data = Gather::One(Sge { addr: 0x1000, length: len as u32, lkey: NO_KEY });
        }
        let mut sent = self.draft(id, operation);
        sent.place = Some(at);
        if !stale_is_closed {
            return Ok(());
        }
        if status != WcStatus::Success {
            sent.expect = Expect::Failure(status);
            self.foresee(c, status);
        }
        self.cover.hit(format!("{what:?}"));
        self.submit(c, side, sent, operation, data, SendFlags::empty(), None, rng)
    }

    /// Whether the window's previous key is certainly invalid.
    fn window_is_settled(&self, c: usize, owner: usize) -> bool {
        let window = &self.conns[c].ends[owner].window;
        window.as_ref().is_some_and(|w| matches!(w.opening, Opening::Open | Opening::Closed))
    }

    /// A request with default expectations.
    fn draft(&self, id: u64, operation: Operation) -> Sent {
        Sent {
            id,
            name: operation.name(),
            opcode: operation.wc_opcode(),
            signalled: false,
            byte_len: 0,
            posted: self.net.elapsed(),
            expect: Expect::Success,
            place: None,
            brings: false,
            takes: false,
            message: None,
            shared: None,
            window: None,
            through_window: false,
        }
    }

    /// Posts a request, and records it.
    #[expect(clippy::too_many_arguments, reason = "a work request has as many parts")]
    fn submit(
        &mut self,
        c: usize,
        side: usize,
        mut sent: Sent,
        operation: Operation,
        data: Gather,
        mut flags: SendFlags,
        message: Option<Message>,
        rng: &mut Rng,
    ) -> Check {
        let conn = &mut self.conns[c];
        let service = conn.plan.service;
        let there = &self.hosts[conn.ends[1 - side].host];
        let to = match service {
            Service::Xrc if !operation.is_local() => Destination::XrcSrq(there.xrc_srq.queue.srqn()),
            Service::Ud => match (&conn.ends[side].way, &conn.ends[1 - side].qp) {
                (Some(way), Some(peer)) => way.datagram(peer.qpn(), QKEY),
                _ => return Ok(()),
            },
            _ => Destination::Connected,
        };
        for (flag, percent) in [(SendFlags::SIGNALED, 60), (SendFlags::SOLICITED, 20), (SendFlags::FENCE, 4)]
        {
            flags.set(flag, flags.contains(flag) || rng.percent(percent));
        }
        sent.signalled = flags.contains(SendFlags::SIGNALED) || conn.plan.sig_all[side];
        let end = &mut conn.ends[side];
        if let Some(message) = message {
            end.outbox.all.push(message);
            sent.message = Some(end.outbox.all.len());
        }
        let bytes = data.len();
        let elements = data.elements().len();
        let wr = SendWr::new(sent.id, operation, data).flags(flags).to(to);
        let (id, name) = (sent.id, sent.name);
        end.sends.entries.push_back(sent);
        let Some(qp) = &end.qp else { return Ok(()) };
        qp.post_send(wr).map_err(|e| format!("posting {name} {id:#x}: {e}"))?;
        self.operations += 1;
        self.cover.hit(format!("{} {name}", service.name()));
        self.cover.hit(format!("{elements} elements"));
        for (flag, _) in flags.iter_names() {
            self.cover.hit(flag);
        }
        self.note(|| {
            format!(
                "conn {c} side {side}: post {id:#x} {name} of {bytes} bytes in {elements} elements {flags:?}"
            )
        });
        Ok(())
    }
}

/// `len` bytes starting at `start`, as one to four elements.
pub(crate) fn split(start: u64, len: usize, lkey: u32, rng: &mut Rng) -> Gather {
    let pieces = if rng.percent(60) { 1 } else { rng.size(1, 4) };
    let mut cuts: Vec<usize> = (1..pieces).map(|_| rng.size(0, len)).collect();
    cuts.sort_unstable();
    cuts.push(len);
    let mut from = 0;
    let elements: Vec<Sge> = cuts
        .into_iter()
        .map(|to| {
            let sge = Sge { addr: start + from as u64, length: (to - from) as u32, lkey };
            from = to;
            sge
        })
        .collect();
    Gather::from(elements.as_slice())
}
