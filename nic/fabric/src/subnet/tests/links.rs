//! States of ports, cables that break, and traps.

use super::{Control, control, program, read};

const LEAF: &[u8] = &[1];
const PORT_INFO: u16 = 0x15;
const SWITCH_INFO: u16 = 0x12;

/// The state of a port, and that of its wire.
fn states(program: &mut super::Program, path: &[u8], port: u32) -> (u8, u8) {
    let info = program.get(path, PORT_INFO, port);
    (info[32] & 15, info[33] >> 4)
}

#[test]
fn a_link_becomes_active_step_by_step_at_both_ends() {
    let mut program = program();
    assert_eq!(program.state(&[], 1, 4), 7 << 2, "not from Init to Active");
    assert_eq!(program.state(&[], 1, 2), 7 << 2, "nobody writes Init");
    assert_eq!(program.state(&[], 1, 3), 0);
    assert_eq!(program.state(&[], 1, 4), 7 << 2, "the other end is two steps behind");
    assert_eq!(program.state(LEAF, 1, 3), 0);
    assert_eq!(program.state(&[], 1, 4), 0);
    assert_eq!(program.state(&[], 1, 4), 0, "the same again");
    assert_eq!(program.state(&[], 1, 3), 7 << 2, "never back");
    assert_eq!(program.state(LEAF, 1, 4), 0);
    assert_eq!((states(&mut program, &[], 1), states(&mut program, LEAF, 1)), ((4, 5), (4, 5)));
    assert!(program.clients.subnet().carries(0) && !program.clients.subnet().carries(1));
    // Down: both begin anew, and the switch, which was not told, tells of it.
    assert_eq!(program.get(LEAF, SWITCH_INFO, 0)[11] & 4, 0);
    assert_eq!(program.state(&[], 1, 1), 0);
    assert_eq!((states(&mut program, &[], 1), states(&mut program, LEAF, 1)), ((2, 5), (2, 5)));
    assert_eq!(program.get(LEAF, SWITCH_INFO, 0)[11] & 4, 4);
}

#[test]
fn a_port_that_is_disabled_stays_down_until_it_is_enabled() {
    let mut program = program();
    let wire = |state: u8| [(33, state << 4 | 2)];
    assert_eq!(program.change(LEAF, PORT_INFO, 2, &wire(3)), 0);
    assert_eq!(states(&mut program, LEAF, 2), (1, 3));
    assert_eq!(program.ask(&[1, 2], 0x11, 0).lost, 110);
    let cable = 1;
    program.clients.set_cable(cable, false);
    program.clients.set_cable(cable, true);
    assert_eq!(states(&mut program, LEAF, 2), (1, 3), "mending a cable does not enable it");
    assert_eq!(program.change(LEAF, PORT_INFO, 2, &wire(2)), 0);
    assert_eq!(states(&mut program, LEAF, 2), (2, 5));
    assert_eq!(program.ask(&[1, 2], 0x11, 0).lost, 0);
}

#[test]
fn a_cut_cable_is_down_at_both_ends_and_carries_nothing() {
    let mut program = program();
    // The cables of hosts come first: the fifth is that from the first leaf to the first spine.
    program.clients.set_cable(4, false);
    assert_eq!(states(&mut program, LEAF, 3), (1, 2), "Down, Polling");
    assert_eq!(program.ask(&[1, 3], 0x11, 0).lost, 110);
    assert_eq!(states(&mut program, &[1, 4, 2, 3], 1), (1, 2), "the other end, the other way round");
    assert_eq!(program.state(LEAF, 3, 3), 7 << 2, "a link that is down cannot be armed");
    program.clients.set_cable(4, true);
    assert_eq!((states(&mut program, LEAF, 3), program.ask(&[1, 3], 0x11, 0).lost), ((2, 5), 0));
}

/// Gives the program's host LID 1 and the first leaf LID 2, with a way from it to the host, which has the subnet manager.
fn managed() -> super::Program {
    let mut program = program();
    assert_eq!(program.change(&[], PORT_INFO, 1, &[(17, 1), (19, 1)]), 0);
    assert_eq!(program.change(LEAF, PORT_INFO, 0, &[(17, 2), (19, 1)]), 0);
    let mut table = [0xFF; 64];
    (table[1], table[2]) = (1, 0);
    assert_eq!(program.set(LEAF, 0x19, 0, &table).status(), 0);
    assert_eq!(program.change(LEAF, SWITCH_INFO, 0, &[(7, 2)]), 0);
    let answer = program.clients.handle_control(&control(0, 9, &1u32.to_ne_bytes()));
    assert!(matches!(answer, Control::Answer(_)));
    program
}

