//! Congestion control that a manager writes while queue pairs send.

use super::*;
use crate::WcStatus;
use cc::ibcc::{Config, LEVELS, Level, Reaction};

const LINE: Rate = Rate::from_gbps(10);

/// A BECN raises the index by one, for the rest of a test: entry i of the table pauses for i packets.
fn managed(by_level: bool) -> Policy {
    let level = Level { ccti_timer: u16::MAX, ccti_increase: 1, ..Level::default() };
    let reaction = Reaction { by_level, levels: [level; LEVELS], table: (0..64).map(f64::from).collect() };
    Policy::managed(LINE, &Config { becn_interval: 0, ..Config::default() }, Arc::new(reaction))
}

/// Two ports with this policy, whose peers obey.
fn ports(policy: Option<Policy>) -> (Net, Device, Device) {
    let net = Net::new();
    let rate = RateConfig { policy, foreign_cnp: true, ..RateConfig::default() };
    let (a, b) = (device(&net, "a", &rate), device(&net, "b", &rate));
    (net, a, b)
}

/// A connection whose packets have this service level.
fn connection(a: &Device, b: &Device, level: u8) -> Result<(RcEnd, RcEnd)> {
    let options = ConnectOptions { traffic_class: level << 5, ..ConnectOptions::default() };
    RcEnd::pair_with(a, b, &options)
}

/// A packet goes, and the rate of its queue pair is that after the answer.
fn send((left, right): &(RcEnd, RcEnd)) -> Result<Option<Rate>> {
    let (from, to) = memory(left, right, 8)?;
    left.qp.write(1, from.all(), to.remote(0))?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    Ok(left.qp.rate())
}

#[test]
fn a_port_follows_another_policy_at_any_time() -> Result<()> {
    let (_net, a, b) = ports(None);
    let pair = connection(&a, &b, 0)?;
    assert_eq!(send(&pair)?, None, "no congestion control");
    [&a, &b].into_iter().try_for_each(|device| device.set_congestion_control(Some(managed(false))))?;
    assert_eq!(send(&pair)?, Some(LINE));
    b.add_fault("rx data nth=1 mark ce")?;
    assert_eq!(send(&pair)?, Some(Rate::from_gbps(5)));
    // The flow is where it was in the table, and the table is another one.
    let steep = Reaction { by_level: false, levels: [Level::default(); LEVELS], table: [0.0, 3.0].into() };
    a.set_congestion_control(Some(Policy::managed(LINE, &Config::default(), Arc::new(steep))))?;
    assert_eq!(pair.0.qp.rate(), Some(LINE), "a timer of zero ends at once");
    a.set_congestion_control(policy("dcqcn", LINE))?;
    assert_eq!(pair.0.qp.rate(), Some(LINE), "another algorithm begins anew");
    a.set_congestion_control(None)?;
    assert_eq!(send(&pair)?, None);
    Ok(())
}

/// A flow that waits for a departure time far away is looked at again when its rate changes.
#[test]
fn a_queue_pair_that_waits_goes_on_with_a_policy_that_lets_it() -> Result<()> {
    let level = Level { ccti_timer: u16::MAX, ccti_increase: 1, ..Level::default() };
    let slow = Reaction { by_level: false, levels: [level; LEVELS], table: [0.0, 16_383.0].into() };
    let (net, a, b) = ports(Some(Policy::managed(LINE, &Config::default(), Arc::new(slow))));
    let pair = connection(&a, &b, 0)?;
    b.add_fault("rx data nth=1 mark ce")?;
    send(&pair)?;
    let (from, to) = memory(&pair.0, &pair.1, 1 << 16)?;
    pair.0.qp.write(1, from.all(), to.remote(0))?;
    net.run_for(Duration::from_millis(1));
    a.set_congestion_control(Some(managed(false)))?;
    let at = net.elapsed();
    pair.0.wait()?;
    assert!(net.elapsed() - at < Duration::from_millis(1), "{:?}", net.elapsed() - at);
    Ok(())
}

/// Port_Control (IBTA volume 1, A10.4.3.8): the index is that of a queue pair, or of a service level.
#[test]
fn queue_pairs_of_a_level_slow_down_together_if_so_written() -> Result<()> {
    for by_level in [false, true] {
        let (_net, a, b) = ports(Some(managed(by_level)));
        let [first, same, other] = [3, 3, 5].map(|level| connection(&a, &b, level));
        let (first, same, other) = (first?, same?, other?);
        for pair in [&first, &same, &other] {
            assert_eq!(send(pair)?, Some(LINE));
        }
        b.add_fault("rx data nth=1 mark ce")?;
        let half = Some(Rate::from_gbps(5));
        assert_eq!(send(&first)?, half);
        let shared = if by_level { half } else { Some(LINE) };
        assert_eq!((same.0.qp.rate(), other.0.qp.rate()), (shared, Some(LINE)));
        assert_eq!(send(&connection(&a, &b, 3)?)?, shared, "one that begins later");
        assert_eq!(send(&connection(&a, &b, 5)?)?, Some(LINE));
    }
    Ok(())
}

/// Trigger_Threshold (IBTA volume 1, A10.4.3.8): what is logged, and how many events are kept.
#[test]
fn notifications_are_logged_from_the_threshold_on() -> Result<()> {
    let level = Level { ccti_timer: u16::MAX, ccti_increase: 1, trigger_threshold: 3, ..Level::default() };
    let reaction = Reaction { by_level: false, levels: [level; LEVELS], table: [0.0; 64].into() };
    let config = Config { becn_interval: 0, ..Config::default() };
    let (net, a, b) = ports(Some(Policy::managed(LINE, &config, Arc::new(reaction))));
    b.add_fault("rx data mark ce")?;
    let pair = connection(&a, &b, 6)?;
    let log = |after: usize| -> Result<_> {
        (0..after).try_for_each(|_| send(&pair).map(drop))?;
        Ok(a.congestion_log())
    };
    assert_eq!(log(2)?, crate::engine::CongestionLog::default());
    let first = log(1)?;
    assert_eq!((first.counts[6], first.counts.iter().sum::<u64>(), first.latest.len()), (1, 1, 1));
    let event = first.latest[0];
    assert_eq!((event.qpn, event.dest_qpn), (pair.0.qp.qpn(), pair.1.qp.qpn()));
    assert_eq!((event.qp_type, event.level, event.peer), (QpType::Rc, 6, Some(b.address())));
    assert!(event.at <= crate::sim::BEGINNING + net.elapsed());
    let later = log(13)?;
    assert_eq!((later.counts[6], later.latest.len()), (14, 13));
    assert!(later.latest.iter().is_sorted_by_key(|event| event.at) && later.latest[0] != event);
    assert_eq!(b.congestion_log(), crate::engine::CongestionLog::default(), "it sends nothing");
    Ok(())
}
