//! The bytes of attributes.

use super::program;

const DESCRIPTION: u16 = 0x10;
const NODE_INFO: u16 = 0x11;
const SWITCH_INFO: u16 = 0x12;
const GUID_INFO: u16 = 0x14;
const PORT_INFO: u16 = 0x15;
const P_KEYS: u16 = 0x16;
const SL_TO_VL: u16 = 0x17;
const ARBITRATION: u16 = 0x18;
const LINEAR: u16 = 0x19;
const MULTICAST: u16 = 0x1B;

/// The path to the first leaf, and on to the first spine.
const LEAF: &[u8] = &[1];
const SPINE: &[u8] = &[1, 3];

#[test]
fn nodes_tell_who_they_are() {
    let mut program = program();
    let host = program.get(&[], NODE_INFO, 0);
    assert_eq!(host[..4], [1, 1, 1, 1], "versions, a channel adapter, one port");
    assert_eq!(host[12..20], 0x0200_0000_0000_0100u64.to_be_bytes(), "as `rnic fabric topo --ibnet`");
    assert_eq!(host[20..28], 0x0200_0000_0000_0101u64.to_be_bytes());
    assert_eq!((host[36], &host[28..30]), (1, &[0, 32][..]), "the port of the program, and its P_Keys");
    let leaf = program.get(LEAF, NODE_INFO, 0);
    assert_eq!(
        (leaf[2], leaf[3], leaf[36]),
        (2, 4, 1),
        "a switch with four ports, reached through the first"
    );
    assert_eq!(leaf[12..20], leaf[20..28], "a switch has one GUID");
    let spine = program.get(SPINE, NODE_INFO, 0);
    assert_eq!((spine[2], spine[3], spine[36]), (2, 2, 1));
    let other = program.get(&[1, 3, 2, 2], NODE_INFO, 0);
    assert_eq!((other[2], other[18]), (1, 4), "the fourth host, through the spine and the other leaf");
    for (path, name) in [(&[][..], "host0 rnic0"), (LEAF, "leaf0"), (SPINE, "spine0")] {
        let text = program.get(path, DESCRIPTION, 0);
        assert!(text.starts_with(name.as_bytes()) && text[name.len()..].iter().all(|byte| *byte == 0));
    }
    assert_eq!(program.get(&[], GUID_INFO, 0)[..8], host[20..28]);
    assert_eq!(program.ask(&[], GUID_INFO, 1).status(), 7 << 2);
}

#[test]
fn the_way_back_is_noted() {
    let mut program = program();
    let answer = program.ask(&[1, 3, 2, 2], NODE_INFO, 0);
    assert_eq!(answer.mad[193..197], [1, 1, 3, 1], "the ports of entry");
    assert_eq!((answer.mad[4] & 0x80, answer.mad[6]), (0x80, 0), "it has come back");
    for wrong in [&[2][..], &[1, 0], &[1, 5], &[1, 2, 1], &[0], &[1; 64]] {
        assert_eq!(program.ask(wrong, NODE_INFO, 0).lost, 110, "{wrong:?} leads nowhere, or through a host");
    }
}

#[test]
fn unknown_attributes_and_methods_are_refused() {
    let mut program = program();
    for (path, attribute) in
        [(&[][..], SWITCH_INFO), (&[], LINEAR), (&[], MULTICAST), (&[], 0xFF90), (LEAF, 0xFF90), (LEAF, 0x13)]
    {
        assert_eq!(program.ask(path, attribute, 0).status(), 3 << 2, "{attribute:#x}");
    }
    assert_eq!(program.set(LEAF, NODE_INFO, 0, &[]).status(), 3 << 2, "it cannot be written");
    let strange = super::mad(0x81, 0x15, NODE_INFO, 0, LEAF, &[]);
    assert_eq!(program.send(0xFFFF, &strange).status(), 2 << 2, "no such method");
    let mut version = super::mad(0x81, 1, NODE_INFO, 0, LEAF, &[]);
    version[2] = 2;
    assert_eq!(program.send(0xFFFF, &version).status(), 1 << 2, "no such version");
}

