use super::*;

/// Byte, name, length of the BTH and its extension headers, whether a payload may follow. Transcribed from the RDMA
/// headers of the Linux kernel and soft-RoCE, not from the list above; the last two are ours.
const EXPECTED: &[(u8, &str, u8, bool)] = &[
    (0, "RC SEND_FIRST", 12, true),
    (1, "RC SEND_MIDDLE", 12, true),
    (2, "RC SEND_LAST", 12, true),
    (3, "RC SEND_LAST_IMM", 16, true),
    (4, "RC SEND_ONLY", 12, true),
    (5, "RC SEND_ONLY_IMM", 16, true),
    (6, "RC WRITE_FIRST", 28, true),
    (7, "RC WRITE_MIDDLE", 12, true),
    (8, "RC WRITE_LAST", 12, true),
    (9, "RC WRITE_LAST_IMM", 16, true),
    (10, "RC WRITE_ONLY", 28, true),
    (11, "RC WRITE_ONLY_IMM", 32, true),
    (12, "RC READ_REQ", 28, false),
    (13, "RC READ_RESP_FIRST", 16, true),
    (14, "RC READ_RESP_MIDDLE", 12, true),
    (15, "RC READ_RESP_LAST", 16, true),
    (16, "RC READ_RESP_ONLY", 16, true),
    (17, "RC ACK", 16, false),
    (18, "RC ATOMIC_ACK", 24, false),
    (19, "RC CMP_SWAP", 40, false),
    (20, "RC FETCH_ADD", 40, false),
    (22, "RC SEND_LAST_INV", 16, true),
    (23, "RC SEND_ONLY_INV", 16, true),
    (28, "RC FLUSH", 32, false),
    (29, "RC ATOMIC_WRITE", 28, true),
    (32, "UC SEND_FIRST", 12, true),
    (33, "UC SEND_MIDDLE", 12, true),
    (34, "UC SEND_LAST", 12, true),
    (35, "UC SEND_LAST_IMM", 16, true),
    (36, "UC SEND_ONLY", 12, true),
    (37, "UC SEND_ONLY_IMM", 16, true),
    (38, "UC WRITE_FIRST", 28, true),
    (39, "UC WRITE_MIDDLE", 12, true),
    (40, "UC WRITE_LAST", 12, true),
    (41, "UC WRITE_LAST_IMM", 16, true),
    (42, "UC WRITE_ONLY", 28, true),
    (43, "UC WRITE_ONLY_IMM", 32, true),
    (100, "UD SEND_ONLY", 20, true),
    (101, "UD SEND_ONLY_IMM", 24, true),
    (129, "CNP", 28, false),
    (160, "XRC SEND_FIRST", 16, true),
    (161, "XRC SEND_MIDDLE", 16, true),
    (162, "XRC SEND_LAST", 16, true),
    (163, "XRC SEND_LAST_IMM", 20, true),
    (164, "XRC SEND_ONLY", 16, true),
    (165, "XRC SEND_ONLY_IMM", 20, true),
    (166, "XRC WRITE_FIRST", 32, true),
    (167, "XRC WRITE_MIDDLE", 16, true),
    (168, "XRC WRITE_LAST", 16, true),
    (169, "XRC WRITE_LAST_IMM", 20, true),
    (170, "XRC WRITE_ONLY", 32, true),
    (171, "XRC WRITE_ONLY_IMM", 36, true),
    (172, "XRC READ_REQ", 32, false),
    (173, "XRC READ_RESP_FIRST", 16, true),
    (174, "XRC READ_RESP_MIDDLE", 12, true),
    (175, "XRC READ_RESP_LAST", 16, true),
    (176, "XRC READ_RESP_ONLY", 16, true),
    (177, "XRC ACK", 16, false),
    (178, "XRC ATOMIC_ACK", 24, false),
    (179, "XRC CMP_SWAP", 44, false),
    (180, "XRC FETCH_ADD", 44, false),
    (182, "XRC SEND_LAST_INV", 20, true),
    (183, "XRC SEND_ONLY_INV", 20, true),
    (192, "RNIC FLOW_CONTROL", 12, true),
    (193, "RNIC PAUSE", 12, true),
    (194, "RNIC SELECTIVE_ACK", 16, true),
    (195, "RNIC TELEMETRY", 12, true),
];

