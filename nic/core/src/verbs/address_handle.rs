//! Address handles: the path to the receiver of a datagram.

use crate::datagram::DEFAULT_HOP_LIMIT;
use crate::engine::{MAX_AH, ResourceError};
use crate::error::Result;
use crate::verbs::device::Device;
use crate::verbs::domain::PdInner;
use qp::attr::AddressVector;
use qp::wire::headers::GRH_LEN;
use qp::{Destination, Gid, QKey, Qpn, WcFlags, WorkCompletion};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The path to a peer or to a multicast group, validated once: for the `ah_attr` of connected queue pairs, and for
/// datagrams.
///
/// Clones are the same handle. The handle keeps its protection domain alive.
///
/// ```
/// # use rnic_core as rnic;
/// use rnic::{Access, AddressVector, QKey, QpInit};
/// use std::time::Duration;
///
/// let net = rnic::sim::Net::new();
/// let (a, b) = (net.device(), net.device());
/// let (pd, peer_pd) = (a.alloc_pd()?, b.alloc_pd()?);
/// let (cq, peer_cq) = (a.create_cq(16)?, b.create_cq(16)?);
/// let (qp, peer) = (pd.create_qp(&QpInit::ud(&cq, &cq))?, peer_pd.create_qp(&QpInit::ud(&peer_cq, &peer_cq))?);
/// let qkey = QKey(0x1234);
/// qp.activate(qkey)?;
/// peer.activate(qkey)?;
///
/// let ah = pd.create_ah(&AddressVector::new(b.gid(), 0))?;
/// let inbox = peer_pd.register(40 + 64, Access::LOCAL_WRITE)?; // 40 bytes for the network header
/// peer.recv(1, inbox.all())?;
/// let message = pd.register_bytes(b"hello", Access::LOCAL_WRITE)?;
/// qp.send_to(2, message.all(), &ah, peer.qpn(), qkey)?;
/// let wc = peer_cq.wait(Duration::from_secs(1))?;
/// assert_eq!((wc.byte_len, wc.src_qpn), (40 + 5, qp.qpn()));
/// # Ok::<(), rnic::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias("ibv_ah", "ibv_destroy_ah"))]
pub struct AddressHandle {
    inner: Arc<AhInner>,
}

struct AhInner {
    pd: Arc<PdInner>,
    attr: Arc<AddressVector>,
}

impl Drop for AhInner {
    fn drop(&mut self) {
        self.pd.device.ahs.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AddressHandle {
    pub(crate) fn new(pd: &Arc<PdInner>, attr: &AddressVector) -> Result<Self> {
        if let Some(why) = wrong_with(attr, pd.device.port()?.address()) {
            return Err(ResourceError::Address { why }.into());
        }
        let room = |ahs: u32| (ahs < MAX_AH).then_some(ahs + 1);
        if pd.device.ahs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_err() {
            return Err(ResourceError::Exhausted { what: "address handle", max: MAX_AH as usize }.into());
        }
        let inner = AhInner { pd: Arc::clone(pd), attr: Arc::new(*attr) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// An address handle for the sender of the datagram that `wc` completed.
    pub(crate) fn back(pd: &Arc<PdInner>, wc: &WorkCompletion, grh: &[u8]) -> Result<Self> {
        Self::new(pd, &way_back(wc, grh, pd.device.port()?.address())?)
    }

    /// The attributes that it was created with.
    #[must_use]
    pub fn attr(&self) -> AddressVector {
        *self.inner.attr
    }

    /// A destination for datagrams: a queue pair at this address, and its Q_Key. For a multicast group the queue pair
    /// is [`Qpn::MULTICAST`].
    #[must_use]
    pub fn datagram(&self, qpn: Qpn, qkey: QKey) -> Destination {
        Destination::Datagram { path: Arc::clone(&self.inner.attr), qpn, qkey }
    }

    pub(crate) fn is_of(&self, pd: &Arc<PdInner>) -> bool {
        Arc::ptr_eq(&self.inner.pd, pd)
    }

    /// The address of the peer.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        self.inner.attr.dgid.ip()
    }
}

impl std::fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AddressHandle({})", self.ip())
    }
}

impl Device {
    /// The address vector of the sender of a datagram (`ibv_init_ah_from_wc`): see
    /// [`create_ah_from_wc`](crate::ProtectionDomain::create_ah_from_wc).
    ///
    /// # Errors
    /// Those of `create_ah_from_wc`.
    #[doc(alias = "ibv_init_ah_from_wc")]
    pub fn way_back(&self, wc: &WorkCompletion, grh: &[u8]) -> Result<AddressVector> {
        way_back(wc, grh, self.inner.port()?.address())
    }
}

/// The address vector from the port at `ours` to the sender of the datagram that `wc` completed.
fn way_back(wc: &WorkCompletion, grh: &[u8], ours: IpAddr) -> Result<AddressVector> {
    let refused = |why| Err(ResourceError::Address { why }.into());
    if !wc.flags.contains(WcFlags::GRH) {
        return refused("the completion is of no datagram that was received");
    }
    let Some(grh) = grh.first_chunk::<GRH_LEN>() else {
        return refused("the network header in front of a datagram has 40 bytes");
    };
    match sender(grh, ours.is_ipv4()) {
        Some(attr) => Ok(AddressVector { sl: wc.sl, ..attr }),
        None => refused("these 40 bytes hold no network header of the port's IP family"),
    }
}

/// The reason why the port at `ours` cannot use an address vector, if there is one.
fn wrong_with(attr: &AddressVector, ours: IpAddr) -> Option<&'static str> {
    if !attr.is_global || attr.dgid.is_zero() {
        Some("it has no GID, and RoCE has no other addresses")
    } else if attr.sgid_index != 0 {
        Some("its sgid_index is not in the GID table, which has one entry")
    } else if attr.port_num != 1 {
        Some("its port_num is not 1, the only port")
    } else if attr.flow_label >= 1 << 20 {
        Some("its flow_label has more than 20 bits")
    } else if ours.is_ipv4() != attr.dgid.ip().is_ipv4() {
        Some("its GID is of the other IP family than the port's")
    } else {
        None
    }
}