#[test]
fn ports_tell_how_they_are() {
    let mut program = program();
    let host = program.get(&[], PORT_INFO, 0);
    assert_eq!(host[8..16], 0xFE80_0000_0000_0000u64.to_be_bytes());
    assert_eq!((host[28], host[31], host[32] & 15, host[33] >> 4), (1, 2, 2, 5), "port 1, 4x, Init, LinkUp");
    assert_eq!(host[62], 0x23, "EDR of up to EDR: 100 Gb/s");
    assert_eq!(
        (host[37] >> 4, host[39], host[40], host[41] & 15),
        (5, 64, 64, 5),
        "15 lanes, 64 turns, 4096 bytes"
    );
    let leaf = program.get(LEAF, PORT_INFO, 3);
    assert_eq!((leaf[28], leaf[32] & 15), (1, 2), "reached through port 1");
    let management = program.get(LEAF, PORT_INFO, 0);
    assert_eq!((management[32] & 15, management[33] >> 4), (4, 5), "the management port is always active");
    assert_eq!(program.get(LEAF, PORT_INFO, 0x8000_0003), leaf, "bit 31 tells of extended speeds");
    for port in [5, 256, 0x0001_0001] {
        assert_eq!(program.ask(LEAF, PORT_INFO, port).status(), 7 << 2);
    }
}

#[test]
fn a_port_takes_addresses_and_limits_and_refuses_what_cannot_be() {
    let mut program = program();
    // LID 0x0102, SM LID 3, LMC 2, 3 lanes, limit of high priority 9, HOQLife 17, 2048 bytes.
    let good = [(16, 1), (17, 4), (19, 3), (34, 2), (43, 0x30), (38, 9), (42, 17), (36, 0x42)];
    assert_eq!(program.change(&[], PORT_INFO, 1, &good), 0);
    let now = program.get(&[], PORT_INFO, 1);
    assert_eq!(
        (&now[16..20], now[34] & 7, now[43] >> 4, now[38], now[42] & 31, now[36]),
        (&[1, 4, 0, 3][..], 2, 3, 9, 17, 0x42)
    );
    let wrong: [(&str, &[(usize, u8)]); 6] = [
        ("a LID of groups", &[(16, 0xC0), (17, 0)]),
        ("LIDs that reach into those of groups", &[(16, 0xBF), (17, 0xFF), (34, 1)]),
        ("more lanes than there are", &[(43, 0x60)]),
        ("more bytes than a port takes", &[(36, 0x60)]),
        ("12 lanes on a 4x cable", &[(29, 8)]),
        ("states in one step", &[(32, 0x74)]),
    ];
    for (what, changes) in wrong {
        assert_eq!(program.change(&[], PORT_INFO, 1, changes), 7 << 2, "{what}");
        assert_eq!(program.get(&[], PORT_INFO, 1), now, "{what}: nothing has changed");
    }
    // A switch has its LID at port 0 only.
    assert_eq!(program.change(LEAF, PORT_INFO, 2, &[(17, 9)]), 0);
    assert_eq!(program.get(LEAF, PORT_INFO, 2)[16..18], [0, 0]);
    assert_eq!(program.change(LEAF, PORT_INFO, 0, &[(17, 9)]), 0);
    assert_eq!(program.get(LEAF, PORT_INFO, 0)[16..18], [0, 9]);
}

