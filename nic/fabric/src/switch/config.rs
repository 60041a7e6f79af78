//! The settings of a switch.

use super::buffer::CLASSES;
use super::queues::LARGEST_PACKET;
use crate::balance::BalanceConfig;
use crate::topology::NANOS_PER_METRE;
use crate::words;
use cc::dcqcn::Red;
use cc::pfc::{Action, Span, WatchdogConfig};
use cc::{Rate, ets, vl};
use serde::{Deserialize, Serialize};
use time::Duration;

/// How a switch holds packets, and how it keeps a link from losing them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// A buffer that all ports share. Lossless classes pause their senders (PFC).
    #[default]
    Ethernet,
    /// A buffer for each port and virtual lane, for which the sender has credit.
    Infiniband,
}

/// The shared buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BufferConfig {
    /// Bytes that all accounts share.
    #[serde(with = "words::size")]
    pub shared: u64,
    /// Bytes of each port and class that nobody else can take.
    #[serde(with = "words::size")]
    pub reserve: u64,
    /// Bytes that each egress queue may hold however full the pool is.
    #[serde(with = "words::size")]
    pub egress_reserve: u64,
    /// Bytes of headroom of all ports together. `None`: as much as their settings promise.
    #[serde(with = "words::size_or_none", skip_serializing_if = "Option::is_none")]
    pub headroom_pool: Option<u64>,
    /// Bytes of each port and virtual lane, with InfiniBand's model.
    #[serde(with = "words::size")]
    pub lane: u64,
}

impl Default for BufferConfig {
    /// HPCC's simulation: 32 MB shared and 4 KiB of reserve for each port and class. 64 KiB for each lane: our choice.
    fn default() -> Self {
        Self { shared: 32_000_000, reserve: 4096, egress_reserve: 9216, headroom_pool: None, lane: 65_536 }
    }
}

/// The settings of a traffic class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Class {
    /// Whether senders are paused before packets would be lost.
    pub lossless: bool,
    /// The bytes from one port may be this many times what is free of the shared pool.
    pub alpha: f64,
    /// The same for the bytes in front of one port. It does not bind lossless classes.
    pub egress_alpha: f64,
    /// Bytes of a port for what arrives after a pause was asked for. `None`, for a lossless class: what the rate and the
    /// cable of the port require ([`cc::pfc::Span`]).
    #[serde(with = "words::size_or_none", skip_serializing_if = "Option::is_none")]
    pub headroom: Option<u64>,
    /// This many bytes more than `headroom`, or less: for a switch that is configured wrongly.
    pub headroom_error: i64,
    /// A paused port may go on this many bytes below the threshold.
    #[serde(with = "words::size")]
    pub xon_gap: u64,
    /// A threshold that does not depend on what is free.
    #[serde(with = "words::size_or_none", skip_serializing_if = "Option::is_none")]
    pub xoff: Option<u64>,
    /// The most bytes in front of one port, for lossy classes.
    #[serde(with = "words::size_or_none", skip_serializing_if = "Option::is_none")]
    pub queue: Option<u64>,
}

impl Default for Class {
    /// A lossy class, as on SONiC: alpha 8 at ingress and egress.
    fn default() -> Self {
        Self {
            lossless: false,
            alpha: 8.0,
            egress_alpha: 8.0,
            headroom: None,
            headroom_error: 0,
            xon_gap: 3_072,
            xoff: None,
            queue: None,
        }
    }
}

