//! Algorithms that depend on acknowledgements.

use super::*;
use crate::WcStatus;

/// Writes this many bytes from `a` to `b`; returns the sender's rate at the end, and the number of acknowledgements
/// with BECN.
fn write(net: &Net, a: &Device, b: &Device, messages: u64) -> Result<(Rate, usize)> {
    let log = Log::of(b);
    let (left, right) = RcEnd::pair(a, b)?;
    let (from, to) = memory(&left, &right, 1 << 16)?;
    for id in 0..messages {
        left.qp.write(id, from.all(), to.remote(0))?;
    }
    for _ in 0..messages {
        assert_eq!(left.wait()?.status, WcStatus::Success);
    }
    assert!(net.run_until_idle(Duration::from_secs(1)));
    let echoes = log.sent(|s| s.opcode == Opcode::RcAcknowledge && s.becn).len();
    assert_eq!(counters(b).np_cnp_sent, 0);
    Ok((left.qp.rate().expect("it has sent"), echoes))
}

const LINE: Rate = Rate::from_gbps(10);

#[test]
fn timely_goes_by_the_time_of_acknowledgements() -> Result<()> {
    let rate_at = |latency| {
        let net = Net::new();
        net.set_latency(latency);
        let a = device(&net, "a", &RateConfig { foreign_cnp: false, ..algorithm("timely") });
        write(&net, &a, &net.named_device("b"), 60)
    };
    assert_eq!(rate_at(us(1))?, (LINE, 0), "12 us there and back");
    let (far, echoes) = rate_at(us(600))?;
    assert!(far < Rate::from_gbps(8) && echoes == 0, "beyond t_high: {far}");
    Ok(())
}

#[test]
fn dctcp_goes_by_marks_that_acknowledgements_return() -> Result<()> {
    let rate_with = |marks: Option<&str>, receiver: &RateConfig| {
        let net = Net::new();
        let (a, b) = (device(&net, "a", &algorithm("dctcp")), device(&net, "b", receiver));
        if let Some(marks) = marks {
            b.add_fault(marks)?;
        }
        write(&net, &a, &b, 60)
    };
    let dctcp = algorithm("dctcp");
    assert_eq!(rate_with(None, &dctcp)?, (LINE, 0), "no marks");
    assert_eq!(rate_with(Some("rx data mark ce"), &RateConfig::default())?, (LINE, 0), "nobody returns them");
    let quiet = RateConfig { foreign_cnp: false, ..dctcp.clone() };
    assert_eq!(rate_with(Some("rx data mark ce"), &quiet)?, (LINE, 0), "not to a foreign peer");
    let (rate, echoes) = rate_with(Some("rx data mark ce"), &dctcp)?;
    assert!(rate < Rate::from_gbps(5) && echoes > 10, "{rate}, {echoes}");
    // One mark yields one acknowledgement that returns it.
    assert_eq!(rate_with(Some("rx data nth=20 mark ce"), &dctcp)?.1, 1);
    Ok(())
}

#[test]
fn what_gets_no_acknowledgements_sends_at_the_rate_of_the_port() -> Result<()> {
    let net = Net::new();
    let (a, b) = (device(&net, "a", &algorithm("timely")), net.named_device("b"));
    net.set_latency(Duration::from_millis(1));
    let [(left, from), (_right, to)] = unreliable(&a, &b, QpType::Uc)?;
    left.write(1, from.slice(0..100_000)?, to.remote(0))?;
    assert!(net.run_until_idle(Duration::from_secs(1)));
    assert_eq!(left.rate(), Some(LINE));
    Ok(())
}

/// What the algorithm allows is in flight and no more, every acknowledgement makes room, and nobody is stuck when the last one
/// is lost.
#[test]
fn a_congestion_window_bounds_what_is_in_flight() -> Result<()> {
    // The window stays at two packets.
    let two = "swift:max_cwnd=2,min_cwnd=2,base_target=1000";
    for fault in [None, Some("rx ack nth=3 drop"), Some("rx ack p=0.2 drop")] {
        let net = Net::new();
        net.set_latency(us(50));
        let (a, b) = (device(&net, "a", &algorithm(two)), net.named_device("b"));
        if let Some(fault) = fault {
            a.add_fault(fault)?;
        }
        let log = Log::of(&a);
        let options = ConnectOptions { timeout: 8, ..ConnectOptions::default() };
        let (left, right) = RcEnd::pair_with(&a, &b, &options)?;
        let (from, to) = memory(&left, &right, 1 << 16)?;
        for id in 0..4 {
            left.qp.write(id, from.all(), to.remote(0))?;
        }
        let mut most = 0;
        for _ in 0..4 {
            while left.cq().is_empty() && net.step() {
                let psns = a.inner.port.inspect(|engine| {
                    engine.qp(left.qp.qpn()).map(|qp| qp.next_psn().distance_from(qp.unacked_psn()))
                });
                most = most.max(psns.flatten().expect("it is there"));
            }
            assert_eq!(left.wait()?.status, WcStatus::Success);
        }
        assert_eq!(most, 2, "with {fault:?}");
        assert!(counters(&a).congestion_stalls >= 16, "with {fault:?}: {}", counters(&a).congestion_stalls);
        assert!(log.sent(|s| s.size > 4000).len() >= 64);
    }
    Ok(())
}

