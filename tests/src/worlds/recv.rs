//! Receives.

use super::Check;
use super::conn::State;
use super::ledger::{Posted, RECV};
use super::plan::Service;
use super::post::split;
use super::rng::Rng;
use super::world::World;
use rnic::{Gather, RecvWr, Sge, WcStatus};

/// Number of receives that a program keeps posted on one side, unless its script posts more.
const KEPT: usize = 6;

/// Length of a short receive in bytes.
const SHORT: usize = 16;

/// The resulting errors, at its own side and at the other.
const SHORT_ERRORS: [WcStatus; 2] = [WcStatus::LocLenErr, WcStatus::RemInvReqErr];

/// Special properties of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Long,
    Short,
    WrongKey,
}

impl World<'_> {
    /// Posts receives up to the number that a program keeps posted.
    pub(crate) fn refill(&mut self, c: usize, side: usize) -> Check {
        for _ in 0..KEPT {
            if self.outstanding(c, side) >= KEPT || !self.post_recv(c, side, Kind::Long)? {
                break;
            }
        }
        Ok(())
    }

    fn outstanding(&self, c: usize, side: usize) -> usize {
        let conn = &self.conns[c];
        let host = &self.hosts[conn.ends[side].host];
        match conn.plan.service {
            Service::Xrc => host.xrc_srq.posted.len(),
            _ if conn.plan.srq[side] => host.srq.posted.len(),
            _ => conn.ends[side].recvs.len(),
        }
    }

    /// Posts a receive; false if there is no room for it.
    pub(crate) fn post_recv(&mut self, c: usize, side: usize, kind: Kind) -> Check<bool> {
        let conn = &self.conns[c];
        let usable = matches!(conn.state, State::Up | State::Broken);
        if !usable || conn.ends[side].qp.is_none() {
            return Ok(false);
        }
        let id = self.id() | RECV;
        let mut rng = Rng::new(self.rng.word());
        let Self { conns, hosts, .. } = self;
        let conn = &mut conns[c];
        let service = conn.plan.service;
        let host = &mut hosts[conn.ends[side].host];
        let shared = match service {
            Service::Xrc if side == 0 => return Ok(false),
            Service::Xrc => Some(&mut host.xrc_srq),
            _ if conn.plan.srq[side] => Some(&mut host.srq),
            _ => None,
        };
        // Any queue pair may take a shared receive, and with it the longest message of the device.
        let longest = match (&shared, kind) {
            (_, Kind::Short) => SHORT,
            (Some(shared), _) => (shared.pool.len() - 512) / 8 + 40,
            (None, _) => conn.plan.longest + 40,
        };
        let (pool, room) = match &shared {
            // Receives that a queue pair consumed and lost may occupy the queue permanently.
            Some(shared) => (shared.pool.clone(), shared.queue.outstanding() < shared.size),
            None => (conn.ends[side].inbox.clone(), conn.ends[side].recvs.len() < conn.plan.recvs as usize),
        };
        if !room {
            return Ok(false);
        }
        let Some(at) = host.arena.take(&pool, longest, 1, &mut rng) else { return Ok(false) };
        let region = match &shared {
            Some(shared) => &shared.region,
            None => match &conn.ends[side].inbox_region {
                Some(region) => region,
                None => return Ok(false),
            },
        };
        let start = region.addr() + (at - pool.start) as u64;
        let wrong_key = kind == Kind::WrongKey && shared.is_none();
        let data = if wrong_key {
            Gather::One(Sge { addr: 0x1000, length: longest as u32, lkey: 0xffff_ff07 })
        } else {
            split(start, longest, region.lkey(), &mut rng)
        };
        host.arena.expect_any(id, at, longest);
        let posted = Posted { id, at, len: longest, wrong_key };
        let wr = RecvWr { wr_id: id, data };
        match shared {
            Some(shared) => {
                shared.posted.insert(id, posted);
                shared.queue.post_recv(wr).map_err(|e| format!("posting a shared receive: {e}"))?;
            }
            None => {
                conn.ends[side].recvs.push_back(posted);
                let Some(qp) = &conn.ends[side].qp else { return Ok(false) };
                qp.post_recv(wr).map_err(|e| format!("posting a receive: {e}"))?;
            }
        }
        self.give_reasons(c, side, kind, wrong_key);
        self.cover.hit(format!("{} receive posted {kind:?}", service.name()));
        self.note(|| format!("conn {c} side {side}: post receive {:#x} of {longest} bytes", id & !RECV));
        Ok(true)
    }

    /// A shared queue may contain short receives that were posted for another connection, or for an earlier life of
    /// this one.
    pub(crate) fn mind_short_receives(&mut self, c: usize, side: usize) {
        let conn = &mut self.conns[c];
        let host = &self.hosts[conn.ends[side].host];
        let shared = match conn.plan.service {
            Service::Xrc => &host.xrc_srq,
            _ if conn.plan.srq[side] => &host.srq,
            _ => return,
        };
        if shared.posted.values().any(|posted| posted.len == SHORT) {
            conn.give_reason(&SHORT_ERRORS);
            conn.give_reason(&[WcStatus::WrFlushErr]);
        }
    }

    /// A sender whose message does not fit a receive fails, and so does the receiver: this concerns all queue pairs
    /// that share the queue.
    fn give_reasons(&mut self, c: usize, side: usize, kind: Kind, wrong_key: bool) {
        let errors = match kind {
            Kind::Long => return,
            Kind::Short => SHORT_ERRORS,
            Kind::WrongKey if wrong_key => [WcStatus::LocProtErr, WcStatus::RemOpErr],
            Kind::WrongKey => return,
        };
        let host = self.conns[c].ends[side].host;
        let shares = self.conns[c].plan.srq[side] || self.conns[c].plan.service == Service::Xrc;
        for (index, conn) in self.conns.iter_mut().enumerate() {
            let same = index == c || shares && conn.ends.iter().any(|end| end.host == host);
            if same {
                conn.give_reason(&errors);
                conn.give_reason(&[WcStatus::WrFlushErr]);
            }
        }
    }
}
