//! The server's side of services other than RC. Each receives one message.

use super::messages::{Opened, Service, difference};
use super::services::{QKEY, options};
use super::{Failure, Outcome};
use rnic::{
    Access, CompletionQueue, Device, Gid, MemoryRegion, QpAddress, QpInit, QueuePair, SharedReceiveQueue,
    SrqInit, WcStatus, XrcDomain,
};
use std::net::Ipv4Addr;
use std::time::Duration;

/// The size of the network header in front of a datagram (IBTA 11.4.1.2).
const GRH: usize = 40;

/// The size of the buffer in bytes.
const ROOM: usize = 4096;

/// A queue pair with a receive for one message.
pub(super) struct Inbox {
    /// Before what it uses, so that it is dropped first.
    _qp: QueuePair,
    _srq: Option<SharedReceiveQueue>,
    _xrcd: Option<XrcDomain>,
    cq: CompletionQueue,
    buffer: MemoryRegion,
    header: usize,
}

impl Inbox {
    /// Opens the server's side of a service, with a receive posted, for messages of `peer`.
    pub(super) fn open(device: &Device, service: Service, peer: &QpAddress) -> Outcome<(Self, Opened)> {
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
        let buffer = pd.register(ROOM, Access::LOCAL_WRITE)?;
        let init = SrqInit { max_wr: 16, ..SrqInit::default() };
        let (mut srq, mut xrcd) = (None, None);
        let qp = match service {
            Service::Uc => pd.create_qp(&QpInit::uc(&cq, &cq))?,
            Service::Ud | Service::Multicast => pd.create_qp(&QpInit::ud(&cq, &cq))?,
            Service::Srq => {
                let queue = srq.insert(pd.create_srq(&init)?);
                pd.create_qp(&QpInit::rc(&cq, &cq).with_srq(queue))?
            }
            Service::Xrc => {
                let domain = xrcd.insert(device.open_xrcd()?);
                srq = Some(pd.create_xrc_srq(&init, domain, &cq)?);
                device.create_qp(&QpInit::xrc_recv(domain))?
            }
        };
        // A group of the site-local scope (RFC 2365) that no other demo uses at the same time.
        let [.., high, low] = std::process::id().to_be_bytes();
        let group = Gid::from(Ipv4Addr::new(239, 255, high, low));
        let datagrams = matches!(service, Service::Ud | Service::Multicast);
        if datagrams {
            qp.activate(QKEY)?
        } else {
            qp.connect(peer, &options())?
        }
        if service == Service::Multicast {
            qp.attach_mcast(group)?;
        }
        match &srq {
            Some(srq) => srq.recv(0, buffer.all())?,
            None => qp.recv(0, buffer.all())?,
        }
        let srqn = srq.as_ref().map_or(0, SharedReceiveQueue::srqn);
        let opened = Opened { number: 0, address: qp.address(), srqn, group: group.0 };
        let header = if datagrams { GRH } else { 0 };
        Ok((Self { _qp: qp, _srq: srq, _xrcd: xrcd, cq, buffer, header }, opened))
    }

    /// Waits for the message; returns the first byte at which it differs from `wanted`.
    pub(super) fn heard(&self, wanted: &[u8]) -> Outcome<Option<usize>> {
        let wc = self.cq.wait(Duration::from_secs(10))?;
        if wc.status != WcStatus::Success {
            return Err(Failure::new(format!("the receive ended with {}", wc.status)));
        }
        let end = (wc.byte_len as usize).clamp(self.header, ROOM);
        let mut found = vec![0; end - self.header];
        self.buffer.read_at(self.header, &mut found)?;
        Ok(difference(&found, wanted))
    }
}
