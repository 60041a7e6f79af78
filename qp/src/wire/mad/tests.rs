use super::cm::*;
use super::*;
use crate::ids::{Gid, Mtu, PKey, Psn, QKey};
use crate::wire::Headers;
use proptest::prelude::*;
use std::net::Ipv4Addr;
use time::Duration;

/// The data of a REQ sent by Linux: frame 1 of the golden capture `cm_rping`.
const LINUX_REQ: &str = "e1c2e0f5 00000000 0000000001061c06 505400fffe770002 00000000 00000000 000036 01 000000 01 000000 \
    a0 bb0bc1 a7 ffff 37 f0 ffff ffff 00000000000000000000ffff0a4d0002 00000000000000000000ffff0a4d0001 a0a24000 00 40 \
    00 98";

/// A datagram whose data starts with these bytes.
fn datagram(attribute: Attribute, data: &[u8]) -> [u8; MAD_LEN] {
    let message =
        Message { transaction_id: 0x2_f5e0_c2e1, attribute_modifier: 0, body: Body::Rtu(Rtu::default()) };
    let header = Header { attribute_id: attribute as u16, ..message.header() };
    let mut whole = [0; DATA_LEN];
    whole[..data.len()].copy_from_slice(data);
    let mut out = [0xee; MAD_LEN];
    Mad { header, data: &whole }.emit(&mut out).expect("a buffer of 256 bytes");
    out
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn emitted(message: &Message<'_>) -> [u8; MAD_LEN] {
    let mut out = [0xee; MAD_LEN];
    message.emit(&mut out).expect("a message that fits");
    out
}

#[test]
fn a_request_of_linux_is_read() {
    let bytes = datagram(Attribute::Req, &bytes(LINUX_REQ));
    let message = Message::parse(&bytes).unwrap();
    let Body::Req(req) = message.body else { panic!("{message:?}") };
    assert_eq!(message.transaction_id, 0x2_f5e0_c2e1);
    let four_seconds = CmTimeout::new(20);
    let expected = Req {
        local_comm_id: CommId(0xe1c2_e0f5),
        service_id: ServiceId::tcp(7174),
        local_ca_guid: 0x5054_00ff_fe77_0002,
        local_qpn: Qpn::new(0x36),
        responder_resources: 1,
        initiator_depth: 1,
        remote_cm_response_timeout: four_seconds,
        starting_psn: Psn::new(0xbb_0bc1),
        local_cm_response_timeout: four_seconds,
        retry_count: 7,
        path_mtu: Mtu::B1024.into(),
        rnr_retry_count: 7,
        max_cm_retries: 15,
        primary: Path {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: Gid::from(Ipv4Addr::new(10, 77, 0, 2)),
            remote_gid: Gid::from(Ipv4Addr::new(10, 77, 0, 1)),
            flow_label: 0xa0a24,
            hop_limit: 64,
            local_ack_timeout: CmTimeout::new(19),
            ..Path::default()
        },
        private_data: &[0; Req::PRIVATE_DATA_LEN],
        ..Req::default()
    };
    assert_eq!(req, expected);
    assert_eq!((req.pkey, req.transport), (PKey::DEFAULT, Transport::Rc));
    assert_eq!(req.path_mtu.mtu(), Some(Mtu::B1024));
    assert_eq!(req.remote_cm_response_timeout.duration(), Duration::from_nanos(4096 << 20));
    // Private data of zeros contains no addresses: IP version 0 does not exist.
    assert_eq!(req.ip_cm(), None);
    assert_eq!(emitted(&message), bytes);
}

/// Bits that the specification reserves are ignored, and written as zero. Every other bit has a place: changing it
/// changes the message, and the change is written back in the same place.
#[test]
fn every_bit_is_read_and_written_or_reserved() {
    let bits = DATA_LEN * 8;
    // The reserved bits of tables 106 to 120 of the specification.
    let path = 6 + 3 + 3;
    for (attribute, reserved) in [
        (Attribute::Req, 8 + 32 + 2 * path),
        (Attribute::Mra, 6 + 3),
        (Attribute::Rej, 6 + 1),
        (Attribute::Rep, 4),
        (Attribute::Rtu, 0),
        (Attribute::Dreq, 8),
        (Attribute::Drep, 0),
        (Attribute::SidrReq, 16),
        (Attribute::SidrRep, 0),
        (Attribute::Lap, 32 + 3 + 32 + 4 + 2 + 3 + 3),
        (Attribute::Apr, 16),
    ] {
        // Additional information is only used up to its length; the bits of the length itself are skipped.
        let (length_byte, length, length_bits) = match attribute {
            Attribute::Rej => (9, 72 << 1, 7),
            Attribute::SidrRep => (5, 72, 8),
            Attribute::Apr => (8, 72, 8),
            _ => (0, 0, 0),
        };
        let mut base = [0; DATA_LEN];
        base[length_byte] = length;
        let base = datagram(attribute, &base);
        let mut kept = 0;
        for bit in 0..bits {
            let mask = 0x80 >> (bit % 8);
            if bit / 8 == length_byte && bit % 8 < length_bits {
                continue;
            }
            let mut changed = base;
            changed[HEADER_LEN + bit / 8] ^= mask;
            let message = Message::parse(&changed).unwrap();
            let differs = message != Message::parse(&base).unwrap();
            assert_eq!(emitted(&message), if differs { changed } else { base }, "{attribute:?}, bit {bit}");
            kept += usize::from(differs);
        }
        assert_eq!(kept, bits - reserved - length_bits, "{attribute:?}");
    }
}

#[test]
fn every_bit_of_the_header_has_its_place() {
    let base = datagram(Attribute::Rtu, &[]);
    for bit in 0..HEADER_LEN * 8 {
        let mut changed = base;
        changed[bit / 8] ^= 0x80 >> (bit % 8);
        match Mad::parse(&changed) {
            Ok(mad) => {
                let mut out = [0xee; MAD_LEN + 1];
                mad.emit(&mut out).unwrap();
                let reserved = (18..20).contains(&(bit / 8));
                assert_eq!(out[..MAD_LEN], if reserved { base } else { changed }, "bit {bit}");
            }
            Err(error) => assert_eq!((bit / 8, error), (0, MadError::BaseVersion(changed[0]))),
        }
    }
}

#[test]
fn additional_information_ends_where_its_length_says() {
    let info: Vec<u8> = (1..=72).collect();
    for len in [0, 1, 71, 72] {
        let rej = Rej { reason: RejReason::InvalidGid, info: &info[..len], ..Rej::default() };
        let rep = SidrRep { status: SidrStatus::Redirect, info: &info[..len], ..SidrRep::default() };
        let apr = Apr { status: AprStatus::Redirect, info: &info[..len], ..Apr::default() };
        for body in [Body::Rej(rej), Body::SidrRep(rep), Body::Apr(apr)] {
            let bytes = emitted(&Message { transaction_id: 1, attribute_modifier: 7, body });
            let read = match Message::parse(&bytes).unwrap().body {
                Body::Rej(rej) => rej.info,
                Body::SidrRep(rep) => rep.info,
                Body::Apr(apr) => apr.info,
                other => panic!("{other:?}"),
            };
            assert_eq!(read, &info[..len]);
        }
    }
    // A length beyond the field is truncated.
    let mut data = [7; DATA_LEN];
    data[9] = 0xff;
    let bytes = datagram(Attribute::Rej, &data);
    let Body::Rej(rej) = Message::parse(&bytes).unwrap().body else { panic!() };
    assert_eq!(rej.info, [7; 72]);
}

#[test]
fn private_data_up_to_its_bound() {
    let many = [9; DATA_LEN];
    let body = |attribute, len: usize| {
        let private_data = &many[..len];
        match attribute {
            Attribute::Req => Body::Req(Req { private_data, ..Req::default() }),
            Attribute::Mra => Body::Mra(Mra { private_data, ..Mra::default() }),
            Attribute::Rej => Body::Rej(Rej { private_data, ..Rej::default() }),
            Attribute::Rep => Body::Rep(Rep { private_data, ..Rep::default() }),
            Attribute::Rtu => Body::Rtu(Rtu { private_data, ..Rtu::default() }),
            Attribute::Dreq => Body::Dreq(Dreq { private_data, ..Dreq::default() }),
            Attribute::Drep => Body::Drep(Drep { private_data, ..Drep::default() }),
            Attribute::SidrReq => Body::SidrReq(SidrReq { private_data, ..SidrReq::default() }),
            Attribute::Lap => Body::Lap(Lap { private_data, ..Lap::default() }),
            Attribute::Apr => Body::Apr(Apr { private_data, ..Apr::default() }),
            Attribute::SidrRep => Body::SidrRep(SidrRep { private_data, ..SidrRep::default() }),
        }
    };
    // As in Linux's ib_cm.h.
    for (attribute, max) in [
        (Attribute::Req, 92),
        (Attribute::Mra, 222),
        (Attribute::Rej, 148),
        (Attribute::Rep, 196),
        (Attribute::Rtu, 224),
        (Attribute::Dreq, 220),
        (Attribute::Drep, 224),
        (Attribute::SidrReq, 216),
        (Attribute::SidrRep, 136),
        (Attribute::Lap, 168),
        (Attribute::Apr, 148),
    ] {
        let bytes =
            emitted(&Message { transaction_id: 0, attribute_modifier: 7, body: body(attribute, max) });
        assert_eq!(bytes[MAD_LEN - max..], many[..max]);
        assert_eq!(bytes[MAD_LEN - max - 1], 0);
        let message = Message { transaction_id: 0, attribute_modifier: 7, body: body(attribute, max + 1) };
        assert_eq!(message.attribute(), attribute);
        let too_long = EmitError::TooLong { field: "private_data", len: max + 1, max };
        assert_eq!(message.emit(&mut [0; MAD_LEN]), Err(too_long));
    }
    let rej = Rej { info: &many[..73], ..Rej::default() };
    let message = Message { transaction_id: 0, attribute_modifier: 7, body: Body::Rej(rej) };
    let too_long = EmitError::TooLong { field: "info", len: 73, max: 72 };
    assert_eq!(message.emit(&mut [0; MAD_LEN]), Err(too_long));
    assert_eq!(message.emit(&mut [0; 255]), Err(EmitError::NoRoom { len: 255 }));
}

#[test]
fn errors_name_what_is_wrong() {
    let good = datagram(Attribute::Rtu, &[]);
    let with = |at: usize, byte: u8| {
        let mut bytes = good;
        bytes[at] = byte;
        Message::parse(&bytes).map(|_| ()).unwrap_err()
    };
    for len in [0, 23, 24, 255] {
        assert_eq!(Message::parse(&good[..len]).unwrap_err(), MadError::Length { len });
    }
    assert_eq!(Message::parse(&[1; 257]).unwrap_err(), MadError::Length { len: 257 });
    assert_eq!(with(0, 2), MadError::BaseVersion(2));
    assert_eq!(with(1, 3), MadError::Class(3));
    assert_eq!(with(2, 1), MadError::ClassVersion(1));
    assert_eq!(with(3, 0x83), MadError::Method(0x83));
    assert_eq!(with(17, 0x0f), MadError::Attribute(0x0f));
    assert_eq!(with(16, 1), MadError::Attribute(0x0114));
}

#[test]
fn addresses_are_for_ports_only() {
    let addresses =
        IpCm { src_port: 7, src: Ipv4Addr::new(10, 0, 0, 1).into(), dst: Ipv4Addr::new(10, 0, 0, 2).into() };
    let mut private_data = addresses.to_bytes().to_vec();
    private_data.extend(b"more");
    for (service_id, expected) in [
        (ServiceId::tcp(7471), Some((addresses, &b"more"[..]))),
        (ServiceId::udp(7471), Some((addresses, &b"more"[..]))),
        (ServiceId(7471), None),
    ] {
        let req = Req { service_id, private_data: &private_data, ..Req::default() };
        let sidr = SidrReq { service_id, private_data: &private_data, ..SidrReq::default() };
        assert_eq!((req.ip_cm(), sidr.ip_cm()), (expected, expected));
        for body in [Body::Req(req), Body::SidrReq(sidr)] {
            assert_eq!(Message { transaction_id: 0, attribute_modifier: 7, body }.ip_cm(), expected);
        }
    }
}

/// A packet with these headers and this payload, without a valid ICRC.
fn packet(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; headers.wire_len()];
    headers.emit(&mut bytes, payload.len());
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4) + 4, 0);
    bytes
}

