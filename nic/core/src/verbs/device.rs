//! Devices: the first thing that a program opens.

use crate::engine::{CongestionLog, DropReason, ResourceError};
use crate::error::{Error, Result};
use crate::link::emulation::EmulationStats;
use crate::port::{Datapath, Port};
use crate::sim::AddressSpace;
use crate::tally::Capabilities;
use crate::trace::{self, Sample};
use crate::verbs::cm::manager as cm;
use crate::verbs::completion::{CompletionChannel, CompletionQueue};
use crate::verbs::domain::ProtectionDomain;
use crate::verbs::queue_pair::{QpInit, QueuePair};
use crate::verbs::xrc::XrcDomain;
use cc::{Pace, Paces, Policy};
use qp::counters::QpCounters;
use qp::{Gid, Mtu, PKey, Qpn};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, Weak};
use time::Instant;

mod counters;

pub use counters::Counters;

/// The default rate at which unacknowledged packets leave for one receiver that is known to be rnic, in bytes per second
/// of charge to its socket buffer: 11.6 Gb/s of messages in packets of 4 KiB.
///
/// Measured between two polling processes on loopback, each with its own core and the receiver with a stock socket
/// buffer, in five runs. At this rate at most 0.05 % of UC messages of 64 KiB are lost; at 2 GB/s 0.2 to 0.6 %; at
/// full speed 5 %. UD of 4 KiB lost none to 0.01 %, and 2.8 % once. A receiver that does not get to run for longer
/// than its buffer takes to fill loses packets at any rate: then only a larger buffer helps.
pub const DEFAULT_UNACKED_RATE: u64 = 1_500_000_000;

/// The paces for a rate in the form that programs specify.
pub fn paces(unacked_rate: Option<u64>) -> Paces {
    match unacked_rate {
        None => {
            Paces { rnic: NonZeroU64::new(DEFAULT_UNACKED_RATE).map(Pace::new), foreign: Some(Pace::STOCK) }
        }
        Some(rate) => Paces::same(NonZeroU64::new(rate).map(Pace::new)),
    }
}

/// An open device: one port with one address.
///
/// Everything made from it keeps it open. Clones are the same device.
///
/// ```
/// # use rnic_core as rnic;
/// let device = rnic_core::sim::Net::new().device(); // on the network: `rnic::open()?`
/// assert!(device.port_attr().active);
/// let pd = device.alloc_pd()?;
/// let cq = device.create_cq(16)?;
/// assert_eq!(device.counters().qp.sent_pkts, 0);
/// # let _ = (pd, cq);
/// # Ok::<(), rnic_core::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias("ibv_device", "ibv_context", "ibv_close_device"))]
pub struct Device {
    pub(crate) inner: Arc<DeviceInner>,
}

/// A reference to a device that does not keep it open.
#[derive(Clone)]
pub struct WeakDevice(Weak<DeviceInner>);

impl WeakDevice {
    /// The device, if it is still open.
    #[must_use]
    pub fn upgrade(&self) -> Option<Device> {
        Some(Device { inner: self.0.upgrade()? })
    }

    /// Returns whether the device is still open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.strong_count() > 0
    }
}

impl std::fmt::Debug for WeakDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WeakDevice")
    }
}

pub(crate) struct DeviceInner {
    name: String,
    pub(crate) port: Arc<dyn Port>,
    pub(crate) fault_seed: u64,
    opened: Instant,
    /// Its connection manager, while a program uses it.
    pub(crate) manager: Mutex<cm::Known>,
    /// The number of address handles.
    pub(crate) ahs: AtomicU32,
    /// The addresses under which packets name memory that the device allocates; `None` for the real ones.
    addresses: Option<AddressSpace>,
}

impl DeviceInner {
    /// The port, if this process opened it.
    pub(crate) fn port(&self) -> Result<&Arc<dyn Port>> {
        if self.port.is_ours() { Ok(&self.port) } else { Err(Error::Forked) }
    }

