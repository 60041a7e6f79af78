//! What the agent of a node knows: its identity, its ports and its tables.
//!
//! Attributes are kept in the bytes of the packets that carry them. For the rest of this room.

use super::congestion::Control;
use super::mad::{Field, SMP_DATA_LEN};
use super::performance::Counters;
use crate::topology::NodeId;

/// The highest LID of a host or a switch plus one: what a linear forwarding table holds.
pub(super) const LINEAR_CAP: u16 = 0xC000;

/// The entries of a multicast forwarding table: our choice, that of many switches (from memory).
pub(super) const MULTICAST_CAP: u16 = 1024;

/// The P_Keys of a port.
pub(super) const PKEYS: usize = 32;

/// The entries of an arbitration table.
pub(super) const ARBITRATION: u8 = 64;

/// Port masks of 16 ports for each group: 256 ports.
pub(super) const MASKS: usize = 16;

/// An entry of a linear forwarding table that leads nowhere.
pub(super) const NO_PORT: u8 = 0xFF;

/// Fields of PortInfo (IBTA volume 1, section 14.2.5.6).
pub(super) mod info {
    use super::Field;

    pub(in crate::subnet) const M_KEY: Field = Field(0, 64);
    pub(in crate::subnet) const GID_PREFIX: Field = Field(64, 64);
    pub(in crate::subnet) const LID: Field = Field(128, 16);
    pub(in crate::subnet) const SM_LID: Field = Field(144, 16);
    pub(in crate::subnet) const CAPABILITIES: Field = Field(160, 32);
    pub(in crate::subnet) const M_KEY_LEASE: Field = Field(208, 16);
    pub(in crate::subnet) const LOCAL_PORT: Field = Field(224, 8);
    pub(in crate::subnet) const WIDTH_ENABLED: Field = Field(232, 8);
    pub(in crate::subnet) const WIDTH_SUPPORTED: Field = Field(240, 8);
    pub(in crate::subnet) const WIDTH_ACTIVE: Field = Field(248, 8);
    pub(in crate::subnet) const SPEED_SUPPORTED: Field = Field(256, 4);
    pub(in crate::subnet) const STATE: Field = Field(260, 4);
    pub(in crate::subnet) const PHYSICAL_STATE: Field = Field(264, 4);
    pub(in crate::subnet) const DOWN_DEFAULT: Field = Field(268, 4);
    pub(in crate::subnet) const M_KEY_PROTECTION: Field = Field(272, 2);
    pub(in crate::subnet) const LMC: Field = Field(277, 3);
    pub(in crate::subnet) const SPEED_ACTIVE: Field = Field(280, 4);
    pub(in crate::subnet) const SPEED_ENABLED: Field = Field(284, 4);
    pub(in crate::subnet) const NEIGHBOUR_MTU: Field = Field(288, 4);
    pub(in crate::subnet) const SM_SL: Field = Field(292, 4);
    pub(in crate::subnet) const VL_CAP: Field = Field(296, 4);
    pub(in crate::subnet) const HIGH_LIMIT: Field = Field(304, 8);
    pub(in crate::subnet) const ARBITRATION_HIGH: Field = Field(312, 8);
    pub(in crate::subnet) const ARBITRATION_LOW: Field = Field(320, 8);
    pub(in crate::subnet) const MTU_CAP: Field = Field(332, 4);
    pub(in crate::subnet) const STALL_COUNT: Field = Field(336, 3);
    pub(in crate::subnet) const HOQ_LIFE: Field = Field(339, 5);
    pub(in crate::subnet) const OPERATIONAL_VLS: Field = Field(344, 4);
    pub(in crate::subnet) const ENFORCEMENT: Field = Field(348, 4);
    pub(in crate::subnet) const VIOLATIONS: Field = Field(352, 48);
    pub(in crate::subnet) const M_KEY_VIOLATIONS: Field = Field(352, 16);
    pub(in crate::subnet) const GUID_CAP: Field = Field(400, 8);
    pub(in crate::subnet) const REREGISTER: Field = Field(408, 1);
    pub(in crate::subnet) const SUBNET_TIMEOUT: Field = Field(411, 5);
    pub(in crate::subnet) const RESPONSE_TIME: Field = Field(419, 5);
    pub(in crate::subnet) const ERROR_THRESHOLDS: Field = Field(424, 8);
    pub(in crate::subnet) const CAPABILITIES_2: Field = Field(480, 16);
    pub(in crate::subnet) const EXTENDED_ACTIVE: Field = Field(496, 4);
    pub(in crate::subnet) const EXTENDED_SUPPORTED: Field = Field(500, 4);
    pub(in crate::subnet) const EXTENDED_ENABLED: Field = Field(507, 5);
}

