//! Congestion notifications: reactions of a port to marked packets as their receiver, and to CNPs as their sender.

use super::ECT;
use crate::engine::partner::{Partners, write_single};
use crate::engine::path::Path;
use crate::engine::schedule::Due;
use crate::engine::{Departure, Engine, EngineConfig, QpEntry};
use cc::Policy;
use cc::dcqcn::{Notification, NotificationPoint};
use qp::wire::{Headers, IpHeader, Packet};
use qp::{PKey, QpState, QpType, Qpn};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use time::{Duration, Instant};

/// Limit of queued CNPs: more than the number of packets received in a turn. If there is no room for a CNP, the next
/// mark triggers it.
const MAX_CNPS: usize = 1024;

/// Number of datagram senders for which the time of the last notification is remembered. Beyond it, the oldest is
/// forgotten.
const MAX_SENDERS: usize = 256;

/// A CNP to be sent.
#[derive(Clone, Copy, Debug)]
struct Cnp {
    path: Path,
    /// The queue pair that sends too fast.
    dest_qpn: Qpn,
    pkey: PKey,
}

/// The receiver state of a delayed CNP.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::engine) enum CnpSource {
    /// A connected queue pair, by table index.
    Connected(usize),
    /// A sender of datagrams, by its index in the ring.
    Datagrams(usize),
}

/// A sender of datagrams.
#[derive(Debug)]
struct Sender {
    key: (IpAddr, Qpn),
    point: NotificationPoint,
    cnp: Cnp,
}

/// Notifications that a port has to send.
#[derive(Debug, Default)]
pub(super) struct Notifications {
    due: VecDeque<Cnp>,
    /// Senders of datagrams, in a ring.
    senders: Vec<Sender>,
    by_key: HashMap<(IpAddr, Qpn), usize>,
    /// Index of the oldest, once the ring is full.
    oldest: usize,
}

impl Notifications {
    pub(super) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Index of a sender of datagrams, which `cnp` notifies.
    fn place(&mut self, address: IpAddr, cnp: Cnp) -> usize {
        let key = (address, cnp.dest_qpn);
        if let Some(place) = self.by_key.get(&key) {
            return *place;
        }
        let sender = Sender { key, point: NotificationPoint::default(), cnp };
        let place = if self.senders.len() < MAX_SENDERS {
            self.senders.push(sender);
            self.senders.len() - 1
        } else {
            let place = self.oldest;
            self.oldest = (place + 1) % MAX_SENDERS;
            let old = std::mem::replace(&mut self.senders[place], sender);
            self.by_key.remove(&old.key);
            place
        };
        self.by_key.insert(key, place);
        place
    }
}

/// Queues a CNP if it is due; otherwise returns when it will be.
fn queue(due: &mut VecDeque<Cnp>, now: Instant, point: &mut NotificationPoint, cnp: Cnp) -> Option<Instant> {
    if due.len() < MAX_CNPS && point.poll_cnp(now) {
        due.push_back(cnp);
    }
    point.poll_timeout().filter(|at| *at > now)
}

/// Reaction of receivers to marked packets.
enum Answer<'a> {
    /// Send CNPs (DCQCN).
    Notify(&'a Notification),
    /// Return the mark with the next acknowledgement (DCTCP).
    Echo,
}

fn answer(policy: &Policy) -> Option<Answer<'_>> {
    match policy.notification() {
        Some(notification) => Some(Answer::Notify(notification)),
        None => policy.red().is_some().then_some(Answer::Echo),
    }
}

