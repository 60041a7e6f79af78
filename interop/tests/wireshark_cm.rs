//! Wireshark's dissector as a judge of connection management: every field that the dissector knows.

use qp::Gid;
use qp::wire::mad::cm::{Attribute, Body, IpCm, Message, Path as RoutedPath, PortSpace, Rej, Rep, Req};
use qp::wire::mad::{DATA_LEN, HEADER_LEN, Header, MAD_LEN, Mad};
use rnic::capture::{Content, Decoder, IcrcCheck};
use rnic::cm::protocol::UDP_QKEY;
use rnic::sim::Net;
use rnic::{ConnectOptions, Device, QpInit, QueuePair, RcEnd};
use rnic_interop::{pcap, tshark};
use std::collections::BTreeMap;
use std::fs::File;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The value of a field.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Reading {
    Number(u64),
    Bytes(Vec<u8>),
    Address(IpAddr),
    /// A field that the dissector reads from the wrong place: either the right value or this one.
    Misread {
        right: u64,
        wrong: u64,
    },
}

impl Reading {
    /// Whether tshark reads the same value.
    fn agrees(&self, theirs: &str) -> bool {
        match self {
            Self::Number(ours) => tshark::number(theirs) == Some(*ours),
            // Some versions put colons between the bytes.
            Self::Bytes(ours) => {
                theirs.replace(':', "") == ours.iter().map(|b| format!("{b:02x}")).collect::<String>()
            }
            Self::Address(ours) => theirs.parse() == Ok(*ours),
            Self::Misread { right, wrong } => {
                tshark::number(theirs).is_some_and(|n| n == *right || n == *wrong)
            }
        }
    }
}

/// The fields of a datagram, by tshark's names.
#[derive(Default)]
struct Ours(BTreeMap<String, Reading>);

impl Ours {
    fn put(&mut self, field: &str, reading: Reading) {
        let before = self.0.insert(format!("infiniband.{field}"), reading);
        assert!(before.is_none(), "{field} twice");
    }

    fn number(&mut self, field: &str, number: impl Into<u64>) {
        self.put(field, Reading::Number(number.into()));
    }

    fn bytes(&mut self, field: &str, bytes: &[u8]) {
        self.put(field, Reading::Bytes(bytes.to_vec()));
    }

    fn of(bytes: &[u8; MAD_LEN], over_ipv4: bool) -> Self {
        let mad = Mad::parse(bytes).expect("a management datagram");
        let mut ours = Self::default();
        ours.header(&mad.header);
        ours.bytes("mad.data", mad.data);
        match Message::of(&mad).expect("a message of connection management").body {
            Body::Req(req) => ours.request(&req, over_ipv4),
            Body::Rep(rep) => ours.reply(&rep),
            Body::Rej(rej) => ours.reject(&rej),
            Body::Rtu(rtu) => {
                ours.ids("rtu", rtu.local_comm_id.0, rtu.remote_comm_id.0);
                ours.bytes("cm.rtu.private", rtu.private_data);
            }
            Body::Dreq(dreq) => {
                ours.ids("dreq", dreq.local_comm_id.0, dreq.remote_comm_id.0);
                // The dissector uses this name, although the field is in a DREQ.
                ours.number("cm.req.remoteqpneecn", dreq.remote_qpn.value());
                ours.bytes("cm.dreq.private", dreq.private_data);
            }
            Body::Drep(drep) => {
                ours.ids("drsp", drep.local_comm_id.0, drep.remote_comm_id.0);
                ours.bytes("cm.drsp.private", drep.private_data);
            }
            // The dissector knows only the names of these messages.
            Body::Mra(_) | Body::SidrReq(_) | Body::SidrRep(_) | Body::Lap(_) | Body::Apr(_) => {}
        }
        ours
    }

    fn header(&mut self, header: &Header) {
        self.number("mad.baseversion", header.base_version);
        self.number("mad.mgmtclass", header.class);
        self.number("mad.classversion", header.class_version);
        self.number("mad.method", header.method);
        self.number("mad.status", header.status);
        self.number("mad.classspecific", header.class_specific);
        self.number("mad.transactionid", header.transaction_id);
        self.number("mad.attributeid", header.attribute_id);
        self.number("mad.attributemodifier", header.attribute_modifier);
    }

    fn ids(&mut self, message: &str, local: u32, remote: u32) {
        self.number(&format!("cm.{message}.localcommid"), local);
        self.number(&format!("cm.{message}.remotecommid"), remote);
    }

