//! Multicast groups: which queue pairs receive the datagrams sent to them.
//!
//! The engine tracks which queue pairs are attached to which group. The driver joins a group on the network when the
//! first queue pair of the port is attached, and leaves it when the last is detached.

use super::{DropReason, Engine, ResourceError};
use qp::wire::{IpHeader, Packet};
use qp::{Gid, QpType, Qpn};
use std::collections::BTreeMap;
use std::net::IpAddr;
use time::Instant;

/// Largest number of groups that queue pairs of a port can be attached to, as in Linux rxe.
pub(crate) const MAX_GROUPS: usize = 8192;
/// Largest number of queue pairs of a port that can be attached to one group, as in Linux rxe.
pub(crate) const MAX_ATTACHED: usize = 56;

/// The queue pairs attached to each group.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Table indices of queue pairs, in order of attachment.
    members: BTreeMap<IpAddr, Vec<usize>>,
}

impl Groups {
    /// The groups that a queue pair is attached to.
    pub(super) fn of(&self, index: usize) -> impl Iterator<Item = IpAddr> {
        self.members.iter().filter(move |(_, members)| members.contains(&index)).map(|(group, _)| *group)
    }
}

/// What attaching or detaching a queue pair means for the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Membership {
    /// The port joins the group, or leaves it.
    Changed,
    /// Other queue pairs of the port are attached to it.
    Same,
}

fn refused(group: Gid, why: &'static str) -> ResourceError {
    ResourceError::Multicast { group, why }
}

impl Engine {
    /// Attaches a queue pair to a group: from now on it receives a copy of every datagram sent to the group with its
    /// Q_Key. Attaching it again changes nothing, as on Linux.
    pub(crate) fn attach_mcast(&mut self, qpn: Qpn, gid: Gid) -> Result<Membership, ResourceError> {
        let index = self.index(qpn).ok_or(ResourceError::Unknown { what: "queue pair" })?;
        self.usable()?;
        let group = gid.ip();
        if !group.is_multicast() {
            return Err(refused(
                gid,
                "it is no multicast group, which are ::ffff:224.0.0.0/100 and ff00::/8",
            ));
        }
        if group.is_ipv4() != self.config.address.is_ipv4() {
            return Err(refused(gid, "it is of the other IP family than the port's address"));
        }
        if self.qp(qpn).is_some_and(|qp| qp.config().qp_type != QpType::Ud) {
            return Err(refused(gid, "only UD queue pairs can be (IBTA 10.5)"));
        }
        let groups = self.groups.members.len();
        let Some(members) = self.groups.members.get_mut(&group) else {
            if groups >= MAX_GROUPS {
                return Err(ResourceError::Exhausted { what: "multicast group", max: MAX_GROUPS });
            }
            self.groups.members.insert(group, vec![index]);
            return Ok(Membership::Changed);
        };
        if !members.contains(&index) {
            if members.len() >= MAX_ATTACHED {
                return Err(ResourceError::Exhausted { what: "place in the group", max: MAX_ATTACHED });
            }
            members.push(index);
        }
        Ok(Membership::Same)
    }

    /// Detaches a queue pair from a group.
    pub(crate) fn detach_mcast(&mut self, qpn: Qpn, gid: Gid) -> Result<Membership, ResourceError> {
        let index = self.index(qpn).ok_or(ResourceError::Unknown { what: "queue pair" })?;
        let not_attached = || refused(gid, "the queue pair is not attached to it");
        let group = gid.ip();
        let members = self.groups.members.get_mut(&group).ok_or_else(not_attached)?;
        let at = members.iter().position(|member| *member == index).ok_or_else(not_attached)?;
        members.remove(at);
        if !members.is_empty() {
            return Ok(Membership::Same);
        }
        self.groups.members.remove(&group);
        Ok(Membership::Changed)
    }

    /// The groups that a queue pair is attached to.
    pub(crate) fn groups_of(&self, qpn: Qpn) -> Vec<Gid> {
        self.index(qpn).map(|index| self.groups.of(index).map(Gid::from).collect()).unwrap_or_default()
    }

    /// Returns whether any queue pair is attached to a group.
    pub(crate) fn is_member(&self, group: IpAddr) -> bool {
        self.groups.members.contains_key(&group)
    }

    /// Delivers a copy to every attached queue pair (IBTA 10.5). Each decides for itself whether to accept it; the
    /// packet as a whole is dropped if none does.
    pub(super) fn deliver_to_group(
        &mut self,
        now: Instant,
        arrival: &IpHeader,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        // A group is named twice: by its address, and by the queue pair number that stands for all members (IBTA 10.5).
        if packet.dest_qpn() != Qpn::MULTICAST || !arrival.dst.is_multicast() {
            return Err(DropReason::NoGroup);
        }
        let (mut taken, mut refused) = (0, None);
        let mut place = 0;
        // The list is looked up again for each copy, because delivery needs the whole engine.
        while let Some(index) =
            self.groups.members.get(&arrival.dst).and_then(|members| members.get(place).copied())
        {
            place += 1;
            match self.deliver(now, index, arrival, packet) {
                Ok(()) => taken += 1,
                Err(reason) => {
                    refused.get_or_insert(reason);
                }
            }
        }
        if taken == 0 {
            return Err(refused.unwrap_or(DropReason::NoGroup));
        }
        self.counters.mcast_copies += taken;
        self.counters.mcast_copies_refused += place as u64 - taken;
        Ok(())
    }
}
