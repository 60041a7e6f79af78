//! Management keys: who may read and who may write (IBTA volume 1, section 14.2.4).

use super::{mad, program};

const LEAF: &[u8] = &[1];
const NODE_INFO: u16 = 0x11;
const PORT_INFO: u16 = 0x15;
const KEY: u64 = 0x1122_3344_5566_7788;

/// Sends a request with a key. The data of the answer; none if nobody answers.
fn ask(program: &mut super::Program, key: u64, method: u8, what: (u16, u32), data: &[u8]) -> Option<Vec<u8>> {
    let mut mad = mad(0x81, method, what.0, what.1, LEAF, data);
    mad[24..32].copy_from_slice(&key.to_be_bytes());
    let answer = program.send(0xFFFF, &mad);
    (answer.lost == 0).then(|| answer.data().to_vec())
}

/// Gives the leaf a key and a level of protection.
fn protected(level: u8) -> super::Program {
    let mut program = program();
    let key = KEY.to_be_bytes();
    let mut changes: Vec<(usize, u8)> = (0..).zip(key).collect();
    changes.push((34, level << 6));
    let mut info = program.get(LEAF, PORT_INFO, 0);
    (info[32], info[33]) = (info[32] & 0xF0, info[33] & 0x0F);
    changes.iter().for_each(|(at, value)| info[*at] = *value);
    let answer = program.set(LEAF, PORT_INFO, 0, &info);
    assert_eq!((answer.lost, answer.status()), (0, 0), "without a key everybody may write");
    // OpenSM takes the key that it names from now on from this answer.
    assert_eq!(answer.data()[..8], key, "the one who wrote it sees it");
    program
}

/// M_KeyViolations, as those who know the key see them.
fn violations(program: &mut super::Program) -> u16 {
    let info = ask(program, KEY, 1, (PORT_INFO, 0), &[]).expect("it is heard");
    u16::from_be_bytes([info[44], info[45]])
}

#[test]
fn levels_say_what_those_may_read_who_do_not_know_the_key() {
    for (level, may_read, may_see) in
        [(0, true, true), (1, true, false), (2, false, false), (3, false, false)]
    {
        let mut program = protected(level);
        for wrong in [0, KEY ^ 1] {
            assert_eq!(ask(&mut program, wrong, 1, (NODE_INFO, 0), &[]).is_some(), may_read, "level {level}");
            let seen = ask(&mut program, wrong, 1, (PORT_INFO, 0), &[]).map(|info| info[..8].to_vec());
            let shown = if may_see { KEY } else { 0 };
            assert_eq!(seen, may_read.then(|| shown.to_be_bytes().to_vec()), "level {level}");
        }
        let info = ask(&mut program, KEY, 1, (PORT_INFO, 0), &[]).expect("it is heard");
        assert_eq!(info[..8], KEY.to_be_bytes(), "level {level}");
        assert_eq!(violations(&mut program), if may_read { 0 } else { 4 }, "level {level}");
    }
}

#[test]
fn nobody_writes_without_the_key() {
    let mut program = protected(0);
    let table = [3; 64];
    assert_eq!(ask(&mut program, 0, 2, (0x19, 0), &table), None);
    assert_eq!(violations(&mut program), 1);
    assert_eq!(
        ask(&mut program, KEY, 1, (0x19, 0), &[]).expect("it is heard"),
        [0xFF; 64],
        "nothing was written"
    );
    assert_eq!(ask(&mut program, KEY, 2, (0x19, 0), &table).expect("it is heard"), table);
    // The other ports of the switch are protected by the same key, and other nodes are not.
    let info = ask(&mut program, KEY, 1, (PORT_INFO, 2), &[]).expect("it is heard");
    assert_eq!(ask(&mut program, 0, 2, (PORT_INFO, 2), &info), None);
    assert_eq!(program.change(&[1, 3], PORT_INFO, 0, &[(17, 9)]), 0);
    // With the key 0 it is open again.
    let mut open = ask(&mut program, KEY, 1, (PORT_INFO, 0), &[]).expect("it is heard");
    open[..8].fill(0);
    (open[32], open[33]) = (open[32] & 0xF0, open[33] & 0x0F);
    assert!(ask(&mut program, KEY, 2, (PORT_INFO, 0), &open).is_some());
    assert!(ask(&mut program, 5, 2, (0x19, 0), &table).is_some());
}

#[test]
fn violations_stop_at_their_highest() {
    let mut program = protected(2);
    let mut info = ask(&mut program, KEY, 1, (PORT_INFO, 0), &[]).expect("it is heard");
    (info[32], info[33], info[44], info[45]) = (info[32] & 0xF0, info[33] & 0x0F, 0xFF, 0xFD);
    assert!(ask(&mut program, KEY, 2, (PORT_INFO, 0), &info).is_some());
    for _ in 0..4 {
        assert_eq!(ask(&mut program, 1, 1, (NODE_INFO, 0), &[]), None);
    }
    assert_eq!(violations(&mut program), 0xFFFF);
}
