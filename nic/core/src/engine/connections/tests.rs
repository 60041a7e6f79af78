//! Connections between ports in virtual time.

use crate::cm::Manager;
use crate::sim::Net;
use crate::{Device, Gather, QueuePair, RcEnd, Result, WcStatus};
use cm::{
    Accept, Connect, ConnectionId, DisconnectCause, Event, Listen, Path, Placement, PortSpace, ServiceId,
};
use qp::{Gid, QpState, QpType};
use std::sync::{Arc, Mutex};
use time::Duration;

const SERVICE: ServiceId = ServiceId::of_port(PortSpace::Tcp, 7471);

/// A device with its connection manager, and the events that it has told.
struct Side {
    device: Device,
    manager: Manager,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Side {
    fn new(net: &Net) -> Result<Self> {
        Self::of(net.device())
    }

    fn of(device: Device) -> Result<Self> {
        let manager = device.connection_manager()?;
        let events = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&events);
        manager.set_sink(move |event| told.lock().expect("no panic").push(event))?;
        Ok(Self { device, manager, events })
    }

    fn gid(&self) -> Gid {
        Gid::from(self.device.address())
    }

    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().expect("no panic"))
    }

    fn only(&self) -> Event {
        let mut events = self.take();
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }

    fn listen(&self) -> Result<()> {
        let listen = Listen {
            service_id: SERVICE,
            address: None,
            with_addresses: false,
            qp_type: QpType::Rc,
            backlog: 8,
        };
        self.manager.call(|endpoint, now| endpoint.listen(now, &listen))?.expect("a free service");
        Ok(())
    }

    fn connect(&self, to: &Self, qp: &QueuePair) -> Result<ConnectionId> {
        let path = Path::new(self.gid(), to.gid(), self.device.port_attr().active_mtu);
        let connect = Connect::new(SERVICE, path, qp.qpn());
        Ok(self.manager.call(|endpoint, now| endpoint.connect(now, &connect))?.expect("room"))
    }

    /// Brings a queue pair into a state with the attributes of its connection.
    fn set_up(&self, connection: ConnectionId, qp: &QueuePair, states: &[QpState]) -> Result<()> {
        for state in states {
            let attr = self.manager.look(|e| e.attributes(connection, *state, &Placement::default()))?;
            qp.modify(&attr.expect("attributes"))?;
        }
        Ok(())
    }

    fn accept(&self, qp: &QueuePair) -> Result<ConnectionId> {
        let Event::ConnectRequest { connection, request } = self.only() else { panic!("no request") };
        self.set_up(connection, qp, &[QpState::Init, QpState::Rtr, QpState::Rts])?;
        let accept = Accept::new(qp.qpn(), &request);
        self.manager.call(|endpoint, now| endpoint.accept(now, connection, &accept))?.expect("a request");
        Ok(connection)
    }

    fn establish(&self, qp: &QueuePair) -> Result<()> {
        let Event::ConnectResponse { connection, .. } = self.only() else { panic!("no response") };
        self.set_up(connection, qp, &[QpState::Init, QpState::Rtr, QpState::Rts])?;
        self.manager.call(|endpoint, now| endpoint.establish(now, connection, &[]))?.expect("a response");
        Ok(())
    }
}

fn soon(net: &Net) {
    net.run_for(Duration::from_micros(100));
}

/// Two sides with a connection between them, and its ends.
type Connected = [(Side, RcEnd, ConnectionId); 2];

fn connected(net: &Net) -> Result<Connected> {
    let (a, b) = (Side::new(net)?, Side::new(net)?);
    b.listen()?;
    let (left, right) = (RcEnd::new(&a.device)?, RcEnd::new(&b.device)?);
    let active = a.connect(&b, &left.qp)?;
    soon(net);
    let passive = b.accept(&right.qp)?;
    soon(net);
    a.establish(&left.qp)?;
    soon(net);
    assert!(matches!(b.only(), Event::Established { .. }));
    Ok([(a, left, active), (b, right, passive)])
}

#[test]
fn a_connection_is_made_used_and_closed() -> Result<()> {
    let net = Net::new();
    let [(a, left, active), (b, right, passive)] = connected(&net)?;
    right.qp.recv(1, Gather::Empty)?;
    left.qp.send(2, Gather::Empty)?;
    soon(&net);
    let received = right.wait()?;
    assert_eq!((received.wr_id, received.status), (1, WcStatus::Success));

    b.manager.call(|endpoint, now| endpoint.disconnect(now, passive, &[]))?.expect("a connection");
    soon(&net);
    assert!(matches!(a.only(), Event::Disconnected { cause: DisconnectCause::Peer, .. }));
    a.manager.call(|endpoint, now| endpoint.disconnect(now, active, &[]))?.expect("a connection");
    soon(&net);
    assert!(matches!(b.only(), Event::Disconnected { cause: DisconnectCause::Answered, .. }));
    // The passive side would have waited for its program for as long as the active side repeats its REQ: 103 s.
    assert!(net.run_until_idle(Duration::from_secs(110)));
    let ends: Vec<_> = [&a, &b].map(|side| side.only()).into();
    assert!(ends.iter().all(|event| matches!(event, Event::TimeWaitExit { .. })), "{ends:?}");
    Ok(())
}
