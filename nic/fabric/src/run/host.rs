//! The device of a host.

use super::RunError;
use cc::ibcc::{self, Reaction};
use cc::{Algorithm, Policy, Rate};
use rnic_core::engine::{PartnerSetup, RateConfig};
use rnic_core::sim::{DeviceSetup, Net};
use rnic_core::{
    Access, BufferError, CompletionQueue, Device, MemoryBuffer, MemoryRegion, Mtu, NullRegion,
    ProtectionDomain, Tuning, UserMemory,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use time::Duration;

/// The UDP source ports of a host: enough that flow labels spread evenly over 64 paths.
const SOURCE_PORTS: usize = 1024;

/// The devices of the hosts, all alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NicConfig {
    /// The path MTU in bytes.
    pub mtu: u32,
    /// Congestion control, as on a command line: `off`, `dcqcn:preset=laptop`, `timely`.
    pub cc: String,
    /// The acknowledgement timeout: 4.096 us x 2^timeout.
    pub timeout: u8,
    /// Whether the timeout follows from how long acknowledgements take; `timeout` is then the longest.
    pub adaptive_timeout: bool,
    /// Whether only the packets are repeated that were lost (selective repeat), and not everything behind them (go-back-N). The
    /// NICs then introduce themselves to one another as rnic's.
    pub selective_repeat: bool,
    /// The greatest number of packets that a queue pair has in flight; 0 for no bound, or 1,024 with selective repeat.
    pub max_in_flight: u32,
    /// With selective repeat, a packet counts as lost when more than so many that were sent later have arrived: for switches that
    /// spray packets.
    pub reorder_tolerance: u32,
    /// Retransmissions before a flow fails, 0 to 7.
    pub retry_cnt: u8,
    /// The longest train at the rate of its queue pair; 0 has packets leave one by one, as from hardware.
    #[serde(with = "crate::words::duration")]
    pub train_time: Duration,
}

impl Default for NicConfig {
    /// 4096 bytes, no congestion control, perftest's timeout of 67 ms with 7 retries, single packets.
    fn default() -> Self {
        Self {
            mtu: 4096,
            cc: "off".to_owned(),
            timeout: 14,
            adaptive_timeout: false,
            selective_repeat: false,
            max_in_flight: 0,
            reorder_tolerance: 0,
            retry_cnt: 7,
            train_time: Duration::ZERO,
        }
    }
}

/// Memory in which messages arrive whose bytes nobody looks at, by its length. All hosts share it: then it stays in the
/// caches of a processor, and a host needs none of its own.
#[derive(Default)]
pub(super) struct Sinks(Mutex<BTreeMap<usize, UserMemory>>);

impl Sinks {
    fn of(&self, len: usize) -> Result<UserMemory, BufferError> {
        let mut sinks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match sinks.entry(len) {
            Entry::Occupied(there) => Ok(there.get().clone()),
            Entry::Vacant(free) => Ok(free.insert(MemoryBuffer::new(len)?.into()).clone()),
        }
    }
}

/// A device with what its flows share.
pub(super) struct HostEnd {
    pub(super) device: Device,
    pub(super) pd: ProtectionDomain,
    pub(super) cq: CompletionQueue,
    /// Zeros to send.
    pub(super) source: Arc<NullRegion>,
    /// Where everything arrives, as large as the largest message yet.
    target: Option<Arc<MemoryRegion>>,
    sinks: Arc<Sinks>,
    /// The congestion control of the scenario, and the rate of the port.
    algorithm: Algorithm,
    rate: Rate,
    /// How a manager has it react to congestion.
    reaction: Option<Arc<Reaction>>,
    pub(super) options: (u8, u8),
    pub(super) tuning: Tuning,
}

