//! PortInfo: what a port is like, and in which state it is (IBTA volume 1, section 14.2.5.6).

use super::Verb;
use crate::subnet::Subnet;
use crate::subnet::mad::{FIRST_GROUP_LID, Field, Refusal, SMP_DATA_LEN};
use crate::subnet::node::{info, physical, state};
use crate::subnet::walk::Place;

/// What is written as it comes, at every port.
const PLAIN: [Field; 8] = [
    info::NEIGHBOUR_MTU,
    info::HIGH_LIMIT,
    info::STALL_COUNT,
    info::HOQ_LIFE,
    info::ENFORCEMENT,
    info::VIOLATIONS,
    info::ERROR_THRESHOLDS,
    info::SM_SL,
];

/// What belongs to an address, at hosts and management ports of switches.
const ADDRESSED: [Field; 8] = [
    info::M_KEY,
    info::M_KEY_PROTECTION,
    info::GID_PREFIX,
    info::LID,
    info::SM_LID,
    info::M_KEY_LEASE,
    info::LMC,
    info::SUBNET_TIMEOUT,
];

/// What is written unless it is 0, which means no change.
const UNLESS_ZERO: [Field; 5] = [
    info::WIDTH_ENABLED,
    info::SPEED_ENABLED,
    info::EXTENDED_ENABLED,
    info::DOWN_DEFAULT,
    info::OPERATIONAL_VLS,
];

impl Subnet {
    pub(super) fn port_info(
        &mut self,
        at: Place,
        verb: Verb,
        modifier: u32,
        request: &[u8; SMP_DATA_LEN],
    ) -> Result<[u8; SMP_DATA_LEN], Refusal> {
        // Bit 31: the sender knows extended speeds.
        let number = u8::try_from(modifier & 0x7FFF_FFFF).map_err(|_| Refusal::Field)?;
        let is_switch = self.is_switch_at(at);
        let number = if number == 0 && !is_switch { at.port } else { number };
        let target = Place { node: at.node, port: number };
        if !is_switch && number == 0 {
            return Err(Refusal::Field);
        }
        let port = self.port(target).ok_or(Refusal::Field)?;
        if verb == Verb::Set {
            check(&port.info, request)?;
            self.check_states(target, request)?;
            self.write(target, request);
        }
        let port = self.port(target).ok_or(Refusal::Field)?;
        let mut data = port.info;
        info::LOCAL_PORT.set(&mut data, at.port.into());
        Ok(data)
    }

    /// Whether the states that are asked for can follow those that are: a link is armed after it was initialized and active
    /// after it was armed, and its other end is one step behind at most (section 7.2.7).
    fn check_states(&self, at: Place, request: &[u8]) -> Result<(), Refusal> {
        let wire = info::PHYSICAL_STATE.get(request);
        if !matches!(wire, 0 | physical::POLLING | physical::DISABLED) && !self.is_wire(at, wire) {
            return Err(Refusal::Field);
        }
        let asked = info::STATE.get(request);
        let Some(port) = self.port(at) else { return Err(Refusal::Field) };
        let now = port.state();
        match asked {
            0 | state::DOWN => Ok(()),
            _ if wire != 0 && wire != physical::LINK_UP => Err(Refusal::Field),
            state::ARMED | state::ACTIVE if asked == now => Ok(()),
            state::ARMED | state::ACTIVE if now + 1 == asked => {
                let far = port.peer.and_then(|(node, port)| self.port(Place { node, port }));
                let is_near = far.is_none_or(|far| far.state().abs_diff(asked) <= 1);
                if is_near { Ok(()) } else { Err(Refusal::Field) }
            }
            _ => Err(Refusal::Field),
        }
    }

    fn is_wire(&self, at: Place, wire: u64) -> bool {
        self.port(at).is_some_and(|port| info::PHYSICAL_STATE.get(&port.info) == wire)
    }

    /// Writes what may be written. It has been checked.
    fn write(&mut self, at: Place, request: &[u8]) {
        let is_addressed = self.nodes.get(at.node).is_some_and(|node| node.own_port() == at.port);
        if info::REREGISTER.get(request) == 1 {
            self.forget_groups(at.node);
        }
        let Some(port) = self.port_mut(at) else { return };
        PLAIN.iter().for_each(|field| field.copy(request, &mut port.info));
        if is_addressed {
            ADDRESSED.iter().for_each(|field| field.copy(request, &mut port.info));
        }
        for field in UNLESS_ZERO {
            match field.get(request) {
                0 => {}
                // All ones: all that are supported.
                all if all == (1 << field.1) - 1 => {
                    let supported = match field {
                        info::WIDTH_ENABLED => info::WIDTH_SUPPORTED,
                        info::SPEED_ENABLED => info::SPEED_SUPPORTED,
                        info::EXTENDED_ENABLED => info::EXTENDED_SUPPORTED,
                        _ => continue,
                    };
                    let value = supported.get(&port.info);
                    field.set(&mut port.info, value);
                }
                value => field.set(&mut port.info, value),
            }
        }
        let (asked, wire) = (info::STATE.get(request), info::PHYSICAL_STATE.get(request));
        let restarts = asked == state::DOWN || matches!(wire, physical::POLLING | physical::DISABLED);
        if matches!(asked, state::ARMED | state::ACTIVE) {
            info::STATE.set(&mut port.info, asked);
        }
        self.version += 1;
        if restarts {
            let wire = if matches!(wire, physical::POLLING | physical::DISABLED) { wire } else { 0 };
            self.restart(at, wire);
        }
    }
}

/// Whether the values can be.
fn check(now: &[u8], request: &[u8]) -> Result<(), Refusal> {
    let lid = info::LID.get(request);
    let many = 1 << info::LMC.get(request);
    let is_address = lid == 0 || lid + many <= FIRST_GROUP_LID.into();
    let mtu = info::NEIGHBOUR_MTU.get(request);
    let lanes = info::OPERATIONAL_VLS.get(request);
    let enabled = [
        (info::WIDTH_ENABLED, info::WIDTH_SUPPORTED),
        (info::SPEED_ENABLED, info::SPEED_SUPPORTED),
        (info::EXTENDED_ENABLED, info::EXTENDED_SUPPORTED),
    ];
    let is_supported = |(enabled, supported): &(Field, Field)| {
        let value = enabled.get(request);
        value == (1 << enabled.1) - 1 || value & !supported.get(now) == 0
    };
    let is_possible = is_address
        && (1..=info::MTU_CAP.get(now)).contains(&mtu)
        && lanes <= info::VL_CAP.get(now)
        && enabled.iter().all(is_supported);
    if is_possible { Ok(()) } else { Err(Refusal::Field) }
}
