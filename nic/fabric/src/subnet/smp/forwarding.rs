//! The forwarding tables of switches (IBTA volume 1, sections 14.2.5.10 and 14.2.5.12).

use super::Verb;
use crate::subnet::Subnet;
use crate::subnet::mad::{Refusal, SMP_DATA_LEN};
use crate::subnet::node::{LINEAR_CAP, MASKS, MULTICAST_CAP, NO_PORT};
use crate::subnet::walk::Place;

/// Groups of a block.
const GROUPS: usize = SMP_DATA_LEN / 2;

impl Subnet {
    /// 64 entries of the linear table: the port of each LID.
    pub(super) fn linear_forwarding(
        &mut self,
        at: Place,
        verb: Verb,
        modifier: u32,
        request: &[u8; SMP_DATA_LEN],
    ) -> Result<[u8; SMP_DATA_LEN], Refusal> {
        let switch = self.nodes.get_mut(at.node).and_then(|node| node.switch.as_mut());
        let switch = switch.ok_or(Refusal::Attribute)?;
        let first = usize::try_from(modifier).ok().and_then(|block| block.checked_mul(SMP_DATA_LEN));
        let first = first.filter(|first| *first < usize::from(LINEAR_CAP)).ok_or(Refusal::Field)?;
        if verb == Verb::Set {
            let end = first + SMP_DATA_LEN;
            if switch.linear.len() < end {
                switch.linear.resize(end, NO_PORT);
            }
            switch.linear[first..end].copy_from_slice(request);
            self.version += 1;
        }
        let mut data = [NO_PORT; SMP_DATA_LEN];
        let switch =
            self.nodes.get(at.node).and_then(|node| node.switch.as_ref()).ok_or(Refusal::Attribute)?;
        data.iter_mut().zip(switch.linear.iter().skip(first)).for_each(|(to, from)| *to = *from);
        Ok(data)
    }

    /// 32 entries of the multicast table: 16 ports of each group.
    pub(super) fn multicast_forwarding(
        &mut self,
        at: Place,
        verb: Verb,
        modifier: u32,
        request: &[u8; SMP_DATA_LEN],
    ) -> Result<[u8; SMP_DATA_LEN], Refusal> {
        let switch = self.nodes.get_mut(at.node).and_then(|node| node.switch.as_mut());
        let switch = switch.ok_or(Refusal::Attribute)?;
        let (block, mask) = ((modifier & 0x1FF) as usize, (modifier >> 28) as usize);
        let first = block * GROUPS;
        if first >= usize::from(MULTICAST_CAP) || mask >= MASKS {
            return Err(Refusal::Field);
        }
        if verb == Verb::Set {
            if switch.multicast.len() < first + GROUPS {
                switch.multicast.resize(first + GROUPS, [0; MASKS]);
            }
            for (group, bytes) in switch.multicast[first..].iter_mut().zip(request.chunks_exact(2)) {
                group[mask] = u16::from_be_bytes([bytes[0], bytes[1]]);
            }
            self.version += 1;
        }
        let mut data = [0; SMP_DATA_LEN];
        let switch =
            self.nodes.get(at.node).and_then(|node| node.switch.as_ref()).ok_or(Refusal::Attribute)?;
        for (bytes, group) in data.chunks_exact_mut(2).zip(switch.multicast.iter().skip(first)) {
            bytes.copy_from_slice(&group[mask].to_be_bytes());
        }
        Ok(data)
    }
}