#[test]
fn only_datagrams_to_queue_pair_1_are_for_management() {
    let mad = datagram(Attribute::Rtu, &[]);
    let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0));
    headers.deth.qkey = QKey::GSI;
    let found = |headers: &Headers, payload: &[u8]| {
        let bytes = packet(headers, payload);
        Packet::parse(&bytes).unwrap().mad().copied()
    };
    assert_eq!(found(&headers, &mad), Some(mad));
    assert_eq!(found(&headers, &mad[..255]), None);
    assert_eq!(found(&Headers { dest_qpn: Qpn::new(2), ..headers }, &mad), None);
    assert_eq!(found(&Headers { opcode: Opcode::RcSendOnly, ..headers }, &mad), None);
    // Queue pair 1 of slot 7, which for other peers is an ordinary queue pair.
    let of_slot = Headers { dest_qpn: Qpn::new(0x07_0001), ..headers };
    let mut hello = [0; MAD_LEN];
    let answer = hello::Hello {
        kind: hello::Kind::Answer,
        transaction_id: 1,
        version: hello::VERSION,
        slot: 3,
        lanes: 0,
        features: hello::Features::CNP,
        instance: 2,
        block: 0,
        counting: hello::Counting::PacketBytes,
        ports: hello::SourcePorts::new(&[0xc001]).unwrap(),
        token: 0,
        proof: 0,
    };
    answer.emit(&mut hello);
    assert_eq!(found(&of_slot, &hello), Some(hello));
    assert_eq!(found(&of_slot, &mad), None);
    assert_eq!(found(&Headers { dest_qpn: Qpn::new(0x07_0002), ..headers }, &hello), None);
}

