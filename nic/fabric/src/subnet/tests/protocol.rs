//! Slots, control, and datagrams from program to program.

use super::{Clients, Control, Subnet, connect, control, mad, program, program_at, read, request, topology};
use crate::subnet::SLOTS;

fn clients() -> Clients {
    Clients::new(Subnet::new(&topology()).expect("it fits"))
}

/// The data of an answer to control; none if it is an error.
fn data(control: &Control) -> Option<&[u8]> {
    let (Control::Answer(answer) | Control::Connected { answer, .. } | Control::Disconnected { answer, .. }) =
        control
    else {
        return None;
    };
    (answer[8..12] != [0; 4]).then_some(&answer[16..])
}

#[test]
fn programs_attach_to_nodes_by_name_or_description() {
    let mut clients = clients();
    for (slot, (asked, given)) in
        [("", "host0"), ("host2", "host2"), ("host3 rnic0", "host3"), ("spine1", "spine1")].iter().enumerate()
    {
        let answer = connect(&mut clients, 100 + slot as u32, asked, false);
        assert!(
            matches!(answer, Control::Connected { slot: own, id, .. } if own == slot && id == 100 + slot as u32)
        );
        let data = data(&answer).expect("it is attached");
        assert_eq!(
            (data[0] as usize, &data[12..12 + given.len()], data[12 + given.len()]),
            (slot, given.as_bytes(), 0)
        );
    }
    assert_eq!(data(&connect(&mut clients, 1, "host9", false)), None, "no such node");
    assert_eq!(clients.connected().count(), 4);
}

#[test]
fn slots_end_and_are_used_again() {
    let mut clients = clients();
    for id in 0..SLOTS as u32 {
        assert!(data(&connect(&mut clients, id, "", false)).is_some());
    }
    assert_eq!(data(&connect(&mut clients, 99, "", false)), None, "one more");
    assert!(matches!(clients.handle_control(&control(5, 2, &[])), Control::Disconnected { slot: 5, .. }));
    assert!(matches!(clients.handle_control(&control(5, 2, &[])), Control::Answer(_)), "twice does no harm");
    assert!(matches!(connect(&mut clients, 98, "", false), Control::Connected { slot: 5, .. }));
    assert_eq!(data(&clients.handle_control(&control(SLOTS, 3, &[]))), None);
}

