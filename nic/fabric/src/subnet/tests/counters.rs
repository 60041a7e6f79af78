//! The counters of ports.

use super::{mad, program};
use crate::subnet::PortTraffic;

const COUNTERS: u16 = 0x12;
const EXTENDED: u16 = 0x1D;

/// A program whose host has LID 1.
fn addressed() -> super::Program {
    let mut program = program();
    assert_eq!(program.change(&[], 0x15, 1, &[(17, 1)]), 0);
    program
}

fn ask(program: &mut super::Program, method: u8, attribute: u16, data: &[u8]) -> super::Answer {
    program.send(1, &mad(4, method, attribute, 0, &[], data))
}

fn number(data: &[u8], at: usize, bytes: usize) -> u64 {
    data[at..at + bytes].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn traffic() -> PortTraffic {
    PortTraffic {
        xmit_words: 0x1_2345_6789,
        rcv_words: 7,
        xmit_packets: 70_000,
        rcv_packets: 8,
        xmit_wait: 9,
        damaged: 70_000,
        overruns: 20,
        no_route: 3,
        no_lane: 4,
        looping: 5,
        inactive: 6,
        lifetime: 1,
        head_of_queue: 2,
        full: 10,
        link_downed: 300,
        lane_packets: std::array::from_fn(|lane| lane as u64),
        lane_words: std::array::from_fn(|lane| 1000 * lane as u64),
        lane_wait: std::array::from_fn(|lane| 100 * lane as u64),
    }
}

#[test]
fn counters_have_their_places_and_stop_at_their_highest() {
    let mut program = addressed();
    program.clients.set_traffic(0, 0, traffic());
    let answer = ask(&mut program, 1, COUNTERS, &[0, 1, 0xFF, 0xFF]);
    assert_eq!((answer.lost, answer.status()), (0, 0));
    let data = answer.mad[64..].to_vec();
    assert_eq!(data[1..4], [1, 0xFF, 0xFF], "what was selected");
    assert_eq!(
        (data[7], number(&data, 8, 2)),
        (255, 65_535),
        "links that went down, and damaged packets, at their highest"
    );
    assert_eq!((number(&data, 12, 2), number(&data, 14, 2), data[19]), (12, 19, 15));
    // 72 words of each datagram count too: those by a path within the host cross no cable.
    assert_eq!((number(&data, 24, 4), number(&data, 28, 4)), (0xFFFF_FFFF, 7));
    assert_eq!((number(&data, 32, 4), number(&data, 36, 4), number(&data, 40, 4)), (70_000, 8, 9));
    let data = ask(&mut program, 1, EXTENDED, &[0, 1]).mad[64..].to_vec();
    assert_eq!([8, 16, 24, 32].map(|at| number(&data, at, 8)), [0x1_2345_6789, 7, 70_000, 8]);
    let data = ask(&mut program, 1, 0x15, &[0, 1]).mad[64..].to_vec();
    assert_eq!([4, 6, 8, 10, 12, 14].map(|at| number(&data, at, 2)), [65_535, 0, 20, 3, 4, 5]);
    let data = ask(&mut program, 1, 0x16, &[0, 1]).mad[64..].to_vec();
    assert_eq!([4, 6, 8, 10].map(|at| number(&data, at, 2)), [6, 0, 1, 2]);
    for (attribute, bytes, factor) in [(0x19, 2, 1), (0x1A, 4, 1000), (0x1C, 2, 100)] {
        let data = ask(&mut program, 1, attribute, &[0, 1]).mad[64..].to_vec();
        for lane in 0..16 {
            assert_eq!(
                number(&data, 4 + bytes * lane, bytes),
                factor * lane as u64,
                "{attribute:#x}, lane {lane}"
            );
        }
    }
}

#[test]
fn what_is_selected_is_written() {
    let mut program = addressed();
    program.clients.set_traffic(
        0,
        0,
        PortTraffic { rcv_words: 500, xmit_packets: 40, xmit_wait: 30, ..PortTraffic::default() },
    );
    let mut data = [0; 64];
    // RcvData becomes 2, XmitWait 0; XmitPkts is not selected.
    (data[1], data[2], data[18], data[31]) = (1, 0x20, 1, 2);
    let after = ask(&mut program, 2, COUNTERS, &data).mad[64..].to_vec();
    assert_eq!([28, 32, 40].map(|at| number(&after, at, 4)), [2, 40, 0]);
    program.clients.set_traffic(
        0,
        0,
        PortTraffic { rcv_words: 503, xmit_packets: 41, xmit_wait: 31, ..PortTraffic::default() },
    );
    let after = ask(&mut program, 1, COUNTERS, &[0, 1]).mad[64..].to_vec();
    assert_eq!([28, 32, 40].map(|at| number(&after, at, 4)), [5, 41, 1]);
    let extended = ask(&mut program, 1, EXTENDED, &[0, 1]).mad[64..].to_vec();
    assert_eq!(number(&extended, 16, 8), 503, "the 64-bit counters are others");
}

#[test]
fn datagrams_count_on_the_cables_that_they_cross() {
    let mut program = addressed();
    let before = ask(&mut program, 1, EXTENDED, &[0, 1]).mad[64..].to_vec();
    for _ in 0..3 {
        program.ask(&[1, 3], 0x11, 0);
    }
    let after = ask(&mut program, 1, EXTENDED, &[0, 1]).mad[64..].to_vec();
    let more = [8, 16, 24, 32].map(|at| number(&after, at, 8) - number(&before, at, 8));
    assert_eq!(more, [3 * 72, 3 * 72, 3, 3]);
}

#[test]
fn a_switch_adds_up_its_ports() {
    let mut program = program();
    assert_eq!(program.change(&[], 0x15, 1, &[(17, 1)]), 0);
    assert_eq!(program.change(&[1], 0x15, 0, &[(17, 2)]), 0);
    let mut table = [0xFF; 64];
    (table[1], table[2]) = (1, 0);
    program.set(&[1], 0x19, 0, &table);
    program.change(&[1], 0x12, 0, &[(7, 2)]);
    for path in [&[][..], &[1]] {
        assert_eq!(program.state(path, 1, 3), 0);
    }
    let query = |port| mad(4, 1, EXTENDED, 0, &[], &[0, port]);
    assert_eq!(program.send(2, &query(1)).lost, 110, "performance management needs active links");
    for path in [&[][..], &[1]] {
        assert_eq!(program.state(path, 1, 4), 0);
    }
    for (port, words) in [(1, 11), (2, 22)] {
        program.clients.set_traffic(4, port, PortTraffic { xmit_words: words, ..PortTraffic::default() });
    }
    let one = program.send(2, &query(3)).mad[64..].to_vec();
    assert_eq!(number(&one, 8, 8), 22);
    let ports: u64 = (0..=4).map(|port| number(&program.send(2, &query(port)).mad[64..], 24, 8)).sum();
    let all = program.send(2, &query(0xFF)).mad[64..].to_vec();
    assert!(number(&all, 8, 8) >= 33 && number(&all, 24, 8) >= ports, "all ports together");
    assert_eq!(program.send(2, &query(5)).status(), 7 << 2);
    let info = program.send(2, &mad(4, 1, 1, 0, &[], &[])).mad[64..].to_vec();
    assert_eq!((&info[..4], info[7]), (&[1, 1, 0x15, 0][..], 18), "all ports, 64 bits, XmitWait");
    assert_eq!(ask(&mut program, 1, 1, &[]).mad[66..68], [0x14, 0], "a host has one port");
    assert_eq!(ask(&mut program, 1, COUNTERS, &[0, 0xFF]).status(), 7 << 2);
    assert_eq!(ask(&mut program, 1, 0x10, &[]).status(), 3 << 2, "no such attribute");
}
