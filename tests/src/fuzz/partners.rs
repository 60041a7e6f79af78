//! Messages between rnic ports about their link, from a sender that may be lying.

use super::{byte, bytes, packet, sealed};
use arbitrary::Unstructured;
use cc::credits::CreditMessage;
use qp::wire::mad::hello::{Counting, Features, Hello, Kind, SourcePorts};
use qp::wire::mad::{MAD_LEN, cm};
use qp::wire::{DethFields, Headers, IpHeader, Opcode, Packet, PauseTimes};
use rnic::cc;
use rnic::link::{Direction, FrameRef, Now, Observer};
use rnic::sim::{DeviceSetup, Net};
use rnic::{ConnectOptions, Device, Psn, QKey, Qpn, RcEnd, WcStatus};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const STEPS: u32 = 60;

/// Kinds of ports, and of congestion control.
const LINKS: &[&str] = &[
    "",
    "ib-credits",
    "ib-credits:rate=10Gb/s,vls=2,sl2vl=0,1",
    "ethernet:rate=10Gb/s,pfc=0",
    "ethernet:rate=5Gb/s,buffer=100KB",
    "ethernet:rate=10Gb/s,pfc=0,3,receiver_rate=5Gb/s",
];
const CONTROLS: &[&str] =
    &["off", "dcqcn:preset=laptop", "dctcp", "timely", "swift", "nscc", "ibcc", "hpcc:rtt=20"];

/// After this much silence, false information has expired or been corrected: it is longer than credit is valid,
/// peers are asked, pauses last, and connections retry.
const SILENCE: Duration = Duration::from_secs(12);

/// Number of connections that may fail before one gets through.
const TRIES: u32 = 4;

/// What was heard of a device: from which port it sends, and the token that it shows.
#[derive(Clone, Copy, Default)]
struct Heard {
    port: u16,
    token: u64,
}

/// Notes what a device says.
struct Ear(Arc<Mutex<Heard>>);

impl Observer for Ear {
    fn name(&self) -> &'static str {
        "ear"
    }

    fn observe(&mut self, _: Now, frame: &FrameRef<'_>) {
        if frame.direction == Direction::Tx {
            let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            heard.port = frame.ip.src_port;
            let token = Packet::parse(frame.bytes).map_or(0, |packet| packet.token());
            if token != 0 {
                heard.token = token;
            }
        }
    }
}

struct Rig {
    net: Net,
    devices: [Device; 2],
    ends: (RcEnd, RcEnd),
    /// What is known of the second device.
    heard: Arc<Mutex<Heard>>,
    sequence: u16,
}

/// Sends messages in the name of a partner, or of a stranger, while data flows between two ports.
///
/// # Panics
///
/// Panics if traffic does not get through after a sufficiently long silence.
pub fn partners(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let Some(mut rig) = Rig::new(byte(&mut input), byte(&mut input)) else { return };
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        rig.step(&mut input);
    }
    rig.finish();
}

impl Rig {
    fn new(link: u8, control: u8) -> Option<Self> {
        let net = Net::new();
        let heard = Arc::new(Mutex::new(Heard::default()));
        let device = |link: u8, is_foreign: bool| {
            let words = LINKS[usize::from(link) % LINKS.len()];
            let mut setup = DeviceSetup { link: words.parse().expect("words"), ..DeviceSetup::default() };
            let algorithm = CONTROLS[usize::from(control & 0xf) % CONTROLS.len()];
            setup.cc = algorithm.parse().expect("an algorithm");
            setup.partner.is_foreign = is_foreign;
            net.device_with(&setup)
        };
        // Some algorithms need a port with a rate.
        let a = device(link & 0xf, false).ok()?;
        let b = device(link >> 4, control & 0x80 != 0).ok()?;
        b.observe(Ear(Arc::clone(&heard))).expect("an observer");
        let options = ConnectOptions { retry_cnt: 7, timeout: 14, ..ConnectOptions::default() };
        let ends = RcEnd::pair_with(&a, &b, &options).expect("a pair");
        let mut rig = Self { net, devices: [a, b], ends, heard, sequence: 0 };
        rig.write(64);
        rig.net.run_for(Duration::from_micros(50));
        Some(rig)
    }