#[test]
fn control_tells_of_the_node() {
    let mut program = program();
    assert_eq!(program.change(&[], 0x15, 1, &[(16, 1), (17, 4)]), 0);
    let mut ask = |kind: u32, with: &[u8]| {
        data(&program.clients.handle_control(&control(0, kind, with))).expect("an answer").to_vec()
    };
    assert_eq!((&ask(3, &[])[..2], ask(3, &[])[2]), (&0x0104u16.to_ne_bytes()[..], 2), "LID and state");
    assert_eq!(ask(4, &[])[..4], 0x02_0000u32.to_ne_bytes(), "the vendor");
    assert_eq!(ask(5, &[])[..16], [0xFE, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1, 1]);
    assert_eq!(ask(6, &[])[..8], [2, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(ask(7, &[])[..4], [1, 1, 1, 1]);
    assert_eq!((ask(8, &[])[28], ask(8, &[1])[16..18].to_vec()), (1, vec![1, 4]));
    assert_eq!(ask(10, &[])[..4], [0xFF, 0xFF, 0, 0]);
    for kind in [0, 11, u32::MAX] {
        assert_eq!(data(&program.clients.handle_control(&control(0, kind, &[]))), None);
    }
    let mut wrong = control(0, 3, &[]);
    wrong[0] ^= 1;
    assert_eq!(program.clients.handle_control(&wrong), Control::Ignore);
    assert_eq!(program.clients.handle_control(&wrong[1..]), Control::Ignore);
}

#[test]
fn one_manager_at_a_node_gets_what_is_for_it() {
    let mut program = program_at(clients(), "host1");
    // Two programs at the first host; the second one has the manager.
    let first = connect(&mut program.clients, 200, "host0", false);
    let Control::Connected { slot: manager, .. } = connect(&mut program.clients, 201, "host0", true) else {
        panic!("a slot")
    };
    assert!(data(&first).is_some());
    assert_eq!(data(&connect(&mut program.clients, 202, "host0", true)), None, "a second manager");
    let Control::Connected { slot: late, .. } = connect(&mut program.clients, 203, "host0", false) else {
        panic!("a slot")
    };
    let become_one = |slot| control(slot, 9, &1u32.to_ne_bytes());
    assert_eq!(
        data(&program.clients.handle_control(&become_one(late))),
        None,
        "one that becomes a second manager"
    );
    assert!(data(&program.clients.handle_control(&become_one(manager))).is_some(), "it is one already");
    assert_eq!(program.clients.refusals().managers(), 2);
    // SMInfo, by a path from the second host to the first.
    program.clients.handle_request(program.slot, &request(0xFFFF, &mad(0x81, 1, 0x20, 0, &[1, 1], &[])));
    let (slot, datagram) = program.clients.poll_transmit().expect("it is passed on");
    let mut passed = read(&datagram).mad;
    assert_eq!(
        (slot, passed[3], passed[9]),
        (manager, 1, program.slot as u8),
        "with the slot of the one that asks"
    );
    (passed[3], passed[4]) = (0x81, 0x80);
    program.clients.handle_request(manager, &request(0xFFFF, &passed));
    let (slot, datagram) = program.clients.poll_transmit().expect("the answer");
    assert_eq!((slot, read(&datagram).mad[3]), (program.slot, 0x81));
    program.clients.disconnect(manager);
    program.clients.handle_request(program.slot, &request(0xFFFF, &mad(0x81, 1, 0x20, 0, &[1, 1], &[])));
    let (slot, datagram) = program.clients.poll_transmit().expect("it comes back");
    assert_eq!((slot, read(&datagram).lost), (program.slot, 110), "there is no manager");
}

#[test]
fn what_nobody_answers_comes_back() {
    let mut program = program();
    assert_eq!(program.send(7, &mad(1, 1, 0x11, 0, &[], &[])).lost, 110, "no such LID");
    let mut bad = mad(0x81, 1, 0x11, 0, &[1], &[]);
    bad[33] = 0;
    assert_eq!(program.send(0xFFFF, &bad).lost, 110, "a path between LIDs");
    bad[33] = 0xFF;
    bad[6] = 1;
    assert_eq!(program.send(0xFFFF, &bad).lost, 110, "already on its way");
    assert_eq!(program.change(&[], 0x15, 1, &[(17, 1)]), 0);
    assert_eq!(program.send(1, &mad(0x21, 1, 0x11, 0, &[], &[])).status(), 1 << 2, "no agent of this class");
    assert_eq!(program.send(1, &mad(3, 1, 0x35, 0, &[], &[])).lost, 110, "no subnet administration");
    program.clients.handle_request(0, &[0; 10]);
    program.clients.handle_request(9, &request(1, &mad(1, 1, 0x11, 0, &[], &[])));
    assert!(program.clients.poll_transmit().is_none(), "neither a request nor a program");
}

/// A manager that is at another node is another port's affair: the two agree by SMInfo (IBTA volume 1, section 14.4.1).
#[test]
fn managers_at_two_nodes_hear_of_each_other() {
    let mut program = program_at(clients(), "host0");
    let Control::Connected { slot: other, .. } = connect(&mut program.clients, 300, "host3", true) else {
        panic!("a slot")
    };
    assert!(data(&program.clients.handle_control(&control(program.slot, 9, &1u32.to_ne_bytes()))).is_some());
    // Both ports say that a manager is there.
    for path in [&[][..], &[1, 3, 2, 2]] {
        assert_eq!(program.get(path, 0x15, 1)[23] & 2, 2, "PortInfo.CapabilityMask.IsSM of {path:?}");
    }
    // A handover: SubnSet(SMInfo) with 1 as its modifier.
    program
        .clients
        .handle_request(program.slot, &request(0xFFFF, &mad(0x81, 2, 0x20, 1, &[1, 3, 2, 2], &[7; 24])));
    let (slot, datagram) = program.clients.poll_transmit().expect("it is passed on");
    let mut passed = read(&datagram).mad;
    assert_eq!(
        (slot, passed[3], &passed[20..24], &passed[64..88]),
        (other, 2, &[0, 0, 0, 1][..], &[7; 24][..])
    );
    (passed[3], passed[4]) = (0x81, 0x80);
    program.clients.handle_request(other, &request(0xFFFF, &passed));
    assert_eq!(program.clients.poll_transmit().map(|(slot, _)| slot), Some(program.slot), "and answered");
}

/// A program at the first host, and a manager at the last one, with the path from one to the other.
fn two() -> (super::Program, usize, [u8; 256]) {
    let mut program = program_at(clients(), "host0");
    let Control::Connected { slot: other, .. } = connect(&mut program.clients, 300, "host3", true) else {
        panic!("a slot")
    };
    (program, other, mad(0x81, 1, 0x20, 0, &[1, 3, 2, 2], &[]))
}

/// OpenSM does not answer SMInfo before it has discovered its own port, and whoever asks waits until it is told.
#[test]
fn a_request_that_a_program_does_not_answer_is_repeated_and_given_up() {
    let (mut program, other, asks) = two();
    program.clients.handle_request(program.slot, &request(0xFFFF, &asks));
    let first = program.clients.poll_transmit().expect("it is passed on");
    assert_eq!(first.0, other);
    for _ in 0..3 {
        assert!(program.clients.poll_transmit().is_none());
        program.clients.repeat();
        assert_eq!(program.clients.poll_transmit(), Some(first), "the same again");
    }
    program.clients.repeat();
    let (slot, datagram) = program.clients.poll_transmit().expect("it is given up");
    assert_eq!(
        (slot, read(&datagram).lost, &read(&datagram).mad[12..16]),
        (program.slot, 110, &asks[12..16])
    );
    program.clients.repeat();
    assert!(program.clients.poll_transmit().is_none());
}

#[test]
fn a_request_that_is_answered_is_not_repeated() {
    let (mut program, other, asks) = two();
    program.clients.handle_request(program.slot, &request(0xFFFF, &asks));
    let mut passed = read(&program.clients.poll_transmit().expect("it is passed on").1).mad;
    (passed[3], passed[4]) = (0x81, 0x80);
    program.clients.handle_request(other, &request(0xFFFF, &passed));
    assert_eq!(program.clients.poll_transmit().map(|(slot, _)| slot), Some(program.slot));
    // What is only sent waits for nothing.
    let sent = mad(0x81, 3, 0x20, 0, &[1, 3, 2, 2], &[]);
    program.clients.handle_request(program.slot, &request(0xFFFF, &sent));
    assert_eq!(program.clients.poll_transmit().map(|(slot, _)| slot), Some(other));
    program.clients.repeat();
    assert!(program.clients.poll_transmit().is_none());
}

#[test]
fn who_waits_for_a_program_hears_that_it_is_gone() {
    let (mut program, other, asks) = two();
    program.clients.handle_request(program.slot, &request(0xFFFF, &asks));
    assert_eq!(program.clients.poll_transmit().map(|(slot, _)| slot), Some(other));
    program.clients.disconnect(other);
    let (slot, datagram) = program.clients.poll_transmit().expect("at once");
    assert_eq!((slot, read(&datagram).lost), (program.slot, 110));
    program.clients.repeat();
    assert!(program.clients.poll_transmit().is_none());
}

/// A subnet manager sends a trap to the master when it has the higher priority (OpenSM's osm_send_trap144), and is not master
/// before the trap has been repressed: OpenSM waits for all of its answers.
#[test]
fn the_trap_of_a_program_is_repressed_there() {
    let (mut program, other, _) = two();
    assert_eq!(program.change(&[], 0x15, 1, &[(17, 1)]), 0);
    assert_eq!(program.change(&[1, 3, 2, 2], 0x15, 1, &[(17, 4)]), 0);
    for (path, ports) in [(&[1][..], [1, 3]), (&[1, 3], [1, 2]), (&[1, 3, 2], [3, 2])] {
        let mut table = [0xFF; 64];
        (table[1], table[4]) = (ports[0], ports[1]);
        assert_eq!(program.set(path, 0x19, 0, &table).status(), 0);
        assert_eq!(program.change(path, 0x12, 0, &[(7, 4)]), 0);
    }
    let notice = mad(1, 5, 2, 0, &[], &[0x84]);
    program.clients.handle_request(program.slot, &request(4, &notice));
    let (slot, datagram) = program.clients.poll_transmit().expect("it is passed on");
    let mut repress = read(&datagram).mad;
    assert_eq!((slot, repress[3]), (other, 5));
    // The library of ibsim writes the number of the agent that represses into the transaction.
    (repress[3], repress[11]) = (7, 9);
    program.clients.handle_request(other, &request(1, &repress));
    let (slot, datagram) = program.clients.poll_transmit().expect("it comes back");
    assert_eq!(
        (slot, &read(&datagram).mad[3..4], &read(&datagram).mad[12..16]),
        (program.slot, &[7][..], &notice[12..16])
    );
    program.clients.repeat();
    assert!(program.clients.poll_transmit().is_none(), "it is not sent again");
}

#[test]
fn what_is_refused_is_counted_by_its_kind() {
    let mut program = program();
    assert_eq!(program.change(&[], 0x15, 1, &[(17, 1)]), 0);
    for _ in 0..3 {
        assert_eq!(program.send(1, &mad(0x21, 2, 0x17, 0, &[], &[])).status(), 1 << 2, "congestion control");
    }
    assert_eq!(program.ask(&[1], 0xFF90, 0).status(), 3 << 2, "a vendor's attribute");
    let told: Vec<String> =
        program.clients.refusals().kinds().map(|(kind, times)| format!("{times}: {kind}")).collect();
    assert_eq!(
        told,
        [
            "3: class 0x21, method 0x02, attribute 0x0017: no agent of this class and version",
            "1: class 0x81, method 0x01, attribute 0xff90: no such attribute, or not with this method",
        ]
    );
    for attribute in 0x1000..0x1100 {
        program.ask(&[1], attribute, 0);
    }
    let refusals = program.clients.refusals();
    assert_eq!((refusals.kinds().count(), refusals.others()), (64, 256 - 62), "at the bound, and past it");
}
