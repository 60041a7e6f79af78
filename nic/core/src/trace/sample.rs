//! How a sample is taken: the one place that knows which counter goes where.

use super::{LaneSample, MAX_LANES, MAX_QPS, PortSample, QpSample, Sample};
use crate::engine::FlowState;
use crate::port::Datapath;
use qp::{QpType, QueuePair};
use time::{Duration, Instant};

/// Looks at everything behind the lock of a port, at `now`, which is `at` since the trace began. `overrun`: the datagrams
/// that the kernel dropped.
pub(crate) fn of(datapath: &mut Datapath, now: Instant, at: Duration, overrun: u64) -> Sample {
    Sample { at, port: port(datapath, overrun), qps: qps(datapath, now), lanes: lanes(datapath, now) }
}

fn port(datapath: &mut Datapath, overrun: u64) -> PortSample {
    let (port, qps) = (datapath.engine.port_counters(), datapath.engine.qp_counters());
    let link = datapath.link_stats().unwrap_or_default();
    // `None` where there is no queue.
    let queue_max = datapath.take_queue_peak();
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
fn qps(datapath: &Datapath, now: Instant) -> Vec<QpSample> {
    let all = datapath.engine.qps().filter(|qp| qp.config().qp_type != QpType::Gsi);
    let paced = |qp: &QueuePair| datapath.engine.flow(qp.qpn(), now);
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
fn lanes(datapath: &Datapath, now: Instant) -> Vec<LaneSample> {
    let credits = datapath.engine.credit_lanes(now).map(|lane| LaneSample {
        peer: lane.peer.to_string(),
        vl: lane.vl,
        credits: Some(lane.credits),
        stalls: lane.stalls,
        stalled: lane.stalled,
        paused: Duration::ZERO,
    });
    let pauses = datapath.engine.paused_priorities(now).map(|pause| LaneSample {
        peer: pause.peer.to_string(),
        vl: pause.priority,
        paused: pause.paused,
        ..LaneSample::default()
    });
    credits.chain(pauses).take(MAX_LANES).collect()
}
