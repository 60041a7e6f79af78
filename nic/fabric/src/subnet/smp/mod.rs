//! The attributes of subnet management (IBTA volume 1, section 14.2.5). `serve_smp` is for `clients`.

mod forwarding;
mod key;
mod lanes;
mod port;

use super::Subnet;
use super::mad::{Field, Mad, Refusal, SMP_DATA_LEN, method};
use super::node::{MULTICAST_CAP, PKEYS, info, switch_info};
use super::walk::Place;

/// The numbers of attributes.
pub(super) mod attribute {
    pub(in crate::subnet) const NOTICE: u16 = 0x02;
    pub(in crate::subnet) const NODE_DESCRIPTION: u16 = 0x10;
    pub(in crate::subnet) const NODE_INFO: u16 = 0x11;
    pub(in crate::subnet) const SWITCH_INFO: u16 = 0x12;
    pub(in crate::subnet) const GUID_INFO: u16 = 0x14;
    pub(in crate::subnet) const PORT_INFO: u16 = 0x15;
    pub(in crate::subnet) const P_KEY_TABLE: u16 = 0x16;
    pub(in crate::subnet) const SL_TO_VL: u16 = 0x17;
    pub(in crate::subnet) const VL_ARBITRATION: u16 = 0x18;
    pub(in crate::subnet) const LINEAR_FORWARDING: u16 = 0x19;
    pub(in crate::subnet) const MULTICAST_FORWARDING: u16 = 0x1B;
    pub(in crate::subnet) const SM_INFO: u16 = 0x20;
}

/// Whose device a node is: the numbers of a vendor that does not exist (locally administered, like the GUIDs).
const VENDOR: u64 = 0x02_0000;
const HOST_DEVICE: u64 = 1;
const SWITCH_DEVICE: u64 = 2;

/// What a request asks of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Get,
    Set,
}

impl Subnet {
    /// The agent of a node answers a request, which came in through this port: the attribute in it is replaced.
    pub(super) fn serve_smp(&mut self, at: Place, mad: &mut Mad) -> Result<(), Refusal> {
        if mad.base_version() != 1 || mad.class_version() != 1 {
            return Err(Refusal::Class);
        }
        let verb = match mad.method() {
            method::GET => Verb::Get,
            method::SET => Verb::Set,
            _ => return Err(Refusal::Method),
        };
        let (number, modifier) = (mad.attribute(), mad.modifier());
        let mut data = [0; SMP_DATA_LEN];
        data.copy_from_slice(&mad.data()[..SMP_DATA_LEN]);
        let known = match number {
            attribute::NODE_DESCRIPTION | attribute::NODE_INFO | attribute::GUID_INFO
                if verb == Verb::Set =>
            {
                return Err(Refusal::Attribute);
            }
            attribute::NODE_DESCRIPTION => self.node_description(at),
            attribute::NODE_INFO => self.node_info(at),
            attribute::GUID_INFO => self.guid_info(at, modifier),
            attribute::SWITCH_INFO => self.switch_info(at, verb, &data),
            attribute::PORT_INFO => self.port_info(at, verb, modifier, &data),
            attribute::P_KEY_TABLE => self.p_keys(at, verb, modifier, &data),
            attribute::SL_TO_VL => self.sl_to_vl(at, verb, modifier, &data),
            attribute::VL_ARBITRATION => self.vl_arbitration(at, verb, modifier, &data),
            attribute::LINEAR_FORWARDING => self.linear_forwarding(at, verb, modifier, &data),
            attribute::MULTICAST_FORWARDING => self.multicast_forwarding(at, verb, modifier, &data),
            _ => return Err(Refusal::Attribute),
        };
        let mut known = known?;
        // The answer to a Set shows the key: the sender knew the old one, and has just chosen this one.
        if number == attribute::PORT_INFO && verb == Verb::Get && !self.shows_key(at, mad) {
            info::M_KEY.set(&mut known, 0);
        }
        mad.data_mut()[..SMP_DATA_LEN].copy_from_slice(&known);
        Ok(())
    }

    /// The name of the node, as text (section 14.2.5.2).
    fn node_description(&self, at: Place) -> Result<[u8; SMP_DATA_LEN], Refusal> {
        let node = self.nodes.get(at.node).ok_or(Refusal::Attribute)?;
        let mut data = [0; SMP_DATA_LEN];
        // One byte less than there is room for: some programs want a zero at the end.
        for (to, from) in
            data.iter_mut().take(SMP_DATA_LEN - 1).zip(description(&node.name, node.switch.is_none()).bytes())
        {
            *to = from;
        }
        Ok(data)
    }

