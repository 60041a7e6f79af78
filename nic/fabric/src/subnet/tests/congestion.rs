//! Congestion control management, by the offsets of annex A10.

use super::{Answer, Program, mad, program};

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
    assert_eq!(whole(&ask(&mut program, 2, KEY, 2, (0x14, 0), &[1; 76]))[..76], [1; 76]);
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
    for (method, attribute) in [(2, 0x01), (2, 0x11), (1, 0x13), (1, 0x15), (1, 0x18)] {
        assert_eq!(ask(&mut program, 2, 0, method, (attribute, 0), &[]).status(), 3 << 2, "{attribute:#x}");
    }
    assert_eq!(
        whole(&ask(&mut program, 2, 0, 1, (0x01, 0), &[]))[..8],
        [1, 2, 0, 0, 0, 0, 0, 18],
        "ClassPortInfo"
    );
}

/// Bit 2 of the control map is for the threshold and the least packet, and bit 4 for the rate.
#[test]
fn what_switches_mark_by_is_in_their_tables() {
    let mut program = managed();
    let mut setting = [0; 76];
    (setting[68], setting[69], setting[75]) = (0xF0, 8, 3);
    let mut marks = |map: u8| {
        setting[3] = map;
        whole(&ask(&mut program, 2, 0, 2, (0x14, 0), &setting));
        let of = program.clients.subnet().tables().switches["leaf0"].congestion?;
        Some((of.threshold, of.packet_size, of.marking_rate))
    };
    assert_eq!([0, 0x10, 4, 0x14].map(&mut marks), [None, None, Some((15, 8, 0)), Some((15, 8, 3))]);
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
