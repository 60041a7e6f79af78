//! Lanes of service levels, and turns of lanes (IBTA volume 1, sections 14.2.5.8 and 14.2.5.9).

use super::Verb;
use crate::subnet::Subnet;
use crate::subnet::mad::{Refusal, SMP_DATA_LEN};
use crate::subnet::walk::Place;

impl Subnet {
    /// The lanes of all service levels, for packets that come in through one port and leave through another. Hosts have one
    /// such table.
    pub(super) fn sl_to_vl(
        &mut self,
        at: Place,
        verb: Verb,
        modifier: u32,
        request: &[u8; SMP_DATA_LEN],
    ) -> Result<[u8; SMP_DATA_LEN], Refusal> {
        let (port, out) = if self.is_switch_at(at) {
            let [.., entry, out] = modifier.to_be_bytes();
            (entry, usize::from(out))
        } else {
            (at.port, 0)
        };
        let port = self.port_mut(Place { node: at.node, port }).ok_or(Refusal::Field)?;
        let lanes = port.lanes.get_mut(out).ok_or(Refusal::Field)?;
        if verb == Verb::Set {
            lanes.copy_from_slice(&request[..8]);
        }
        let mut data = [0; SMP_DATA_LEN];
        data[..8].copy_from_slice(lanes);
        self.version += u64::from(verb == Verb::Set);
        Ok(data)
    }

    /// Half of one of the two tables by which a port gives turns to lanes.
    pub(super) fn vl_arbitration(
        &mut self,
        at: Place,
        verb: Verb,
        modifier: u32,
        request: &[u8; SMP_DATA_LEN],
    ) -> Result<[u8; SMP_DATA_LEN], Refusal> {
        let (block, port) = (modifier >> 16, modifier & 0xFFFF);
        let port =
            if self.is_switch_at(at) { u8::try_from(port).map_err(|_| Refusal::Field)? } else { at.port };
        let block = (block as usize).checked_sub(1).ok_or(Refusal::Field)?;
        let port = self.port_mut(Place { node: at.node, port }).ok_or(Refusal::Field)?;
        let table = port.arbitration.get_mut(block).ok_or(Refusal::Field)?;
        if verb == Verb::Set {
            table.copy_from_slice(request);
        }
        let data = *table;
        self.version += u64::from(verb == Verb::Set);
        Ok(data)
    }
}
