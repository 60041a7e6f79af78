//! Requests as tools send them, and as none should.

use super::answer::*;
use super::message::{Body, HEADER, Header, attributes};
use super::shown::{Devices, Shown, ShownQp, guid, number};
use super::*;
use rnic::engine::QpSnapshot;

/// The port ID of the socket, and the sequence number of the request.
const OWN: u32 = 4711;
const SEQ: u32 = 0x1234_5678;

/// Two devices; with the second, more counters than an answer has room for.
struct Two;

impl Devices for Two {
    fn all(&self) -> Vec<Shown> {
        two()
    }

    fn counters(&self, device: &str) -> Vec<(String, u64)> {
        let many = if device == "rnic1" { 200 } else { 0 };
        let names =
            ["dropped_b", "tx_bytes", "rx_prio0_bytes", "cm_held", "link_rx_bytes", "dropped_a", "rcvd_pkts"];
        let more = (0..many).map(|number| (format!("dropped_many_{number:03}"), 1));
        names.map(str::to_owned).into_iter().zip(1 << 32..).chain(more).collect()
    }

    fn queue_pairs(&self, device: &str) -> Vec<ShownQp> {
        let kinds = [("RC", "RTS", 17), ("UD", "RESET", 18), ("XRC_RECV", "ERR", 19), ("new", "new", 20)];
        let many =
            if device == "rnic1" { (100..300).map(|qpn| ("UC", "RTR", qpn)).collect() } else { Vec::new() };
        kinds
            .into_iter()
            .chain(many)
            .map(|(kind, state, qpn)| ShownQp { pid: 9, qp: qp(kind, state, qpn) })
            .collect()
    }
}

fn qp(kind: &'static str, state: &'static str, qpn: u32) -> QpSnapshot {
    QpSnapshot {
        qpn,
        qp_type: kind.into(),
        state: state.into(),
        peer: Some(([127, 0, 0, 2].into(), 0x22)),
        next_psn: 5,
        unacked_psn: 4,
        expected_psn: 9,
        sends: 1,
        recvs: 2,
        retries_left: 7,
        rnr_retries_left: 7,
        last_failure: None,
    }
}

fn two() -> Vec<Shown> {
    let device = |name: &str| Shown {
        name: name.to_owned(),
        firmware: Some("1.2.3".to_owned()),
        node_guid: Some(0x0102_0304_0506_0708),
        sys_image_guid: Some(0x1112_1314_1516_1718),
        node_type: Some(1),
        port_state: Some(4),
        physical_state: Some(5),
        netdev: Some((7, "eth7".to_owned())),
    };
    vec![device("rnic0"), device("rnic1")]
}

fn request(command: u16, flags: u16, body: &Body) -> Vec<u8> {
    let header = Header { len: 0, kind: NLDEV + command, flags: flags | NLM_F_REQUEST, seq: SEQ, port: 0 };
    header.message(&body.0)
}

/// The messages of an answer: the type, the flags and the body of each.
fn answers(request: &[u8]) -> Vec<(u16, u16, Vec<u8>)> {
    let parts = answer(request, OWN, &Two).expect("it has a header");
    let read = |part: &Vec<u8>| {
        let header = Header::parse(part).expect("a header");
        assert_eq!((header.len as usize, header.seq, header.port), (part.len(), SEQ, OWN));
        (header.kind, header.flags, part[HEADER..].to_vec())
    };
    parts.iter().map(read).collect()
}

/// The error of an answer that is nothing else; 0 for an acknowledgement.
fn error(request: &[u8]) -> i32 {
    let all = answers(request);
    let [(NLMSG_ERROR, NLM_F_CAPPED, body)] = all.as_slice() else { panic!("no error: {all:?}") };
    assert_eq!(&body[4..], &request[..HEADER], "the header of the request");
    i32::from_ne_bytes(*body.first_chunk().expect("an error"))
}

fn value(body: &[u8], wanted: u16) -> Option<&[u8]> {
    let all = attributes(body).expect("attributes");
    all.into_iter().find(|(number, _)| *number == wanted).map(|(_, value)| value)
}

