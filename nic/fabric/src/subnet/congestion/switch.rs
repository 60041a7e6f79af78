//! What is written for switches: which packets they mark (SwitchCongestionSetting and SwitchPortCongestionSetting).
//!
//! A setting of the switch is one of all its ports, and a setting of a port one of that port alone: what was written last holds.

use super::super::mad::{Field, Refusal};
use super::super::tables::SwitchCongestion;
use std::ops::Range;

/// Bytes of SwitchCongestionSetting.
const SETTING_LEN: usize = 4 + 2 * 32 + 8;

/// SwitchPortCongestionSetting is written in blocks of 32 ports.
const BLOCK: usize = 32;
pub(super) const BLOCK_LEN: usize = BLOCK * ELEMENT_LEN;
const ELEMENT_LEN: usize = 4;

/// Fields of SwitchCongestionSetting (A10.4.3.6): bits of the first one say which of the others are written.
mod setting {
    use super::{Field, Range};

    pub(super) const CONTROL_MAP: Field = Field(0, 32);
    pub(super) const HAS_THRESHOLD: Field = Field(29, 1);
    pub(super) const HAS_RATE: Field = Field(27, 1);
    pub(super) const THRESHOLD: Field = Field(544, 4);
    pub(super) const PACKET_SIZE: Field = Field(552, 8);
    pub(super) const MARKING_RATE: Field = Field(592, 16);

    /// By bit of the map, from the lowest: the bytes of the component. Victim_Mask, Credit_Mask, Threshold and Packet_Size,
    /// CS_Threshold and CS_ReturnDelay, and Marking_Rate.
    pub(super) const COMPONENTS: [Range<usize>; 5] = [4..36, 36..68, 68..70, 70..74, 74..76];
}

/// Fields of SwitchPortCongestionSettingElement (A10.4.3.7).
mod element {
    use super::Field;

    pub(super) const VALID: Field = Field(0, 1);
    /// 1 for credit starvation.
    pub(super) const CONTROL_TYPE: Field = Field(1, 1);
    pub(super) const THRESHOLD: Field = Field(4, 4);
    pub(super) const PACKET_SIZE: Field = Field(8, 8);
    pub(super) const MARKING_RATE: Field = Field(16, 16);
}

/// What congestion control knows of a switch.
#[derive(Clone, Debug)]
pub(super) struct Switch {
    setting: [u8; SETTING_LEN],
    /// By port, from the management port.
    ports: Vec<[u8; ELEMENT_LEN]>,
}

impl Switch {
    pub(super) fn new(ports: usize) -> Self {
        Self { setting: [0; SETTING_LEN], ports: vec![[0; ELEMENT_LEN]; ports] }
    }

    /// SwitchCongestionSetting: the attribute, which may be written before. What its map does not name stays.
    pub(super) fn setting(&mut self, written: Option<&[u8]>) -> &[u8] {
        let Some(written) = written else { return &self.setting };
        let map = setting::CONTROL_MAP.get(written);
        for (_, bytes) in setting::COMPONENTS.into_iter().enumerate().filter(|(bit, _)| map >> bit & 1 == 1) {
            self.setting[bytes.clone()].copy_from_slice(&written[bytes]);
        }
        let all = setting::CONTROL_MAP.get(&self.setting) | map;
        setting::CONTROL_MAP.set(&mut self.setting, all);
        for port in &mut self.ports {
            if setting::HAS_THRESHOLD.get(written) == 1 {
                element::VALID.set(port, 1);
                element::THRESHOLD.set(port, setting::THRESHOLD.get(written));
                element::PACKET_SIZE.set(port, setting::PACKET_SIZE.get(written));
            }
            if setting::HAS_RATE.get(written) == 1 {
                element::MARKING_RATE.set(port, setting::MARKING_RATE.get(written));
            }
        }
        &self.setting
    }

    /// A block of SwitchPortCongestionSetting: the attribute, which may be written before. Elements that are not valid leave their
    /// ports as they are.
    pub(super) fn ports(&mut self, block: usize, written: Option<&[u8]>) -> Result<[u8; BLOCK_LEN], Refusal> {
        let ports = self.ports.chunks_mut(BLOCK).nth(block).ok_or(Refusal::Field)?;
        if let Some(written) = written {
            let elements = written[..BLOCK_LEN].chunks_exact(ELEMENT_LEN).enumerate();
            let valid = elements.filter(|(_, of)| element::VALID.get(of) == 1);
            // There is no such port, or no credit starvation.
            let is_wrong =
                |(port, of): (usize, &[u8])| port >= ports.len() || element::CONTROL_TYPE.get(of) == 1;
            if valid.clone().any(is_wrong) {
                return Err(Refusal::Field);
            }
            valid.for_each(|(port, of)| ports[port].copy_from_slice(of));
        }
        let mut attribute = [0; BLOCK_LEN];
        attribute[..ports.as_flattened().len()].copy_from_slice(ports.as_flattened());
        Ok(attribute)
    }

    /// How all ports mark, if that was written for the switch.
    pub(super) fn marking(&self) -> Option<SwitchCongestion> {
        let field = |field: Field| field.get(&self.setting);
        (field(setting::HAS_THRESHOLD) == 1).then(|| SwitchCongestion {
            threshold: field(setting::THRESHOLD) as u8,
            packet_size: field(setting::PACKET_SIZE) as u8,
            marking_rate: field(setting::MARKING_RATE) as u16,
        })
    }

    /// How a port marks, if its threshold was written, for it alone or for all.
    pub(super) fn marking_of(&self, port: usize) -> Option<SwitchCongestion> {
        let of = self.ports.get(port).filter(|of| element::VALID.get(*of) == 1)?;
        Some(SwitchCongestion {
            threshold: element::THRESHOLD.get(of) as u8,
            packet_size: element::PACKET_SIZE.get(of) as u8,
            marking_rate: element::MARKING_RATE.get(of) as u16,
        })
    }
}