impl HostEnd {
    pub(super) fn new(
        net: &Net,
        name: &str,
        host: usize,
        rate: Rate,
        nic: &NicConfig,
        outstanding: usize,
        sinks: Arc<Sinks>,
    ) -> Result<Self, RunError> {
        let failed = |what: &str| {
            let what = format!("{name}: {what}");
            move |why| RunError::Verbs { what, why }
        };
        let algorithm: Algorithm = nic.cc.parse()?;
        let policy = match &algorithm {
            Algorithm::Off => None,
            algorithm => Some(algorithm.at(rate)?),
        };
        // Ports by which rnic recognises rnic are left out: hosts are NICs like any others, unless they have to be rnic's. Of
        // those ports there are 268.
        let is_ours = nic.selective_repeat || policy.as_ref().is_some_and(Policy::uses_telemetry);
        let ports =
            rnic_core::datagram::SOURCE_PORTS.filter(|port| rnic_core::engine::has_sign(*port) == is_ours);
        let setup = DeviceSetup {
            name: Some(name.to_owned()),
            address: Some(address(host)),
            source_ports: Some(ports.take(SOURCE_PORTS).collect()),
            mtu: Mtu::from_bytes(nic.mtu).unwrap_or(Mtu::B4096),
            peer_window: Some(u32::MAX),
            partner: PartnerSetup { is_foreign: !is_ours, ..PartnerSetup::offering(nic.selective_repeat) },
            rate: RateConfig { policy, train_time: nic.train_time, port_rate: None, foreign_cnp: true },
            ..DeviceSetup::default()
        };
        let device = net.device_with(&setup).map_err(failed("the device"))?;
        let pd = device.alloc_pd().map_err(failed("the protection domain"))?;
        let cqe = u32::try_from(outstanding + 64).unwrap_or(u32::MAX).min(device.attr().max_cqe);
        let cq = device.create_cq(cqe).map_err(failed("the completion queue"))?;
        let source = Arc::new(pd.alloc_null_mr().map_err(failed("the null region"))?);
        Ok(Self {
            device,
            pd,
            cq,
            source,
            target: None,
            sinks,
            algorithm,
            rate,
            reaction: None,
            options: (nic.timeout, nic.retry_cnt),
            tuning: Tuning {
                adaptive_timeout: nic.adaptive_timeout,
                max_in_flight: nic.max_in_flight,
                reorder_tolerance: nic.reorder_tolerance,
                ..Tuning::default()
            },
        })
    }

    /// Has the host react to congestion as a manager has written. So does one without congestion control in the scenario, as an
    /// adapter does. One with an algorithm that InfiniBand does not have keeps that.
    pub(super) fn follow(&mut self, reaction: &Arc<Reaction>) -> Result<(), rnic_core::Error> {
        let config = match &self.algorithm {
            Algorithm::Off => ibcc::Config::default(),
            Algorithm::Ibcc(config) => config.clone(),
            _ => return Ok(()),
        };
        // A host to which nothing new was written goes on as it is.
        if self.reaction.as_ref() != Some(reaction) {
            self.reaction = Some(Arc::clone(reaction));
            let policy = Policy::managed(self.rate, &config, Arc::clone(reaction));
            self.device.set_congestion_control(Some(policy))?;
        }
        Ok(())
    }

    /// The region in which messages of up to `len` bytes arrive.
    pub(super) fn target(&mut self, len: u64) -> Result<Arc<MemoryRegion>, rnic_core::Error> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        match &self.target {
            Some(target) if target.len() >= len => Ok(Arc::clone(target)),
            // Flows that use the smaller one keep it until they end.
            _ => {
                let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
                let target = Arc::new(self.pd.register_placed(self.sinks.of(len)?, access)?);
                self.target = Some(Arc::clone(&target));
                Ok(target)
            }
        }
    }
}

/// The address of a host.
#[must_use]
pub fn address(host: usize) -> Ipv4Addr {
    // 10.0.0.1 for the first.
    Ipv4Addr::from(0x0a00_0001 + u32::try_from(host).unwrap_or(0))
}