#[test]
fn a_device_is_told_of_with_its_attributes() {
    let asked = request(GET, NLM_F_ACK, &Body::default().u32(DEV_INDEX, 1));
    let all = answers(&asked);
    let [(kind, 0, body), (NLMSG_ERROR, NLM_F_CAPPED, acknowledgement)] = all.as_slice() else {
        panic!("not a device and an acknowledgement: {all:?}")
    };
    assert_eq!((*kind, &acknowledgement[..4]), (NLDEV + GET, &[0; 4][..]));
    for (number, expected) in [
        (DEV_INDEX, &1u32.to_ne_bytes()[..]),
        (DEV_NAME, b"rnic1\0"),
        (PORT_INDEX, &1u32.to_ne_bytes()),
        (CAP_FLAGS, &crate::query::ALL_FLAGS.to_ne_bytes()),
        (FW_VERSION, b"1.2.3\0"),
        (NODE_GUID, &0x0102_0304_0506_0708u64.to_ne_bytes()),
        (SYS_IMAGE_GUID, &0x1112_1314_1516_1718u64.to_ne_bytes()),
        (DEV_NODE_TYPE, &[1]),
        (DEV_DIM, &[0]),
        (DEV_PROTOCOL, b"roce\0"),
    ] {
        assert_eq!(value(body, number), Some(expected), "attribute {number}");
    }
}

#[test]
fn a_port_is_told_of_with_its_attributes() {
    let body = Body::default().u32(DEV_INDEX, 0).u32(PORT_INDEX, 1);
    let all = answers(&request(PORT_GET, 0, &body));
    let [(_, 0, body)] = all.as_slice() else { panic!("not a port alone: {all:?}") };
    for (number, expected) in [
        (DEV_NAME, &b"rnic0\0"[..]),
        (PORT_INDEX, &1u32.to_ne_bytes()),
        (PORT_STATE, &[4]),
        (PORT_PHYS_STATE, &[5]),
        (NDEV_INDEX, &7u32.to_ne_bytes()),
        (NDEV_NAME, b"eth7\0"),
    ] {
        assert_eq!(value(body, number), Some(expected), "attribute {number}");
    }
    assert_eq!(value(body, CAP_FLAGS), None, "as for RoCE in the kernel");
}

#[test]
fn a_dump_ends_with_done_and_has_no_acknowledgement() {
    let all = answers(&request(GET, NLM_F_DUMP | NLM_F_ACK, &Body::default()));
    let kinds: Vec<_> = all.iter().map(|(kind, flags, _)| (*kind, *flags)).collect();
    let device = (NLDEV + GET, NLM_F_MULTI);
    assert_eq!(kinds, [device, device, (NLMSG_DONE, NLM_F_MULTI)]);
    let names: Vec<_> = all.iter().take(2).map(|(_, _, body)| value(body, DEV_NAME)).collect();
    assert_eq!(names, [Some(&b"rnic0\0"[..]), Some(b"rnic1\0")]);
    let ports = answers(&request(PORT_GET, NLM_F_DUMP, &Body::default().u32(DEV_INDEX, 1)));
    assert_eq!(ports.len(), 2);
    assert_eq!(value(&ports[0].2, DEV_NAME), Some(&b"rnic1\0"[..]));
}

#[test]
fn the_system_is_told_of() {
    let all = answers(&request(SYS_GET, NLM_F_ACK, &Body::default()));
    assert_eq!((all.len(), value(&all[0].2, NETNS_MODE)), (2, Some(&[1][..])));
    assert_eq!(value(&all[0].2, COPY_ON_FORK), Some(&[1][..]));
}

/// The names and values of counters in an answer.
fn counters(body: &[u8]) -> Vec<(String, u64)> {
    let entries = attributes(value(body, HWCOUNTERS).expect("counters")).expect("entries");
    let counter = |(number, entry): &(u16, &[u8])| {
        assert_eq!(*number, HWCOUNTER);
        let name = value(entry, HWCOUNTER_NAME).and_then(|name| name.strip_suffix(&[0])).expect("a name");
        let count = value(entry, HWCOUNTER_VALUE).and_then(|value| value.try_into().ok()).expect("a value");
        (String::from_utf8(name.to_vec()).expect("text"), u64::from_ne_bytes(count))
    };
    entries.iter().map(counter).collect()
}