    fn request(&mut self, req: &Req<'_>, over_ipv4: bool) {
        self.number("cm.req", req.local_comm_id.0);
        self.number("cm.req.localcaguid", req.local_ca_guid);
        self.number("cm.req.localqkey", req.local_qkey.0);
        self.number("cm.req.localqpn", req.local_qpn.value());
        self.number("cm.req.responderres", req.responder_resources);
        self.number("cm.req.localeecn", req.local_eecn);
        self.number("cm.req.initdepth", req.initiator_depth);
        self.number("cm.req.remoteeecn", req.remote_eecn);
        self.number("cm.req.remoteresptout", req.remote_cm_response_timeout.code());
        self.number("cm.req.transpsvctype", req.transport as u8);
        self.number("cm.req.e2eflowctrl", req.end_to_end_flow_control);
        self.number("cm.req.startpsn", req.starting_psn.value());
        self.number("cm.req.localresptout", req.local_cm_response_timeout.code());
        self.number("cm.req.retrcount", req.retry_count);
        self.number("cm.req.pkey", req.pkey.0);
        self.number("cm.req.pppmtu", req.path_mtu.code());
        self.number("cm.req.rdcexist", req.rdc_exists);
        self.number("cm.req.rnrretrcount", req.rnr_retry_count);
        self.number("cm.req.maxcmretr", req.max_cm_retries);
        self.number("cm.req.srq", req.srq);
        self.number("cm.req.ext_transport", req.extended_transport);
        self.path("prim", &req.primary);
        self.path("alt", &req.alternate);
        let Gid(local) = req.primary.local_gid;
        let Gid(remote) = req.primary.remote_gid;
        if over_ipv4 {
            // In a packet over IPv4, only the last four bytes are shown.
            let tail = |gid: [u8; 16]| Reading::Address(IpAddr::from([gid[12], gid[13], gid[14], gid[15]]));
            self.put("cm.req.prim_localgid_ipv4", tail(local));
            self.put("cm.req.prim_remotegid_ipv4", tail(remote));
        } else {
            self.put("cm.req.prim_localgid", Reading::Address(local.into()));
            self.put("cm.req.prim_remotegid", Reading::Address(remote.into()));
        }
        self.bytes("cm.req.alt_localgid", &req.alternate.local_gid.0);
        self.bytes("cm.req.alt_remotegid", &req.alternate.remote_gid.0);
        self.service(req);
    }

    fn path(&mut self, which: &str, path: &RoutedPath) {
        let mut number = |field: &str, value: u64| self.number(&format!("cm.req.{which}_{field}"), value);
        number("locallid", path.local_lid.into());
        number("remotelid", path.remote_lid.into());
        number("tfcclass", path.traffic_class.into());
        number("hoplim", path.hop_limit.into());
        number("sl", path.service_level.into());
        number("subnetlocal", path.subnet_local.into());
        number("localacktout", path.local_ack_timeout.code().into());
        // Wireshark 4.0 takes the flow label (20 bits of a word) from the first three bytes of the word as if they
        // were the last three, and the rate from the first byte instead of the last.
        let label = u64::from(path.flow_label);
        let misread = |right, wrong| Reading::Misread { right, wrong };
        self.put(&format!("cm.req.{which}_flowlabel"), misread(label, label >> 8));
        self.put(&format!("cm.req.{which}_pktrate"), misread(path.packet_rate.into(), label >> 12 & 0x3f));
    }

    /// The service, and the private data in the layout of its kind.
    fn service(&mut self, req: &Req<'_>) {
        self.number("cm.req.serviceid", req.service_id.0);
        let Some((space, port)) = req.service_id.port() else {
            self.bytes("cm.req.private", req.private_data);
            return;
        };
        self.bytes("cm.req.serviceid.prefix", &[0, 0, 0, 0, 1]);
        self.number("cm.req.serviceid.protocol", space.to_u8());
        self.number("cm.req.serviceid.dport", port);
        let (IpCm { src_port, src, dst }, consumer) = req.ip_cm().expect("addresses of a known version");
        let version = if src.is_ipv4() { 4u8 } else { 6 };
        self.bytes("cm.req.ip_cm", req.private_data);
        self.number("cm.req.ip_cm.majv", 0u8);
        self.number("cm.req.ip_cm.minv", 0u8);
        self.number("cm.req.ip_cm.ipv", version);
        self.number("cm.req.ip_cm.sport", src_port);
        self.put(&format!("cm.req.ip_cm.sip{version}"), Reading::Address(src));
        self.put(&format!("cm.req.ip_cm.dip{version}"), Reading::Address(dst));
        self.bytes("cm.req.ip_cm.private", consumer);
    }

