//! Congestion control management, by the offsets of annex A10.

use super::{Answer, Program, mad, program};
use crate::subnet::{CongestionLog, LoggedEvent, LoggedKind};
use time::{Duration, Instant};

const CLASS: u8 = 0x21;
const KEY: u64 = 0x99AA_BBCC_DDEE_FF00;

/// A program at a host with LID 1, and a leaf with LID 2.
fn managed() -> Program {
    let mut program = program();
    assert_eq!(program.change(&[], 0x15, 1, &[(17, 1)]), 0);
    assert_eq!(program.change(&[1], 0x15, 0, &[(17, 2)]), 0);
    let mut table = [0xFF; 64];
    (table[1], table[2]) = (1, 0);
    assert_eq!(program.set(&[1], 0x19, 0, &table).status(), 0);
    assert_eq!(program.change(&[1], 0x12, 0, &[(7, 2)]), 0);
    for state in [3, 4] {
        for path in [&[][..], &[1]] {
            assert_eq!(program.state(path, 1, state), 0);
        }
    }
    program
}

fn ask(program: &mut Program, lid: u16, key: u64, method: u8, what: (u16, u32), data: &[u8]) -> Answer {
    let mut mad = mad(CLASS, method, what.0, what.1, &[], data);
    mad[2] = 2;
    mad[24..32].copy_from_slice(&key.to_be_bytes());
    program.send(lid, &mad)
}

fn whole(answer: &Answer) -> &[u8] {
    assert_eq!((answer.lost, answer.status(), answer.mad[3]), (0, 0, 0x81));
    &answer.mad[64..]
}

/// Attributes are longer than those of other classes: every byte is kept.
#[test]
fn settings_are_kept_as_they_are_written() {
    let mut program = managed();
    let mut bytes: Vec<u8> = (0..192).map(|at| (at * 7 + 1) as u8).collect();
    // The maps name all components.
    bytes[2..4].fill(0xFF);
    for (lid, attribute, len) in [(2, 0x14, 76), (1, 0x16, 132)] {
        assert!(whole(&ask(&mut program, lid, 0, 1, (attribute, 0), &[])).iter().all(|byte| *byte == 0));
        assert_eq!(whole(&ask(&mut program, lid, 0, 2, (attribute, 0), &bytes))[..len], bytes[..len]);
        let read = ask(&mut program, lid, 0, 1, (attribute, 0), &[]);
        assert_eq!((&whole(&read)[..len], &whole(&read)[len..]), (&bytes[..len], &[0; 192][len..]));
        let other = 3 - lid;
        assert_eq!(
            ask(&mut program, other, 0, 1, (attribute, 0), &[]).status(),
            3 << 2,
            "not at the other kind"
        );
    }
}

/// CACongestionSetting with these entries: timer, increase, trigger threshold and minimum of service levels. Its map names others.
fn host_setting(by_level: u8, map: [u8; 2], levels: &[(usize, u16, [u8; 3])]) -> Vec<u8> {
    let mut setting = vec![0, by_level, map[0], map[1]];
    setting.resize(132, 0);
    for (level, timer, rest) in levels {
        let at = 4 + 8 * level;
        setting[at..at + 2].copy_from_slice(&timer.to_be_bytes());
        setting[at + 2..at + 5].copy_from_slice(rest);
    }
    setting
}

#[test]
fn only_the_service_levels_of_the_map_are_written() {
    let mut program = managed();
    let mut write = |map: [u8; 2], timer: u16| {
        let levels: Vec<_> = [0, 1, 15].map(|level| (level, timer, [1, 2, 3])).into();
        let answer = ask(&mut program, 1, 0, 2, (0x16, 0), &host_setting(0, map, &levels));
        [0, 1, 15].map(|level| whole(&answer)[4 + 8 * level..][..5].to_vec())
    };
    let [none, five, six] = [[0; 5], [0, 5, 1, 2, 3], [0, 6, 1, 2, 3]].map(Vec::from);
    assert_eq!(write([0, 0b10], 5), [none.clone(), five.clone(), none.clone()]);
    assert_eq!(write([0x80, 1], 6), [six.clone(), five, six]);
}

