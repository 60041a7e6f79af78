//! Services other than RC, and a shared receive queue: one message each.

use super::client::Client;
use super::messages::{Opened, Service};
use super::{Outcome, expect};
use rnic::{
    Access, AddressVector, CompletionQueue, ConnectOptions, Destination, Gid, Mtu, Operation,
    ProtectionDomain, QKey, QpInit, Qpn, QueuePair, SendFlags, SendWr, WcStatus,
};
use std::time::Duration;

/// The Q_Key of the demo's datagrams.
pub(super) const QKEY: QKey = QKey(0x0de3_0de3);

/// The size of each message in bytes: one packet.
const LEN: usize = 100;

/// Sends one message over each service.
pub(super) fn all(client: &mut Client<'_>) -> Outcome {
    for (service, name, lesson) in [
        (
            Service::Srq,
            "RC into a shared receive queue: SEND, 100 bytes",
            "Many connections of a server can share one receive queue. The packets are the same as without.",
        ),
        (
            Service::Xrc,
            "XRC: SEND, 100 bytes",
            "The packet names a shared receive queue of the server, independent of the queue pair.",
        ),
        (
            Service::Uc,
            "UC: SEND, 100 bytes",
            "An unreliable connection: there are no acknowledgements, and lost messages are not repeated.",
        ),
        (
            Service::Ud,
            "UD: SEND, 100 bytes",
            "A datagram needs no connection. The packet carries its sender's QP number and a key (Q_Key) that the receiver checks.",
        ),
        (
            Service::Multicast,
            "UD multicast: SEND to a group, 100 bytes",
            "The server has joined a multicast group. The sender does not need to know the members.",
        ),
    ] {
        client.page.operation(name, lesson);
        one(client, service)?;
    }
    Ok(())
}

fn one(client: &mut Client<'_>, service: Service) -> Outcome {
    let (pd, cq) = (client.device.alloc_pd()?, client.device.create_cq(16)?);
    let qp = pd.create_qp(&match service {
        Service::Srq => QpInit::rc(&cq, &cq),
        Service::Xrc => QpInit::xrc_send(&cq),
        Service::Uc => QpInit::uc(&cq, &cq),
        Service::Ud | Service::Multicast => QpInit::ud(&cq, &cq),
    })?;
    let opened = client.open(service, qp.address())?;
    let to = way(&qp, &pd, service, &opened)?;
    let (pattern, bytes) = client.fresh(LEN);
    let source = pd.register_bytes(&bytes, Access::empty())?;
    let send = Operation::Send { imm: None, invalidate: None };
    qp.post_send(SendWr::new(1, send, source.all()).flags(SendFlags::SIGNALED).to(to))?;
    succeed(&cq)?;
    client.heard(&opened, LEN, pattern)?;
    client.draw();
    client.page.proved("the server received and verified 100 bytes");
    Ok(())
}

/// Makes the queue pair ready to send; returns the destination.
fn way(qp: &QueuePair, pd: &ProtectionDomain, service: Service, opened: &Opened) -> Outcome<Destination> {
    let datagram = |gid: Gid, qpn: Qpn| -> Outcome<Destination> {
        qp.activate(QKEY)?;
        Ok(pd.create_ah(&AddressVector::new(gid, 0))?.datagram(qpn, QKEY))
    };
    match service {
        Service::Ud => datagram(Gid(opened.address.gid), Qpn::new(opened.address.qpn)),
        Service::Multicast => datagram(Gid(opened.group), Qpn::MULTICAST),
        Service::Srq | Service::Uc | Service::Xrc => {
            qp.connect(&opened.address, &options())?;
            Ok(if service == Service::Xrc {
                Destination::XrcSrq(opened.srqn)
            } else {
                Destination::Connected
            })
        }
    }
}

/// The options of connections.
pub(super) fn options() -> ConnectOptions {
    ConnectOptions { mtu: Some(Mtu::B1024), ..ConnectOptions::default() }
}

fn succeed(cq: &CompletionQueue) -> Outcome {
    let wc = cq.wait(Duration::from_secs(10))?;
    expect(wc.status == WcStatus::Success, || format!("{}: {}", wc.status, wc.status.explain()))
}