    fn reply(&mut self, rep: &Rep<'_>) {
        self.number("cm.rep", rep.local_comm_id.0);
        self.number("cm.rep.remotecommid", rep.remote_comm_id.0);
        self.number("cm.rep.localqkey", rep.local_qkey.0);
        self.number("cm.rep.localqpn", rep.local_qpn.value());
        self.number("cm.rep.localeecn", rep.local_eecn);
        self.number("cm.rep.startpsn", rep.starting_psn.value());
        self.number("cm.rep.respres", rep.responder_resources);
        self.number("cm.rep.initdepth", rep.initiator_depth);
        self.number("cm.rep.tgtackdelay", rep.target_ack_delay.code());
        self.number("cm.rep.failoveracc", rep.failover as u8);
        self.number("cm.rep.e2eflowctrl", rep.end_to_end_flow_control);
        self.number("cm.rep.rnrretrcount", rep.rnr_retry_count);
        self.number("cm.rep.srq", rep.srq);
        self.number("cm.rep.localcaguid", rep.local_ca_guid);
        self.bytes("cm.rep.private", rep.private_data);
    }

    fn reject(&mut self, rej: &Rej<'_>) {
        self.ids("rej", rej.local_comm_id.0, rej.remote_comm_id.0);
        self.number("cm.rej.msgrej", rej.message as u8);
        self.number("cm.rej.rejinfolen", rej.info.len() as u64);
        self.number("cm.rej.reason", rej.reason.code());
        // All 72 bytes of the field.
        let mut info = rej.info.to_vec();
        info.resize(72, 0);
        self.bytes("cm.rej.ari", &info);
        self.bytes("cm.rej.private", rej.private_data);
    }
}

/// All management datagram and connection management fields that this tshark knows.
fn known_fields() -> Vec<String> {
    let all = tshark::run(&["-G", "fields"]);
    let names = all.lines().filter(|line| line.starts_with("F\t")).filter_map(|line| line.split('\t').nth(2));
    let names: Vec<String> = names
        .filter(|name| name.starts_with("infiniband.cm.") || name.starts_with("infiniband.mad."))
        // rnic has no fields for reserved bits: it writes them as zero.
        .filter(|name| !name.contains("reserved"))
        .map(str::to_owned)
        .collect();
    assert!(names.len() > 100, "{names:?}");
    names
}

/// Compares tshark's decoding of the datagrams of a capture with ours, field by field; returns the names of the
/// messages.
fn compare(capture: &Path, known: &[String]) -> Vec<&'static str> {
    let columns: Vec<&str> = ["frame.number"].into_iter().chain(known.iter().map(String::as_str)).collect();
    let theirs = tshark::fields(capture, "infiniband.mad.method", &columns);
    let mut theirs = theirs.iter();
    let mut messages = Vec::new();
    for packet in Decoder::new(File::open(capture).expect("the capture is there")).expect("a capture") {
        let packet = packet.expect("a whole packet");
        assert!(packet.icrc.is_some_and(IcrcCheck::is_ok), "frame {}", packet.frame);
        let Content::Packet { mad: Some(mad), .. } = &packet.content else { continue };
        let place = format!("{}, frame {}: {}", capture.display(), packet.frame, packet.content);
        let row = theirs.next().unwrap_or_else(|| panic!("{place}: tshark has no such datagram"));
        assert_eq!(row[0], packet.frame.to_string(), "{place}");
        let theirs: BTreeMap<&str, &str> = columns
            .iter()
            .zip(row)
            .skip(1)
            .filter(|(_, text)| !text.is_empty())
            .map(|(n, t)| (*n, &**t))
            .collect();
        let ours = Ours::of(mad, packet.dst.is_ipv4());
        let ours_only: Vec<_> = ours.0.keys().filter(|name| !theirs.contains_key(&***name)).collect();
        assert!(ours_only.is_empty(), "{place}: tshark does not read {ours_only:?}");
        let theirs_only: Vec<_> = theirs.keys().filter(|name| !ours.0.contains_key(**name)).collect();
        assert!(theirs_only.is_empty(), "{place}: we do not read {theirs_only:?}");
        for (name, reading) in &ours.0 {
            let text = theirs[&**name];
            assert!(reading.agrees(text), "{place}: {name} is {reading:?} to us, {text} to tshark");
        }
        messages.push(Message::parse(&mad[..]).expect("read before").attribute().name());
    }
    assert_eq!(theirs.next(), None, "{}: a datagram that we have not seen", capture.display());
    messages
}

