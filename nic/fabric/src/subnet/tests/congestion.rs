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
    let bytes: Vec<u8> = (0..192).map(|at| (at * 7 + 1) as u8).collect();
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
