//! What a sample is taken from: the one place that knows which counter goes where.

use super::{MAX_QPS, PortSample, QpSample, Sample};
use crate::port::{Io, Lane};
use qp::{QpType, QueuePair};
use std::time::Duration;

/// Looks at everything behind the lock of a port.
pub(crate) fn of(lane: &Lane, at: Duration) -> Sample {
    Sample { at, port: port(lane), qps: qps(lane), lanes: Vec::new() }
}

fn port(lane: &Lane) -> PortSample {
    let (port, qps) = (lane.engine.port_counters(), lane.engine.qp_counters());
    let overrun = match &lane.io {
        Io::Udp(udp) => udp.socket().counters().drops,
        Io::Sim { .. } => 0,
    };
    PortSample {
        tx_bytes: port.tx_bytes,
        rx_bytes: port.rx_bytes,
        tx_packets: port.tx_packets,
        rx_packets: port.rx_packets,
        rx_ce_packets: port.rx_ce_packets,
        retransmitted_packets: qps.retransmitted_pkts,
        dropped_packets: port.dropped_total() + overrun,
        ..PortSample::default()
    }
}

/// Queue pairs that have moved data, or could.
fn qps(lane: &Lane) -> Vec<QpSample> {
    let all = lane.engine.qps().filter(|qp| qp.config().qp_type != QpType::Gsi);
    let sampled = all.map(qp).filter(|qp| qp.label.is_some() || qp.sent_bytes + qp.received_bytes > 0);
    sampled.take(MAX_QPS).collect()
}

fn qp(qp: &QueuePair) -> QpSample {
    let counters = qp.counters();
    QpSample {
        qpn: qp.qpn().value(),
        label: qp.address_vector().map(|path| path.dgid.ip().to_string()),
        sent_bytes: counters.sent_bytes.saturating_sub(counters.retransmitted_bytes),
        received_bytes: counters.rcvd_bytes,
        ..QpSample::default()
    }
}