#[test]
fn wireshark_and_we_read_connections_of_linux_alike() {
    if !tshark::is_installed() {
        return;
    }
    let known = known_fields();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let connection = ["REQ", "REP", "RTU", "DREQ", "DREP"];
    assert_eq!(compare(&folder.join("cm_reject.pcap"), &known), ["REQ", "REJ"]);
    assert_eq!(compare(&folder.join("cm_rping.pcap"), &known), connection);
    // Two connections are set up at the same time.
    let twice: Vec<_> = connection.iter().flat_map(|name| [*name; 2]).collect();
    assert_eq!(compare(&folder.join("cm_ucmatose.pcap"), &known), twice);
}

/// Sebastiano Vigna's splitmix64: pseudo-random numbers, the same ones for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    fn address(&mut self, ipv4: bool) -> IpAddr {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        let [a, b, c, d, ..] = bytes;
        if ipv4 { IpAddr::from([a, b, c, d]) } else { Ipv6Addr::from(bytes).into() }
    }

    /// A message with random values, as rnic writes it. Requests for ports have addresses.
    fn message(&mut self, attribute: Attribute) -> [u8; MAD_LEN] {
        let mut data = [0; DATA_LEN];
        self.fill(&mut data);
        let (port_space, ipv4) = (self.below(5), self.below(2) == 0);
        let spaces = [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib, PortSpace::Other(0x84)];
        let service = spaces
            .get(port_space as usize)
            .map(|space| qp::wire::mad::cm::ServiceId::of_port(*space, self.next() as u16));
        let ip_cm = IpCm { src_port: self.next() as u16, src: self.address(ipv4), dst: self.address(ipv4) }
            .to_bytes();
        let raw = Mad {
            header: Header {
                base_version: 1,
                class: Header::CLASS_CM,
                class_version: qp::wire::mad::cm::CLASS_VERSION,
                method: Header::METHOD_SEND,
                status: 0,
                class_specific: 0,
                transaction_id: self.next(),
                attribute_id: attribute as u16,
                attribute_modifier: 0,
            },
            data: &data,
        };
        let mut message = Message::of(&raw).expect("any bytes are a message");
        let mut private_data;
        if let (Body::Req(req), Some(service)) = (&mut message.body, service) {
            private_data = req.private_data.to_vec();
            private_data[..IpCm::LEN].copy_from_slice(&ip_cm);
            (req.service_id, req.private_data) = (service, &private_data);
        }
        let mut out = [0xee; MAD_LEN];
        message.emit(&mut out).expect("it fits");
        assert_eq!(out[HEADER_LEN - 8..HEADER_LEN - 6], (attribute as u16).to_be_bytes());
        out
    }
}

#[test]
fn wireshark_reads_every_message_that_we_write() {
    if !tshark::is_installed() {
        return;
    }
    let known = known_fields();
    let seed = 0x0010_001a;
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    for ipv6 in [false, true] {
        let mut packets = Vec::new();
        for psn in 0..20 {
            for attribute in Attribute::ALL {
                packets.push(pcap::mad_packet(ipv6, psn, &random.message(attribute)));
            }
        }
        let path = std::env::temp_dir().join(format!("rnic-cm-{}-{ipv6}.pcap", std::process::id()));
        std::fs::write(&path, pcap::file(&packets)).expect("a temporary file");
        let messages = compare(&path, &known);
        std::fs::remove_file(&path).expect("the file is ours");
        assert_eq!(messages.len(), packets.len());
        for attribute in Attribute::ALL {
            assert_eq!(messages.iter().filter(|m| **m == attribute.name()).count(), 20);
        }
    }
}

/// A UD queue pair that can be named in an answer.
fn datagram_queue_pair(device: &Device) -> Result<QueuePair, rnic::Error> {
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let qp = pd.create_qp(&QpInit::ud(&cq, &cq))?;
    qp.activate(UDP_QKEY)?;
    Ok(qp)
}

