//! Checks what completions claim.

use super::Check;
use super::conn::{Opening, State};
use super::ledger::{Expect, Message, Posted, RECV, Sent, WindowChange};
use super::plan::Service;
use super::wire::rnr_delay;
use super::world::{Receipt, World};
use rnic::{WcFlags, WcOpcode, WcStatus, WorkCompletion};

/// Length of the network header in front of a datagram, in bytes.
const GRH: usize = 40;

impl World<'_> {
    /// A program polled a completion.
    pub(crate) fn completed(&mut self, number: usize, wc: &WorkCompletion) -> Check {
        let now = self.net.elapsed().as_nanos() as u64;
        self.observe(&[now, wc.wr_id, wc.status as u64, u64::from(wc.byte_len), u64::from(wc.imm_or_rkey)]);
        let receive = wc.wr_id & RECV != 0;
        let Some((c, side)) = self.hosts[number].by_qpn.get(&wc.qpn.value()).copied() else {
            return Err(format!("a completion of {}, which does not exist: {wc:?}", wc.qpn));
        };
        let service = self.conns[c].plan.service;
        self.cover.hit(format!(
            "{} {} {}",
            service.name(),
            if receive { "receive" } else { "send" },
            wc.status
        ));
        self.note(|| {
            format!(
                "conn {c} side {side}: {:#x} {} {:?} {} bytes",
                wc.wr_id & !RECV,
                wc.status,
                wc.opcode,
                wc.byte_len
            )
        });
        let judged = if receive { self.received(number, c, side, wc) } else { self.sent(c, side, wc) };
        judged.map_err(|what| {
            let failure = self.conns[c].ends[side].qp.as_ref().and_then(rnic::QueuePair::failure);
            let why = failure.map_or_else(String::new, |failure| format!(" [{failure}]"));
            format!("conn {c} ({}) side {side}: {what}{why}", service.name())
        })
    }

    fn sent(&mut self, c: usize, side: usize, wc: &WorkCompletion) -> Check {
        let now = self.net.elapsed();
        let mut queue = std::mem::take(&mut self.conns[c].ends[side].sends);
        let before = queue.failed;
        let conn = &self.conns[c];
        let done = queue.complete(wc, |status| conn.excuses(side, status, false));
        queue.ended = now;
        let failed = queue.failed;
        self.conns[c].ends[side].sends = queue;
        for (sent, status) in done? {
            if before.is_none() && status != WcStatus::Success {
                self.check_early(c, &sent, status)?;
                self.check_retries(c, side, status)
                    .map_err(|what| format!("{} {:#x} ended with {status}: {what}", sent.name, sent.id))?;
                if self.conns[c].state == State::Up {
                    self.conns[c].state = State::Broken;
                }
            }
            self.end_send(c, side, &sent, status)?;
        }
        if failed.is_some() && self.conns[c].plan.service.is_reliable() {
            // Its peer will receive nothing from it any more.
            let alone = &mut self.conns[c].ends[1 - side].alone_since;
            alone.get_or_insert(now);
        }
        Ok(())
    }

    /// No request fails before its retries are used up.
    fn check_early(&self, c: usize, sent: &Sent, status: WcStatus) -> Check {
        let conn = &self.conns[c];
        let least = match status {
            WcStatus::RnrRetryExcErr => rnr_delay(conn.plan.rnr_timer) * u32::from(conn.plan.rnr_retry),
            // When packets are lost, NAKs also use up retries: the witness knows them.
            WcStatus::RetryExcErr if !conn.lossy => match conn.plan.timeout() {
                Some(timeout) => timeout * (u32::from(conn.plan.retry_cnt) + 1),
                None => return Err(format!("{} gave up without a timeout", sent.name)),
            },
            _ => return Ok(()),
        };
        let waited = self.net.elapsed().saturating_sub(sent.posted);
        if waited < least {
            return Err(format!(
                "{} {:#x} ended with {status} after {waited:?}, not {least:?}",
                sent.name, sent.id
            ));
        }
        Ok(())
    }

    /// What the requester sent and received justifies its error.
    fn check_retries(&mut self, c: usize, side: usize, status: WcStatus) -> Check {
        match status {
            WcStatus::RetryExcErr => self.witness.gave_up((c, side), self.net.elapsed())?,
            WcStatus::RnrRetryExcErr => self.witness.gave_up_waiting((c, side))?,
            _ => {}
        }
        self.mind_signs(c);
        self.witness.end((c, side));
        Ok(())
    }

    /// The effect of a completed send on memory, messages and windows.
    pub(crate) fn end_send(&mut self, c: usize, side: usize, sent: &Sent, status: WcStatus) -> Check {
        let success = status == WcStatus::Success;
        let label = |what: String| format!("{} {:#x}: {what}", sent.name, sent.id);
        let Self { conns, hosts, net, air, receipts, .. } = self;
        let conn = &mut conns[c];
        let reliable = conn.plan.service.is_reliable();
        let since = conn.since;
        let peer_host = conn.ends[1 - side].host;
        let end = &mut conn.ends[side];
        if sent.brings {
            let arena = &mut hosts[end.host].arena;
            if success { arena.settle(sent.id).map_err(label)? } else { arena.give_up(sent.id)? }
        }
        if let Some(cell) = sent.shared {
            let result = end_addition(&hosts[end.host].arena, sent, success)?;
            if sent.place.is_some() {
                hosts[end.host].arena.give_up(sent.id)?;
            }
            if let Some(addition) = hosts[peer_host].cells[cell].iter_mut().find(|a| a.id == sent.id) {
                (addition.before, addition.uncertain) = (result, result.is_none());
            }
        }
        if let Some(at) = sent.place {
            hosts[end.host].arena.release(at);
        }
        end.reading.retain(|(id, _)| *id != sent.id);
        if sent.takes {
            match (reliable, success) {
                (true, true) => hosts[peer_host].arena.settle(sent.id).map_err(label)?,
                (true, false) => end.lost.push(sent.id),
                (false, _) => end.flying.push_back((net.elapsed() + *air, sent.id)),
            }
        }
        if let (Some(messages), true, true) = (sent.message, reliable, success) {
            receipts.push(Receipt { conn: c, side, messages, since });
        }
        if let Some(change) = sent.window {
            let owner = if matches!(change, WindowChange::ClosePeers(_)) { 1 - side } else { side };
            if let Some(window) = &mut conn.ends[owner].window {
                match (change, success) {
                    (WindowChange::Open, true) => window.opening = Opening::Open,
                    // Its owner may have learned this earlier and bound it again, for another request to
                    // invalidate.
                    (WindowChange::ClosePeers(key), _)
                        if window.opening != Opening::Closing || window.key != key => {}
                    _ => window.opening = Opening::Closed,
                }
            }
        }
        if success && sent.through_window {
            self.cover.hit("through a memory window");
        }
        if !success && matches!(sent.expect, Expect::Failure(wanted) if wanted == status) {
            self.cover.hit(format!("foreseen {status}"));
        }
        Ok(())
    }

    fn received(&mut self, number: usize, c: usize, side: usize, wc: &WorkCompletion) -> Check {
        let posted = self.take_posted(number, c, side, wc)?;
        let host = &mut self.hosts[number];
        if wc.status != WcStatus::Success {
            host.arena.give_up(posted.id)?;
            host.arena.release(posted.at);
            let conn = &mut self.conns[c];
            let foreseen = posted.wrong_key && wc.status == WcStatus::LocProtErr;
            if !foreseen && !conn.excuses(side, wc.status, true) {
                return Err(format!(
                    "receive {:#x} ended with {}, for which there is no reason",
                    posted.id & !RECV,
                    wc.status
                ));
            }
            if conn.state == State::Up {
                conn.state = State::Broken;
            }
            return Ok(());
        }
        if posted.wrong_key && wc.byte_len > 0 && wc.opcode == WcOpcode::Recv {
            return Err("a receive with a key of nothing got bytes".to_owned());
        }
        self.delivered(number, c, side, wc, &posted)?;
        self.hosts[number].arena.release(posted.at);
        if !self.conns[c].plan.lazy[side] {
            self.refill(c, side)?;
        }
        Ok(())
    }

    /// The receive that a completion refers to: the oldest one, or one of a shared queue.
    fn take_posted(&mut self, number: usize, c: usize, side: usize, wc: &WorkCompletion) -> Check<Posted> {
        let plan = &self.conns[c].plan;
        let host = &mut self.hosts[number];
        let shared = match plan.service {
            Service::Xrc => Some(&mut host.xrc_srq),
            _ if plan.srq[side] => Some(&mut host.srq),
            _ => None,
        };
        let not_there = || format!("receive {:#x} completed, and is not outstanding", wc.wr_id & !RECV);
        if let Some(shared) = shared {
            return shared.posted.remove(&wc.wr_id).ok_or_else(not_there);
        }
        let recvs = &mut self.conns[c].ends[side].recvs;
        match recvs.front() {
            Some(posted) if posted.id == wc.wr_id => recvs.pop_front().ok_or_else(not_there),
            Some(posted) if recvs.iter().any(|other| other.id == wc.wr_id) => Err(format!(
                "receive {:#x} completed before {:#x}, which was posted before it",
                wc.wr_id & !RECV,
                posted.id & !RECV
            )),
            _ => Err(not_there()),
        }
    }

    /// A message was received: finds which one, and checks that it is complete.
    fn delivered(
        &mut self,
        number: usize,
        c: usize,
        side: usize,
        wc: &WorkCompletion,
        posted: &Posted,
    ) -> Check {
        let service = self.conns[c].plan.service;
        let front = if service == Service::Ud { GRH } else { 0 };
        let total = wc.byte_len as usize;
        let is_write = wc.opcode == WcOpcode::RecvRdmaWithImm;
        let stored = if is_write { 0 } else { total };
        if stored > posted.len || stored < front && !is_write {
            return Err(format!("a message of {total} bytes in a receive of {}", posted.len));
        }
        let bytes = self.hosts[number].arena.actual(posted.at..posted.at + stored)?;
        let imm = wc.imm();
        let key = wc.flags.contains(WcFlags::WITH_INV).then_some(wc.imm_or_rkey);
        let matches = |message: &Message| {
            message.is_write == is_write
                && message.imm == imm
                && message.invalidated == key
                && message.bytes.len() == total - front
                && (is_write || message.bytes == bytes[front..])
        };
        let any_order = self.lossy && !service.is_reliable();
        let outbox = &mut self.conns[c].ends[1 - side].outbox;
        let expected = outbox.next;
        let Some(message) = outbox.deliver(matches, service.is_reliable(), any_order) else {
            let known = outbox.all.get(expected);
            return Err(format!(
                "a message of {} bytes (imm {imm:x?}, invalidated {key:x?}, write {is_write}) that was not to come: \
                 {expected} were received, the next is {}",
                total - front,
                known.map_or_else(
                    || "not posted".to_owned(),
                    |m| format!(
                        "{:#x} of {} bytes, imm {:x?}, write {}",
                        m.id,
                        m.bytes.len(),
                        m.imm,
                        m.is_write
                    )
                )
            ));
        };
        let (id, copies) = (message.id, message.delivered);
        let may_copy = self.lossy && !service.is_reliable();
        if copies > 1 && !may_copy {
            return Err(format!("message {id:#x} was received {copies} times"));
        }
        // If a device replaced another, datagrams of both may be waiting in the queue.
        if service == Service::Ud && self.conns[c].state == State::Up {
            self.check_sender(c, side, wc, &bytes[..GRH])?;
        }
        if is_write && service.is_reliable() {
            self.hosts[number]
                .arena
                .check_arrived(id)
                .map_err(|what| format!("immediate data before the data: {what}"))?;
        }
        // A slow program may have learned this earlier from the sender, and bound the window again.
        if let Some(window) = &mut self.conns[c].ends[side].window
            && key == Some(window.key)
        {
            window.opening = Opening::Closed;
        }
        self.cover.hit(format!(
            "{} received {}{}",
            service.name(),
            if is_write { "WRITE" } else { "SEND" },
            match (imm, key) {
                (Some(_), _) => " imm",
                (_, Some(_)) => " inv",
                _ => "",
            }
        ));
        // On an unreliable service, a longer message may have started to fill the receive before it was lost.
        self.hosts[number].arena.settle_as(posted.id, &bytes, service.is_reliable())
    }

    /// Checks the sender that a datagram reports.
    fn check_sender(&self, c: usize, side: usize, wc: &WorkCompletion, grh: &[u8]) -> Check {
        let peer = &self.conns[c].ends[1 - side];
        let address = match self.hosts[peer.host].device.address() {
            std::net::IpAddr::V4(v4) => v4.octets(),
            std::net::IpAddr::V6(_) => return Err("an IPv6 device".to_owned()),
        };
        if !wc.flags.contains(WcFlags::GRH) || grh[32..36] != address {
            return Err(format!("a datagram from {:?} instead of {address:?}", &grh[32..36]));
        }
        match &peer.qp {
            Some(qp) if qp.qpn() != wc.src_qpn => {
                Err(format!("a datagram of {} from {}", qp.qpn(), wc.src_qpn))
            }
            _ => Ok(()),
        }
    }
}

/// The result of an addition to a shared word.
fn end_addition(arena: &super::arena::Arena, sent: &Sent, success: bool) -> Check<Option<u64>> {
    let (Some(at), true) = (sent.place, success) else { return Ok(None) };
    // Including unsignalled ones: later completions imply that they are done.
    let bytes = arena.actual(at..at + 8)?;
    Ok(bytes.first_chunk().map(|word| u64::from_ne_bytes(*word)))
}
