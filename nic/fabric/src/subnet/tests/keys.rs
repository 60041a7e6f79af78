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

/// A leaf with a key and LID 2, and a subnet manager at the program's host, with LID 1.
fn watched() -> super::Program {
    let mut program = protected(2);
    assert_eq!(program.change(&[], PORT_INFO, 1, &[(17, 1), (19, 1)]), 0);
    let mut info = ask(&mut program, KEY, 1, (PORT_INFO, 0), &[]).expect("it is heard");
    (info[17], info[19], info[32], info[33]) = (2, 1, info[32] & 0xF0, info[33] & 0x0F);
    assert!(ask(&mut program, KEY, 2, (PORT_INFO, 0), &info).is_some());
    let mut table = [0xFF; 64];
    (table[1], table[2]) = (1, 0);
    assert!(ask(&mut program, KEY, 2, (0x19, 0), &table).is_some());
    let mut switch = ask(&mut program, KEY, 1, (0x12, 0), &[]).expect("it is heard");
    switch[7] = 2;
    assert!(ask(&mut program, KEY, 2, (0x12, 0), &switch).is_some());
    let answer = super::connect(&mut program.clients, 9, "host0", true);
    assert!(matches!(answer, super::Control::Connected { slot: 1, .. }));
    program
}

/// Traps that the manager gets now, without that of its own port (144).
fn traps(program: &mut super::Program) -> Vec<[u8; 256]> {
    let sent = std::iter::from_fn(|| program.clients.poll_transmit());
    let to_manager = sent.filter(|(slot, _)| *slot == 1).map(|(_, datagram)| super::read(&datagram).mad);
    to_manager.filter(|mad| mad[68..70] != [0, 144]).collect()
}

#[test]
fn the_manager_is_told_of_a_wrong_key_once_in_a_while() {
    let mut program = watched();
    assert_eq!(ask(&mut program, KEY ^ 1, 2, (0x19, 3), &[3; 64]), None);
    let first = traps(&mut program);
    let [mad] = first.as_slice() else { panic!("{} traps", first.len()) };
    assert_eq!(
        (&mad[..4], mad[64], &mad[67..72]),
        (&[1, 1, 1, 5][..], 0x82, &[2, 1, 0, 0, 2][..]),
        "security, 256"
    );
    assert_eq!((&mad[76..80], mad[80]), (&[0xFF; 4][..], 2), "by a path; Set");
    assert_eq!((&mad[82..84], &mad[84..88]), (&[0, 0x19][..], &[0, 0, 0, 3][..]), "attribute and modifier");
    assert_eq!(
        (&mad[88..96], mad[97], mad[98]),
        (&(KEY ^ 1).to_be_bytes()[..], 0x81, 1),
        "key, and the way back"
    );
    for _ in 0..5 {
        assert_eq!(ask(&mut program, 1, 1, (NODE_INFO, 0), &[]), None);
    }
    assert!(traps(&mut program).is_empty(), "one at a time");
    program.clients.repeat();
    assert_eq!(traps(&mut program), first, "again, until it is repressed");
    let mut repress = first[0];
    repress[3] = 7;
    program.clients.handle_request(1, &super::request(2, &repress));
    program.clients.repeat();
    assert!(traps(&mut program).is_empty());
    assert_eq!(ask(&mut program, 1, 1, (NODE_INFO, 0), &[]), None);
    assert_eq!(traps(&mut program).len(), 1, "another violation");
}
