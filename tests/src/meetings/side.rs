//! One side of a connection, as its program knows it.

use rnic::cm::protocol::DisconnectCause;
use rnic::cm::{Connection, ConnectionEvent};
use rnic::{Error, MemoryRegion, RcEnd, WcOpcode, WcStatus};

/// A number that names an attempt to connect, and the life of a host.
pub(super) type Nonce = u64;

/// Which life of which host.
pub(super) type Life = (usize, u32);

/// One side of a connection.
pub(super) struct Side {
    pub(super) nonce: Nonce,
    pub(super) is_active: bool,
    pub(super) own: Life,
    /// `None` once the program has destroyed its queue pair before the connection.
    pub(super) end: Option<RcEnd>,
    pub(super) connection: Connection,
    outbox: MemoryRegion,
    inbox: MemoryRegion,
    pub(super) events: Vec<ConnectionEvent>,
    /// Whether the program itself has closed it.
    pub(super) has_closed: bool,
    pub(super) received: u32,
}

impl Side {
    pub(super) fn new(
        nonce: Nonce,
        is_active: bool,
        own: Life,
        end: RcEnd,
        connection: Connection,
    ) -> Result<Self, Error> {
        let mut text = nonce.to_be_bytes().to_vec();
        text.push(is_active.into());
        let (outbox, inbox) = (end.register(&text)?, end.register(&[0; 9])?);
        // The queue pair is in INIT at least.
        end.qp.recv(0, inbox.all())?;
        Ok(Self {
            nonce,
            is_active,
            own,
            end: Some(end),
            connection,
            outbox,
            inbox,
            events: Vec::new(),
            has_closed: false,
            received: 0,
        })
    }

    /// Whether both sides may send, as far as this one knows.
    pub(super) fn is_open(&self) -> bool {
        self.events == [ConnectionEvent::Established] && !self.has_closed && self.end.is_some()
    }

    /// Whether it was told how it ended, or has ended it itself.
    pub(super) fn is_over(&self) -> bool {
        let is_end = |event: &ConnectionEvent| {
            matches!(event, ConnectionEvent::Failed(_) | ConnectionEvent::Disconnected(_))
        };
        self.has_closed || self.end.is_none() || self.events.iter().any(is_end)
    }

    /// Sends the name of the connection to the peer.
    pub(super) fn send(&self) -> Result<(), Error> {
        match &self.end {
            // A queue that is full, or a queue pair that has failed meanwhile, is no matter here.
            Some(end) => end.qp.send(1, self.outbox.all()).or(Ok(())),
            None => Ok(()),
        }
    }

    /// Takes in what happened; returns how many messages arrived.
    pub(super) fn look(&mut self) -> Result<u32, String> {
        while let Some(event) = self.connection.poll_event() {
            self.events.push(event);
        }
        let in_order = match &self.events[..] {
            [] | [ConnectionEvent::Established | ConnectionEvent::Failed(_)] => true,
            [ConnectionEvent::Established, ConnectionEvent::Disconnected(_)] => true,
            // The peer's RTU was lost, and it has closed the connection. Linux tells programs the same.
            [ConnectionEvent::Disconnected(DisconnectCause::Peer)] => !self.is_active,
            _ => false,
        };
        if !in_order {
            return Err(format!("{} learns {:?}", self.name(), self.events));
        }
        let Some(end) = &self.end else { return Ok(0) };
        let mut arrived = 0;
        while let Some(wc) = end.cq().poll_one() {
            if wc.status != WcStatus::Success || wc.opcode != WcOpcode::Recv {
                continue;
            }
            let text = self.inbox.to_vec().map_err(|error| error.to_string())?;
            let mut expected = self.nonce.to_be_bytes().to_vec();
            expected.push((!self.is_active).into());
            if text != expected {
                return Err(format!("{} received {text:?}", self.name()));
            }
            arrived += 1;
            // Flushed at once if the connection is over.
            let _ = end.qp.recv(0, self.inbox.all());
        }
        self.received += arrived;
        Ok(arrived)
    }

    pub(super) fn name(&self) -> String {
        let role = if self.is_active { "active" } else { "passive" };
        format!("the {role} side of {:#x}, host {} life {}", self.nonce, self.own.0, self.own.1)
    }
}