    /// The port, if this process opened it and no panic has made it unusable.
    pub(crate) fn intact_port(&self) -> Result<&Arc<dyn Port>> {
        let port = self.port()?;
        if port.is_wrecked() { Err(ResourceError::DeviceFailed.into()) } else { Ok(port) }
    }

    /// The first address of `len` bytes of fresh memory for work requests and peers; `None` for the real address.
    pub(crate) fn place(&self, len: usize) -> Option<u64> {
        self.addresses.as_ref().map(|space| space.place(len))
    }

    /// Starts the background thread unless it is already running.
    pub(crate) fn serve(&self) -> Result<()> {
        let served = self.port()?.serve();
        served.map_err(|source| Error::Os { what: "cannot start the background thread", source })
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        if self.port.is_ours() {
            self.port.close();
        }
    }
}

/// The limits of a device (`ibv_device_attr`). A limit of 0 means that the device does not have the feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias("ibv_device_attr", "ibv_device_attr_ex"))]
pub struct DeviceAttr {
    /// Maximum number of queue pairs.
    pub max_qp: u32,
    /// Maximum number of work requests in one queue.
    pub max_qp_wr: u32,
    /// Maximum number of scatter/gather elements in one work request.
    pub max_sge: u32,
    /// Maximum number of bytes of inline data.
    pub max_inline_data: u32,
    /// Maximum number of completion queues.
    pub max_cq: u32,
    /// Maximum number of entries in one completion queue.
    pub max_cqe: u32,
    /// Maximum number of memory regions.
    pub max_mr: u32,
    /// Maximum number of memory windows, of both types together.
    pub max_mw: u32,
    /// Maximum number of bytes in one memory region.
    pub max_mr_size: u64,
    /// Maximum number of protection domains.
    pub max_pd: u32,
    /// Maximum number of shared receive queues.
    pub max_srq: u32,
    /// Maximum number of work requests in one shared receive queue.
    pub max_srq_wr: u32,
    /// Maximum number of scatter/gather elements in a work request of a shared receive queue.
    pub max_srq_sge: u32,
    /// Maximum number of address handles.
    pub max_ah: u32,
    /// Maximum number of multicast groups that queue pairs can be attached to.
    pub max_mcast_grp: u32,
    /// Maximum number of queue pairs attached to one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Maximum total number of attachments of queue pairs to multicast groups.
    pub max_total_mcast_qp_attach: u32,
    /// Maximum number of outstanding READs and atomics of a queue pair, as responder.
    pub max_qp_rd_atom: u32,
    /// Maximum number of outstanding READs and atomics of a queue pair, as requester.
    pub max_qp_init_rd_atom: u32,
    /// Number of entries in the P_Key table.
    pub max_pkeys: u16,
    /// Number of ports.
    pub phys_port_cnt: u8,
}

/// The attributes of a port (`ibv_port_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_port_attr")]
pub struct PortAttr {
    /// Whether packets can flow: the link is up and the host has the address (`IBV_PORT_ACTIVE`). Each query asks the
    /// host.
    pub active: bool,
    /// Largest path MTU of any port.
    pub max_mtu: Mtu,
    /// Largest path MTU of this port. It follows the MTU of the interface. Connected queue pairs keep theirs; if it
    /// is now too large, their full packets are lost.
    pub active_mtu: Mtu,
    /// Number of entries in the GID table.
    pub gid_tbl_len: u32,
    /// Number of entries in the P_Key table.
    pub pkey_tbl_len: u16,
    /// Bytes of the longest message.
    pub max_msg_sz: u32,
    /// Packets dropped because their P_Key did not match. The counter saturates.
    pub bad_pkey_cntr: u32,
    /// Datagrams dropped because their Q_Key did not match. The counter saturates.
    pub qkey_viol_cntr: u32,
}

impl Device {
    /// A device around a port. Rules that are added to it later draw their random numbers from `fault_seed`.
    #[must_use]
    pub fn around(name: String, port: Arc<dyn Port>, fault_seed: u64) -> Self {
        let (opened, ahs, manager) = (port.now(), AtomicU32::new(0), Mutex::default());
        let addresses = port.sim().map(|port| AddressSpace::of(port.address()));
        Self { inner: Arc::new(DeviceInner { name, port, fault_seed, opened, manager, ahs, addresses }) }
    }