/// Any attribute with any 232 bytes of data.
fn any_message() -> impl Strategy<Value = [u8; MAD_LEN]> {
    let data = proptest::collection::vec(any::<u8>(), DATA_LEN);
    (proptest::sample::select(&Attribute::ALL[..]), data).prop_map(|(a, data)| datagram(a, &data))
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Message::parse(&bytes);
        if let Ok(whole) = bytes.as_slice().try_into() {
            let _ = Summary(whole).to_string();
        }
    }

    #[test]
    fn any_message_can_be_read_shown_and_written(bytes in any_message()) {
        let message = Message::parse(&bytes).unwrap();
        let written = emitted(&message);
        prop_assert_eq!(Message::parse(&written).unwrap(), message);
        prop_assert_eq!(emitted(&Message::parse(&written).unwrap()), written);
        prop_assert!(message.to_string().starts_with("CM "));
        let mut fields = 0;
        message.each(&mut |_, _| fields += 1);
        prop_assert!(fields > 0);
    }

    #[test]
    fn requests_keep_their_values(
        ids in any::<(u32, u64, u64, u32, u32, u32, u32, u16)>(),
        numbers in any::<[u8; 12]>(),
        flags in any::<[bool; 4]>(),
        gids in any::<[[u8; 16]; 2]>(),
        private in proptest::collection::vec(any::<u8>(), Req::PRIVATE_DATA_LEN),
    ) {
        let (comm, service, guid, qkey, qpn, psn, label, pkey) = ids;
        let [rr, depth, retry, mtu, rnr, cm_retries, ext, rate, class, hop, sl, timeout] = numbers;
        let path = Path {
            local_lid: pkey,
            remote_lid: !pkey,
            local_gid: Gid(gids[0]),
            remote_gid: Gid(gids[1]),
            flow_label: label & 0xf_ffff,
            packet_rate: rate & 0x3f,
            traffic_class: class,
            hop_limit: hop,
            service_level: sl & 0x0f,
            subnet_local: flags[0],
            local_ack_timeout: CmTimeout::new(timeout),
        };
        let req = Req {
            local_comm_id: CommId(comm),
            vendor_id: qkey >> 8,
            service_id: ServiceId(service),
            local_ca_guid: guid,
            local_qkey: QKey(qkey),
            local_qpn: Qpn::new(qpn),
            responder_resources: rr,
            local_eecn: label >> 8,
            initiator_depth: depth,
            remote_eecn: psn >> 8,
            remote_cm_response_timeout: CmTimeout::new(timeout),
            transport: if flags[1] { Transport::Uc } else { Transport::Extended },
            end_to_end_flow_control: flags[1],
            starting_psn: Psn::new(psn),
            local_cm_response_timeout: CmTimeout::new(!timeout),
            retry_count: retry & 7,
            pkey: PKey(pkey),
            path_mtu: MtuCode::new(mtu),
            rdc_exists: flags[2],
            rnr_retry_count: rnr & 7,
            max_cm_retries: cm_retries & 0x0f,
            srq: flags[3],
            extended_transport: ext & 7,
            primary: path,
            alternate: Path { flow_label: !label & 0xf_ffff, subnet_local: !flags[0], ..path },
            private_data: &private,
        };
        let message = Message { transaction_id: guid, attribute_modifier: 7, body: Body::Req(req) };
        let bytes = emitted(&message);
        prop_assert_eq!(Message::parse(&bytes).unwrap(), message);
        // Excess bits of a value are truncated and do not leak into other fields.
        let wide = Req { retry_count: retry | 0xf8, max_cm_retries: cm_retries | 0xf0, ..req };
        let message = Message { transaction_id: guid, attribute_modifier: 7, body: Body::Req(wide) };
        let bytes = emitted(&message);
        let Body::Req(cut) = Message::parse(&bytes).unwrap().body else { panic!() };
        prop_assert_eq!(cut, req);
    }

    #[test]
    fn replies_keep_their_values(
        ids in any::<(u32, u32, u32, u32, u32, u64)>(),
        numbers in any::<[u8; 4]>(),
        flags in any::<[bool; 2]>(),
        private in proptest::collection::vec(any::<u8>(), Rep::PRIVATE_DATA_LEN),
    ) {
        let (local, remote, qkey, qpn, psn, guid) = ids;
        let [rr, depth, delay, rnr] = numbers;
        let rep = Rep {
            local_comm_id: CommId(local),
            remote_comm_id: CommId(remote),
            local_qkey: QKey(qkey),
            local_qpn: Qpn::new(qpn),
            local_eecn: psn >> 8,
            starting_psn: Psn::new(psn),
            responder_resources: rr,
            initiator_depth: depth,
            target_ack_delay: CmTimeout::new(delay),
            failover: if flags[0] { Failover::NotSupported } else { Failover::Rejected },
            end_to_end_flow_control: flags[0],
            rnr_retry_count: rnr & 7,
            srq: flags[1],
            local_ca_guid: guid,
            private_data: &private,
            ..Rep::default()
        }
        .with_vendor_id(qkey);
        prop_assert_eq!(rep.vendor_id(), qkey & 0xff_ffff);
        let message = Message { transaction_id: !guid, attribute_modifier: 7, body: Body::Rep(rep) };
        let bytes = emitted(&message);
        prop_assert_eq!(Message::parse(&bytes).unwrap(), message);
    }

    #[test]
    fn the_other_messages_keep_their_values(
        ids in any::<(u32, u32, u64, u32, u32, u16)>(),
        code in any::<[u8; 3]>(),
        tail in proptest::collection::vec(any::<u8>(), DATA_LEN),
        info_len in 0..=72usize,
    ) {
        let (local, remote, service, qpn, qkey, number) = ids;
        let (local_comm_id, remote_comm_id) = (CommId(local), CommId(remote));
        let [subject, time, status] = code;
        let message = [Subject::Req, Subject::Rep, Subject::Other, Subject::Reserved][usize::from(subject & 3)];
        let service_timeout = CmTimeout::new(time);
        let private = |len: usize| &tail[..len];
        for body in [
            Body::Mra(Mra {
                local_comm_id,
                remote_comm_id,
                message,
                service_timeout,
                private_data: private(Mra::PRIVATE_DATA_LEN),
            }),
            Body::Rej(Rej {
                local_comm_id,
                remote_comm_id,
                message,
                reason: RejReason::from_code(number),
                info: &tail[..info_len],
                private_data: private(Rej::PRIVATE_DATA_LEN),
            }),
            Body::Rtu(Rtu { local_comm_id, remote_comm_id, private_data: private(Rtu::PRIVATE_DATA_LEN) }),
            Body::Dreq(Dreq {
                local_comm_id,
                remote_comm_id,
                remote_qpn: Qpn::new(qpn),
                private_data: private(Dreq::PRIVATE_DATA_LEN),
            }),
            Body::Drep(Drep { local_comm_id, remote_comm_id, private_data: private(Drep::PRIVATE_DATA_LEN) }),
            Body::SidrReq(SidrReq {
                request_id: local_comm_id,
                pkey: PKey(number),
                service_id: ServiceId(service),
                private_data: private(SidrReq::PRIVATE_DATA_LEN),
            }),
            Body::SidrRep(SidrRep {
                request_id: local_comm_id,
                status: SidrStatus::from_code(status),
                qpn: Qpn::new(qpn),
                service_id: ServiceId(service),
                qkey: QKey(qkey),
                info: &tail[..info_len],
                private_data: private(SidrRep::PRIVATE_DATA_LEN),
                ..SidrRep::default()
            }.with_vendor_id(qpn)),
            Body::Lap(Lap {
                local_comm_id,
                remote_comm_id,
                remote_qpn: Qpn::new(qpn),
                remote_cm_response_timeout: service_timeout,
                alternate: AlternatePath { flow_label: qkey >> 12, traffic_class: status, ..AlternatePath::default() },
                private_data: private(Lap::PRIVATE_DATA_LEN),
            }),
            Body::Apr(Apr {
                local_comm_id,
                remote_comm_id,
                status: AprStatus::from_code(status),
                info: &tail[..info_len],
                private_data: private(Apr::PRIVATE_DATA_LEN),
            }),
        ] {
            let message = Message { transaction_id: service, attribute_modifier: 7, body };
            let bytes = emitted(&message);
            prop_assert_eq!(Message::parse(&bytes).unwrap(), message);
        }
    }
}