#[test]
fn table_agrees_with_an_independent_list() {
    let found: Vec<_> = (0..=u8::MAX)
        .filter_map(Opcode::from_u8)
        .map(|opcode| {
            let info = opcode.info();
            (opcode as u8, info.name, info.header_len, info.has_payload)
        })
        .collect();
    assert_eq!(found, EXPECTED);
    assert_eq!(Opcode::ALL.len(), EXPECTED.len());
}

#[test]
fn names_say_position_and_direction() {
    for &opcode in Opcode::ALL {
        let info = opcode.info();
        let in_name = |part: &str| info.name.contains(part);
        match info.position {
            Position::First => assert!(in_name("_FIRST")),
            Position::Middle => assert!(in_name("_MIDDLE")),
            Position::Last => assert!(in_name("_LAST")),
            Position::Only => assert!(!in_name("_FIRST") && !in_name("_MIDDLE") && !in_name("_LAST")),
        }
        assert_eq!(info.position.starts(), !in_name("_MIDDLE") && !in_name("_LAST"));
        assert_eq!(info.position.ends(), !in_name("_MIDDLE") && !in_name("_FIRST"));
        let is_of_port = in_name("RNIC") && !in_name("SELECTIVE_ACK");
        assert_eq!(info.operation.has_psn(), !in_name("CNP") && !is_of_port, "{}", info.name);
        let answers = in_name("ACK") || in_name("RESP");
        assert_eq!(info.is_request, info.operation.has_psn() && !answers, "{}", info.name);
        assert_eq!(info.headers.contains(HeaderSet::IMM_DT), in_name("_IMM"));
        assert_eq!(info.headers.contains(HeaderSet::IETH), in_name("_INV"));
        let xrc_request = info.transport == Transport::Xrc && info.is_request;
        assert_eq!(info.headers.contains(HeaderSet::XRCETH), xrc_request);
    }
}

#[test]
fn compose_is_the_inverse_of_info() {
    for &opcode in Opcode::ALL {
        let info = opcode.info();
        let extra = if info.headers.contains(HeaderSet::IMM_DT) {
            Extra::Imm
        } else if info.headers.contains(HeaderSet::IETH) {
            Extra::Inv
        } else {
            Extra::None
        };
        assert_eq!(Opcode::compose(info.transport, info.operation, info.position, extra), Some(opcode));
    }
}

#[test]
fn compose_refuses_nonexistent_opcodes() {
    use {Operation as Op, Position as Pos, Transport as T};
    assert_eq!(Opcode::compose(T::Ud, Op::Send, Pos::First, Extra::None), None);
    assert_eq!(Opcode::compose(T::Ud, Op::Write, Pos::Only, Extra::None), None);
    assert_eq!(Opcode::compose(T::Uc, Op::ReadRequest, Pos::Only, Extra::None), None);
    assert_eq!(Opcode::compose(T::Uc, Op::Send, Pos::Last, Extra::Inv), None);
    assert_eq!(Opcode::compose(T::Rc, Op::Write, Pos::Only, Extra::Inv), None);
    assert_eq!(Opcode::compose(T::Rc, Op::Cnp, Pos::Only, Extra::None), None);
    assert_eq!(Opcode::compose(T::Cnp, Op::Send, Pos::Middle, Extra::None), None);
    assert_eq!(Opcode::compose(T::Xrc, Op::Flush, Pos::Only, Extra::None), None);
    assert_eq!(Opcode::compose(T::Rnic, Op::Send, Pos::First, Extra::None), None);
    assert_eq!(Opcode::compose(T::Rnic, Op::Cnp, Pos::Only, Extra::None), None);
    assert_eq!(Opcode::compose(T::Cnp, Op::Pause, Pos::Only, Extra::None), None);
    for transport in [T::Rc, T::Uc, T::Ud, T::Xrc, T::Cnp] {
        assert_eq!(Opcode::compose(transport, Op::FlowControl, Pos::Only, Extra::None), None);
        assert_eq!(Opcode::compose(transport, Op::Pause, Pos::Only, Extra::None), None);
        assert_eq!(Opcode::compose(transport, Op::Telemetry, Pos::Only, Extra::None), None);
    }
}

#[test]
fn extension_headers_follow_each_other() {
    for &opcode in Opcode::ALL {
        let info = opcode.info();
        let mut at = usize::from(BTH_LEN);
        for header in info.headers.iter() {
            assert_eq!(info.offset_of(header), Some(at));
            at += header.wire_len();
        }
        assert_eq!(usize::from(info.header_len), at);
        for absent in info.headers.complement().iter() {
            assert_eq!(info.offset_of(absent), None);
        }
    }
}