#[test]
fn a_switch_takes_its_top_and_clears_its_change() {
    let mut program = program();
    let info = program.get(LEAF, SWITCH_INFO, 0);
    assert_eq!((&info[..2], &info[4..6], info[11]), (&[0xC0, 0][..], &[4, 0][..], 0));
    assert_eq!(
        program.change(LEAF, SWITCH_INFO, 0, &[(6, 0x12), (7, 0x34), (11, 18 << 3), (18, 0xC0), (19, 5)]),
        0
    );
    let info = program.get(LEAF, SWITCH_INFO, 0);
    assert_eq!((&info[6..8], info[11], &info[18..20]), (&[0x12, 0x34][..], 18 << 3, &[0xC0, 5][..]));
    assert_eq!(program.change(LEAF, SWITCH_INFO, 0, &[(6, 0xC0), (7, 0)]), 7 << 2);
    assert_eq!(program.change(LEAF, SWITCH_INFO, 0, &[(18, 0xC4), (19, 0)]), 7 << 2);
    program.clients.set_cable(0, false);
    program.clients.set_cable(0, true);
    assert_eq!(program.get(LEAF, SWITCH_INFO, 0)[11], 18 << 3 | 4);
    assert_eq!(program.change(LEAF, SWITCH_INFO, 0, &[(11, 18 << 3)]), 0);
    assert_eq!(program.get(LEAF, SWITCH_INFO, 0)[11] & 4, 4, "0 leaves it");
    assert_eq!(program.change(LEAF, SWITCH_INFO, 0, &[(11, 18 << 3 | 4)]), 0);
    assert_eq!(program.get(LEAF, SWITCH_INFO, 0)[11] & 4, 0, "1 clears it");
}

#[test]
fn tables_keep_what_is_written() {
    let mut program = program();
    let bytes: Vec<u8> = (0..64).collect();
    for (path, attribute, modifier) in [
        (LEAF, LINEAR, 0),
        (LEAF, LINEAR, 767),
        (LEAF, MULTICAST, 31),
        (LEAF, MULTICAST, 15 << 28),
        (&[], P_KEYS, 0),
        (LEAF, P_KEYS, 4 << 16),
        (&[], ARBITRATION, 1 << 16),
        (LEAF, ARBITRATION, 4 << 16 | 2),
    ] {
        assert_eq!(
            program.set(path, attribute, modifier, &bytes).status(),
            0,
            "{attribute:#x} {modifier:#x}"
        );
        assert_eq!(program.get(path, attribute, modifier), bytes, "{attribute:#x} {modifier:#x}");
    }
    assert_eq!(program.set(LEAF, SL_TO_VL, 2 << 8 | 3, &bytes).status(), 0);
    assert_eq!(program.get(LEAF, SL_TO_VL, 2 << 8 | 3)[..8], bytes[..8]);
    assert_ne!(
        program.get(LEAF, SL_TO_VL, 3 << 8 | 2)[..8],
        bytes[..8],
        "the other direction is another table"
    );
    let unwritten = program.get(LEAF, LINEAR, 5);
    assert!(unwritten.iter().all(|port| *port == 0xFF), "what is not written leads nowhere");
    assert_eq!(program.get(LEAF, MULTICAST, 0)[..64], [0; 64], "another position of the same block");
    for (attribute, modifier) in [
        (LINEAR, 768),
        (LINEAR, u32::MAX),
        (MULTICAST, 32),
        (P_KEYS, 1),
        (P_KEYS, 5 << 16),
        (ARBITRATION, 5 << 16 | 1),
        (ARBITRATION, 1),
        (ARBITRATION, 1 << 16 | 5),
        (SL_TO_VL, 5 << 8),
        (SL_TO_VL, 5),
    ] {
        assert_eq!(program.ask(LEAF, attribute, modifier).status(), 7 << 2, "{attribute:#x} {modifier:#x}");
    }
}

#[test]
fn lanes_and_turns_begin_as_those_of_the_switches() {
    let mut program = program();
    assert_eq!(program.get(&[], SL_TO_VL, 0)[..8], [0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xE7]);
    assert_eq!(program.get(LEAF, ARBITRATION, 3 << 16 | 1)[..4], [0, 4, 1, 0], "high: lane 0");
    assert_eq!(program.get(LEAF, ARBITRATION, 1 << 16 | 1)[..4], [0, 0, 1, 4], "low: the others");
    assert_eq!(program.get(&[], P_KEYS, 0)[..4], [0xFF, 0xFF, 0, 0]);
}