/// What the values of live connections are, from the programs' point of view.
struct Lives {
    /// Of the connection that is made: the queue pairs, and the port that the active side was given.
    qpns: [u64; 2],
    src_port: u16,
}

/// Connections that are made, refused and torn down, and services that are found and not; all that device `a` sees of them is
/// captured.
fn live(a: &Device, b: &Device, net: &Net) -> Result<Lives, rnic::Error> {
    let at = |port: u16| SocketAddr::new(b.address(), port);
    let listener = b.listen(7471)?;
    let (left, right) = (RcEnd::new(a)?, RcEnd::new(b)?);
    let connection = a.connect_with(&left.qp, at(7471), &ConnectOptions::default(), b"hello")?;
    let request = listener.accept()?;
    let src_port = request.peer().port();
    // Long enough for the request to be repeated, so that the peer is asked to wait.
    net.run_for(Duration::from_secs(1));
    let answered = request.accept_with(&right.qp, &ConnectOptions::default(), b"welcome")?;
    connection.wait()?;
    right.qp.recv(1, rnic::Gather::Empty)?;
    left.qp.send(2, rnic::Gather::Empty)?;
    net.run_for(Duration::from_secs(1));
    answered.disconnect()?;
    net.run_for(Duration::from_secs(1));

    let refused = RcEnd::dial(a, at(7471))?;
    listener.accept()?.reject(b"no")?;
    assert!(refused.wait().is_err() && RcEnd::dial(a, at(7472))?.wait().is_err());

    let services = b.listen_datagrams(7473)?;
    let question = a.ask_with(at(7473), b"who")?;
    let qp = datagram_queue_pair(b)?;
    services.accept()?.accept(&qp, b"I")?;
    // The dissector reads no fields of these.
    assert_eq!(question.wait()?.qpn, qp.qpn());
    let question = a.ask(at(7473))?;
    services.accept()?.reject(b"not you")?;
    assert!(question.wait().is_err() && a.ask(at(7474))?.wait().is_err());
    let qpns = [&left, &right].map(|end| end.qp.qpn().value().into());
    Ok(Lives { qpns, src_port })
}

#[test]
fn wireshark_reads_live_connections_of_rnic() {
    if !tshark::is_installed() {
        return;
    }
    let net = Net::with_seed(18);
    let (a, b) = (net.named_device("a"), net.named_device("b"));
    let path = std::env::temp_dir().join(format!("rnic-cm-live-{}.pcapng", std::process::id()));
    a.capture(&path).expect("a capture");
    let lives = live(&a, &b, &net).expect("connections");
    a.stop_captures();

    let messages = compare(&path, &known_fields());
    let made = ["REQ", "REQ", "MRA", "REP", "RTU", "DREQ", "DREP"];
    let refused = ["REQ", "REJ", "REQ", "REQ", "REJ"];
    // Nobody offers the last service: the question is held for a second, and repeated meanwhile.
    let services = ["SIDR_REQ", "SIDR_REP", "SIDR_REQ", "SIDR_REP", "SIDR_REQ", "SIDR_REQ", "SIDR_REP"];
    assert_eq!(messages, [&made[..], &refused, &services].concat());

    let read = |filter: &str, names: &[&str]| {
        let names: Vec<_> = names.iter().map(|name| format!("infiniband.{name}")).collect();
        tshark::fields(&path, filter, &names.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let number = |text: &String| tshark::number(text).expect("a number");
    let reqs =
        read("infiniband.cm.req", &["cm.req.localqpn", "cm.req.ip_cm.sport", "cm.req.serviceid.dport"]);
    let first: Vec<_> = reqs[0].iter().map(number).collect();
    assert_eq!(first, [lives.qpns[0], lives.src_port.into(), 7471]);
    let rep = read("infiniband.cm.rep", &["cm.rep.localqpn"]);
    assert_eq!(number(&rep[0][0]), lives.qpns[1]);
    let dreq = read("infiniband.cm.dreq.localcommid", &["cm.req.remoteqpneecn"]);
    assert_eq!(number(&dreq[0][0]), lives.qpns[0]);
    let reasons = read("infiniband.cm.rej.reason", &["cm.rej.reason"]);
    assert_eq!(reasons.iter().map(|row| number(&row[0])).collect::<Vec<_>>(), [28, 8]);
    assert_eq!(tshark::fields(&path, "_ws.malformed", &["frame.number"]), Vec::<Vec<String>>::new());
    std::fs::remove_file(&path).expect("the file is ours");
}