/// States of a port (PortInfo.PortState).
pub(super) mod state {
    pub(in crate::subnet) const DOWN: u64 = 1;
    pub(in crate::subnet) const INIT: u64 = 2;
    pub(in crate::subnet) const ARMED: u64 = 3;
    pub(in crate::subnet) const ACTIVE: u64 = 4;
}

/// States of a wire (PortInfo.PortPhysicalState).
pub(super) mod physical {
    pub(in crate::subnet) const POLLING: u64 = 2;
    pub(in crate::subnet) const DISABLED: u64 = 3;
    pub(in crate::subnet) const LINK_UP: u64 = 5;
}

/// A port of a node.
#[derive(Clone, Debug)]
pub(super) struct Port {
    /// The cable at it, and the node and the port at the other end. None for the management port of a switch.
    pub(super) cable: Option<usize>,
    pub(super) peer: Option<(NodeId, u8)>,
    /// PortInfo.
    pub(super) info: [u8; SMP_DATA_LEN],
    pub(super) pkeys: [u16; PKEYS],
    /// SLtoVLMappingTable, by the port through which packets leave: 16 nibbles each. A host has one.
    pub(super) lanes: Vec<[u8; 8]>,
    /// VLArbitrationTable: two blocks of low and two of high priority, of 32 pairs of lane and weight.
    pub(super) arbitration: [[u8; 64]; 4],
    pub(super) counters: Counters,
}

impl Port {
    pub(super) fn state(&self) -> u64 {
        info::STATE.get(&self.info)
    }

    pub(super) fn set_state(&mut self, state: u64, physical: u64) {
        info::STATE.set(&mut self.info, state);
        info::PHYSICAL_STATE.set(&mut self.info, physical);
    }

    pub(super) fn lid(&self) -> u16 {
        info::LID.get(&self.info) as u16
    }

    pub(super) fn lmc(&self) -> u8 {
        info::LMC.get(&self.info) as u8
    }

    /// Whether a LID is one of this port's.
    pub(super) fn has_lid(&self, lid: u16) -> bool {
        let own = self.lid();
        own != 0 && lid >= own && lid - own < 1 << self.lmc()
    }
}

/// What only switches have.
#[derive(Clone, Debug)]
pub(super) struct Switch {
    /// SwitchInfo.
    pub(super) info: [u8; SMP_DATA_LEN],
    /// The linear forwarding table, as far as it was written.
    pub(super) linear: Vec<u8>,
    /// The multicast forwarding table, as far as it was written: the ports of each group, one bit each.
    pub(super) multicast: Vec<[u16; MASKS]>,
}

/// Fields of SwitchInfo (IBTA volume 1, section 14.2.5.4).
pub(super) mod switch_info {
    use super::Field;

    pub(in crate::subnet) const LINEAR_CAP: Field = Field(0, 16);
    pub(in crate::subnet) const MULTICAST_CAP: Field = Field(32, 16);
    pub(in crate::subnet) const LINEAR_TOP: Field = Field(48, 16);
    pub(in crate::subnet) const DEFAULT_PORTS: Field = Field(64, 24);
    pub(in crate::subnet) const LIFE_TIME: Field = Field(88, 5);
    pub(in crate::subnet) const STATE_CHANGE: Field = Field(93, 1);
    pub(in crate::subnet) const ENFORCEMENT_CAP: Field = Field(112, 16);
    pub(in crate::subnet) const MULTICAST_TOP: Field = Field(144, 16);
}

impl Switch {
    /// The port to which the table sends a LID; nothing beyond its top.
    pub(super) fn port_to(&self, lid: u16) -> Option<u8> {
        if u64::from(lid) > switch_info::LINEAR_TOP.get(&self.info) {
            return None;
        }
        self.linear.get(usize::from(lid)).copied().filter(|port| *port != NO_PORT)
    }
}

/// A node, as its agent knows it.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) guid: u64,
    /// By port number. Port 0 of a switch is its management port; port 0 of a host is not there, and stands for its only one.
    pub(super) ports: Vec<Port>,
    pub(super) switch: Option<Switch>,
    pub(super) control: Control,
}

impl Node {
    /// The number of its ports, without a management port.
    pub(super) fn port_count(&self) -> u8 {
        u8::try_from(self.ports.len().saturating_sub(1)).unwrap_or(u8::MAX)
    }

    /// The GUID of a port: that of a switch is the same for all.
    pub(super) fn port_guid(&self, port: u8) -> u64 {
        if self.switch.is_some() { self.guid } else { self.guid + u64::from(port) }
    }

    /// The port that has the LIDs: the management port of a switch.
    pub(super) const fn own_port(&self) -> u8 {
        if self.switch.is_some() { 0 } else { 1 }
    }
}