#[test]
fn a_switch_tells_the_subnet_manager_of_its_links_until_it_is_heard() {
    let mut program = managed();
    // OpenSM forgets a handover that comes while it discovers the subnet for the first time.
    for _ in 0..2 {
        assert!(program.clients.poll_transmit().is_none(), "a new manager has time to stand by");
        program.clients.repeat();
    }
    let (_, first) = program.clients.poll_transmit().expect("a trap of the host that has a manager now");
    let mad = read(&first).mad;
    assert_eq!((&mad[..4], &mad[16..18]), (&[1, 1, 1, 5][..], &[0, 2][..]), "a trap with a notice");
    assert_eq!(
        (mad[64], &mad[67..72]),
        (0x84, &[1, 0, 144, 0, 1][..]),
        "informational, of an adapter, 144, LID 1"
    );
    assert_eq!((&mad[76..78], mad[83] & 2), (&[0, 1][..], 2), "its LID, and it is a manager's port now");
    program.clients.set_cable(4, false);
    let (slot, datagram) = program.clients.poll_transmit().expect("a trap of the leaf");
    let mad = read(&datagram).mad;
    assert_eq!(
        (slot, mad[64], &mad[67..72]),
        (0, 0x81, &[2, 0, 128, 0, 2][..]),
        "urgent, of a switch, 128, LID 2"
    );
    assert_eq!(mad[74..76], [0, 2], "the switch whose port it is");
    assert!(program.clients.poll_transmit().is_none(), "the spine has no LID");
    program.clients.repeat();
    let again: Vec<_> = std::iter::from_fn(|| program.clients.poll_transmit()).collect();
    assert_eq!(again.len(), 2, "nobody has heard of either");
    for (_, datagram) in &again {
        let mut mad = read(datagram).mad;
        mad[3] = 7;
        program.clients.handle_request(0, &super::request(2, &mad));
    }
    program.clients.repeat();
    assert!(program.clients.poll_transmit().is_none(), "both are repressed");
}

#[test]
fn a_manager_that_ends_is_told_of_at_once() {
    let mut program = managed();
    for _ in 0..2 {
        program.clients.repeat();
    }
    let Control::Connected { slot, .. } = super::connect(&mut program.clients, 5, "host1", true) else {
        panic!("a slot")
    };
    assert_eq!(program.change(&[1, 2], PORT_INFO, 1, &[(17, 3), (19, 1)]), 0);
    while program.clients.poll_transmit().is_some() {}
    program.clients.disconnect(slot);
    let (_, datagram) = program.clients.poll_transmit().expect("a trap of its host");
    let mad = read(&datagram).mad;
    assert_eq!((&mad[67..72], mad[83] & 2), (&[1, 0, 144, 0, 3][..], 0), "144, LID 3, and no manager");
}

#[test]
fn a_trap_that_nobody_hears_ends() {
    let mut program = managed();
    let mut sent = 0;
    for _ in 0..100 {
        program.clients.repeat();
        sent += std::iter::from_fn(|| program.clients.poll_transmit()).count();
    }
    assert_eq!(sent, 10);
}

/// A trap for LID 0 used to cross a cable, and counted as a packet without a route at the switch.
#[test]
fn a_trap_of_a_port_that_knows_no_manager_is_not_sent() {
    let mut program = program();
    assert_eq!(program.change(&[], PORT_INFO, 1, &[(17, 1)]), 0);
    let sent = |program: &mut super::Program| {
        let counters = program.send(1, &super::mad(4, 1, 0x1D, 0, &[], &[0, 1]));
        assert_eq!((counters.lost, counters.status()), (0, 0));
        counters.mad[88..96].to_vec()
    };
    let before = sent(&mut program);
    assert!(matches!(
        program.clients.handle_control(&control(0, 9, &1u32.to_ne_bytes())),
        Control::Answer(_)
    ));
    for _ in 0..4 {
        program.clients.repeat();
        assert!(program.clients.poll_transmit().is_none());
    }
    assert_eq!(sent(&mut program), before, "PortXmitPkts");
}