#[test]
fn counters_of_a_port_are_told_of_but_for_those_in_files_only() {
    let asked = |device| Body::default().u32(DEV_INDEX, device).u32(PORT_INDEX, 1);
    let all = answers(&request(STAT_GET, NLM_F_ACK, &asked(0)));
    let [(_, 0, body), (NLMSG_ERROR, ..)] = all.as_slice() else { panic!("not one port: {all:?}") };
    assert_eq!(value(body, DEV_INDEX), Some(&0u32.to_ne_bytes()[..]));
    assert_eq!(value(body, DEV_NAME), Some(&b"rnic0\0"[..]));
    assert_eq!(value(body, PORT_INDEX), Some(&1u32.to_ne_bytes()[..]));
    let base = 1u64 << 32;
    let expected =
        [("rcvd_pkts", base + 6), ("tx_bytes", base + 1), ("dropped_a", base + 5), ("dropped_b", base)];
    assert_eq!(counters(body), expected.map(|(name, value)| (name.to_owned(), value)));
    // Tools receive no more than a page.
    let parts = answer(&request(STAT_GET, 0, &asked(1)), OWN, &Two).expect("a request");
    let [part] = parts.as_slice() else { panic!("one message") };
    assert!((LONGEST - 48..=LONGEST).contains(&part.len()), "{}", part.len());
    let told = counters(&part[HEADER..]);
    assert_eq!((told[0].0.as_str(), told[1].0.as_str()), ("rcvd_pkts", "tx_bytes"));
}

/// No counters are bound to queue pairs or regions.
#[test]
fn a_dump_of_bound_counters_is_empty() {
    let asked = |what| Body::default().u32(DEV_INDEX, 0).u32(STAT_RES, what);
    let [queue_pairs, regions] = [RES_QP, RES_MR].map(u32::from);
    for what in [queue_pairs, regions] {
        let all = answers(&request(STAT_GET, NLM_F_DUMP, &asked(what)));
        assert_eq!(all, [(NLMSG_DONE, NLM_F_MULTI, 0i32.to_ne_bytes().to_vec())]);
    }
    assert_eq!(error(&request(STAT_GET, 0, &asked(queue_pairs).u32(PORT_INDEX, 1))), -libc::EOPNOTSUPP);
    for body in [asked(0), Body::default().u32(DEV_INDEX, 0), Body::default().u32(STAT_RES, queue_pairs)] {
        assert_eq!(error(&request(STAT_GET, NLM_F_DUMP, &body)), -libc::EINVAL);
    }
}

/// The entries of a table in an answer.
fn entries(body: &[u8], table: u16, entry: u16) -> Vec<&[u8]> {
    let all = attributes(value(body, table).expect("a table")).expect("entries");
    let one = |(number, inner)| {
        assert_eq!(number, entry);
        inner
    };
    all.into_iter().map(one).collect()
}

