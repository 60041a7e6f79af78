//! How a sample is taken: the one place that knows which counter goes where.

use super::{LaneSample, MAX_LANES, MAX_QPS, PortSample, QpSample, Sample};
use crate::engine::FlowState;
use crate::port::{Io, Lane};
use qp::{QpType, QueuePair};
use std::time::{Duration, Instant};

/// Looks at everything behind the lock of a port, at `now`, which is `at` since the trace began.
pub(crate) fn of(lane: &mut Lane, now: Instant, at: Duration) -> Sample {
    Sample { at, port: port(lane), qps: qps(lane, now), lanes: lanes(lane, now) }
}

fn port(lane: &mut Lane) -> PortSample {
    let (port, qps) = (lane.engine.port_counters(), lane.engine.qp_counters());
    let overrun = match &lane.io {
        Io::Udp(udp) => udp.socket().counters().drops,
        Io::Sim { .. } => 0,
    };
    let link = lane.link_stats().unwrap_or_default();
    // `None` where there is no queue.
    let queue_max = lane.take_queue_peak();
    PortSample {
        tx_bytes: port.tx_bytes,
        rx_bytes: port.rx_bytes,
        tx_packets: port.tx_packets,
        rx_packets: port.rx_packets,
        rx_ce_packets: port.np_ecn_marked_roce_packets,
        np_cnp_sent: port.np_cnp_sent,
        rp_cnp_handled: port.rp_cnp_handled,
        rp_cnp_ignored: port.rp_cnp_ignored,
        queue_bytes: queue_max.map(|_| link.queue_bytes),
        queue_max,
        link_marked: link.marked,
        link_dropped: link.dropped + link.receiver_overrun,
        retransmitted_packets: qps.retransmitted_pkts,
        dropped_packets: port.dropped_total() + overrun,
    }
}

/// Queue pairs that have moved data, or could.
fn qps(lane: &Lane, now: Instant) -> Vec<QpSample> {
    let all = lane.engine.qps().filter(|qp| qp.config().qp_type != QpType::Gsi);
    let paced = |qp: &QueuePair| lane.engine.flow(qp.qpn(), now);
    let sampled = all
        .map(|pair| qp(pair, paced(pair)))
        .filter(|qp| qp.label.is_some() || qp.sent_bytes + qp.received_bytes > 0);
    sampled.take(MAX_QPS).collect()
}

fn qp(qp: &QueuePair, flow: Option<FlowState>) -> QpSample {
    let counters = qp.counters();
    QpSample {
        qpn: qp.qpn().value(),
        label: qp.address_vector().map(|path| path.dgid.ip().to_string()),
        sent_bytes: counters.sent_bytes.saturating_sub(counters.retransmitted_bytes),
        received_bytes: counters.rcvd_bytes,
        rate: flow.map(|flow| flow.rate.bits_per_second()),
        target_rate: flow.and_then(|flow| flow.target_rate).map(cc::Rate::bits_per_second),
        alpha: flow.and_then(|flow| flow.alpha),
    }
}

/// Lanes with credits towards partners, and priorities that a partner has paused.
fn lanes(lane: &Lane, now: Instant) -> Vec<LaneSample> {
    let credits = lane.engine.credit_lanes(now).map(|lane| LaneSample {
        peer: lane.peer.to_string(),
        vl: lane.vl,
        credits: Some(lane.credits),
        stalls: lane.stalls,
        stalled: lane.stalled,
        paused: Duration::ZERO,
    });
    let pauses = lane.engine.paused_priorities(now).map(|pause| LaneSample {
        peer: pause.peer.to_string(),
        vl: pause.priority,
        paused: pause.paused,
        ..LaneSample::default()
    });
    credits.chain(pauses).take(MAX_LANES).collect()
}
