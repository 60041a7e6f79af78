//! Management keys: whose requests an agent hears (IBTA volume 1, section 14.2.4).
//!
//! A port without a key (0) hears everybody. With one it hears those who name it, and others only as far as its protection says:
//! level 0 lets them read all, level 1 all but the key itself, and from level 2 on nothing. What is not heard is not answered, and
//! counts in M_KeyViolations, and a trap (256) tells the subnet manager. A lease of a key never ends here, as virtual time is held.

use crate::subnet::Subnet;
use crate::subnet::mad::{Mad, method};
use crate::subnet::node::{Port, info};
use crate::subnet::walk::Place;

/// From this level on, those who do not know the key may not read.
const CLOSED: u64 = 2;

impl Subnet {
    /// The port whose key protects a node: the management port of a switch.
    fn guard(&mut self, at: Place) -> Option<&mut Port> {
        let port = self.nodes.get(at.node)?.own_port();
        self.port_mut(Place { node: at.node, port })
    }

    /// Whether the agent of a node hears a request, which came from this LID. If not, it counts, and tells the subnet manager.
    pub(in crate::subnet) fn hears(&mut self, at: Place, from: u16, request: &Mad) -> bool {
        let Some(port) = self.guard(at) else { return false };
        let may_read = info::M_KEY_PROTECTION.get(&port.info) < CLOSED;
        if knows(port, request) || request.method() == method::GET && may_read {
            return true;
        }
        let violations = info::M_KEY_VIOLATIONS.get(&port.info);
        info::M_KEY_VIOLATIONS.saturate(&mut port.info, violations + 1);
        self.tell_of_key(at.node, from, request);
        false
    }

    /// Whether an answer may show the key.
    pub(super) fn shows_key(&mut self, at: Place, request: &Mad) -> bool {
        self.guard(at).is_some_and(|port| knows(port, request) || info::M_KEY_PROTECTION.get(&port.info) == 0)
    }
}

/// Whether a request has the right to everything.
fn knows(port: &Port, request: &Mad) -> bool {
    let key = info::M_KEY.get(&port.info);
    key == 0 || key == request.key()
}
