//! The reaction point: the rate of one flow at its sender.

use super::settings::{AlphaOrder, AlphaUpdate, FirstIncrease, Reaction};
use crate::rate::Rate;
use std::sync::Arc;
use time::{Duration, Instant};

/// The rate counts as that of the port when it is within a 1000th of it: each step halves the distance but never
/// closes it. Our choice.
const RELEASE: f64 = 0.999;

/// The expiries that one call processes one by one when it comes late. Further expiries are processed at once, in
/// steps like the last one: by then the rate has long come as near to its target as numbers can express.
const ONE_BY_ONE: u64 = 64;

/// The rate of one flow, as in DCQCN. It begins at the rate of the port. The first CNP puts a limiter on it. When the
/// rate has climbed back to that of the port, the limiter goes, and alpha begins anew with the next CNP.
///
/// Alpha decays, and the timer expires, as of the time given with the next call, whenever that is: no calls are
/// needed while the flow is idle. [`ReactionPoint::poll_timeout`] is for callers that wait to send and want to know
/// when the rate changes.
#[derive(Clone, Debug)]
pub struct ReactionPoint {
    settings: Arc<Reaction>,
    line: Rate,
    limiter: Option<Limiter>,
}

/// The state of a limited flow. Rates are in bits per second.
#[derive(Clone, Debug)]
struct Limiter {
    current: f64,
    target: f64,
    alpha: f64,
    /// The beginning of the current period of alpha.
    alpha_since: Instant,
    /// A CNP came in the current period of alpha; used if alpha's updates are periodic.
    alpha_cnp: bool,
    /// When the timer expires; `None` if it is off.
    next_increase: Option<Instant>,
    /// Expiries of the timer since the last cut (T of the paper).
    timer_stage: u32,
    /// Expiries of the byte counter since the last cut (BC).
    byte_stage: u32,
    /// Bytes since the byte counter expired, or since the last cut.
    bytes: u64,
    last_cut: Option<Instant>,
    /// A CNP came too soon after the last cut: one is due when the time is over.
    cut_due: Option<Instant>,
}

/// The counter that expired.
#[derive(Clone, Copy, Debug)]
enum Event {
    Timer,
    ByteCounter,
}

/// The amount that an increase step adds to the target rate.
#[derive(Clone, Copy, Debug)]
enum Phase {
    FastRecovery,
    Additive,
    Hyper(u32),
}

impl ReactionPoint {
    /// A flow at a port of rate `line`.
    #[must_use]
    pub const fn new(settings: Arc<Reaction>, line: Rate) -> Self {
        Self { settings, line, limiter: None }
    }

    /// The rate at which the flow may send.
    #[must_use]
    pub fn rate(&self) -> Rate {
        match &self.limiter {
            Some(l) => Rate::from_bits_per_second(l.current as u64),
            None => self.line,
        }
    }

    /// The rate to which the flow recovers.
    #[must_use]
    pub fn target_rate(&self) -> Rate {
        match &self.limiter {
            Some(l) => Rate::from_bits_per_second(l.target as u64),
            None => self.line,
        }
    }

    /// Whether there is a limiter on the flow.
    #[must_use]
    pub const fn is_limited(&self) -> bool {
        self.limiter.is_some()
    }

    /// The estimate of congestion at `now`; `None` without a limiter.
    #[must_use]
    pub fn alpha(&self, now: Instant) -> Option<f64> {
        let mut limiter = self.limiter.clone()?;
        limiter.let_alpha_pass(&self.settings, now);
        Some(limiter.alpha)
    }

    /// The expiries of timer and byte counter since the last cut; `None` without a limiter.
    #[must_use]
    pub fn stages(&self) -> Option<(u32, u32)> {
        self.limiter.as_ref().map(|l| (l.timer_stage, l.byte_stage))
    }

    /// Handles a CNP for the flow.
    pub fn on_cnp(&mut self, now: Instant) {
        self.handle_timeout(now);
        let settings = &*self.settings;
        let ceiling = ceiling(settings, self.line.as_f64());
        let Some(limiter) = &mut self.limiter else {
            let mut limiter = Limiter::new(settings, ceiling, now);
            match settings.rate_to_set_on_first_cnp {
                0 => limiter.on_cnp(settings, now),
                mbps => {
                    let rate = (f64::from(mbps) * 1e6).min(ceiling);
                    (limiter.current, limiter.target) = (rate, rate);
                    limiter.last_cut = Some(now);
                    limiter.alpha_cnp = true;
                }
            }
            self.limiter = Some(limiter);
            return;
        };
        limiter.on_cnp(settings, now);
    }