#[test]
fn what_hosts_react_by_is_in_their_tables() {
    let mut program = managed();
    let reaction = |program: &Program| program.clients.subnet().tables().hosts["host0"].congestion.clone();
    assert_eq!(reaction(&program), None, "nothing was written");
    let setting = host_setting(1, [0, 8], &[(3, 150, [2, 7, 1])]);
    whole(&ask(&mut program, 1, 0, 2, (0x16, 0), &setting));
    let first = reaction(&program).expect("it was written");
    assert_eq!((first.by_level, first.cct.as_str()), (true, "0:0"), "there is no table yet");
    // A shift of 3 and a multiplier of 0x2A3B behind 0:1, and what is beyond the limit.
    let entries = [0, 0, 0, 1, 0xEA, 0x3B, 1, 1];
    let block: Vec<u8> = [0, 2, 0, 0].into_iter().chain(entries).collect();
    whole(&ask(&mut program, 1, 0, 2, (0x17, 0), &block));
    let written = reaction(&program).expect("it was written");
    assert_eq!(written.cct, "0:0,0:1,3:10811");
    assert_eq!(written.sl.keys().collect::<Vec<_>>(), ["3"]);
    let level = written.sl["3"];
    let numbers = [level.ccti_increase, level.trigger_threshold, level.ccti_min];
    assert_eq!((level.ccti_timer, numbers), (150, [2, 7, 1]));
    // Those of the algorithm, also from a file.
    let text = toml::to_string(&program.clients.subnet().tables()).expect("text");
    let tables: crate::subnet::Tables = toml::from_str(&text).expect("the same");
    assert_eq!(tables, program.clients.subnet().tables());
    let algorithm = tables.hosts["host0"].congestion.as_ref().and_then(|of| of.reaction()).expect("in order");
    assert_eq!((algorithm.by_level, &algorithm.table[..]), (true, &[0.0, 1.0, 10_811.0 / 8.0][..]));
    assert_eq!((algorithm.levels[3].ccti_timer, algorithm.levels[2].ccti_timer), (150, 0));
}

#[test]
fn hosts_cannot_react_by_what_is_no_table() {
    let of = |cct: &str, level: &str| {
        let sl = [(level.to_owned(), crate::subnet::ServiceLevel::default())].into();
        crate::subnet::HostCongestion { by_level: false, cct: cct.to_owned(), sl }.reaction().is_some()
    };
    assert!(of("0:0", "15") && of("0:0, 3:16383", "0"));
    for (cct, level) in [("", "0"), ("0", "0"), ("4:0", "0"), ("0:16384", "0"), ("0:0", "16"), ("0:0", "x")] {
        assert!(!of(cct, level), "{cct} {level}");
    }
    let many = "0:1,".repeat(1 << 16);
    assert!(of(&many[..many.len() - 1], "0") && !of(&format!("{many}0:1"), "0"), "indices have 16 bits");
}

#[test]
fn a_table_has_two_blocks_and_one_limit() {
    let mut program = managed();
    assert_eq!(
        whole(&ask(&mut program, 1, 0, 1, (0x11, 0), &[]))[..3],
        [0, 0, 2],
        "CongestionInfo: ControlTableCap"
    );
    assert_eq!(whole(&ask(&mut program, 2, 0, 1, (0x11, 0), &[]))[..3], [0, 0, 0], "a switch has none");
    let block = |limit: u8, first: u8| -> Vec<u8> {
        [0, limit, 0, 0].into_iter().chain((0..128).map(|at| first.wrapping_add(at))).collect()
    };
    for (number, of) in [(0, block(127, 3)), (1, block(127, 200))] {
        assert_eq!(whole(&ask(&mut program, 1, 0, 2, (0x17, number), &of))[..132], of);
    }
    assert_eq!(
        whole(&ask(&mut program, 1, 0, 1, (0x17, 0), &[]))[..132],
        block(127, 3),
        "the first is still there"
    );
    assert_eq!(
        ask(&mut program, 1, 0, 2, (0x17, 0), &block(128, 0)).status(),
        7 << 2,
        "one more than there are"
    );
    assert_eq!(
        whole(&ask(&mut program, 1, 0, 1, (0x17, 1), &[]))[..132],
        block(127, 200),
        "what is refused leaves the limit"
    );
    assert_eq!(ask(&mut program, 1, 0, 1, (0x17, 2), &[]).status(), 7 << 2, "no such block");
    assert_eq!(ask(&mut program, 2, 0, 1, (0x17, 0), &[]).status(), 3 << 2);
}

