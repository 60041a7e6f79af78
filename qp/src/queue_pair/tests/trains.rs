//! The contents of a train, and their order.

use super::*;
use crate::memory::Domain;
use crate::queue_pair::requester::gather;
use crate::wire::icrc::{IcrcVerdict, IdentSolver};

/// The shortest packet of a train must be its last, so a single acknowledgement follows the requests of a train. If
/// there was no room for it, it leads the next train, however many requests there are. It waits for at most one
/// train.
#[test]
fn an_acknowledgement_waits_for_one_train_of_requests_at_most() {
    let mut b = Setup::default().rts();
    for (write, first) in [(RQ, SQ), (RQ + 1, SQ + 7)] {
        b.post(1, SEND, &[local(0, 7 * MTU)]);
        b.take(&rdma(Opcode::RcWriteOnly, write, START, KEY, 1, b"x"));
        let sent = b.poll(3, &mut u32::MAX.clone());
        let order = [first, first + 1, first + 2, write, first + 3, first + 4, first + 5, first + 6];
        assert_eq!(psns(&sent), order);
        b.take(&acked(first + 6));
    }
    // If there is room, it is the last of its train.
    b.post(3, SEND, &[local(0, MTU)]);
    b.take(&rdma(Opcode::RcWriteOnly, RQ + 2, START, KEY, 1, b"x"));
    assert_eq!(psns(&b.poll(3, &mut u32::MAX.clone())), [SQ + 14, RQ + 2]);
}

/// A limit counts from the current length of the train and is never withdrawn.
#[test]
fn a_train_says_how_many_more_packets_it_takes() {
    let mut b = Setup::default().rts();
    b.post(1, SEND, &[local(0, 3 * MTU)]);
    // Packets of MTU bytes with BTH and ICRC.
    let size = MTU + 16;
    let mut buf = vec![0; 5 * size + size - 1];
    let mut train = Train::new(&mut buf, Bench::flow(), 64);
    assert_eq!(train.room(), 0, "its first packet decides");
    b.qp.poll_transmit(b.now, &mut train, &mut Budget::default(), &mut b.host);
    assert_eq!((train.packets(), train.room()), (3, 2));
    train.limit(1);
    assert_eq!(train.room(), 1);
    b.post(2, SEND, &[local(0, MTU - 4)]);
    b.qp.poll_transmit(b.now, &mut train, &mut Budget::default(), &mut b.host);
    assert_eq!((train.packets(), train.room()), (4, 0), "a shorter packet ends it");
}

#[test]
fn a_train_that_is_limited_on_the_way() {
    let mut b = Setup::default().rts();
    b.post(1, SEND, &[local(0, 7 * MTU)]);
    let mut buf = [0; 8192];
    let mut train = Train::new(&mut buf, Bench::flow(), 64);
    for (more, packets) in [(2, 2), (3, 2), (0, 2)] {
        train.limit(more);
        b.qp.poll_transmit(b.now, &mut train, &mut Budget::default(), &mut b.host);
        assert_eq!(train.packets(), packets);
    }
    assert!(train.is_closed());
}

/// A payload of several elements, long and short ones, and of all lengths, from anywhere in the message. The ICRC of a
/// long one is computed on the way.
#[test]
fn a_gathered_payload_has_its_icrc() {
    let mut host = TestHost::default();
    host.register(LOCAL, LOCAL_START, REGION_LEN, Access::empty());
    for (i, byte) in host.bytes(LOCAL).iter_mut().enumerate() {
        *byte = (i * 7 + i / 256) as u8;
    }
    let domain = Domain { pd: PD, qpn: Qpn::new(5) };
    let mut solver = IdentSolver::new();
    let mut buf = [0; 65_536];
    for lengths in [&[4096][..], &[10, 600, 3, 0, 511, 512, 1000, 1], &[1; 700], &[500, 500, 500], &[1, 5000]]
    {
        let list: Vec<Sge> = lengths.iter().enumerate().map(|(i, len)| local(64 * i as u64, *len)).collect();
        let message: Vec<u8> = list.iter().flat_map(|sge| host.behind(*sge).to_vec()).collect();
        let inline = Gather::Inline(message.clone().into());
        for data in [Gather::from(&list[..]), inline] {
            for (from, to) in [(0, 4096), (0, 511), (0, 512), (3, 515), (1, 1500), (300, 301)] {
                let piece = &message[from..to.min(message.len())];
                let mut train = Train::new(&mut buf, Bench::flow(), 1);
                let headers = Headers::new(Opcode::UdSendOnly, Qpn::new(1), Psn::new(2));
                train
                    .push_summed(&headers, piece.len(), |out, crc| {
                        gather(&host, domain, &data, from as u64, out, crc)
                    })
                    .unwrap();
                assert_eq!(Packet::parse(train.bytes()).unwrap().payload(), piece);
                assert_eq!(solver.verify(&Bench::flow(), 0, train.bytes()), IcrcVerdict::Exact);
            }
        }
    }
}
