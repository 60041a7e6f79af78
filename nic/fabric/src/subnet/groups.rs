//! Multicast groups: hosts join them at subnet administration, which gives each a LID (IBTA volume 1, section 15.2.5.17).
//!
//! The kernel of a host does that when a queue pair of it is attached to a group. Here the groups are those of the scenario. What
//! subnet administration makes of it is in the multicast tables that the subnet manager writes.

use super::Subnet;
use super::mad::{FIRST_GROUP_LID, Field, HOSTS, MAD_LEN, Mad, PERMISSIVE_LID, SA_DATA, class, method};
use super::node::{info, state};
use super::walk::Place;
use crate::topology::NodeId;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// The attribute MCMemberRecord.
const MEMBER_RECORD: u16 = 0x38;

/// The version of the class.
const VERSION: u8 = 2;

/// Where a request says which fields of the record have a meaning.
const COMPONENT_MASK: Field = Field(48 * 8, 64);

/// MGID, PortGID, Q_Key, TClass, P_Key, SL, FlowLabel and JoinState: what a group needs that is new.
const COMPONENTS: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13 | 1 << 16;

/// Fields of the record.
mod record {
    use super::Field;

    pub(super) const GID_HIGH: Field = Field(0, 64);
    pub(super) const GID_LOW: Field = Field(64, 64);
    pub(super) const PORT_PREFIX: Field = Field(128, 64);
    pub(super) const PORT_GUID: Field = Field(192, 64);
    pub(super) const Q_KEY: Field = Field(256, 32);
    pub(super) const LID: Field = Field(288, 16);
    pub(super) const P_KEY: Field = Field(320, 16);
    pub(super) const JOIN_STATE: Field = Field(388, 4);
}

/// A group that lasts as long as it has members, and belongs to a site (section 4.1.1): its lower half is that of the GID by which
/// RoCE knows the group.
const GID_HIGH: u64 = 0xFF15_0000_0000_0000;
const GID_LOW: u64 = 0x0000_FFFF_0000_0000;

/// The Q_Key with which hosts send to a group, that of `rnic_collectives`.
const Q_KEY: u64 = 0x5244_5543;

/// The P_Key of the default partition, for full members, and a full member of the group.
const P_KEY: u64 = 0xFFFF;
const FULL_MEMBER: u64 = 1;

/// A host that is to be a member of a group.
#[derive(Clone, Debug)]
pub(super) struct Member {
    node: NodeId,
    group: Ipv4Addr,
    /// The LID of the group, once subnet administration has said it.
    lid: Option<u16>,
    is_due: bool,
}

impl Subnet {
    /// Has a host join a multicast group as soon as there is subnet administration.
    pub fn join(&mut self, node: NodeId, group: Ipv4Addr) {
        self.members.push(Member { node, group, lid: None, is_due: false });
    }

    /// The LIDs of the groups that hosts have joined.
    #[must_use]
    pub fn groups(&self) -> BTreeMap<Ipv4Addr, u16> {
        self.members.iter().filter_map(|member| Some((member.group, member.lid?))).collect()
    }

    /// A subnet manager has the clients of a host register again: it knows nothing of them.
    pub(super) fn forget_groups(&mut self, node: NodeId) {
        self.members.iter_mut().filter(|member| member.node == node).for_each(|member| member.lid = None);
    }

    /// Hosts that have had no answer ask again.
    pub(super) fn repeat_joins(&mut self) {
        self.members.iter_mut().for_each(|member| member.is_due = member.lid.is_none());
    }

    /// A request that is due: where it begins, the LID of the subnet manager, and the datagram.
    pub(super) fn poll_join(&mut self) -> Option<(Place, u16, Mad)> {
        while let Some(number) = self.members.iter().position(|member| member.is_due) {
            let member = self.members.get_mut(number)?;
            member.is_due = false;
            let (node, group) = (member.node, member.group);
            let Some(of) = self.nodes.get(node) else { continue };
            let at = Place { node, port: of.own_port() };
            let Some(port) = self.port(at).filter(|port| port.state() == state::ACTIVE) else { continue };
            let mut mad = Mad([0; MAD_LEN]);
            mad.0[..4].copy_from_slice(&[1, class::SUBNET_ADMINISTRATION, VERSION, method::SET]);
            mad.set_half(16, MEMBER_RECORD);
            mad.set_transaction(number as u64 + 1);
            mad.set_slot(HOSTS);
            COMPONENT_MASK.set(&mut mad.0, COMPONENTS);
            let fields = [
                (record::GID_HIGH, GID_HIGH),
                (record::GID_LOW, GID_LOW | u64::from(group.to_bits())),
                (record::PORT_PREFIX, info::GID_PREFIX.get(&port.info)),
                (record::PORT_GUID, of.port_guid(at.port)),
                (record::Q_KEY, Q_KEY),
                (record::P_KEY, P_KEY),
                (record::JOIN_STATE, FULL_MEMBER),
            ];
            fields.iter().for_each(|(field, value)| field.set(&mut mad.0[SA_DATA..], *value));
            return Some((at, info::SM_LID.get(&port.info) as u16, mad));
        }
        None
    }

    /// Subnet administration answers a host.
    pub(super) fn joined(&mut self, at: Place, answer: &Mad) {
        let number = (answer.transaction() as u32).checked_sub(1);
        let member = number.and_then(|number| self.members.get_mut(number as usize));
        let lid = record::LID.get(&answer.0[SA_DATA..]) as u16;
        // An answer without a multicast LID grants nothing: no table can lead there, and the host would stop asking.
        let is_granted = answer.class() == class::SUBNET_ADMINISTRATION
            && answer.attribute() == MEMBER_RECORD
            && answer.status() == 0
            && (FIRST_GROUP_LID..PERMISSIVE_LID).contains(&lid);
        if let Some(member) = member.filter(|member| is_granted && member.node == at.node) {
            member.lid = Some(lid);
            self.version += 1;
        }
    }
}
