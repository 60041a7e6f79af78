//! Congestion control management: how switches mark packets, and how hosts slow down (IBTA volume 1, annex A10.4).
//!
//! What a subnet manager writes here is kept in the bytes of the packets that carry it. Switches mark by it, and hosts slow down by it.
//!
//! - `host`: what is written for hosts.

mod host;

use super::Subnet;
use super::mad::{DATA, Field, Mad, Refusal, class, method};
use super::tables::HostCongestion;
use super::walk::Place;
use host::Host;

/// The numbers of attributes.
mod attribute {
    pub(super) const CLASS_PORT_INFO: u16 = 0x01;
    pub(super) const CONGESTION_INFO: u16 = 0x11;
    pub(super) const KEY_INFO: u16 = 0x12;
    pub(super) const SWITCH_SETTING: u16 = 0x14;
    pub(super) const HOST_SETTING: u16 = 0x16;
    pub(super) const TABLE: u16 = 0x17;
}

/// The version of the class.
const VERSION: u8 = 2;

/// 4.096 us x 2^18: a second, as for performance management.
const RESPONSE_TIME: u64 = 18;

/// Bytes of SwitchCongestionSetting.
const SWITCH_LEN: usize = 4 + 2 * 32 + 8;

/// Fields of CongestionKeyInfo (A10.4.3.3).
mod key {
    use super::Field;

    pub(super) const KEY: Field = Field(0, 64);
    pub(super) const PROTECTS: Field = Field(64, 1);
    pub(super) const LEASE: Field = Field(80, 16);
    pub(super) const VIOLATIONS: Field = Field(96, 16);
    pub(super) const LEN: usize = 14;
}

/// Fields of SwitchCongestionSetting (A10.4.3.6): bits of the first one say which of the others have a meaning.
mod setting {
    use super::Field;

    pub(super) const HAS_THRESHOLD: Field = Field(29, 1);
    pub(super) const HAS_RATE: Field = Field(27, 1);
    pub(super) const THRESHOLD: Field = Field(544, 4);
    pub(super) const PACKET_SIZE: Field = Field(552, 8);
    pub(super) const MARKING_RATE: Field = Field(592, 16);
}

/// What congestion control knows of a node.
#[derive(Clone, Debug)]
pub(super) struct Control {
    key: [u8; key::LEN],
    switch: [u8; SWITCH_LEN],
    host: Host,
}

impl Default for Control {
    fn default() -> Self {
        Self { key: [0; key::LEN], switch: [0; SWITCH_LEN], host: Host::default() }
    }
}

impl Control {
    fn knows(&self, request: &Mad) -> bool {
        let own = key::KEY.get(&self.key);
        own == 0 || own == request.key()
    }

    /// How a switch marks, if that was written: its threshold, its least packet, and the packets between two marks.
    pub(super) fn marking(&self) -> Option<(u8, u8, u16)> {
        let field = |field: Field| field.get(&self.switch);
        let rate = if field(setting::HAS_RATE) == 1 { field(setting::MARKING_RATE) as u16 } else { 0 };
        (field(setting::HAS_THRESHOLD) == 1)
            .then(|| (field(setting::THRESHOLD) as u8, field(setting::PACKET_SIZE) as u8, rate))
    }

    /// How a host reacts to congestion, if that was written.
    pub(super) fn reaction(&self) -> Option<HostCongestion> {
        self.host.reaction()
    }

