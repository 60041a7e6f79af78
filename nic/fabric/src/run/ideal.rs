//! The least time that a flow can take.

use crate::network::Fabric;
use crate::workload::{Flow, Operation, Service};
use qp::Mtu;
use rnic_core::link::wire_bytes;
use time::Duration;

/// Headers of a packet of a message, BTH to ICRC, and those of the first one of a WRITE, and an acknowledgement.
const HEADERS: u64 = 12 + 4;
const RETH: u64 = 16;
const ACKNOWLEDGEMENT: usize = 12 + 4 + 4;

/// The time from the first work request of a flow to its last completion in an empty fabric, if switches store and forward:
/// all packets leave the slowest cable of its way back to back, the last one goes on from there, and its acknowledgement
/// comes back. `None` if there is no way, or the flow has no end.
#[must_use]
pub fn ideal(fabric: &Fabric, flow: &Flow, mtu: u32) -> Option<Duration> {
    let bytes = flow.bytes?;
    let mtu = u64::from(Mtu::from_bytes(mtu).unwrap_or(Mtu::B4096).bytes());
    let packets = bytes.div_ceil(mtu).max(1);
    let last = bytes - (packets - 1) * mtu;
    let wire = |len: u64| u64::from(wire_bytes(usize::try_from(len).unwrap_or(usize::MAX), false));
    let first = if flow.common.operation == Operation::Write { RETH } else { 0 };
    let total = (packets - 1) * wire(mtu + HEADERS) + wire(last + HEADERS) + first;
    let way = fabric.way(flow.src, flow.dst)?;
    let slowest = way.iter().map(|(rate, _)| *rate).min()?;
    let mut time = slowest.time_for(total);
    for (rate, delay) in &way {
        time += *delay;
        // At every cable but the slowest the last packet is stored once more.
        time += rate.time_for(wire(last + HEADERS));
    }
    time = time.saturating_sub(slowest.time_for(wire(last + HEADERS)));
    if flow.common.service == Service::Rc {
        for (rate, delay) in fabric.way(flow.dst, flow.src)? {
            time += delay + rate.time_for(wire_bytes(ACKNOWLEDGEMENT, false).into());
        }
    }
    Some(time)
}