    /// Section 14.2.5.3.
    pub(super) fn node_info(&self, at: Place) -> Result<[u8; SMP_DATA_LEN], Refusal> {
        let node = self.nodes.get(at.node).ok_or(Refusal::Attribute)?;
        let is_switch = node.switch.is_some();
        let fields = [
            (Field(0, 8), 1),
            (Field(8, 8), 1),
            (Field(16, 8), if is_switch { 2 } else { 1 }),
            (Field(24, 8), node.port_count().into()),
            (Field(32, 64), node.guid),
            (Field(96, 64), node.guid),
            (Field(160, 64), node.port_guid(at.port)),
            (Field(224, 16), PKEYS as u64),
            (Field(240, 16), if is_switch { SWITCH_DEVICE } else { HOST_DEVICE }),
            (Field(256, 32), 1),
            (Field(288, 8), at.port.into()),
            (Field(296, 24), VENDOR),
        ];
        let mut data = [0; SMP_DATA_LEN];
        fields.iter().for_each(|(field, value)| field.set(&mut data, *value));
        Ok(data)
    }

    /// The GUIDs of a port in blocks of eight: it has one (section 14.2.5.5).
    fn guid_info(&self, at: Place, modifier: u32) -> Result<[u8; SMP_DATA_LEN], Refusal> {
        let node = self.nodes.get(at.node).ok_or(Refusal::Attribute)?;
        if modifier != 0 {
            return Err(Refusal::Field);
        }
        let mut data = [0; SMP_DATA_LEN];
        Field(0, 64).set(&mut data, node.port_guid(at.port));
        Ok(data)
    }

    /// Section 14.2.5.4.
    fn switch_info(
        &mut self,
        at: Place,
        verb: Verb,
        request: &[u8; SMP_DATA_LEN],
    ) -> Result<[u8; SMP_DATA_LEN], Refusal> {
        let switch = self.nodes.get_mut(at.node).and_then(|node| node.switch.as_mut());
        let switch = switch.ok_or(Refusal::Attribute)?;
        if verb == Verb::Set {
            if switch_info::LINEAR_TOP.get(request) >= switch_info::LINEAR_CAP.get(&switch.info) {
                return Err(Refusal::Field);
            }
            let first = u64::from(super::mad::FIRST_GROUP_LID);
            let group_top = switch_info::MULTICAST_TOP.get(request);
            // Below the groups: there are none (IBTA volume 1, 14.2.5.4; 0xBFFF is how a manager writes that).
            if group_top >= first + u64::from(MULTICAST_CAP) {
                return Err(Refusal::Field);
            }
            let written = [
                switch_info::LINEAR_TOP,
                switch_info::DEFAULT_PORTS,
                switch_info::LIFE_TIME,
                switch_info::MULTICAST_TOP,
            ];
            written.iter().for_each(|field| field.copy(request, &mut switch.info));
            // Writing 1 clears it, and 0 leaves it.
            if switch_info::STATE_CHANGE.get(request) == 1 {
                switch_info::STATE_CHANGE.set(&mut switch.info, 0);
            }
            self.version += 1;
        }
        let switch = self.nodes.get(at.node).and_then(|node| node.switch.as_ref());
        switch.map(|switch| switch.info).ok_or(Refusal::Attribute)
    }

    /// The P_Keys of a port in blocks of 32 (section 14.2.5.7).
    fn p_keys(
        &mut self,
        at: Place,
        verb: Verb,
        modifier: u32,
        request: &[u8; SMP_DATA_LEN],
    ) -> Result<[u8; SMP_DATA_LEN], Refusal> {
        let (port, block) = ((modifier >> 16) as u16, modifier & 0xFFFF);
        let is_switch = self.is_switch_at(at);
        let port = match u8::try_from(port) {
            Ok(port) if is_switch => port,
            _ if !is_switch => at.port,
            _ => return Err(Refusal::Field),
        };
        if block as usize >= PKEYS / 32 {
            return Err(Refusal::Field);
        }
        let port = self.port_mut(Place { node: at.node, port }).ok_or(Refusal::Field)?;
        if verb == Verb::Set {
            for (key, bytes) in port.pkeys.iter_mut().zip(request.chunks_exact(2)) {
                *key = u16::from_be_bytes([bytes[0], bytes[1]]);
            }
        }
        let mut data = [0; SMP_DATA_LEN];
        for (bytes, key) in data.chunks_exact_mut(2).zip(&port.pkeys) {
            bytes.copy_from_slice(&key.to_be_bytes());
        }
        Ok(data)
    }

    fn is_switch_at(&self, at: Place) -> bool {
        self.nodes.get(at.node).is_some_and(|node| node.switch.is_some())
    }
}

/// What a node calls itself: a host names its device, as the drivers of Linux do.
pub(super) fn description(name: &str, is_host: bool) -> String {
    if is_host { format!("{name} rnic0") } else { name.to_owned() }
}