#[test]
fn a_key_protects_what_is_written() {
    let mut program = managed();
    let info = |protects: u8, violations: u8| -> Vec<u8> {
        let rest = [protects << 7, 0, 0, 5, 0, violations];
        KEY.to_be_bytes().into_iter().chain(rest).collect()
    };
    assert_eq!(whole(&ask(&mut program, 2, 0, 2, (0x12, 0), &info(0, 0)))[..8], KEY.to_be_bytes());
    assert_eq!(ask(&mut program, 2, 1, 2, (0x14, 0), &[1; 76]).lost, 110, "not heard");
    let read = ask(&mut program, 2, 1, 1, (0x12, 0), &[]);
    assert_eq!(whole(&read)[..14], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 1], "read, without the key");
    assert_eq!(whole(&ask(&mut program, 2, KEY, 1, (0x14, 0), &[]))[..76], [0; 76], "nothing was written");
    assert_eq!(whole(&ask(&mut program, 2, KEY, 2, (0x14, 0), &[0xFF; 76]))[..76], [0xFF; 76]);
    // Violations other than 0 leave the counter, and protection closes it to readers.
    assert_eq!(whole(&ask(&mut program, 2, KEY, 2, (0x12, 0), &info(1, 9)))[..14], info(1, 1));
    assert_eq!(ask(&mut program, 2, 1, 1, (0x12, 0), &[]).lost, 110);
    assert_eq!(whole(&ask(&mut program, 2, KEY, 2, (0x12, 0), &info(1, 0)))[13], 0);
}

#[test]
fn what_is_not_congestion_control_is_refused() {
    let mut program = managed();
    let mut of_version_1 = mad(CLASS, 1, 0x14, 0, &[], &[]);
    assert_eq!(program.send(2, &of_version_1).status(), 1 << 2);
    of_version_1[2] = 2;
    of_version_1[3] = 3;
    assert_eq!(program.send(2, &of_version_1).status(), 2 << 2);
    for (method, attribute) in [(2, 0x01), (2, 0x11), (2, 0x13), (2, 0x18), (1, 0x19)] {
        assert_eq!(ask(&mut program, 2, 0, method, (attribute, 0), &[]).status(), 3 << 2, "{attribute:#x}");
    }
    assert_eq!(
        whole(&ask(&mut program, 2, 0, 1, (0x01, 0), &[]))[..8],
        [1, 2, 0, 0, 0, 0, 0, 18],
        "ClassPortInfo"
    );
}

/// A threshold, a least packet, and a rate.
type Marking = [u16; 3];

/// How the switch marks, and its ports that differ.
fn marking(program: &Program) -> (Option<Marking>, Vec<(String, Marking)>) {
    let leaf = &program.clients.subnet().tables().switches["leaf0"];
    let numbers =
        |of: crate::subnet::SwitchCongestion| [of.threshold.into(), of.packet_size.into(), of.marking_rate];
    let ports = leaf.port.iter().filter_map(|(port, of)| Some((port.clone(), numbers(of.congestion?))));
    (leaf.congestion.map(numbers), ports.collect())
}

/// SwitchCongestionSetting with this control map.
fn switch_setting(map: u8, threshold: u8, size: u8, rate: u8) -> [u8; 76] {
    let mut setting = [0; 76];
    (setting[3], setting[68], setting[69], setting[75]) = (map, threshold << 4, size, rate);
    setting
}

/// Bit 2 of the control map is for the threshold and the least packet, and bit 4 for the rate. What the map does not name stays.
#[test]
fn a_switch_keeps_what_is_not_written() {
    let mut program = managed();
    let mut marks = |setting: [u8; 76]| {
        whole(&ask(&mut program, 2, 0, 2, (0x14, 0), &setting));
        assert_eq!(marking(&program).1, [], "all ports alike");
        marking(&program).0
    };
    assert_eq!(marks(switch_setting(0, 15, 8, 3)), None);
    assert_eq!(marks(switch_setting(0x10, 15, 8, 3)), None, "a rate of nothing");
    assert_eq!(marks(switch_setting(4, 15, 8, 9)), Some([15, 8, 3]), "the rate is still there");
    assert_eq!(marks(switch_setting(0x10, 1, 1, 7)), Some([15, 8, 7]), "and so is the threshold");
    assert_eq!(marks(switch_setting(0x14, 2, 4, 0)), Some([2, 4, 0]));
    let read = ask(&mut program, 2, 0, 1, (0x14, 0), &[]);
    assert_eq!(whole(&read)[..76], switch_setting(0x14, 2, 4, 0), "all that was written");
}