/// A queue pair whose window is shut still acknowledges. Otherwise two that send to each other would each wait for the other.
#[test]
fn answers_do_not_wait_for_a_congestion_window() -> Result<()> {
    let net = Net::new();
    let (a, b) = (device(&net, "a", &algorithm("swift:max_cwnd=1,min_cwnd=1")), net.named_device("b"));
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (from, to) = memory(&left, &right, 1 << 16)?;
    let (back, there) = (right.pd().register(8, Access::LOCAL_WRITE)?, left.register_remote(8)?);
    // Its own acknowledgements do not arrive.
    a.add_fault("rx ack drop for 20ms")?;
    left.qp.write(1, from.all(), to.remote(0))?;
    net.run_for(us(100));
    assert!(counters(&a).congestion_stalls > 0);
    // Those that it sends do.
    a.clear_faults();
    b.add_fault("tx ack drop for 20ms")?;
    right.qp.read(2, back.all(), there.remote(0))?;
    assert_eq!(right.wait()?.status, WcStatus::Success);
    assert!(net.elapsed() < us(200), "{:?}", net.elapsed());
    Ok(())
}

/// A peer that answers nothing is given up as early as without a window.
#[test]
fn a_congestion_window_does_not_delay_the_end_of_the_retries() -> Result<()> {
    let ends = |text: &str| -> Result<Duration> {
        let net = Net::new();
        let (a, b) = (device(&net, "a", &algorithm(text)), net.named_device("b"));
        b.add_fault("rx data drop")?;
        let options = ConnectOptions { timeout: 8, retry_cnt: 3, ..ConnectOptions::default() };
        let (left, right) = RcEnd::pair_with(&a, &b, &options)?;
        let (from, to) = memory(&left, &right, 1 << 16)?;
        left.qp.write(1, from.all(), to.remote(0))?;
        assert_eq!(left.wait()?.status, WcStatus::RetryExcErr);
        Ok(net.elapsed())
    };
    let without = ends("off")?;
    for text in ["swift", "swift:base_target=20", "nscc", "swift:max_cwnd=1,min_cwnd=1"] {
        let with = ends(text)?;
        assert!(with < without + us(100), "{text}: {with:?}, {without:?} without");
    }
    Ok(())
}

/// A round-trip time above the target shuts the window of Swift; marks that come back do with NSCC, and raise the index of
/// InfiniBand.
#[test]
fn windows_follow_their_signals() -> Result<()> {
    let run = |text: &str, latency: Duration, marks: bool| -> Result<(u64, Option<Rate>)> {
        let net = Net::new();
        net.set_latency(latency);
        let (a, b) = (device(&net, "a", &algorithm(text)), device(&net, "b", &algorithm(text)));
        if marks {
            b.add_fault("rx data mark ce")?;
        }
        let (left, right) = RcEnd::pair(&a, &b)?;
        let (from, to) = memory(&left, &right, 1 << 16)?;
        for id in 0..200 {
            left.qp.write(id, from.all(), to.remote(0))?;
            assert_eq!(left.wait()?.status, WcStatus::Success);
        }
        Ok((counters(&a).congestion_stalls, left.qp.rate()))
    };
    let swift = "swift:base_target=200,fs_range=1";
    assert_eq!(run(swift, us(1), false)?, (0, Some(LINE)), "below its target");
    assert!(run(swift, us(200), false)?.1 < Some(LINE), "above it, it ends with less than a packet");
    let nscc = "nscc:rtt=100,target=0.1";
    assert_eq!(run(nscc, us(1), false)?.0, 0, "no marks");
    assert!(run(nscc, us(80), true)?.0 > 10, "marks and delay");
    assert_eq!(run("ibcc", us(1), false)?.1, Some(LINE), "no marks");
    assert!(run("ibcc", us(1), true)?.1.is_some_and(|rate| rate < LINE), "marks");
    Ok(())
}

/// With selective repeat no NAK and no timeout tells of a loss: the requester finds it, and congestion control hears of it.
#[test]
fn a_loss_that_selective_repeat_finds_counts() -> Result<()> {
    let window_after = |fault: Option<&str>| -> Result<u32> {
        let net = Net::new();
        net.set_latency(us(20));
        let port = |name: &str| {
            let partner = PartnerSetup::offering(true);
            let rate = algorithm("swift:base_target=1000,max_cwnd=8");
            let name = Some(name.to_owned());
            net.device_with(&DeviceSetup { name, rate, partner, ..DeviceSetup::default() })
        };
        let (a, b) = (port("a")?, port("b")?);
        let (left, right) = RcEnd::pair(&a, &b)?;
        let (from, to) = memory(&left, &right, 1 << 16)?;
        // They meet.
        left.qp.write(0, from.slice(0..64)?, to.remote(0))?;
        assert_eq!(left.wait()?.status, WcStatus::Success);
        assert!(net.run_until_idle(Duration::from_secs(1)));
        if let Some(fault) = fault {
            a.add_fault(fault)?;
        }
        for id in 1..4 {
            left.qp.write(id, from.all(), to.remote(0))?;
        }
        for _ in 1..4 {
            assert_eq!(left.wait()?.status, WcStatus::Success);
        }
        let counters = left.qp.counters();
        assert_eq!(
            (counters.retransmitted_pkts, counters.local_ack_timeout_err),
            (u64::from(fault.is_some()), 0)
        );
        // What leaves before the first acknowledgement comes fills the window.
        left.qp.write(4, from.all(), to.remote(0))?;
        net.run_for(us(35));
        let flying = a.inner.port.inspect(|engine| engine.qp(left.qp.qpn()).map(qp::QueuePair::in_flight));
        Ok(flying.flatten().expect("it is there"))
    };
    let (whole, cut) = (window_after(None)?, window_after(Some("tx data nth=44 drop"))?);
    assert!(whole == 8 && cut < 7, "{cut} after a loss, {whole} without");
    Ok(())
}