    /// Answers with an attribute, or writes it.
    fn serve(&mut self, mad: &mut Mad, is_switch: bool, is_set: bool) -> Result<(), Refusal> {
        let request = mad.0;
        let request = &request[DATA..];
        let written = is_set.then_some(request);
        let modifier = mad.modifier() as usize;
        let data = mad.data_mut();
        data.fill(0);
        match mad.attribute() {
            attribute::CLASS_PORT_INFO if !is_set => {
                let data = mad.data_mut();
                Field(0, 8).set(data, 1);
                Field(8, 8).set(data, VERSION.into());
                Field(59, 5).set(data, RESPONSE_TIME);
            }
            // Switches have no table.
            attribute::CONGESTION_INFO if !is_set => {
                Field(16, 8).set(mad.data_mut(), if is_switch { 0 } else { host::BLOCKS as u64 });
            }
            attribute::KEY_INFO => {
                if is_set {
                    [key::KEY, key::PROTECTS, key::LEASE]
                        .iter()
                        .for_each(|field| field.copy(request, &mut self.key));
                    // Only 0 is written there.
                    if key::VIOLATIONS.get(request) == 0 {
                        key::VIOLATIONS.set(&mut self.key, 0);
                    }
                }
                let shows = is_set || self.knows(mad);
                mad.data_mut()[..key::LEN].copy_from_slice(&self.key);
                if !shows {
                    key::KEY.set(mad.data_mut(), 0);
                }
            }
            attribute::SWITCH_SETTING if is_switch => keep(&mut self.switch, mad, request, is_set),
            attribute::HOST_SETTING if !is_switch => show(mad, self.host.setting(written)),
            attribute::TABLE if !is_switch => show(mad, &self.host.table(modifier, written)?),
            _ => return Err(Refusal::Attribute),
        }
        Ok(())
    }
}

/// Answers with an attribute.
fn show(mad: &mut Mad, attribute: &[u8]) {
    mad.data_mut()[..attribute.len()].copy_from_slice(attribute);
}

/// Answers with bytes, which may be written before.
fn keep(own: &mut [u8], mad: &mut Mad, request: &[u8], is_set: bool) {
    let len = own.len();
    if is_set {
        own.copy_from_slice(&request[..len]);
    }
    mad.data_mut()[..len].copy_from_slice(own);
}

impl Subnet {
    /// Whether a node hears a request of congestion control: a key (CC_Key) protects what is written, and what is read if it says
    /// so (A10.4.2). What is not heard is not answered, and counts.
    pub(super) fn hears_congestion(&mut self, at: Place, request: &Mad) -> bool {
        let Some(node) = self.nodes.get_mut(at.node) else { return false };
        let control = &mut node.control;
        let may_read = key::PROTECTS.get(&control.key) == 0;
        if control.knows(request) || request.method() == method::GET && may_read {
            return true;
        }
        let violations = key::VIOLATIONS.get(&control.key);
        key::VIOLATIONS.saturate(&mut control.key, violations + 1);
        false
    }

    /// The agent of a node answers a request of congestion control.
    pub(super) fn serve_congestion(&mut self, at: Place, mad: &mut Mad) -> Result<(), Refusal> {
        if mad.base_version() != 1
            || mad.class() != class::CONGESTION_CONTROL
            || mad.class_version() != VERSION
        {
            return Err(Refusal::Class);
        }
        let is_set = match mad.method() {
            method::GET => false,
            method::SET => true,
            _ => return Err(Refusal::Method),
        };
        let node = self.nodes.get_mut(at.node).ok_or(Refusal::Attribute)?;
        let is_switch = node.switch.is_some();
        node.control.serve(mad, is_switch, is_set)?;
        self.version += u64::from(is_set);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody can write the counter but to clear it, so the test begins near to its end.
    #[test]
    fn violations_stop_at_their_highest() {
        let text = "kind = \"leaf-spine\"\nleaves = 1\nspines = 1\nhosts_per_leaf = 1\n";
        let config: crate::topology::config::Config = toml::from_str(text).expect("a topology");
        let topology = config.build(std::path::Path::new(".")).expect("it can be built");
        let mut subnet = Subnet::new(&topology).expect("it fits");
        key::KEY.set(&mut subnet.nodes[0].control.key, 7);
        key::VIOLATIONS.set(&mut subnet.nodes[0].control.key, 0xFFFE);
        let mut request = Mad::new([0; super::super::mad::MAD_LEN]);
        request.0[3] = method::SET;
        for expected in [0xFFFF, 0xFFFF] {
            assert!(!subnet.hears_congestion(Place { node: 0, port: 1 }, &request));
            assert_eq!(key::VIOLATIONS.get(&subnet.nodes[0].control.key), expected);
        }
    }
}