/// SwitchPortCongestionSetting: 32 elements of 4 bytes, by port.
#[test]
fn ports_mark_as_was_written_last() {
    let mut program = managed();
    let block = |elements: &[(usize, [u8; 4])]| {
        let mut block = [0; 128];
        elements.iter().for_each(|(port, of)| block[4 * port..4 * port + 4].copy_from_slice(of));
        block
    };
    let mut write = |of: &[(usize, [u8; 4])]| ask(&mut program, 2, 0, 2, (0x15, 0), &block(of));
    let (three, four) = ([0x8F, 8, 0, 3], [0x81, 4, 1, 0]);
    assert_eq!(whole(&write(&[(3, three), (4, four)]))[..128], block(&[(3, three), (4, four)]));
    // Elements that are not valid leave their ports.
    assert_eq!(whole(&write(&[(3, [0x01, 1, 0, 1])]))[..128], block(&[(3, three), (4, four)]));
    assert_eq!(write(&[(1, three), (2, [0xC1, 0, 0, 0])]).status(), 7 << 2, "no credit starvation");
    assert_eq!(write(&[(1, three), (5, four)]).status(), 7 << 2, "no such port");
    let read = ask(&mut program, 2, 0, 1, (0x15, 0), &[]);
    assert_eq!(whole(&read)[..128], block(&[(3, three), (4, four)]), "what was refused is not there");
    let own = [("3".to_owned(), [15, 8, 3]), ("4".to_owned(), [1, 4, 256])];
    assert_eq!(marking(&program), (None, own.to_vec()));
    // A rate for all ports leaves their thresholds, and a threshold their rates.
    whole(&ask(&mut program, 2, 0, 2, (0x14, 0), &switch_setting(0x10, 0, 0, 9)));
    let own = [("3".to_owned(), [15, 8, 9]), ("4".to_owned(), [1, 4, 9])];
    assert_eq!(marking(&program), (None, own.to_vec()));
    whole(&ask(&mut program, 2, 0, 2, (0x14, 0), &switch_setting(4, 5, 6, 0)));
    assert_eq!(marking(&program), (Some([5, 6, 9]), Vec::new()));
    // There is one block of 32 ports.
    assert_eq!(ask(&mut program, 2, 0, 1, (0x15, 1), &[]).status(), 7 << 2);
    assert_eq!(ask(&mut program, 1, 0, 1, (0x15, 0), &[]).status(), 3 << 2, "a host has none");
}

#[test]
fn a_wrong_version_concerns_no_key() {
    let mut program = managed();
    let info: Vec<u8> = KEY.to_be_bytes().into_iter().chain([0; 6]).collect();
    whole(&ask(&mut program, 2, 0, 2, (0x12, 0), &info));
    for (at, version) in [(2, 1), (2, 3), (0, 2)] {
        let mut old = mad(CLASS, 2, 0x14, 0, &[], &[1; 76]);
        old[2] = 2;
        old[at] = version;
        let answer = program.send(2, &old);
        assert_eq!((answer.lost, answer.status()), (0, 1 << 2), "a version {version} at {at}");
    }
    let read = ask(&mut program, 2, KEY, 1, (0x12, 0), &[]);
    assert_eq!(whole(&read)[12..14], [0, 0], "no violation");
}

/// A time of the run.
fn at(us: u64) -> Instant {
    rnic_core::sim::BEGINNING + Duration::from_micros(us)
}

fn marked(us: u64, slid: u16) -> LoggedEvent {
    LoggedEvent { at: at(us), level: 3, what: LoggedKind::Marked { slid, dlid: 0x0102 } }
}

