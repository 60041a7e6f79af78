//! Connections that their peer may have lost.
//!
//! A REQ that names the queue pair of an established connection says that the peer uses this queue pair for another
//! connection, so that it has lost the first one (IBTA 12.9.8.3.1), or the REQ is forged. Whoever is at the address is
//! asked by a fresh [handshake](super::super::partner). Only the real port there can answer it:
//!
//! - The port that the connection was made with is alive: it would have closed the connection. The REQ is not believed.
//! - Another port has its address: the connection is lost.
//! - The host knows no handshake, so that it does not run rnic: the REQ is believed, as Linux would.
//! - Nobody answers: nothing changes. The next REQ asks again.
//!
//! Where several processes share the address, the one that has the connection's slot is asked too. Only its answer counts:
//! whoever shares the address out answers as well.

use super::super::Engine;
use super::super::partner::Partners;
use cm::{ConnectionId, Endpoint};
use qp::wire::mad::hello::Hello;
use qp::{Gid, Qpn};
use std::net::IpAddr;
use time::{Duration, Instant};

/// Connections that are suspected at a time. One beyond waits for the next REQ.
const MAX_SUSPECTS: usize = 64;

/// A peer is asked at most once in this time: many times the round trip of a network, and a fraction of the time after
/// which a REQ is repeated.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Connections of which a REQ says that their peer has lost them.
#[derive(Debug, Default)]
pub(super) struct Suspects(Vec<Suspect>);

#[derive(Debug)]
struct Suspect {
    connection: ConnectionId,
    address: IpAddr,
    /// The slot of the port that the connection was made with.
    slot: u8,
    /// Its instance, if it is a partner.
    instance: Option<u64>,
    asked: Instant,
}

impl Suspect {
    /// Whether the connection was made with the port that says this.
    fn is_of(&self, hello: &Hello) -> bool {
        hello.slot == self.slot && self.instance.is_none_or(|instance| instance == hello.instance)
    }
}

impl Engine {
    /// A REQ says that the peer has lost this connection: asks who is there.
    pub(super) fn suspect(&mut self, now: Instant, connection: ConnectionId, remote: Gid) {
        let address = remote.ip();
        let Some(slot) = self.slot_of(now, connection) else { return };
        let known = self.peers.find(address, slot);
        let partner = known.and_then(|id| Partners::partner(&mut self.peers, id));
        let instance = partner.map(|partner| partner.instance());
        let Some(manager) = self.connections.manager.as_mut() else { return };
        let Suspects(suspects) = &mut manager.suspects;
        let was_asked = suspects
            .iter()
            .any(|of| of.address == address && now.saturating_duration_since(of.asked) < ASK_AGAIN);
        suspects.retain(|of| of.connection != connection);
        if suspects.len() >= MAX_SUSPECTS {
            suspects.remove(0);
        }
        suspects.push(Suspect { connection, address, slot, instance, asked: now });
        if !was_asked {
            self.ask_address(address);
        }
        if slot > 0 {
            self.ask_slot(address, slot);
        }
    }

    /// The slot of a connection's peer, from its queue pair number. The connection may be suspected again.
    fn slot_of(&mut self, now: Instant, connection: ConnectionId) -> Option<u8> {
        let remote_qpn = |endpoint: &mut Endpoint, _: Instant| {
            endpoint.suspect_again(connection);
            endpoint.negotiated(connection).ok().and_then(|negotiated| negotiated.remote_qpn)
        };
        self.with_endpoint(now, remote_qpn).flatten().map(Qpn::slot)
    }

    /// Whoever is at an address has answered: a port of rnic by its hello, another host by refusing ours.
    pub(in crate::engine) fn judge_suspects(&mut self, now: Instant, address: IpAddr, hello: Option<&Hello>) {
        let Some(manager) = self.connections.manager.as_mut() else { return };
        let concerns = |of: &mut Suspect| {
            // Whoever shares an address out, at slot 0, says nothing about the processes that have the other slots.
            let says_something = hello.is_none_or(|hello| hello.slot > 0 || of.slot == 0);
            of.address == address && says_something
        };
        let judged: Vec<_> = manager.suspects.0.extract_if(.., concerns).collect();
        for suspect in judged {
            if !hello.is_some_and(|hello| suspect.is_of(hello)) {
                tracing::info!(peer = %address, "the peer has lost a connection: it is closed");
                // It may have ended meanwhile.
                self.with_endpoint(now, |endpoint, now| endpoint.confirm_stale(now, suspect.connection).ok());
            }
        }
    }
}
