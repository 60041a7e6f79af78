//! Ladders of small stories in virtual time.

use super::*;
use crate::sim::Net;
use crate::{ConnectOptions, Error, Mtu, RcEnd, WcStatus};

/// Two connected ends with a path MTU of 1024, and the ladder of the first one's device.
fn ends(net: &Net) -> Result<(Device, RcEnd, RcEnd, Ladder)> {
    let (a, b) = (net.device(), net.device());
    let ladder = Ladder::attach(&a, "client", "server", 100)?;
    let options = ConnectOptions { mtu: Some(Mtu::B1024), ..ConnectOptions::default() };
    let (left, right) = RcEnd::pair_with(&a, &b, &options)?;
    Ok((a, left, right, ladder))
}

/// WRITEs carry addresses, which differ from run to run, and so do their ICRCs.
fn without_icrcs() -> Style {
    Style { icrc_values: false, ..Style::default() }
}

fn write(left: &RcEnd, right: &RcEnd, bytes: &[u8]) -> Result<()> {
    let source = left.register(bytes)?;
    let target = right.register_remote(bytes.len())?;
    left.qp.write(1, source.all(), target.remote(0))?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    assert_eq!(target.to_vec()?, bytes);
    Ok(())
}

#[test]
fn a_write_of_three_packets() -> Result<()> {
    let (_a, left, right, ladder) = ends(&Net::new())?;
    write(&left, &right, &[7; 2500])?;
    insta::assert_snapshot!(ladder.render(&without_icrcs()));
    Ok(())
}

#[test]
fn a_lost_packet_is_asked_for_again() -> Result<()> {
    let (a, left, right, ladder) = ends(&Net::new())?;
    a.add_fault("tx data psn=#1 drop")?;
    write(&left, &right, &[7; 2500])?;
    insta::assert_snapshot!(ladder.render(&without_icrcs()));
    Ok(())
}

#[test]
fn a_lost_acknowledgement_is_waited_for() -> Result<()> {
    let (a, left, right, ladder) = ends(&Net::new())?;
    a.add_fault("rx ack drop once")?;
    write(&left, &right, &[7; 500])?;
    insta::assert_snapshot!(ladder.render(&without_icrcs()));
    Ok(())
}

/// A SEND carries no address: its ICRCs are the same every time.
#[test]
fn a_receiver_that_is_not_ready() -> Result<()> {
    let net = Net::new();
    let (_a, left, right, ladder) = ends(&net)?;
    let source = left.register(b"is anybody there?")?;
    left.qp.send(1, source.all())?;
    net.run_for(std::time::Duration::from_micros(100));
    let target = right.register(&[0; 17])?;
    right.qp.recv(2, target.all())?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    assert_eq!(target.to_vec()?, b"is anybody there?");
    insta::assert_snapshot!(ladder.render(&Style::default()));
    Ok(())
}

#[test]
fn answers_count_in_the_sequence_of_the_requests() -> Result<()> {
    let (_a, left, right, ladder) = ends(&Net::new())?;
    write(&left, &right, &[1; 3000])?;
    let source = right.register_remote(16)?;
    let back = left.register(&[0; 8])?;
    left.qp.post(2, crate::Operation::FetchAdd { remote: source.remote(8), add: 5 }, back.all())?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    let absolute = ladder.render(&Style { psn: PsnForm::Absolute, ..Style::default() });
    let last = ladder.records().pop().ok_or(Error::Stalled)?;
    assert_eq!(last.relative_psn, Some(3));
    assert!(last.icrc_ok);
    assert!(
        absolute.contains("| ") && absolute.contains("ATOMIC_ACK psn 3 msn 2 credits 0 was 0x0"),
        "{absolute}"
    );
    Ok(())
}

#[test]
fn damage_is_seen() -> Result<()> {
    let (a, left, right, ladder) = ends(&Net::new())?;
    a.add_fault("tx data nth=1 corrupt payload")?;
    write(&left, &right, &[7; 500])?;
    let bad: Vec<_> = ladder.records().iter().map(|r| r.icrc_ok).collect();
    assert_eq!(bad, [false, true, true], "the packet, the same again, the acknowledgement");
    let text = ladder.render(&Style::default());
    assert!(text.lines().nth(1).is_some_and(|line| line.ends_with(" BAD")), "{text}");
    assert!(text.contains("fault f1: "), "{text}");
    Ok(())
}

#[test]
fn no_line_is_too_wide() -> Result<()> {
    let (a, left, right, _) = ends(&Net::new())?;
    let name = "a name that is much longer than the half of a ladder could ever be, for all we know";
    let ladder = Ladder::attach(&a, name, name, 3)?;
    a.add_fault("a-fault-with-quite-a-long-name: tx data psn=#0 drop")?;
    a.add_fault("rx ack delay 3ms once")?;
    let word = right.register_remote(8)?;
    let back = left.register(&[0; 8])?;
    let (compare, swap) = (u64::MAX, u64::MAX);
    left.qp.post(1, crate::Operation::CompareSwap { remote: word.remote(0), compare, swap }, back.all())?;
    left.wait()?;
    write(&left, &right, &[7; 5000])?;
    let style = Style { psn: PsnForm::Absolute, ..Style::default() };
    let text = ladder.render(&style);
    assert!(text.lines().all(|line| line.chars().count() <= Style::WIDTH), "{text}");
    const { assert!(Style::WIDTH <= 110) };
    assert!(ladder.missed() > 3);
    assert!(text.ends_with(&format!("({} more packets were not recorded)\n", ladder.missed())), "{text}");
    let colored = ladder.render(&Style { color: true, ..style });
    let mut plain = String::new();
    for (index, part) in colored.split('\x1b').enumerate() {
        plain.push_str(if index == 0 { part } else { part.split_once('m').map_or("", |(_, rest)| rest) });
    }
    assert_eq!(plain, text);
    Ok(())
}

#[test]
fn what_was_cleared_is_not_drawn() -> Result<()> {
    let (a, left, right, ladder) = ends(&Net::new())?;
    write(&left, &right, &[7; 100])?;
    assert_eq!(ladder.records().len(), 2);
    ladder.clear();
    write(&left, &right, &[7; 100])?;
    let text = ladder.render(&Style::default());
    assert!(text.contains("    0.0  |-- WRITE_ONLY psn #1 ackreq"), "{text}");
    Ladder::detach(&a);
    write(&left, &right, &[7; 100])?;
    assert_eq!(ladder.records().len(), 2);
    Ok(())
}

#[test]
fn what_is_no_packet_is_drawn_too() {
    let ladder = Ladder::new("a", "b", 10);
    let flow = qp::wire::Flow {
        src: "10.0.0.2".parse().unwrap(),
        dst: "10.0.0.1".parse().unwrap(),
        src_port: 0xc000,
        dst_port: 4791,
    };
    let frame = crate::link::Frame {
        direction: Direction::Rx,
        flow,
        tos: 0,
        ttl: 64,
        flow_label: 0,
        ident: 0,
        bytes: vec![0; 3],
        fate: Fate::Delivered,
        notes: vec!["odd\x1b[2J".to_owned()],
    };
    let now = Now { instant: Instant::now(), wall: std::time::Duration::ZERO };
    ladder.observer().observe(now, &frame.view());
    let text = ladder.render(&Style::default());
    assert!(text.contains("malformed: a packet of 3 bytes"), "{text}");
    assert!(text.contains("odd?[2J") && !text.contains('\x1b'), "{text}");
}