    /// A reference that does not keep the device open.
    #[must_use]
    pub fn downgrade(&self) -> WeakDevice {
        WeakDevice(Arc::downgrade(&self.inner))
    }

    /// Returns whether this process opened the device, and not its parent before a fork.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.inner.port.is_ours()
    }

    /// Gives the device up after a panic in a call on it, which the caller caught. A panic is a bug of rnic, and may
    /// leave the device half changed: it fails like
    /// [`inject_device_fatal`](Self::inject_device_fatal), and nothing drives it any more. Posts are refused from now
    /// on, and so is waiting for what cannot come ([`ResourceError::DeviceFailed`]).
    pub fn fail_after_panic(&self) {
        self.inner.port.fail_after_panic();
    }

    /// Returns whether a panic in a call on the device, or in its thread, made it unusable.
    #[must_use]
    pub fn has_panicked(&self) -> bool {
        self.inner.port.is_wrecked()
    }

    /// The name of the device.
    #[must_use]
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The address of its port.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.inner.port.address()
    }

    /// The GID of its port.
    #[must_use]
    #[doc(alias = "ibv_query_gid")]
    pub fn gid(&self) -> Gid {
        Gid::from(self.address())
    }

    /// The P_Key table, by index; empty in a forked child.
    #[must_use]
    #[doc(alias("ibv_query_pkey", "ibv_get_pkey_index"))]
    pub fn pkeys(&self) -> Vec<PKey> {
        self.inner.port.inspect(|e| e.config().pkeys.as_slice().to_vec()).unwrap_or_default()
    }

    /// The limits of the device.
    #[must_use]
    #[doc(alias("ibv_query_device", "ibv_query_device_ex"))]
    pub fn attr(&self) -> DeviceAttr {
        let max_pkeys = self.inner.port.inspect(|e| e.config().pkeys.entries()).unwrap_or(1);
        DeviceAttr { max_pkeys, ..crate::engine::device_attr() }
    }

    /// The attributes of the port.
    #[must_use]
    #[doc(alias = "ibv_query_port")]
    pub fn port_attr(&self) -> PortAttr {
        let port = &self.inner.port;
        if port.is_ours() {
            port.look_at_host();
        }
        let now = port.inspect(|e| {
            let dropped = |reason| u32::try_from(e.port_counters().dropped(reason)).unwrap_or(u32::MAX);
            let (bad_pkeys, bad_qkeys) = (dropped(DropReason::BadPkey), dropped(DropReason::BadQkey));
            (e.is_active(), e.config().pkeys.entries(), bad_pkeys, bad_qkeys)
        });
        let (active, pkey_tbl_len, bad_pkey_cntr, qkey_viol_cntr) = now.unwrap_or_default();
        PortAttr {
            active,
            max_mtu: Mtu::B4096,
            active_mtu: port.active_mtu(),
            gid_tbl_len: 1,
            pkey_tbl_len,
            // 2^31 (IBTA C9-94).
            max_msg_sz: 1 << 31,
            bad_pkey_cntr,
            qkey_viol_cntr,
        }
    }

    /// The features that the kernel offers to the sockets; `None` in a simulation, and in a forked child.
    #[must_use]
    pub fn socket_capabilities(&self) -> Option<Capabilities> {
        self.inner.port().ok()?.capabilities()
    }

    /// All counters; zeroes in a forked child.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let Ok(port) = self.inner.port() else { return Counters::default() };
        let socket = port.socket_counters();
        port.with_datapath(|datapath| datapath.counters(socket))
    }

    /// Has the port control congestion by another policy from now on, or by none: for a manager of congestion control, who may
    /// write other settings at any time. Flows go on from where they are, if both policies are of InfiniBand's control. Peers to which
    /// the port has introduced itself are not told.
    ///
    /// # Errors
    /// [`Error::Forked`], or a panic has made the device unusable.
    pub fn set_congestion_control(&self, policy: Option<Policy>) -> Result<()> {
        let port = self.inner.intact_port()?;
        let now = port.now();
        port.control(|engine| engine.set_policy(now, policy));
        Ok(())
    }

    /// The congestion notifications that found their queue pairs at a threshold or beyond; none in a forked child.
    #[must_use]
    pub fn congestion_log(&self) -> CongestionLog {
        self.inner.port.inspect(|engine| engine.congestion_log().clone()).unwrap_or_default()
    }

    /// The queue and the counters of the emulated link; `None` without one, and in a forked child.
    #[must_use]
    pub fn link_stats(&self) -> Option<EmulationStats> {
        self.inner.port().ok()?.with_datapath(Datapath::link_stats)
    }

    /// The counters of one queue pair; `None` if the queue pair does not exist.
    #[must_use]
    pub fn qp_counters(&self, qpn: Qpn) -> Option<QpCounters> {
        self.inner.port.inspect(|e| e.qp(qpn).map(|qp| *qp.counters())).flatten()
    }

    /// The activity of the port and its queue pairs so far, for a [trace](crate::trace); empty in a forked child.
    ///
    /// Its time counts from the beginning of the simulation in virtual time, and from the opening of the device on
    /// the network. The queue maximum is the largest since the last sample taken from any thread.
    #[must_use]
    pub fn sample(&self) -> Sample {
        let Ok(port) = self.inner.port() else { return Sample::default() };
        let now = port.now();
        let at = port.sim().map_or(now - self.inner.opened, |port| port.world().elapsed());
        let overrun = port.socket_counters().map_or(0, |socket| socket.drops);
        port.with_datapath(|datapath| trace::sample::of(datapath, now, at, overrun))
    }

    /// The time of the device's clock, in nanoseconds, used to [stamp](CompletionQueue::stamp_completions)
    /// completions: the kernel's monotonic clock, or that of the simulation.
    #[must_use]
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn clock(&self) -> u64 {
        (self.inner.port.clock())()
    }

    /// Drives the device: processes packets that have arrived and sends packets that are due. Polling a completion
    /// queue and waiting do so too; this method is for programs that poll memory which a peer writes.
    pub fn progress(&self) {
        if self.inner.port.is_ours() {
            self.inner.port.progress();
        }
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// [`Error::Resource`] when the device has no room for another.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        ProtectionDomain::new(&self.inner)
    }

    /// Creates a completion queue of `cqe` entries.
    ///
    /// # Errors
    /// [`Error::Resource`] for a size that is out of range, and when the device has no room for another.
    #[doc(alias("ibv_create_cq", "ibv_create_cq_ex"))]
    pub fn create_cq(&self, cqe: u32) -> Result<CompletionQueue> {
        CompletionQueue::new(&self.inner, cqe, None)
    }

    /// Creates a completion queue whose events go to `channel`.
    ///
    /// # Errors
    /// As [`create_cq`](Self::create_cq), and [`Error::Resource`] for a channel of another device.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq_with_channel(&self, cqe: u32, channel: &CompletionChannel) -> Result<CompletionQueue> {
        CompletionQueue::new(&self.inner, cqe, Some(channel))
    }

    /// Opens an XRC domain.
    ///
    /// # Errors
    /// [`Error::Resource`] when the device has no room for another.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd(&self) -> Result<XrcDomain> {
        XrcDomain::new(&self.inner)
    }

    /// Creates a queue pair of a type that has no protection domain, XRC_RECV, in RESET.
    ///
    /// # Errors
    /// [`Error::Resource`] names the part that the type needs or does not support; other types need a [protection
    /// domain](ProtectionDomain::create_qp).
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_qp(&self, init: &QpInit) -> Result<QueuePair> {
        QueuePair::new(&self.inner, None, init)
    }

    /// Creates a completion channel.
    ///
    /// # Errors
    /// [`Error::Os`] if the process has no descriptor left; [`Error::Forked`].
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_comp_channel(&self) -> Result<CompletionChannel> {
        CompletionChannel::new(&self.inner)
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({} at {})", self.name(), self.address())
    }
}
