use super::*;
use crate::ids::QKey;
use crate::wire::opcode::Operation;
use proptest::prelude::*;

/// A packet with these headers, without a valid ICRC.
fn build(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xee; headers.wire_len()];
    let len = headers.emit(&mut bytes, payload.len());
    assert_eq!(len, bytes.len());
    bytes.extend(payload);
    bytes.resize(bytes.len() + pad_len(payload.len()), 0);
    bytes.extend([1, 2, 3, 4]);
    bytes
}

fn ack() -> Headers {
    let mut headers = Headers::new(Opcode::RcAcknowledge, Qpn::new(0x11), Psn::new(100));
    headers.aeth = AethFields { syndrome: 0x1f, msn: 1 };
    headers
}

#[test]
fn pad_fills_words() {
    assert_eq!([0, 1, 2, 3, 4, 5].map(pad_len), [0, 3, 2, 1, 0, 3]);
    assert_eq!(pad_len(usize::MAX), 1);
    let headers = Headers::new(Opcode::RcSendOnly, Qpn::new(0x11), Psn::new(1));
    for (len, pad) in [(0, 0), (1, 3), (2, 2), (3, 1), (4, 0)] {
        assert_eq!(Packet::parse(&build(&headers, &vec![7; len])).unwrap().pad(), pad);
    }
}

#[test]
fn acknowledge_bytes() {
    let bytes = build(&ack(), &[]);
    assert_eq!(bytes, [0x11, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 100, 0x1f, 0, 0, 1, 1, 2, 3, 4]);
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(packet.aeth(), Some(ack().aeth));
    assert_eq!(packet.reth(), None);
    assert_eq!(packet.icrc(), 0x0403_0201);
    assert_eq!(packet.payload(), b"");
}

#[test]
fn cnp_bytes() {
    let bytes = build(&Headers::cnp(Qpn::new(0xd2)), &[]);
    let mut expected = vec![0x81, 0, 0xff, 0xff, 0x40, 0, 0, 0xd2, 0, 0, 0, 0];
    expected.extend([0; 16]);
    assert_eq!(bytes[..28], expected);
    let packet = Packet::parse(&bytes).unwrap();
    assert!(packet.becn() && packet.payload().is_empty());
    // Reserved bytes are ignored on reception.
    let mut marked = bytes.clone();
    marked[20] = 0xff;
    assert_eq!(Headers::of(&Packet::parse(&marked).unwrap()), Headers::of(&packet));
}

#[test]
fn errors_name_the_rule() {
    let good = build(&ack(), &[]);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Packet::parse(&bytes).map(|_| ()).unwrap_err()
    };
    assert_eq!(with(0, 0x15), WireError::UnknownOpcode(0x15));
    assert_eq!(with(0, 0x40), WireError::UnknownOpcode(0x40), "reliable datagrams do not exist");
    assert_eq!(with(1, 0x01), WireError::UnsupportedVersion(1));
    assert_eq!(with(1, 0x10), WireError::PadExceedsPayload { pad: 1, available: 0 });
    assert_eq!(with(0, 0x06), WireError::TooShort { len: 20, needed: 32 });
    let mut long = good.clone();
    long.extend([0; 4]);
    assert_eq!(Packet::parse(&long).unwrap_err(), WireError::PayloadNotAllowed { len: 4 });
    let send = build(&Headers::new(Opcode::RcSendOnly, Qpn::GSI, Psn::new(0)), b"12345678");
    assert_eq!(Packet::parse(&send[..22]).unwrap_err(), WireError::Misaligned { len: 22 });
    assert_eq!(Packet::parse(&[]).unwrap_err(), WireError::TooShort { len: 0, needed: 16 });
    assert_eq!(Packet::parse(&send[..12]).unwrap_err(), WireError::TooShort { len: 12, needed: 16 });
}

#[test]
fn a_send_of_nothing_is_legal() {
    let bytes = build(&Headers::new(Opcode::RcSendOnly, Qpn::GSI, Psn::new(0)), &[]);
    assert_eq!(Packet::parse(&bytes).unwrap().payload(), b"");
}

