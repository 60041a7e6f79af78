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
