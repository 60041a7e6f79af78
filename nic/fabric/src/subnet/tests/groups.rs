//! Multicast groups: hosts join them, and keep the LIDs.

use super::{Clients, Control, Program, Subnet, connect, read, request, topology};
use std::net::Ipv4Addr;

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 192, 0, 7);

/// The second host is to join a group.
fn managed() -> Program {
    let mut subnet = Subnet::new(&topology()).expect("it fits");
    subnet.join(1, GROUP);
    manage(subnet)
}

/// The manager is at the first host, with LID 1, and the second has LID 2.
fn manage(subnet: Subnet) -> Program {
    let mut clients = Clients::new(subnet);
    let Control::Connected { slot, .. } = connect(&mut clients, 7, "host0", true) else { panic!("a slot") };
    let mut program = Program { clients, slot };
    assert_eq!(program.change(&[], 0x15, 1, &[(17, 1), (19, 1)]), 0);
    assert_eq!(program.change(&[1, 2], 0x15, 1, &[(17, 2), (19, 1)]), 0);
    let mut table = [0xFF; 64];
    (table[1], table[2]) = (1, 2);
    assert_eq!(program.set(&[1], 0x19, 0, &table).status(), 0);
    assert_eq!(program.change(&[1], 0x12, 0, &[(7, 2)]), 0);
    program
}

fn activate(program: &mut Program) {
    for state in [3, 4] {
        for (path, port) in [(&[][..], 1), (&[1], 1), (&[1], 2), (&[1, 2], 1)] {
            assert_eq!(program.state(path, port, state), 0);
        }
    }
}

/// What hosts ask after some time.
fn asked(program: &mut Program) -> Vec<[u8; 256]> {
    program.clients.repeat();
    let sent = std::iter::from_fn(|| program.clients.poll_transmit());
    // Traps are of another class.
    sent.map(|(_, datagram)| read(&datagram).mad).filter(|mad| mad[1] == 3).collect()
}

fn answer(program: &mut Program, asked: &[u8; 256], status: u8, lid: u16) {
    let mut mad = *asked;
    (mad[3], mad[4]) = (0x81, status);
    mad[92..94].copy_from_slice(&lid.to_be_bytes());
    program.clients.handle_request(program.slot, &request(2, &mad));
}

#[test]
fn a_host_joins_until_it_is_told_the_lid_of_its_group() {
    let mut program = managed();
    assert!(asked(&mut program).is_empty(), "no data pass its port yet");
    activate(&mut program);
    let first = asked(&mut program);
    let [mad] = first.as_slice() else { panic!("{} datagrams", first.len()) };
    assert_eq!((&mad[..4], &mad[16..18]), (&[1, 3, 2, 2][..], &[0, 0x38][..]), "SubnAdmSet(MCMemberRecord)");
    assert_eq!(mad[48..56], [0, 0, 0, 0, 0, 1, 0x30, 0xC7], "the components");
    assert_eq!(mad[56..72], [0xFF, 0x15, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 239, 192, 0, 7], "MGID");
    assert_eq!(
        (&mad[72..80], &mad[80..88]),
        (&[0xFE, 0x80, 0, 0, 0, 0, 0, 0][..], &[2, 0, 0, 0, 0, 0, 2, 1][..])
    );
    assert_eq!(mad[88..92], [0x52, 0x44, 0x55, 0x43], "the Q_Key of rnic_collectives");
    assert_eq!((&mad[96..98], mad[104] & 15), (&[0xFF, 0xFF][..], 1), "P_Key, full member");
    answer(&mut program, mad, 2, 0xC004);
    assert!(program.clients.subnet().groups().is_empty(), "refused");
    let second = asked(&mut program);
    assert_eq!(second, first, "it asks again");
    answer(&mut program, &second[0], 0, 0xC004);
    assert_eq!(program.clients.subnet().groups().get(&GROUP), Some(&0xC004));
    assert_eq!(program.clients.subnet().tables().groups.get(&GROUP).map(String::as_str), Some("0xc004"));
    assert!(asked(&mut program).is_empty());
}

/// A new subnet manager knows no members: it has clients register again (PortInfo.ClientReregister).
#[test]
fn a_host_that_is_to_register_again_joins_again() {
    let mut program = managed();
    activate(&mut program);
    let mad = asked(&mut program)[0];
    answer(&mut program, &mad, 0, 0xC004);
    let rest = program.get(&[1, 2], 0x15, 1)[51];
    assert_eq!(program.change(&[1, 2], 0x15, 1, &[(51, rest)]), 0);
    assert!(asked(&mut program).is_empty(), "other changes mean nothing");
    assert_eq!(program.change(&[1, 2], 0x15, 1, &[(51, rest | 0x80)]), 0);
    assert_eq!(program.get(&[1, 2], 0x15, 1)[51] & 0x80, 0, "it reads as 0");
    assert_eq!(asked(&mut program).len(), 1);
}

/// Both hosts are to join the group, and one after them that no node is.
#[test]
fn each_host_has_its_own_answer_and_forgets_by_itself() {
    let mut subnet = Subnet::new(&topology()).expect("it fits");
    [99, 0, 1].iter().for_each(|node| subnet.join(*node, GROUP));
    let mut program = manage(subnet);
    activate(&mut program);
    let both = asked(&mut program);
    let [first, second] = both.as_slice() else {
        panic!("{} datagrams: no node holds up nobody", both.len())
    };
    // The manager answers the first host at the second one.
    answer(&mut program, first, 0, 0xC004);
    assert_eq!(asked(&mut program).len(), 2, "the second host asked for nothing with this transaction");
    let version = program.clients.subnet().version();
    answer(&mut program, second, 0, 0xC004);
    assert!(program.clients.subnet().version() > version, "switches forward by it");
    assert_eq!(asked(&mut program), [*first], "one host is left");
    let mut granted = *first;
    (granted[3], granted[92], granted[93]) = (0x81, 0xC0, 4);
    program.clients.handle_request(program.slot, &request(1, &granted));
    assert!(asked(&mut program).is_empty());
    let info = program.get(&[1, 2], 0x15, 1)[51] | 0x80;
    assert_eq!(program.change(&[1, 2], 0x15, 1, &[(51, info)]), 0);
    assert_eq!(asked(&mut program), [*second], "only the one that is told registers again");
}

/// OpenSM gives LIDs from 0xC000 on; 0xFFFF is the permissive LID (IBTA volume 1, section 4.1.3).
#[test]
fn a_grant_without_the_lid_of_a_group_is_none() {
    let mut program = managed();
    activate(&mut program);
    let mad = asked(&mut program)[0];
    for lid in [0, 2, 0xBFFF, 0xFFFF] {
        answer(&mut program, &mad, 0, lid);
        assert!(program.clients.subnet().groups().is_empty(), "{lid:#x}");
    }
    let mut other = mad;
    other[17] = 0x35;
    answer(&mut program, &other, 0, 0xC000);
    assert!(program.clients.subnet().groups().is_empty(), "the answer to another question");
    answer(&mut program, &mad, 0, 0xC000);
    assert_eq!(program.clients.subnet().groups().get(&GROUP), Some(&0xC000));
}