    fn step(&mut self, input: &mut Unstructured<'_>) {
        let selector = byte(input);
        let from = self.arrival(selector & 0x10 != 0);
        match selector & 0xf {
            0..=2 => self.hello(&from, input),
            3 | 4 => self.credits(&from, input),
            5 => self.pause(&from, input),
            6 => {
                let qpn = if selector & 0x20 != 0 { self.ends.0.qp.qpn() } else { Qpn::new(2) };
                let cnp = Headers { token: self.token(input), ..Headers::cnp(qpn) };
                self.say(&from, &cnp, &[]);
            }
            7 => self.connection_management(&from, input),
            8 => {
                let len = usize::from(byte(input));
                let mut said = bytes(input, len).to_vec();
                said.truncate(said.len() & !3);
                self.net.inject(&from, &sealed(&from, said));
            }
            13 => {
                let qpn = if selector & 0x20 != 0 { self.ends.0.qp.qpn() } else { Qpn::new(2) };
                self.telemetry(&from, qpn, input);
            }
            9 | 10 => self.write(usize::from(byte(input)) * 64 + 1),
            11 => self.net.run_for(Duration::from_micros(1 << (byte(input) % 18))),
            12 => {
                let back = (self.ends.1.register(&[5; 3000]), self.ends.0.register_remote(3000));
                let (source, place) = (back.0.expect("memory"), back.1.expect("memory"));
                let _ = self.ends.1.qp.write(1, source.all(), place.remote(0));
                self.net.run_for(Duration::from_micros(20));
            }
            _ => self.net.run_for(Duration::from_micros(5)),
        }
        while self.ends.0.cq().poll_one().is_some() {}
        while self.ends.1.cq().poll_one().is_some() {}
    }

    /// From the partner, or from a stranger that also has the sign of rnic ports.
    fn arrival(&self, partner: bool) -> IpHeader {
        let stranger = IpAddr::V4(Ipv4Addr::new(10, 99, 0, 1));
        let src = if partner { self.devices[1].address() } else { stranger };
        let src_port = self.heard().port;
        IpHeader { src, dst: self.devices[0].address(), src_port, ..IpHeader::default() }
    }

    fn heard(&self) -> Heard {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What somebody shows who may see the packets of the partner, or not.
    fn token(&self, input: &mut Unstructured<'_>) -> u64 {
        let guess = byte(input);
        if guess & 3 == 0 { guess.into() } else { self.heard().token }
    }

    fn say(&mut self, from: &IpHeader, headers: &Headers, payload: &[u8]) {
        self.net.inject(from, &packet(from, headers, payload));
        self.net.run_for(Duration::from_micros(2));
    }

    fn datagram(&mut self, from: &IpHeader, mad: &[u8]) {
        let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(self.sequence.into()));
        headers.deth = DethFields { qkey: QKey::GSI, src_qpn: Qpn::GSI };
        self.say(from, &headers, mad);
    }

    fn hello(&mut self, from: &IpHeader, input: &mut Unstructured<'_>) {
        let flags = byte(input);
        let ports = [from.src_port, 0xc000 + u16::from(flags)];
        let hello = Hello {
            kind: if flags & 1 != 0 { Kind::Answer } else { Kind::Ask },
            transaction_id: u64::from(byte(input)),
            version: qp::wire::mad::hello::VERSION,
            slot: if flags & 2 != 0 { byte(input) } else { 0 },
            lanes: byte(input) & 0xf,
            features: Features::from_bits_retain(u32::from(flags >> 2 & 15)),
            instance: u64::from(byte(input)),
            block: u16::from(byte(input)) << (flags & 7),
            counting: Counting::from_u8(flags >> 6),
            ports: SourcePorts::new(&ports[..usize::from(flags >> 5 & 1) + 1]).unwrap_or_default(),
            token: u64::from(byte(input)),
            proof: self.token(input),
        };
        let mut mad = [0; MAD_LEN];
        hello.emit(&mut mad);
        // Occasionally a field is changed.
        let (at, value) = (byte(input), byte(input));
        if at >= 0x80 {
            mad[usize::from(at & 0x7f)] = value;
        }
        self.datagram(from, &mad);
    }