#[test]
#[should_panic(expected = "range")]
fn emit_into_too_small_a_buffer_is_a_caller_bug() {
    ack().emit(&mut [0; 15], 0);
}

fn any_headers() -> impl Strategy<Value = Headers> {
    let numbers = (any::<[u32; 8]>(), any::<[u64; 4]>(), any::<[bool; 5]>(), any::<u16>(), any::<[u8; 3]>());
    (0..Opcode::ALL.len(), numbers).prop_map(|(opcode, (w, d, flags, pkey, b))| {
        let opcode = Opcode::ALL[opcode];
        let set = opcode.info().headers;
        let mut h = Headers::new(opcode, Qpn::new(w[0]), Psn::new(w[1]));
        [h.solicited, h.mig_req, h.fecn, h.becn, h.ack_req] = flags;
        h.pkey = PKey(pkey);
        if set.contains(HeaderSet::DETH) {
            h.deth = DethFields { qkey: QKey(w[2]), src_qpn: Qpn::new(w[3]) };
        }
        if set.contains(HeaderSet::RETH) {
            h.reth = RethFields { va: d[0], rkey: w[4], length: w[5] };
        }
        if set.contains(HeaderSet::ATOMIC_ETH) {
            h.atomic = AtomicFields { va: d[0], rkey: w[4], swap_add: d[1], compare: d[2] };
        }
        if set.contains(HeaderSet::AETH) {
            h.aeth = AethFields { syndrome: b[0], msn: w[6] >> 8 };
        }
        if set.contains(HeaderSet::ATOMIC_ACK_ETH) {
            h.atomic_ack = d[3];
        }
        if set.contains(HeaderSet::IMM_DT) {
            h.imm = w[7];
        }
        if set.contains(HeaderSet::IETH) {
            h.ieth = w[7];
        }
        if set.contains(HeaderSet::XRCETH) {
            h.xrc_srqn = w[2] >> 8;
        }
        if set.contains(HeaderSet::FETH) {
            h.feth = FethFields { placement: b[1] & 0x0f, selectivity: b[2] & 0x03 };
        }
        h
    })
}

proptest! {
    #[test]
    fn emitted_packets_parse_back(headers in any_headers(), payload in proptest::collection::vec(any::<u8>(), 0..70)) {
        let payload = if headers.opcode.info().has_payload { payload } else { Vec::new() };
        let bytes = build(&headers, &payload);
        let packet = Packet::parse(&bytes).unwrap();
        prop_assert_eq!(Headers::of(&packet), headers);
        prop_assert_eq!(packet.payload(), &payload);
        prop_assert_eq!(packet.tver(), 0);
        prop_assert!(!packet.to_string().is_empty());
        for len in 0..bytes.len() {
            if let Ok(shorter) = Packet::parse(&bytes[..len]) {
                prop_assert!(len % 4 == 0 && shorter.payload().len() < payload.len());
            }
        }
    }

    #[test]
    fn any_bytes_give_a_packet_or_an_error(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120),
        opcode in 0..Opcode::ALL.len(),
        plausible: bool,
    ) {
        if plausible && bytes.len() >= 2 {
            bytes[0] = Opcode::ALL[opcode] as u8;
            bytes[1] &= 0xf0;
            bytes.truncate(bytes.len() & !3);
        }
        match Packet::parse(&bytes) {
            Ok(packet) => {
                let debug = format!("{packet:?}");
                prop_assert!(debug.contains(&packet.to_string()));
                let again = build(&Headers::of(&packet), packet.payload());
                let again = Packet::parse(&again).unwrap();
                prop_assert_eq!(Headers::of(&again), Headers::of(&packet));
                let atomic = matches!(packet.info().operation, Operation::CompareSwap | Operation::FetchAdd);
                prop_assert_eq!(packet.atomic_eth().is_some(), atomic);
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