/// The address vector of the sender of a datagram, from the network header in front of it.
fn sender(grh: &[u8; GRH_LEN], v4: bool) -> Option<AddressVector> {
    /// The offset of the IPv4 header (IBTA A17.4.5.2), and its fields.
    const IPV4: usize = 20;
    let (version_at, version) = if v4 { (IPV4, 4) } else { (0, 6) };
    if grh[version_at] >> 4 != version {
        return None;
    }
    let (source, tos, hops, flow_label): (IpAddr, _, _, _) = if v4 {
        let ip = grh[IPV4..].first_chunk::<20>()?;
        (Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]).into(), ip[1], ip[8], 0)
    } else {
        let word = u32::from_be_bytes(*grh.first_chunk()?);
        let source: [u8; 16] = *grh[8..].first_chunk()?;
        (Ipv6Addr::from(source).into(), (word >> 20) as u8, grh[7], word & 0xf_ffff)
    };
    /// The ECN bits of the TOS, and the one of them that means "ECN-capable" (RFC 3168).
    const ECN: u8 = 0b11;
    const ECT: u8 = 0b10;
    let ecn = if tos & ECN == 0 { 0 } else { ECT };
    Some(AddressVector {
        traffic_class: tos & !ECN | ecn,
        hop_limit: hops.max(DEFAULT_HOP_LIMIT),
        flow_label,
        ..AddressVector::new(Gid::from(source), 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_handles_are_bounded() -> Result<()> {
        let device = crate::sim::Net::new().device();
        let pd = device.alloc_pd()?;
        let way = AddressVector::new(device.gid(), 0);
        let first = pd.create_ah(&way)?;
        // Pretend that this many already exist.
        device.inner.ahs.store(MAX_AH - 1, Ordering::Relaxed);
        let last = pd.create_ah(&way)?;
        let error = pd.create_ah(&way).expect_err("one too many").to_string();
        assert!(error.contains("1048576") && device.attr().max_ah == MAX_AH, "{error}");
        drop((first, last.clone()));
        assert!(pd.create_ah(&way).is_ok(), "a place came free");
        drop(last);
        assert_eq!(device.inner.ahs.load(Ordering::Relaxed), MAX_AH - 2, "clones are the same handle");
        Ok(())
    }

    #[test]
    fn address_handles_are_checked() -> Result<()> {
        let net = crate::sim::Net::new();
        let (device, peer) = (net.device(), net.device());
        let pd = device.alloc_pd()?;
        let good = AddressVector::new(peer.gid(), 0);
        let handle = pd.create_ah(&good)?;
        assert_eq!((handle.ip(), handle.attr()), (peer.address(), good));
        assert!(
            pd.create_ah(&AddressVector::new(Gid::from(Ipv4Addr::new(239, 1, 2, 3)), 0)).is_ok(),
            "a group"
        );
        let v6 = Gid::from(Ipv6Addr::LOCALHOST);
        for (bad, why) in [
            (AddressVector { is_global: false, ..good }, "no GID"),
            (AddressVector { sgid_index: 1, ..good }, "sgid_index"),
            (AddressVector { port_num: 2, ..good }, "port_num"),
            (AddressVector { flow_label: 1 << 20, ..good }, "flow_label"),
            (AddressVector { dgid: v6, ..good }, "IP family"),
        ] {
            let error = pd.create_ah(&bad).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
        Ok(())
    }
}