    fn credits(&mut self, from: &IpHeader, input: &mut Unstructured<'_>) {
        let count = usize::from(byte(input) & 0xf) + 1;
        let mut updates = self.token(input).to_be_bytes().to_vec();
        for _ in 0..count.min(16) {
            updates.extend([(); CreditMessage::LEN].map(|()| byte(input)));
        }
        if let Some(first) = updates[8..].first_chunk()
            && let Ok(message) = CreditMessage::decode(*first)
        {
            assert_eq!(CreditMessage::decode(message.encode()), Ok(message));
        }
        self.sequence = self.sequence.wrapping_add(1 + u16::from(byte(input)) * 256);
        let headers = Headers::flow_control(0, byte(input) & 1, self.sequence);
        self.say(from, &headers, &updates);
    }

    fn telemetry(&mut self, from: &IpHeader, qpn: Qpn, input: &mut Unstructured<'_>) {
        let mut said = self.token(input).to_be_bytes().to_vec();
        let count = byte(input);
        said.extend([0, count & 7, 0, 0]);
        for _ in 0..count >> 3 & 7 {
            said.extend([(); 8].map(|()| byte(input)));
        }
        self.say(from, &Headers::telemetry(qpn, Psn::new(byte(input).into())), &said);
    }

    fn pause(&mut self, from: &IpHeader, input: &mut Unstructured<'_>) {
        let mut times = PauseTimes::default();
        let which = byte(input);
        for (priority, time) in times.0.iter_mut().enumerate() {
            if which >> priority & 1 == 1 {
                *time = Some(u16::from_be_bytes([byte(input), byte(input)]));
            }
        }
        self.sequence = self.sequence.wrapping_add(u16::from(byte(input)));
        let headers = Headers::pause(0, byte(input) & 1, self.sequence);
        let said = [&self.token(input).to_be_bytes()[..], &times.emit()].concat();
        self.say(from, &headers, &said);
    }

    fn connection_management(&mut self, from: &IpHeader, input: &mut Unstructured<'_>) {
        let mut mad = [0; MAD_LEN];
        let attributes = [0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0xff];
        (mad[0], mad[1], mad[2], mad[3]) = (1, 7, cm::CLASS_VERSION, 3);
        mad[17] = attributes[usize::from(byte(input)) % attributes.len()];
        let len = usize::from(byte(input));
        let data = bytes(input, len.min(MAD_LEN - 24));
        mad[24..24 + data.len()].copy_from_slice(data);
        self.datagram(from, &mad);
    }

    /// A WRITE from the first device to the second, without waiting for it.
    fn write(&mut self, len: usize) {
        let (source, place) = (self.ends.0.register(&vec![7; len]), self.ends.1.register_remote(len));
        let (source, place) = (source.expect("memory"), place.expect("memory"));
        // The memory is deregistered while the WRITE is in flight. This may end the connection, but must have no
        // other effect.
        let _ = self.ends.0.qp.write(1, source.all(), place.remote(0));
        self.net.run_for(Duration::from_micros(10));
    }

    /// A port with false information about its partner notices when it waits for credit in vain. That takes longer
    /// than the retries of a connection, so the first connections may fail, but not all of them.
    fn finish(self) {
        let gets_through = (0..TRIES).any(|_| {
            self.net.run_for(SILENCE);
            self.exchange()
        });
        assert!(gets_through, "nothing gets through any more");
    }

    /// Whether WRITEs on a new connection get through in both directions. They complete in any case.
    fn exchange(&self) -> bool {
        let [a, b] = &self.devices;
        let (left, right) = RcEnd::pair(a, b).expect("a pair");
        [(&left, &right), (&right, &left)].into_iter().all(|(ours, theirs)| {
            let source = ours.register(&[9; 20_000]).expect("memory");
            let place = theirs.register_remote(20_000).expect("memory");
            ours.qp.write(1, source.all(), place.remote(0)).expect("room");
            let arrived = ours.wait().expect("a completion").status == WcStatus::Success;
            assert!(!arrived || place.to_vec().expect("mapped") == [9; 20_000]);
            arrived
        })
    }
}
