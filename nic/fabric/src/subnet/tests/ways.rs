//! LIDs, forwarding tables and lanes: where what is written has its effect.

use super::program;

const LEAF: &[u8] = &[1];
const NODE_INFO: u16 = 0x11;
const PORT_INFO: u16 = 0x15;

/// Asks a LID for NodeInfo: the GUID of the node that answers. None if nobody does.
fn who(program: &mut super::Program, lid: u16) -> Option<u8> {
    let answer = program.send(lid, &super::mad(1, 1, NODE_INFO, 0, &[], &[]));
    // The fabric numbers its nodes in byte 6 of their GUIDs, from 1.
    (answer.lost == 0).then(|| answer.mad[64 + 18])
}

/// A port has two to the power of LMC LIDs, from its LID on (IBTA volume 1, section 14.2.5.6).
#[test]
fn a_port_has_as_many_lids_as_its_mask_says() {
    let mut program = program();
    assert_eq!(program.change(&[], PORT_INFO, 1, &[(17, 4), (34, 1)]), 0);
    assert_eq!([3, 4, 5, 6].map(|lid| who(&mut program, lid)), [None, Some(1), Some(1), None]);
}

/// LinearFDBTop is the last entry that counts (section 14.2.5.4).
#[test]
fn a_table_forwards_up_to_its_top() {
    let mut program = program();
    for (path, port, lid) in [(&[][..], 1, 1), (LEAF, 0, 2), (&[1, 2], 1, 3)] {
        assert_eq!(program.change(path, PORT_INFO, port, &[(17, lid)]), 0);
    }
    let mut table = [0xFF; 64];
    (table[1], table[2], table[3]) = (1, 0, 2);
    assert_eq!(program.set(LEAF, 0x19, 0, &table).status(), 0);
    for (top, found) in [(3, Some(2)), (2, None)] {
        assert_eq!(program.change(LEAF, 0x12, 0, &[(7, top)]), 0);
        assert_eq!(who(&mut program, 3), found, "the top is {top}");
    }
}

/// SLtoVLMappingTable names the port of entry first, and VLArbitrationTable has the low priority first (sections 14.2.5.8 and
/// 14.2.5.9).
#[test]
fn lanes_and_turns_are_saved_for_the_ports_that_they_were_written_for() {
    let mut program = program();
    let lanes: Vec<u8> = std::iter::repeat_n(0x12, 8).collect();
    assert_eq!(program.set(LEAF, 0x17, 2 << 8 | 3, &lanes).status(), 0);
    assert_eq!(program.set(LEAF, 0x18, 3 << 16 | 1, &[5, 77]).status(), 0);
    assert_eq!(program.set(LEAF, 0x18, 1 << 16 | 2, &[6, 88]).status(), 0);
    let tables = program.clients.subnet().tables();
    let leaf = &tables.switches["leaf0"];
    let other: Vec<_> = leaf.sl2vl_of.iter().map(|(ports, lanes)| (ports.as_str(), lanes.as_str())).collect();
    assert_eq!(other, [("2>3", "1,2,1,2,1,2,1,2,1,2,1,2,1,2,1,2")]);
    assert_eq!((leaf.port["1"].vlarb_high.as_str(), leaf.port["2"].vlarb_low.as_str()), ("5:77", "6:88"));
}

/// Only switches pass on what is routed by the path in it (section 14.2.2): what leads through a host has no effect behind it,
/// even though its answer would be lost anyway.
#[test]
fn nothing_is_written_through_a_host() {
    let mut program = program();
    assert_eq!(program.set(&[1, 2, 1], 0x19, 0, &[3; 64]).lost, 110);
    assert_eq!(program.get(LEAF, 0x19, 0), [0xFF; 64]);
}
