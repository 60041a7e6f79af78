//! Modifying queue pairs, and connecting them to peers.

use super::Engine;
use super::explain::Explained;
use super::path::Path;
use super::schedule::Gate;
use qp::{ModifyError, QpAttr, QpState, Qpn};
use std::net::IpAddr;

impl Engine {
    /// Modifies the attributes and the state of a queue pair.
    ///
    /// # Errors
    /// [`ModifyError`]; nothing has changed in this case.
    pub fn modify_qp(&mut self, qpn: Qpn, attr: &QpAttr) -> Result<(), ModifyQpError> {
        let index = self.index(qpn).ok_or(ModifyQpError::NoSuchQueuePair(qpn))?;
        if self.has_failed() {
            return Err(ModifyQpError::DeviceFailed);
        }
        if let Some(av) = &attr.ah_attr {
            let ours = self.config.address;
            let theirs = av.dgid.ip();
            if !av.dgid.is_zero() && ours.is_ipv4() != theirs.is_ipv4() {
                return Err(ModifyQpError::Family { ours, theirs });
            }
        }
        self.collect(index);
        let limits = self.limits;
        let Some(entry) = self.qps[index].as_mut() else { return Err(ModifyQpError::NoSuchQueuePair(qpn)) };
        let before = entry.qp.state();
        entry.qp.modify(attr, &limits, &mut self.host.of(&entry.links, &entry.shared, &mut entry.taken))?;
        entry.shared.set_state(entry.qp.state());
        if entry.qp.failure().is_none() {
            entry.explained = Explained::default();
        }
        if attr.qp_state == Some(QpState::Reset) {
            self.host.regions.unbind_all_of(qpn);
        }
        // The index was checked against the limits, which match the table.
        if let Some(pkey) = attr.pkey_index.and_then(|index| self.config.pkeys.get(index)) {
            entry.qp.set_pkey(pkey);
        }
        if attr.qp_state == Some(QpState::Reset) {
            self.forget_flow(index);
        }
        if attr.ah_attr.is_some() {
            self.connect(index);
        }
        if let Some(state) = attr.qp_state {
            self.note_follower(qpn, Some(state));
        }
        self.note_state(index, before);
        self.settle(index);
        Ok(())
    }

    /// Applies the address vector that a queue pair was given.
    pub(super) fn connect(&mut self, index: usize) {
        let Some(entry) = self.qps[index].as_mut() else { return };
        let Some(av) = entry.qp.address_vector() else { return };
        let slot = entry.qp.dest_qpn().slot();
        let path = self.config.path_along(av, slot);
        self.disconnect(index);
        let peer = self.peers.join(path.ip.dst, slot);
        let Some(entry) = self.qps[index].as_mut() else { return };
        entry.qp.set_read_doublings(self.peers.get_mut(peer).read_doublings(entry.qp.mtu()));
        entry.path = Some(Path { peer: Some(peer), ..path });
        self.trust(peer);
    }

    /// Forgets the peer of a queue pair, and what the queue pair had in flight or waited for there.
    pub(super) fn disconnect(&mut self, index: usize) {
        self.forget_flow(index);
        let Some(entry) = self.qps[index].as_mut() else { return };
        let freed = entry.flights.clear();
        self.places.forget(index);
        if let Some(id) = entry.path.take().and_then(|path| path.peer) {
            self.peers.get_mut(id).window.give_back(freed);
            self.places.open(Gate::Window(id));
            self.peers.leave(id, &self.places);
        }
    }
}

/// Why a queue pair was not modified.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ModifyQpError {
    /// No queue pair has this number.
    #[error("there is no queue pair {0}")]
    NoSuchQueuePair(Qpn),
    /// The peer's address is of the other IP family.
    #[error("the port's address is {ours}, which cannot reach {theirs}: both must be IPv4 or both IPv6")]
    Family {
        /// Address of the port.
        ours: IpAddr,
        /// Address of the peer.
        theirs: IpAddr,
    },
    /// The device is permanently unusable.
    #[error("the device has failed: close it, and open it again")]
    DeviceFailed,
    /// Attributes are missing, too many or out of range.
    #[error(transparent)]
    Attributes(#[from] ModifyError),
}
