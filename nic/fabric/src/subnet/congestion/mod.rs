//! Congestion control management: how switches mark packets, and how hosts slow down (IBTA volume 1, annex A10.4).
//!
//! What a subnet manager writes here is kept in the bytes of the packets that carry it. Switches mark by it, and hosts slow down by it.
//!
//! - `switch`: what is written for switches, and `host` what is written for hosts.
//! - `log`: what both log.

mod host;
mod log;
mod switch;

pub use log::{CongestionLog, LoggedEvent, LoggedKind};

use super::Subnet;
use super::mad::{DATA, Field, Mad, Refusal, class, method};
use super::tables::{HostCongestion, SwitchCongestion};
use super::walk::Place;
use crate::topology::NodeId;
use host::Host;
use log::Log;
use switch::Switch;
use time::Instant;

/// The numbers of attributes.
mod attribute {
    pub(super) const CLASS_PORT_INFO: u16 = 0x01;
    pub(super) const CONGESTION_INFO: u16 = 0x11;
    pub(super) const KEY_INFO: u16 = 0x12;
    pub(super) const LOG: u16 = 0x13;
    pub(super) const SWITCH_SETTING: u16 = 0x14;
    pub(super) const PORT_SETTING: u16 = 0x15;
    pub(super) const HOST_SETTING: u16 = 0x16;
    pub(super) const TABLE: u16 = 0x17;
    pub(super) const TIME_STAMP: u16 = 0x18;
}

/// The version of the class.
const VERSION: u8 = 2;

/// 4.096 us x 2^18: a second, as for performance management.
const RESPONSE_TIME: u64 = 18;

/// Where CongestionLog begins: no other attribute uses the log data in front of the others (A10.4.1).
const LOG_DATA: usize = 32;

/// Fields of CongestionKeyInfo (A10.4.3.3).
mod key {
    use super::Field;

    pub(super) const KEY: Field = Field(0, 64);
    pub(super) const PROTECTS: Field = Field(64, 1);
    pub(super) const LEASE: Field = Field(80, 16);
    pub(super) const VIOLATIONS: Field = Field(96, 16);
    pub(super) const LEN: usize = 14;
}

/// What congestion control knows of a node.
#[derive(Clone, Debug)]
pub(super) struct Control {
    key: [u8; key::LEN],
    switch: Switch,
    host: Host,
    log: Log,
}

impl Control {
    /// The state of a node with this many ports, the management port included.
    pub(super) fn new(ports: usize) -> Self {
        Self { key: [0; key::LEN], switch: Switch::new(ports), host: Host::default(), log: Log::default() }
    }

    fn knows(&self, request: &Mad) -> bool {
        let own = key::KEY.get(&self.key);
        own == 0 || own == request.key()
    }

    /// How a switch marks, if that was written.
    pub(super) fn marking(&self) -> Option<SwitchCongestion> {
        self.switch.marking()
    }

    /// How a port of a switch marks, if that is not how the switch does.
    pub(super) fn marking_of(&self, port: usize) -> Option<SwitchCongestion> {
        self.switch.marking_of(port).filter(|of| self.marking().as_ref() != Some(of))
    }

    /// How a host reacts to congestion, if that was written.
    pub(super) fn reaction(&self) -> Option<HostCongestion> {
        self.host.reaction()
    }

    /// Answers with an attribute, or writes it.
    fn serve(&mut self, now: Instant, mad: &mut Mad, is_switch: bool, is_set: bool) -> Result<(), Refusal> {
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
            attribute::LOG if !is_set => {
                let log = &mut mad.0[LOG_DATA..];
                log.fill(0);
                self.log.show(now, is_switch, log);
            }
            attribute::TIME_STAMP if !is_set => Field(0, 32).set(mad.data_mut(), log::stamp(now)),
            attribute::SWITCH_SETTING if is_switch => show(mad, self.switch.setting(written)),
            attribute::PORT_SETTING if is_switch => show(mad, &self.switch.ports(modifier, written)?),
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

impl Subnet {
    /// Whether a node hears a request of congestion control: a key (CC_Key) protects what is written, and what is read if it says
    /// so (A10.4.2). What is not heard is not answered, and counts. What is of no version that there is concerns no key: it is answered.
    pub(super) fn hears_congestion(&mut self, at: Place, request: &Mad) -> bool {
        if request.base_version() != 1 || request.class_version() != VERSION {
            return true;
        }
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
        let now = self.now;
        let node = self.nodes.get_mut(at.node).ok_or(Refusal::Attribute)?;
        let is_switch = node.switch.is_some();
        node.control.serve(now, mad, is_switch, is_set)?;
        self.version += u64::from(is_set);
        Ok(())
    }

    /// Takes over what a node has logged until now.
    pub fn set_log(&mut self, now: Instant, node: NodeId, log: CongestionLog) {
        self.now = now;
        if let Some(node) = self.nodes.get_mut(node) {
            node.control.log.own = log;
        }
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
        (request.0[0], request.0[2], request.0[3]) = (1, VERSION, method::SET);
        for expected in [0xFFFF, 0xFFFF] {
            assert!(!subnet.hears_congestion(Place { node: 0, port: 1 }, &request));
            assert_eq!(key::VIOLATIONS.get(&subnet.nodes[0].control.key), expected);
        }
    }
}