/// Returns whether packets for a queue pair in this state are answered.
pub(super) const fn is_alive(state: QpState) -> bool {
    matches!(state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
}

impl QpEntry {
    /// The CNP for the sender of a packet to this queue pair; `None` if there is no sender to notify.
    fn cnp(&self, arrival: &IpHeader, packet: &Packet<'_>, config: &EngineConfig) -> Option<Cnp> {
        let (path, dest_qpn) = match (self.path, packet.deth()) {
            (Some(path), _) => (path, self.qp.dest_qpn()),
            (None, Some(deth)) if self.qp.config().qp_type == QpType::Ud && deth.src_qpn != Qpn::GSI => {
                (config.path_to(arrival.src, deth.src_qpn.slot()), deth.src_qpn)
            }
            _ => return None,
        };
        Some(Cnp { path, dest_qpn, pkey: self.qp.pkey() })
    }
}

impl Engine {
    /// A packet for a queue pair met congestion on its path: its sender is notified, if it reacts to CNPs.
    pub(in crate::engine) fn handle_mark(
        &mut self,
        now: Instant,
        index: usize,
        arrival: &IpHeader,
        packet: &Packet<'_>,
    ) {
        if self.config.rate.policy.is_none() || arrival.dst.is_multicast() {
            return;
        }
        let connected = self.qps[index].as_ref().and_then(|entry| entry.path?.peer);
        let peer = connected.or_else(|| self.partners.at(arrival.src, arrival.src_port));
        if !self.obeys_cnp(arrival.src, peer) {
            return;
        }
        let Some(answer) = self.config.rate.policy.as_ref().and_then(answer) else { return };
        let Some(entry) = self.qps[index].as_mut().filter(|e| is_alive(e.qp.state())) else { return };
        let settings = match answer {
            Answer::Notify(settings) => settings,
            Answer::Echo => return entry.qp.echo_congestion(),
        };
        let Some(cnp) = entry.cnp(arrival, packet, &self.config) else { return };
        let notifications = &mut self.rates.notifications;
        let (source, point) = match entry.path {
            Some(_) => (CnpSource::Connected(index), &mut **entry.notifier.get_or_insert_default()),
            None => {
                let place = notifications.place(arrival.src, cnp);
                (CnpSource::Datagrams(place), &mut notifications.senders[place].point)
            }
        };
        point.handle_packet(settings, now, true);
        if let Some(at) = queue(&mut notifications.due, now, point, cnp) {
            self.timers.push(at, Due::Cnp(source));
        }
    }

    /// The time of a delayed CNP has come: it is sent, unless it was sent meanwhile.
    pub(in crate::engine) fn cnp_timeout(&mut self, now: Instant, source: CnpSource) {
        let Notifications { due, senders, .. } = &mut self.rates.notifications;
        match source {
            CnpSource::Connected(index) => {
                let Some(entry) = self.qps.get_mut(index).and_then(Option::as_mut) else { return };
                let (Some(point), Some(path)) = (&mut entry.notifier, entry.path) else { return };
                let cnp = Cnp { path, dest_qpn: entry.qp.dest_qpn(), pkey: entry.qp.pkey() };
                queue(due, now, point, cnp);
            }
            CnpSource::Datagrams(place) => {
                let Some(sender) = senders.get_mut(place) else { return };
                queue(due, now, &mut sender.point, sender.cnp);
            }
        }
    }

    /// Writes the next queued CNP, if any (IBTA A17.9.3).
    pub(super) fn transmit_cnp(&mut self, buf: &mut [u8]) -> Option<Departure> {
        let cnp = self.rates.notifications.due.pop_front()?;
        let dscp = self.config.rate.policy.as_ref()?.notification()?.cnp_dscp;
        // It was checked to be at most 63 when it was configured.
        let tos = u8::try_from(dscp << 2).unwrap_or(0) | ECT;
        let path = Path { ip: IpHeader { tos, ..cnp.path.ip }, ..cnp.path };
        let partner = self.peers.find(path.ip.dst, cnp.dest_qpn.slot());
        let token = partner.and_then(|id| Partners::partner(&mut self.peers, id)).map_or(0, |p| p.token);
        let headers = Headers { pkey: cnp.pkey, token, ..Headers::cnp(cnp.dest_qpn) };
        let departure = write_single(&path, &headers, &[], buf)?;
        self.counters.np_cnp_sent += 1;
        self.count(departure)
    }

    /// Returns whether a CNP comes from the destination of a queue pair's packets. A partner shows its token. A CNP of
    /// a foreign peer proves nothing: it counts if it comes from the queue pair's own peer, and not more often than twice
    /// as often as receivers send them: on its way one may wait longer than the next.
    pub(in crate::engine) fn is_genuine_cnp(
        &mut self,
        now: Instant,
        index: usize,
        arrival: &IpHeader,
        packet: &Packet<'_>,
    ) -> bool {
        let Some(entry) = self.qps[index].as_mut() else { return false };
        let is_own = entry.path.map_or(entry.last_to, |path| Some(path.ip.dst)) == Some(arrival.src);
        let peer = match entry.path {
            Some(path) => path.peer,
            None => self.partners.at(arrival.src, arrival.src_port),
        };
        if let Some(partner) = peer.and_then(|id| Partners::partner(&mut self.peers, id)) {
            return packet.token() == partner.expected;
        }
        let notification = self.config.rate.policy.as_ref().and_then(Policy::notification);
        let interval = notification.map_or(0, |settings| settings.min_time_between_cnps);
        let too_soon =
            |at| now.saturating_duration_since(at) < Duration::from_micros(u64::from(interval)) / 2;
        if !is_own || entry.foreign_cnp.is_some_and(too_soon) {
            return false;
        }
        entry.foreign_cnp = Some(now);
        true
    }

    /// Processes a CNP for this queue pair, which sends too fast.
    pub(in crate::engine) fn handle_cnp(&mut self, now: Instant, index: usize) {
        let obeyed = match self.qps[index].as_mut() {
            Some(entry) if is_alive(entry.qp.state()) => {
                entry.flow.as_mut().is_some_and(|flow| flow.on_cnp(now))
            }
            _ => false,
        };
        if obeyed {
            self.slow_level_down(now, index);
            self.log_notification(now, index);
            self.counters.rp_cnp_handled += 1;
            if tracing::enabled!(tracing::Level::TRACE) {
                let flow = self.qps[index].as_ref().and_then(|entry| entry.flow_state(now));
                tracing::trace!(index, rate = ?flow.map(|flow| flow.rate), "a notification of congestion is obeyed");
            }
        } else {
            self.counters.rp_cnp_ignored += 1;
        }
    }

    /// A queue pair has obeyed a CNP: the others of its service level do so, too, if they have one index in common.
    fn slow_level_down(&mut self, now: Instant, index: usize) {
        let is_by_level = self.config.rate.policy.as_ref().is_some_and(Policy::is_by_level);
        let Some(level) = self.qps[index].as_ref().filter(|_| is_by_level).map(|entry| entry.level()) else {
            return;
        };
        let all = self.qps.iter_mut().enumerate().filter(|(other, _)| *other != index);
        for entry in all.filter_map(|(_, entry)| entry.as_mut()).filter(|entry| entry.level() == level) {
            if let Some(flow) = &mut entry.flow {
                flow.on_cnp(now);
            }
        }
    }

    /// Passes the information in a response to the controller of its queue pair.
    pub(in crate::engine) fn handle_answer(&mut self, now: Instant, index: usize, packet: &Packet<'_>) {
        let Some(entry) = self.qps[index].as_mut() else { return };
        let unacked = entry.qp.unacked_psn();
        let Some(flow) = entry.flow.as_mut() else { return };
        let Some(trains) = flow.trains.as_mut() else { return };
        let Some(ack) = trains.arrive(now, unacked, packet.becn()) else { return };
        flow.on_ack(now, &ack);
        self.pace_anew(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::Duration;

    fn cnp(number: u32) -> Cnp {
        let path = Path { ip: IpHeader::default(), via: 2, peer: None };
        Cnp { path, dest_qpn: Qpn::new(number), pkey: PKey::DEFAULT }
    }

    #[test]
    fn a_cnp_that_finds_no_room_leaves_with_the_next_mark() {
        let settings =
            Notification { min_time_between_cnps: 50, cnp_dscp: 48, cnp_802p_prio: 6, deferred_cnp: false };
        let mut notifications = Notifications::default();
        let now = Instant::EPOCH;
        for number in 0..MAX_CNPS {
            let mut point = NotificationPoint::default();
            point.handle_packet(&settings, now, true);
            assert_eq!(queue(&mut notifications.due, now, &mut point, cnp(number as u32)), None);
            assert_eq!(notifications.due.len(), number + 1);
        }
        let mut last = NotificationPoint::default();
        last.handle_packet(&settings, now, true);
        queue(&mut notifications.due, now, &mut last, cnp(7));
        assert_eq!(notifications.due.len(), MAX_CNPS);
        notifications.due.pop_front();
        let later = now + Duration::from_micros(1);
        last.handle_packet(&settings, later, true);
        queue(&mut notifications.due, later, &mut last, cnp(7));
        assert_eq!(notifications.due.back().map(|c| c.dest_qpn), Some(Qpn::new(7)));
    }

    #[test]
    fn the_oldest_sender_of_datagrams_is_forgotten() {
        let mut notifications = Notifications::default();
        let address = IpAddr::from([10, 0, 0, 1]);
        let places: Vec<_> = (0..256).map(|n| notifications.place(address, cnp(n))).collect();
        assert!(places.iter().copied().eq(0..MAX_SENDERS));
        assert_eq!(notifications.place(address, cnp(0)), 0, "still known");
        assert_eq!(notifications.place(address, cnp(256)), 0, "one more takes the place of the oldest");
        assert_eq!(notifications.place(address, cnp(1)), 1);
        assert_eq!(notifications.place(address, cnp(0)), 1, "which comes as new, in the next place");
        assert_eq!((notifications.senders.len(), notifications.by_key.len()), (MAX_SENDERS, MAX_SENDERS));
    }
}
