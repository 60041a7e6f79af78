//! What nodes log of congestion: packets that a switch has marked, and notifications that have brought a host to a threshold
//! (CongestionLog).

use super::super::mad::Field;
use rnic_core::sim::BEGINNING;
use time::Instant;

/// Something that was logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedEvent {
    /// When it happened.
    pub at: Instant,
    /// The service level.
    pub level: u8,
    /// What it was.
    pub what: LoggedKind,
}

/// What was logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoggedKind {
    /// A switch has marked a packet.
    Marked {
        /// The LID of its source.
        slid: u16,
        /// That of its destination.
        dlid: u16,
    },
    /// A host was notified while its index was at the threshold or beyond.
    Notified {
        /// The queue pair that sends too fast.
        qpn: u32,
        /// Its service: 0 for RC, 1 for UC, and 3 for UD.
        service: u8,
        /// The queue pair at the other end.
        peer_qpn: u32,
        /// The LID of the other end.
        peer_lid: u16,
    },
}

/// What a node has logged in all its life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CongestionLog {
    /// How often: at a switch by port, where the first is that of number 1; at a host by service level.
    pub counts: Vec<u64>,
    /// The latest events, the newest first.
    pub latest: Vec<LoggedEvent>,
}

/// The most events in the attribute.
const SWITCH_EVENTS: usize = 15;
const HOST_EVENTS: usize = 13;

/// Fields of CongestionLog (A10.4.3.5): those of both kinds, of switches, and of hosts.
const LOG_TYPE: Field = Field(0, 8);
const EVENT_COUNTER: Field = Field(16, 16);
const SWITCH_TIME: Field = Field(32, 32);
const PORT_MAP: usize = 8;
const PORT_MAP_LEN: usize = 32;
const SWITCH_ENTRIES: usize = PORT_MAP + PORT_MAP_LEN;
const SWITCH_ENTRY_LEN: usize = 12;
const EVENT_MAP: Field = Field(32, 16);
const HOST_TIME: Field = Field(64, 32);
const HOST_ENTRIES: usize = 12;
const HOST_ENTRY_LEN: usize = 16;

/// A time as in TimeStamp, since the beginning of the run: in units of 1.024 us (A10.4.3.10).
pub(super) fn stamp(at: Instant) -> u64 {
    at.saturating_duration_since(BEGINNING).as_nanos() as u64 / 1024
}

/// The log of a node, and what of it was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    pub(super) own: CongestionLog,
    /// The counts when it was read last.
    read: Vec<u64>,
}

impl Log {
    /// Writes the attribute, from the log data of a packet on. Counts and maps begin anew.
    pub(super) fn show(&mut self, now: Instant, is_switch: bool, to: &mut [u8]) {
        let before = |number: usize| self.read.get(number).copied().unwrap_or(0);
        let new =
            self.own.counts.iter().enumerate().map(|(number, count)| count - before(number).min(*count));
        let new: Vec<u64> = new.collect();
        LOG_TYPE.set(to, if is_switch { 1 } else { 2 });
        EVENT_COUNTER.saturate(to, new.iter().sum());
        let numbers = new.iter().enumerate().filter(|(_, count)| **count > 0).map(|(number, _)| number);
        if is_switch {
            SWITCH_TIME.set(to, stamp(now));
            // Bit 0 is the last one, and is for no port.
            for port in numbers.map(|number| number + 1).filter(|port| *port < 8 * PORT_MAP_LEN) {
                to[PORT_MAP + PORT_MAP_LEN - 1 - port / 8] |= 1 << (port % 8);
            }
        } else {
            HOST_TIME.set(to, stamp(now));
            EVENT_MAP.set(to, numbers.fold(0, |map, level| map | 1 << level));
        }
        let (from, len, most) = if is_switch {
            (SWITCH_ENTRIES, SWITCH_ENTRY_LEN, SWITCH_EVENTS)
        } else {
            (HOST_ENTRIES, HOST_ENTRY_LEN, HOST_EVENTS)
        };
        // Events whose stamp has wrapped around twice are left out: so does the driver hfi1 of Linux (mad.c).
        let is_fresh =
            |event: &&LoggedEvent| (stamp(now) - stamp(event.at).min(stamp(now))) / 2 <= u32::MAX.into();
        let latest = self.own.latest.iter().filter(is_fresh).take(most);
        for (event, entry) in latest.zip(to[from..].chunks_exact_mut(len)) {
            event.write(entry);
        }
        self.read.clone_from(&self.own.counts);
    }
}

impl LoggedEvent {
    fn write(&self, entry: &mut [u8]) {
        match self.what {
            LoggedKind::Marked { slid, dlid } => {
                Field(0, 16).set(entry, slid.into());
                Field(16, 16).set(entry, dlid.into());
                Field(32, 4).set(entry, self.level.into());
                Field(64, 32).set(entry, stamp(self.at));
            }
            LoggedKind::Notified { qpn, service, peer_qpn, peer_lid } => {
                Field(0, 24).set(entry, qpn.into());
                Field(32, 24).set(entry, peer_qpn.into());
                Field(56, 4).set(entry, self.level.into());
                Field(60, 4).set(entry, service.into());
                // So OpenSM's ib_types.h (ib_cong_log_event_ca_t). libibmad's fields.c has the LID of this end here, and that of the
                // other where this is reserved.
                Field(64, 16).set(entry, peer_lid.into());
                Field(96, 32).set(entry, stamp(self.at));
            }
        }
    }
}