    /// Records that the flow has sent `bytes`. Which bytes count is the caller's choice, the same for all flows of a
    /// queue: all that the port transmits, like the byte counter in the authors' model.
    #[inline]
    pub fn on_bytes_sent(&mut self, now: Instant, bytes: u64) {
        let Some(limiter) = &mut self.limiter else { return };
        limiter.bytes = limiter.bytes.saturating_add(bytes);
        let every = self.settings.byte_counter().unwrap_or(u64::MAX);
        if limiter.bytes < every && limiter.next_event().is_none_or(|at| now < at) {
            return;
        }
        self.handle_timeout(now);
        let Some(limiter) = &mut self.limiter else { return };
        let expiries = limiter.bytes / every;
        limiter.bytes %= every;
        limiter.increase(&self.settings, self.line.as_f64(), Event::ByteCounter, expiries);
        self.release();
    }

    /// When the rate changes next if nothing happens until then.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.limiter.as_ref().and_then(Limiter::next_event)
    }

    /// Handles the timers that are due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Some(limiter) = &mut self.limiter else { return };
        if let Some(due) = limiter.cut_due.filter(|due| *due <= now) {
            limiter.let_timer_pass(&self.settings, self.line.as_f64(), due);
            limiter.let_alpha_pass(&self.settings, due);
            limiter.cut(&self.settings, due);
        }
        limiter.let_timer_pass(&self.settings, self.line.as_f64(), now);
        self.release();
    }

    /// Takes the limiter off when the rate is that of the port again.
    fn release(&mut self) {
        let ceiling = ceiling(&self.settings, self.line.as_f64());
        self.limiter.take_if(|l| l.cut_due.is_none() && l.current >= RELEASE * ceiling);
    }
}

/// The rate beyond which there is no limiter.
fn ceiling(settings: &Reaction, line: f64) -> f64 {
    match settings.rpg_max_rate {
        0 => line,
        mbps => line.min(f64::from(mbps) * 1e6),
    }
}

impl Limiter {
    fn new(settings: &Reaction, rate: f64, now: Instant) -> Self {
        Self {
            current: rate,
            target: rate,
            alpha: f64::from(settings.initial_alpha_value) / 1024.0,
            alpha_since: now,
            alpha_cnp: false,
            next_increase: settings.timer().and_then(|t| now.checked_add(t)),
            timer_stage: 0,
            byte_stage: 0,
            bytes: 0,
            last_cut: None,
            cut_due: None,
        }
    }