fn number_of(body: &[u8], wanted: u16) -> Option<u64> {
    value(body, wanted).map(|bytes| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// Of queue pairs that are not connected, nothing of a peer is told; of a type and a state that nobody knows, neither.
#[test]
fn queue_pairs_are_told_of_and_counted() {
    let all = answers(&request(RES_QP_GET, NLM_F_DUMP, &Body::default().u32(DEV_INDEX, 0)));
    let [(_, NLM_F_MULTI, body), (NLMSG_DONE, ..)] = all.as_slice() else { panic!("not a table: {all:?}") };
    assert_eq!(value(body, DEV_NAME), Some(&b"rnic0\0"[..]));
    let numbers = [RES_LQPN, RES_RQPN, RES_RQ_PSN, RES_SQ_PSN, RES_TYPE, RES_STATE, RES_PID, PORT_INDEX];
    let told = entries(body, RES_QP, RES_QP_ENTRY);
    let told: Vec<_> = told.iter().map(|entry| numbers.map(|number| number_of(entry, number))).collect();
    let datagram = |qpn, kind, state| [Some(qpn), None, None, Some(5), kind, state, Some(9), Some(1)];
    let connected = [Some(17), Some(0x22), Some(9), Some(5), Some(2), Some(3), Some(9), Some(1)];
    let xrc = datagram(19, Some(10), Some(6));
    assert_eq!(told, [connected, datagram(18, Some(4), Some(0)), xrc, datagram(20, None, None)]);

    // One of them, by its number, without a table.
    let one = |qpn| request(RES_QP_GET, 0, &Body::default().u32(DEV_INDEX, 0).u32(RES_LQPN, qpn));
    let all = answers(&one(17));
    let [(_, 0, body)] = all.as_slice() else { panic!("not one: {all:?}") };
    assert_eq!(numbers.map(|number| number_of(body, number)), connected);
    assert_eq!(error(&one(16)), -libc::ENOENT);

    // The number of them; a dump is about all devices.
    let summary = |body: &[u8]| {
        let [entry] = entries(body, RES_SUMMARY, RES_SUMMARY_ENTRY)[..] else { panic!("not one kind") };
        assert_eq!(value(entry, RES_SUMMARY_ENTRY_NAME), Some(&b"qp\0"[..]));
        number_of(entry, RES_SUMMARY_ENTRY_CURR)
    };
    let all = answers(&request(RES_GET, 0, &Body::default().u32(DEV_INDEX, 1)));
    assert_eq!(summary(&all[0].2), Some(204));
    let all = answers(&request(RES_GET, NLM_F_DUMP, &Body::default()));
    assert_eq!((all.len(), summary(&all[0].2), summary(&all[1].2)), (3, Some(4), Some(204)));
}

#[test]
fn more_queue_pairs_than_one_message_has_room_for_are_told_of_in_several() {
    let asked = request(RES_QP_GET, NLM_F_DUMP, &Body::default().u32(DEV_INDEX, 1));
    let parts = answer(&asked, OWN, &Two).expect("a request");
    assert!(parts.len() == 5 && parts.iter().all(|part| part.len() <= LONGEST), "{} parts", parts.len());
    let tables = parts[..4].iter().flat_map(|part| entries(&part[HEADER..], RES_QP, RES_QP_ENTRY));
    let qpns: Vec<_> = tables.filter_map(|entry| number_of(entry, RES_LQPN)).collect();
    assert!(qpns.iter().copied().eq((17..21).chain(100..300)), "{qpns:?}");
}

#[test]
fn what_is_not_known_is_not_supported() {
    let device = Body::default().u32(DEV_INDEX, 0);
    // All other commands of today, of which 15 is GET_CHARDEV, and some that do not exist.
    let known = [GET, PORT_GET, SYS_GET, RES_GET, RES_QP_GET, STAT_GET];
    for command in (0..40).chain([1023]).filter(|command| !known.contains(command)) {
        for flags in [0, NLM_F_ACK, NLM_F_DUMP] {
            assert_eq!(error(&request(command, flags, &device)), -libc::EOPNOTSUPP, "{command} {flags}");
        }
    }
    // Another client than that of devices.
    let mut other = request(GET, 0, &device);
    other[4..6].copy_from_slice(&((2 << 10) | GET).to_ne_bytes());
    assert_eq!(error(&other), -libc::EOPNOTSUPP);
    assert_eq!(error(&request(SYS_GET, NLM_F_DUMP, &Body::default())), -libc::EOPNOTSUPP);
}

#[test]
fn requests_about_what_does_not_exist_are_invalid() {
    for (command, flags, body) in [
        (GET, 0, Body::default()),
        (GET, 0, Body::default().u32(DEV_INDEX, 2)),
        (GET, 0, Body::default().u32(DEV_INDEX, u32::MAX)),
        (GET, 0, Body::default().u8(DEV_INDEX, 0)),
        (GET, 0, Body::default().u64(DEV_INDEX, 0)),
        (PORT_GET, 0, Body::default().u32(DEV_INDEX, 0)),
        (PORT_GET, 0, Body::default().u32(DEV_INDEX, 0).u32(PORT_INDEX, 0)),
        (PORT_GET, 0, Body::default().u32(DEV_INDEX, 0).u32(PORT_INDEX, 2)),
        (PORT_GET, NLM_F_DUMP, Body::default()),
        (RES_GET, 0, Body::default()),
        (RES_QP_GET, 0, Body::default().u32(DEV_INDEX, 0)),
        (RES_QP_GET, 0, Body::default().u32(RES_LQPN, 17)),
        (RES_QP_GET, NLM_F_DUMP, Body::default().u32(DEV_INDEX, 2)),
        (STAT_GET, 0, Body::default().u32(DEV_INDEX, 0)),
        (STAT_GET, 0, Body::default().u32(DEV_INDEX, 0).u32(PORT_INDEX, 2)),
        (STAT_GET, 0, Body::default().u32(DEV_INDEX, 2).u32(PORT_INDEX, 1)),
    ] {
        assert_eq!(error(&request(command, flags, &body)), -libc::EINVAL, "{command} {:?}", body.0);
    }
}

#[test]
fn malformed_requests_are_refused() {
    let whole = request(GET, NLM_F_ACK, &Body::default().u32(DEV_INDEX, 0));
    for len in 0..HEADER {
        assert_eq!(answer(&whole[..len], OWN, &Two), None, "no header in {len} bytes");
    }
    for len in HEADER..whole.len() {
        assert_eq!(error(&whole[..len]), -libc::EINVAL, "{len} bytes of {}", whole.len());
    }
    for len in [0u32, 1, 15, 25, u32::MAX] {
        let mut wrong = whole.clone();
        wrong[..4].copy_from_slice(&len.to_ne_bytes());
        assert_eq!(error(&wrong), -libc::EINVAL, "the length {len}");
    }
    for len in [0u16, 1, 3, 9, u16::MAX] {
        let mut wrong = whole.clone();
        wrong[HEADER..HEADER + 2].copy_from_slice(&len.to_ne_bytes());
        assert_eq!(error(&wrong), -libc::EINVAL, "the length {len} of an attribute");
    }
}

#[test]
fn each_request_of_a_message_is_answered() {
    let one = request(GET, NLM_F_ACK, &Body::default().u32(DEV_INDEX, 0));
    assert_eq!(answers(&[one.clone(), one].concat()).len(), 4);
    // What is not a request is acknowledged if that is wanted.
    for (flags, expected) in [(0, 0), (NLM_F_ACK, 1)] {
        let header = Header { len: 0, kind: NLDEV + GET, flags, seq: SEQ, port: 0 };
        assert_eq!(answers(&header.message(&[])).len(), expected);
    }
}

#[test]
fn files_are_read_as_the_kernel_writes_them() {
    assert_eq!(guid("504e:7fff:fe5a:0501\n"), Some(0x504e_7fff_fe5a_0501));
    assert_eq!(guid("none\n"), None);
    assert_eq!([number("4: ACTIVE\n"), number("1: CA\n"), number("\n")], [Some(4), Some(1), None]);
}

/// A socket of a tool, and one that is not.
#[test]
fn an_answer_arrives_at_the_socket_that_asked() {
    let open = |domain, kind, protocol| {
        // SAFETY: the function accepts any numbers.
        let file = unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, protocol) };
        assert!(file >= 0, "a socket");
        // SAFETY: the descriptor was just opened.
        unsafe { OwnedFd::from_raw_fd(file) }
    };
    let asks = |socket: &OwnedFd, to: Option<u32>, bytes: &[u8]| {
        let mut to = to.map(address);
        let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: the structure consists of numbers and pointers.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
        if let Some(to) = &mut to {
            message.msg_name = std::ptr::from_mut(to).cast();
            message.msg_namelen = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        }
        // SAFETY: the message is whole.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, 0) };
        assert_eq!((sent, Errno::last()), (-1, Errno(libc::ECONNREFUSED)), "the kernel");
        // SAFETY: as above.
        let sent = unsafe { rnic_nldev(socket.as_raw_fd(), &raw const message) };
        if sent < 0 { Err(Errno::last()) } else { Ok(sent) }
    };
    let tool = open(libc::AF_NETLINK, libc::SOCK_RAW, PROTOCOL);
    let asked = request(SYS_GET, 0, &Body::default());
    for to in [None, Some(0)] {
        assert_eq!(asks(&tool, to, &asked), Ok(asked.len() as c_long));
        let mut room = [0u8; 256];
        // SAFETY: the room has this length.
        let got = unsafe { libc::recv(tool.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), 0) };
        let header = Header::parse(&room).expect("an answer");
        assert_eq!((header.len as isize, header.kind), (got, NLDEV + SYS_GET));
    }
    // Too short for a request; to another program.
    assert_eq!(asks(&tool, Some(0), &asked[..8]), Err(Errno::INVALID));
    assert_eq!(asks(&tool, Some(u32::MAX - 1), &asked), Err(Errno(libc::ECONNREFUSED)));
    // Another kind of socket.
    let (pipe, _) = std::os::unix::net::UnixDatagram::pair().expect("sockets");
    let mut piece = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    // SAFETY: the structure consists of numbers and pointers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    // SAFETY: the message is whole.
    assert_eq!(unsafe { rnic_nldev(pipe.as_raw_fd(), &raw const message) }, -1);
    assert_eq!(Errno::last(), Errno(libc::ECONNREFUSED));
}
