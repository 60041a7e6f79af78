//! What is said survives the way, and garbage is no message.

use super::*;
use proptest::prelude::*;

fn frames() -> Vec<Request> {
    let to: SocketAddr = "[fd00::1]:7471".parse().expect("an address");
    let claim = Claim { reuse: true, remote: Some(to), ..Claim::new(PortSpace::Other(9), to) };
    vec![
        Request::Hello(Hello { version: VERSION, pid: 7, program: "rping".to_owned() }),
        Request::Attach { address: None },
        Request::Resume { address: to.ip(), slot: 254, token: u128::MAX },
        Request::Ledger {
            entries: vec![LedgerEntry::Listens(u64::MAX), LedgerEntry::Ended(3)],
            number: Some(1),
        },
        Request::Bind(PortClaim::from(&claim)),
    ]
}

#[test]
fn frames_are_read_as_they_were_written_wherever_they_are_cut() {
    let mut whole = BytesMut::new();
    frames().iter().for_each(|frame| write_frame(frame, &mut whole));
    for cut in 0..whole.len() {
        let mut incoming = BytesMut::from(&whole[..cut]);
        let mut read = Vec::new();
        while let Some(frame) = read_frame::<Request>(&mut incoming).expect("frames") {
            read.push(frame);
        }
        incoming.extend_from_slice(&whole[cut..]);
        while let Some(frame) = read_frame::<Request>(&mut incoming).expect("frames") {
            read.push(frame);
        }
        assert_eq!((read, incoming.len()), (frames(), 0), "cut at {cut}");
    }
}

#[test]
fn what_a_claim_and_a_connection_say_survives_the_way() {
    let Request::Bind(claim) = &frames()[4] else { panic!("the last one is a claim") };
    let back = Claim::from(*claim);
    assert_eq!((back.space, back.reuse, PortClaim::from(&back)), (PortSpace::Other(9), true, *claim));
    let connected = Connected {
        local: CommId(0x0700_0001),
        remote: CommId(9),
        local_qpn: Qpn::new(0x07_1234),
        remote_qpn: Qpn::new(0x11),
        to: Destination {
            remote: Gid([1; 16]),
            local: Gid([2; 16]),
            flow_label: 5,
            traffic_class: 6,
            hop_limit: 7,
            sl: 3,
        },
    };
    let LedgerEntry::Connected(with) = LedgerEntry::from(Entry::Connected(connected)) else {
        panic!("a connection")
    };
    assert_eq!(Connected::from(with), connected);
    let capabilities = Capabilities {
        gso: Gso::Refused,
        gro: true,
        tos: false,
        ttl: true,
        drops: false,
        no_checksum: true,
        rcvbuf: 425_984,
    };
    assert_eq!(Capabilities::from(Offers::from(capabilities)), capabilities);
}

#[test]
fn a_frame_that_is_too_long_is_refused_before_it_is_there() {
    let mut incoming = BytesMut::from(&(MOST_FRAME as u32 + 1).to_be_bytes()[..]);
    assert_eq!(read_frame::<Request>(&mut incoming), Err(FrameError::TooLong(MOST_FRAME + 1)));
}

proptest! {
    #[test]
    fn garbage_is_no_message_and_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut incoming = BytesMut::new();
        incoming.put_u32(bytes.len() as u32);
        incoming.put_slice(&bytes);
        if let Ok(Some(request)) = read_frame::<Request>(&mut incoming) {
            // Whatever it is, it can be said.
            let mut said = BytesMut::new();
            write_frame(&request, &mut said);
            prop_assert_eq!(read_frame::<Request>(&mut said), Ok(Some(request)));
        }
    }
}