    fn next_event(&self) -> Option<Instant> {
        match (self.next_increase, self.cut_due) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn on_cnp(&mut self, settings: &Reaction, now: Instant) {
        self.let_alpha_pass(settings, now);
        let gain = settings.gain();
        let raised = (1.0 - gain) * self.alpha + gain;
        let raises = settings.alpha_update == AlphaUpdate::OnCnp;
        if raises {
            // The period without CNPs begins anew.
            self.alpha_since = now;
            if settings.alpha_order == AlphaOrder::RaiseThenCut {
                self.alpha = raised;
            }
        }
        self.alpha_cnp = true;
        let earliest = self.last_cut.and_then(|at| at.checked_add(settings.cut_period()));
        match earliest.filter(|at| *at > now) {
            Some(at) => self.cut_due = Some(at),
            None => self.cut(settings, now),
        }
        if raises {
            self.alpha = raised;
        }
    }

    fn cut(&mut self, settings: &Reaction, now: Instant) {
        let increased = match (settings.clamp_tgt_rate, settings.clamp_tgt_rate_after_time_inc) {
            (true, _) => true,
            (false, true) => self.timer_stage > 0 || self.byte_stage > 0,
            (false, false) => self.byte_stage > 0,
        };
        if increased {
            self.target = self.current;
        }
        // alpha x 2^10 / 2^gd, with gd checked to be at least 10.
        let share = self.alpha / f64::from(1u32 << settings.rpg_gd.saturating_sub(10).min(31));
        let left = (1.0 - share).max(f64::from(settings.rpg_min_dec_fac) / 100.0);
        self.current = (self.current * left).max(f64::from(settings.rpg_min_rate) * 1e6).min(self.current);
        (self.timer_stage, self.byte_stage, self.bytes) = (0, 0, 0);
        self.next_increase = settings.timer().and_then(|t| now.checked_add(t));
        self.last_cut = Some(now);
        self.cut_due = None;
    }

    /// Lowers alpha for the periods that have ended by `now`; with periodic updates the first of them may raise it.
    fn let_alpha_pass(&mut self, settings: &Reaction, now: Instant) {
        let period = settings.alpha_period();
        let ended = whole_periods(now.saturating_duration_since(self.alpha_since), period);
        if ended == 0 {
            return;
        }
        let kept = 1.0 - settings.gain();
        // Of libm: the standard library's differs between platforms.
        self.alpha *= libm::pow(kept, ended as f64);
        if settings.alpha_update == AlphaUpdate::Periodic && self.alpha_cnp {
            self.alpha += settings.gain() * libm::pow(kept, (ended - 1) as f64);
        }
        self.alpha_cnp = false;
        self.alpha_since = after(self.alpha_since, period, ended, now);
    }

    /// Processes the expiries of the timer up to `now`.
    fn let_timer_pass(&mut self, settings: &Reaction, line: f64, now: Instant) {
        let (Some(at), Some(period)) = (self.next_increase, settings.timer()) else { return };
        if at > now {
            return;
        }
        let expiries = whole_periods(now.saturating_duration_since(at), period) + 1;
        self.increase(settings, line, Event::Timer, expiries);
        self.next_increase = Some(after(at, period, expiries, now));
    }

    /// Takes `times` steps of the increase.
    fn increase(&mut self, settings: &Reaction, line: f64, event: Event, times: u64) {
        let ceiling = ceiling(settings, line);
        for _ in 0..times.min(ONE_BY_ONE) {
            self.count(event, 1);
            let first = self.timer_stage.saturating_add(self.byte_stage) == 1;
            if first && settings.qcn_target_drop && self.target > 10.0 * self.current {
                self.target /= 8.0;
            }
            self.step(self.growth(settings, event), ceiling);
        }
        let rest = times.saturating_sub(ONE_BY_ONE);
        if rest > 0 {
            self.count(event, rest);
            // Steps of equal size: the rate follows the target at a distance of one step.
            let growth = self.growth(settings, event);
            self.target = (self.target + rest as f64 * growth).min(ceiling);
            self.current = self.current.max(self.target - growth);
        }
    }

    fn count(&mut self, event: Event, times: u64) {
        let stage = match event {
            Event::Timer => &mut self.timer_stage,
            Event::ByteCounter => &mut self.byte_stage,
        };
        *stage = stage.saturating_add(u32::try_from(times).unwrap_or(u32::MAX));
    }

    fn step(&mut self, growth: f64, ceiling: f64) {
        self.target = (self.target + growth).min(ceiling);
        self.current = f64::midpoint(self.target, self.current).min(ceiling);
    }

    /// The amount that the step just counted adds to the target, in bits per second.
    fn growth(&self, settings: &Reaction, event: Event) -> f64 {
        let mbps = match self.phase(settings, event) {
            Phase::FastRecovery => 0.0,
            Phase::Hyper(steps) if settings.rpg_hai_rate > 0 => {
                f64::from(steps) * f64::from(settings.rpg_hai_rate)
            }
            Phase::Additive | Phase::Hyper(_) => f64::from(settings.rpg_ai_rate),
        };
        mbps * 1e6
    }

    fn phase(&self, settings: &Reaction, event: Event) -> Phase {
        let threshold = settings.rpg_threshold;
        let (low, high) = match self.timer_stage.cmp(&self.byte_stage) {
            std::cmp::Ordering::Less => (self.timer_stage, self.byte_stage),
            _ => (self.byte_stage, self.timer_stage),
        };
        match settings.first_increase {
            FirstIncrease::AfterThreshold if high <= threshold => Phase::FastRecovery,
            FirstIncrease::AfterThreshold if low > threshold => Phase::Hyper(low - threshold),
            FirstIncrease::AtThreshold if high < threshold => Phase::FastRecovery,
            FirstIncrease::AtThreshold if low >= threshold => {
                Phase::Hyper((low - threshold).saturating_add(1))
            }
            FirstIncrease::AfterThreshold | FirstIncrease::AtThreshold => Phase::Additive,
            FirstIncrease::OneAdditive => {
                let before = match event {
                    Event::Timer => self.byte_stage.max(self.timer_stage.saturating_sub(1)),
                    Event::ByteCounter => self.timer_stage.max(self.byte_stage.saturating_sub(1)),
                };
                match before.cmp(&threshold) {
                    std::cmp::Ordering::Less => Phase::FastRecovery,
                    std::cmp::Ordering::Equal => Phase::Additive,
                    std::cmp::Ordering::Greater => Phase::Hyper(1),
                }
            }
        }
    }
}

/// How many whole periods `time` holds. A period of zero counts as a nanosecond.
fn whole_periods(time: Duration, period: Duration) -> u64 {
    let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    nanos(time) / nanos(period).max(1)
}

/// `periods` periods after `at`; `now` if that is out of reach.
fn after(at: Instant, period: Duration, periods: u64, now: Instant) -> Instant {
    let nanos = period.as_nanos().saturating_mul(u128::from(periods));
    u64::try_from(nanos).ok().and_then(|n| at.checked_add(Duration::from_nanos(n))).unwrap_or(now)
}
