//! What a port logs of congestion notifications, for a manager that has written from where on.

use crate::engine::Engine;
use cc::ibcc::LEVELS;
use qp::{QpType, Qpn};
use std::collections::VecDeque;
use std::net::IpAddr;
use time::Instant;

/// The events that are kept: as many as the log of an adapter has room for (IBTA volume 1, A10.4.3.5).
const LATEST: usize = 13;

/// A notification that found a queue pair at its threshold or beyond (Trigger_Threshold).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionEvent {
    /// When it came.
    pub at: Instant,
    /// The queue pair.
    pub qpn: Qpn,
    /// Its service.
    pub qp_type: QpType,
    /// Its service level.
    pub level: u8,
    /// The queue pair that it is connected to; 0 if it is to none.
    pub dest_qpn: Qpn,
    /// Where it sends to.
    pub peer: Option<IpAddr>,
}

/// Notifications that found their queue pairs at a threshold or beyond.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CongestionLog {
    /// How many, by service level.
    pub counts: [u64; LEVELS],
    /// The latest, the newest last.
    pub latest: VecDeque<CongestionEvent>,
}

impl Engine {
    /// The notifications that found their queue pairs at a threshold or beyond.
    #[must_use]
    pub const fn congestion_log(&self) -> &CongestionLog {
        &self.rates.log
    }

    /// A queue pair has obeyed a notification.
    pub(super) fn log_notification(&mut self, now: Instant, index: usize) {
        let Some(entry) = self.qps[index].as_ref() else { return };
        if !entry.flow.as_ref().is_some_and(|flow| flow.controller.is_beyond_threshold()) {
            return;
        }
        let event = CongestionEvent {
            at: now,
            qpn: entry.qp.qpn(),
            qp_type: entry.qp.config().qp_type,
            level: entry.level(),
            dest_qpn: entry.path.map_or(Qpn::new(0), |_| entry.qp.dest_qpn()),
            peer: entry.path.map_or(entry.last_to, |path| Some(path.ip.dst)),
        };
        let CongestionLog { counts, latest } = &mut self.rates.log;
        counts[usize::from(event.level).min(LEVELS - 1)] += 1;
        if latest.len() >= LATEST {
            latest.pop_front();
        }
        latest.push_back(event);
    }
}
