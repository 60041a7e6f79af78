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