/// A10.4.3.5: the log of a switch. It is in front of where other attributes begin.
#[test]
fn a_switch_logs_the_packets_that_it_has_marked() {
    let mut program = managed();
    let mut log =
        CongestionLog { counts: vec![0, 70_000, 0, 2], latest: vec![marked(2048, 7), marked(1024, 5)] };
    program.clients.set_log(at(4096), 4, log.clone());
    let stamp = ask(&mut program, 2, 0, 1, (0x18, 0), &[]);
    assert_eq!(whole(&stamp)[..4], 4000_u32.to_be_bytes(), "TimeStamp: units of 1.024 us");
    let read = |program: &mut Program| ask(program, 2, 0, 1, (0x13, 0), &[]).mad[32..].to_vec();
    let first = read(&mut program);
    assert_eq!(
        first[..8],
        [1, 0, 0xFF, 0xFF, 0, 0, 0x0F, 0xA0],
        "a switch, more than 65,535 events, the time"
    );
    let mut ports = [0; 32];
    ports[31] = 0b1_0100;
    assert_eq!(first[8..40], ports, "ports 2 and 4");
    assert_eq!(first[40..52], [0, 7, 1, 2, 0x30, 0, 0, 0, 0, 0, 0x07, 0xD0], "the newest");
    assert_eq!(first[52..64], [0, 5, 1, 2, 0x30, 0, 0, 0, 0, 0, 0x03, 0xE8]);
    assert!(first[64..].iter().all(|byte| *byte == 0));
    // Counter and map begin anew when they are read; the entries stay.
    log.counts[3] = 5;
    program.clients.set_log(at(4096), 4, log);
    let second = read(&mut program);
    assert_eq!((&second[2..4], second[39], &second[40..]), (&[0, 3][..], 0b1_0000, &first[40..]));
}

#[test]
fn a_log_has_fifteen_events_and_none_whose_stamp_has_wrapped_around_twice() {
    let mut program = managed();
    let wrap = (1_u64 << 32) * 1024 / 1000;
    let latest: Vec<_> = (1..=16).map(|slid| marked(100, slid)).collect();
    let log = CongestionLog { counts: vec![16], latest };
    program.clients.set_log(at(2 * wrap), 4, log.clone());
    let entries = |program: &mut Program| {
        let mad = ask(program, 2, 0, 1, (0x13, 0), &[]).mad;
        (0..15).map(|number| mad[32 + 41 + 12 * number]).filter(|slid| *slid > 0).collect::<Vec<_>>()
    };
    assert_eq!(entries(&mut program), (1..=15).collect::<Vec<u8>>());
    program.clients.set_log(at(2 * wrap + 200), 4, log);
    assert_eq!(entries(&mut program), [0; 0]);
}

/// The log of a host has the queue pairs that have reached their thresholds.
#[test]
fn a_host_logs_the_notifications_at_its_threshold() {
    let mut program = managed();
    let what = LoggedKind::Notified { qpn: 0x12_3456, service: 3, peer_qpn: 0xAB_CDEF, peer_lid: 0x0708 };
    let mut counts = vec![0; 16];
    (counts[2], counts[15]) = (4, 1);
    let event = LoggedEvent { at: at(1024), level: 15, what };
    program.clients.set_log(at(2048), 0, CongestionLog { counts, latest: vec![event; 14] });
    let log = ask(&mut program, 1, 0, 1, (0x13, 0), &[]).mad[32..].to_vec();
    assert_eq!(log[..12], [2, 0, 0, 5, 0x80, 4, 0, 0, 0, 0, 0x07, 0xD0]);
    let entry = [0x12, 0x34, 0x56, 0, 0xAB, 0xCD, 0xEF, 0xF3, 7, 8, 0, 0, 0, 0, 3, 0xE8];
    assert_eq!(log[12..220], entry.repeat(13));
    assert_eq!(log[220..], [0; 4]);
    assert_eq!(ask(&mut program, 1, 0, 2, (0x13, 0), &[]).status(), 3 << 2, "nobody writes it");
}

/// The fabric reads the tables again when their version changes: a Set changes it, and a Get does not.
#[test]
fn what_is_written_takes_effect_and_what_is_read_does_not() {
    let mut program = managed();
    let version = program.clients.subnet().version();
    whole(&ask(&mut program, 2, 0, 1, (0x14, 0), &[]));
    assert_eq!(program.clients.subnet().version(), version);
    whole(&ask(&mut program, 2, 0, 2, (0x14, 0), &[1; 76]));
    assert!(program.clients.subnet().version() > version);
}