/// When a switch begins to send a packet on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forwarding {
    /// When all of it has arrived.
    #[default]
    StoreAndForward,
    /// When its headers have arrived, unless it has to wait, or the egress port is faster.
    CutThrough,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SwitchConfig {
    /// The [preset](super::Preset) over which the other settings of a file are laid. Lists, such as `class`, take the place of
    /// those of the preset. It has no meaning elsewhere: [`Preset::config`](super::Preset::config) has all settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// How it holds packets.
    pub model: Model,
    /// Its buffer.
    pub buffer: BufferConfig,
    /// Settings of classes, from class 0 on. Classes that are not named are lossy.
    pub class: Vec<Class>,
    /// The class of each DSCP (`26 = 0`); the upper three bits of the DSCP for all others.
    #[serde(deserialize_with = "words::numbers")]
    pub dscp: std::collections::BTreeMap<u8, u8>,
    /// Marking of ECN-capable packets, in every class. `None`: nothing is marked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub red: Option<Red>,
    /// Whether the queue is measured when a packet comes, and not when it leaves. Queueing then delays the signal.
    pub mark_at_enqueue: bool,
    /// Which class sends next.
    pub ets: ets::Config,
    /// Which virtual lane sends next, and the lane of each service level.
    pub vl: vl::Config,
    /// The watchdog of PFC. `None`: pauses are obeyed for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watchdog: Option<Watch>,
    /// Which of several equal ports a packet takes.
    pub balance: BalanceConfig,
    /// When it begins to send a packet on.
    pub forwarding: Forwarding,
    /// What it can add up for groups of hosts. `None`: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reduction: Option<crate::network::ReductionConfig>,
    /// How long the first packet of a queue may wait for credit before it is dropped, InfiniBand's HOQLife.
    #[serde(with = "words::duration_or_none", skip_serializing_if = "Option::is_none")]
    pub head_of_queue: Option<Duration>,
    /// How long a packet may stay in the switch before it is dropped, InfiniBand's LifeTimeValue.
    #[serde(with = "words::duration_or_none", skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<Duration>,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        Self {
            preset: None,
            model: Model::Ethernet,
            buffer: BufferConfig::default(),
            class: Vec::new(),
            dscp: std::collections::BTreeMap::new(),
            red: None,
            mark_at_enqueue: false,
            ets: ets::Config::default(),
            vl: vl::Config::default(),
            watchdog: None,
            balance: BalanceConfig::default(),
            forwarding: Forwarding::StoreAndForward,
            reduction: None,
            head_of_queue: None,
            lifetime: None,
        }
    }
}

/// The watchdog of PFC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watch {
    /// After how many milliseconds of pause, with packets waiting and none leaving, it is a storm.
    pub detection_time: u32,
    /// After how many milliseconds without a pause the storm is over.
    pub restoration_time: u32,
    /// What happens to the packets meanwhile.
    pub action: Action,
}

impl Watch {
    pub(crate) const fn config(self) -> WatchdogConfig {
        let Self { detection_time, restoration_time, action } = self;
        WatchdogConfig { detection_time, restoration_time, action }
    }
}

impl Class {
    /// The headroom at a port of this rate and cable.
    pub(crate) fn headroom_at(&self, rate: Rate, delay: Duration) -> u64 {
        if !self.lossless {
            return 0;
        }
        let metres = delay.as_nanos().div_ceil(u128::from(NANOS_PER_METRE));
        let span = Span::new(rate, u32::try_from(metres).unwrap_or(u32::MAX), LARGEST_PACKET);
        let headroom = self.headroom.unwrap_or_else(|| span.headroom().bytes());
        headroom.saturating_add_signed(self.headroom_error)
    }
}

impl SwitchConfig {
    /// The settings of all classes.
    pub(crate) fn classes(&self) -> [Class; CLASSES] {
        let mut classes = [Class::default(); CLASSES];
        classes.iter_mut().zip(&self.class).for_each(|(class, of)| *class = *of);
        classes
    }

    /// The class of each DSCP.
    pub(crate) fn classes_of_dscps(&self) -> [u8; 64] {
        let mut map = [0; 64];
        for (dscp, class) in (0u8..).zip(&mut map) {
            *class = self.dscp.get(&dscp).copied().unwrap_or(dscp >> 3) % CLASSES as u8;
        }
        map
    }
}
