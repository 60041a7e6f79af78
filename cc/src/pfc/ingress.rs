//! The receiving port: when it asks its peer to pause.

use super::{PRIORITIES, PauseFrame, Quanta};
use crate::rate::Rate;
use time::Instant;

/// The buffer of one priority, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thresholds {
    /// Above this occupancy the port asks for a pause.
    pub xoff: u64,
    /// At this occupancy, once paused, the port ends the pause. At most `xoff`.
    pub xon: u64,
    /// The buffer beyond XOFF, for packets that arrive before the pause takes effect.
    pub headroom: u64,
}

/// There is no room for a packet: the caller must drop it (`rx_prio<n>_buf_discard`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes do not fit into a buffer that holds {occupancy}")]
pub struct Full {
    /// The bytes of the packet.
    pub bytes: u64,
    /// The occupancy of the buffer.
    pub occupancy: u64,
}

/// A priority of the buffer.
#[derive(Clone, Copy, Debug)]
struct Class {
    thresholds: Thresholds,
    occupancy: u64,
    /// The peer is to be paused.
    paused: bool,
    /// The peer has not been told yet.
    changed: bool,
}

/// The buffer of a port, and the pauses that the port asks for.
#[derive(Clone, Debug)]
pub struct Ingress {
    rate: Rate,
    quanta: Quanta,
    /// Lossy priorities have none.
    classes: [Option<Class>; PRIORITIES],
    /// When the port asks again for pauses that continue.
    refresh: Option<Instant>,
}

impl Ingress {
    /// The buffer of a port of rate `rate`, with thresholds for the lossless priorities. The port asks for pauses of
    /// `quanta`, and asks again when half of that has passed: our choice, so that one lost frame does no harm.
    #[must_use]
    pub fn new(rate: Rate, quanta: Quanta, thresholds: [Option<Thresholds>; PRIORITIES]) -> Self {
        let class = |t: Thresholds| Class {
            thresholds: Thresholds { xon: t.xon.min(t.xoff), ..t },
            occupancy: 0,
            paused: false,
            changed: false,
        };
        Self { rate, quanta, classes: thresholds.map(|t| t.map(class)), refresh: None }
    }

    fn class(&mut self, priority: u8) -> Option<&mut Class> {
        self.classes.get_mut(usize::from(priority))?.as_mut()
    }

    /// Accounts for a packet that arrived. Priorities without thresholds are not counted here.
    ///
    /// # Errors
    ///
    /// The packet does not fit: the caller must drop it.
    pub fn handle_packet(&mut self, priority: u8, bytes: u64) -> Result<(), Full> {
        let Some(class) = self.class(priority) else { return Ok(()) };
        let (occupancy, t) = (class.occupancy, class.thresholds);
        let after = occupancy.saturating_add(bytes);
        if after > t.xoff.saturating_add(t.headroom) {
            return Err(Full { bytes, occupancy });
        }
        class.occupancy = after;
        if after > t.xoff && !class.paused {
            (class.paused, class.changed) = (true, true);
        }
        Ok(())
    }

    /// Accounts for a packet that has left the buffer.
    pub fn release(&mut self, priority: u8, bytes: u64) {
        let Some(class) = self.class(priority) else { return };
        class.occupancy = class.occupancy.saturating_sub(bytes);
        if class.occupancy <= class.thresholds.xon && class.paused {
            (class.paused, class.changed) = (false, true);
        }
    }

    /// Bytes of a priority in the buffer.
    #[must_use]
    pub fn occupancy(&self, priority: u8) -> u64 {
        self.classes.get(usize::from(priority)).copied().flatten().map_or(0, |c| c.occupancy)
    }

    /// Whether a priority of the peer is to be paused.
    #[must_use]
    pub fn pauses(&self, priority: u8) -> bool {
        self.classes.get(usize::from(priority)).copied().flatten().is_some_and(|c| c.paused)
    }

    /// Returns a pause frame that is due: for priorities that pause or resume, and to extend long pauses.
    pub fn poll_frame(&mut self, now: Instant) -> Option<PauseFrame> {
        let is_refresh = self.refresh.is_some_and(|at| at <= now);
        if !is_refresh && !self.classes.iter().flatten().any(|c| c.changed) {
            return None;
        }
        let mut times = [None; PRIORITIES];
        for (time, class) in times.iter_mut().zip(&mut self.classes) {
            let Some(class) = class else { continue };
            if class.paused {
                *time = Some(self.quanta);
            } else if class.changed {
                *time = Some(Quanta(0));
            }
            class.changed = false;
        }
        let goes_on = self.classes.iter().flatten().any(|c| c.paused);
        let half = self.quanta.time(self.rate) / 2;
        self.refresh = goes_on.then(|| now.checked_add(half)).flatten();
        times.iter().any(Option::is_some).then_some(PauseFrame::Priorities(times))
    }

    /// When the port asks for a pause again.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.refresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::Duration;

    const RATE: Rate = Rate::from_gbps(10);

    fn ingress() -> Ingress {
        let mut thresholds = [None; PRIORITIES];
        thresholds[3] = Some(Thresholds { xoff: 1000, xon: 400, headroom: 500 });
        Ingress::new(RATE, Quanta(100), thresholds)
    }

    fn only_3(quanta: u16) -> Option<PauseFrame> {
        let mut times = [None; PRIORITIES];
        times[3] = Some(Quanta(quanta));
        Some(PauseFrame::Priorities(times))
    }

    #[test]
    fn a_pause_begins_above_xoff_and_ends_at_xon() {
        let (mut ingress, now) = (ingress(), Instant::EPOCH);
        assert_eq!(ingress.handle_packet(3, 1000), Ok(()));
        assert_eq!((ingress.poll_frame(now), ingress.pauses(3)), (None, false));
        assert_eq!(ingress.handle_packet(3, 1), Ok(()));
        assert_eq!(ingress.poll_frame(now), only_3(100));
        assert_eq!(ingress.poll_frame(now), None, "asked for once");
        ingress.release(3, 600);
        assert_eq!((ingress.poll_frame(now), ingress.pauses(3)), (None, true));
        ingress.release(3, 1);
        assert_eq!(ingress.poll_frame(now), only_3(0));
        assert_eq!((ingress.poll_timeout(), ingress.occupancy(3)), (None, 400));
    }

    #[test]
    fn a_long_pause_is_asked_for_again() {
        let (mut ingress, now) = (ingress(), Instant::EPOCH);
        assert_eq!(ingress.handle_packet(3, 1400), Ok(()));
        assert!(ingress.poll_frame(now).is_some());
        let half = Quanta(100).time(RATE) / 2;
        assert_eq!(ingress.poll_timeout(), Some(now + half));
        assert_eq!(ingress.poll_frame(now + half - Duration::from_nanos(1)), None);
        assert_eq!(ingress.poll_frame(now + half), only_3(100));
        assert_eq!(ingress.poll_timeout(), Some(now + half * 2));
    }

    #[test]
    fn what_exceeds_the_headroom_is_refused() {
        let mut ingress = ingress();
        assert_eq!(ingress.handle_packet(3, 1500), Ok(()));
        assert_eq!(ingress.handle_packet(3, 1), Err(Full { bytes: 1, occupancy: 1500 }));
        assert_eq!(ingress.handle_packet(3, u64::MAX), Err(Full { bytes: u64::MAX, occupancy: 1500 }));
        for lossy in [0, 7, 8, 255] {
            assert_eq!(ingress.handle_packet(lossy, 1 << 40), Ok(()));
            assert!(!ingress.pauses(lossy));
        }
    }
}
