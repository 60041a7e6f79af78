//! The daemon's control protocol: any frames to the decoder, and any conversations with a daemon.

use super::{byte, bytes};
use crate::fresh_address;
use ::bytes::BytesMut;
use arbitrary::Unstructured;
use cm::{CommId, Connected, Destination, PortSpace};
use qp::{Gid, Qpn};
use rnic::cm::Claim;
use rnic::daemon::protocol::{
    Attached, Hello, LedgerEntry, PortBinding, PortClaim, Reply, Request, VERSION, read_frame, write_frame,
};
use rnic_daemon::trial::{Line, Trial};
use rnic_daemon::{Config, Limits};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Steps of an input that are carried out.
const STEPS: usize = 200;

/// Users of programs, of whom the daemon serves all but the last.
const USERS: [u32; 4] = [3_000_000_001, 3_000_000_001, 3_000_000_002, 3_000_000_003];

/// Small bounds, so that an input reaches them.
const LIMITS: Limits = Limits { slots: 1, connections: 3, ports: 3 };

/// Where the peers of connections are said to be. The daemon is at a loopback address, and reaches nobody elsewhere.
const PEER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);

/// A program that is played.
struct Program {
    line: Line,
    user: u32,
    attached: Option<Attached>,
    bound: Option<PortBinding>,
}

impl Program {
    fn connect(daemon: &Trial, user: u32) -> Self {
        Self { line: daemon.connect(user), user, attached: None, bound: None }
    }

    /// It says something; returns false if the daemon closes the connection.
    fn say(&mut self, said: &[u8]) -> bool {
        let Ok(replies) = self.line.say(said) else { return false };
        for reply in replies {
            let is_refused = matches!(reply, Reply::Refused(_));
            assert!(self.user != USERS[3] || is_refused, "a user who is not served gets {reply:?}");
            let again = frame(&reply);
            let read = read_frame::<Reply>(&mut BytesMut::from(&again[..]));
            assert_eq!(read, Ok(Some(reply.clone())), "it can be read");
            match reply {
                Reply::Attached(attached) => {
                    assert!(attached.slot > 0, "slot 0 is the daemon's");
                    assert!(self.attached.is_none(), "one slot over one connection");
                    self.attached = Some(*attached);
                }
                Reply::Bound(binding) => self.bound = Some(binding),
                _ => {}
            }
        }
        true
    }
}

fn frame(message: &impl Serialize) -> BytesMut {
    let mut frame = BytesMut::new();
    write_frame(message, &mut frame);
    frame
}

/// Reads frames until one is no message. Each message, written again, reads as itself.
fn decode<M: Serialize + DeserializeOwned + PartialEq + Debug>(input: &[u8]) {
    let mut from = BytesMut::from(input);
    let mut left = from.len();
    while let Ok(Some(message)) = read_frame::<M>(&mut from) {
        assert!(from.len() < left, "a frame has bytes");
        left = from.len();
        assert_eq!(read_frame::<M>(&mut frame(&message)).as_ref(), Ok(&Some(message)));
    }
}

/// Something that a program may well say: of its own slot and port, if it has them.
fn request(program: &Program, earlier: Option<&Attached>, input: &mut Unstructured<'_>) -> Request {
    let number = u64::from(byte(input) & 3);
    let slot = program.attached.as_ref().map_or(0, |attached| attached.slot);
    let own = u32::from_be_bytes([slot, 0, 0, number as u8]);
    let claim = || Claim::new(PortSpace::Tcp, SocketAddr::new(PEER.into(), 7000 + number as u16));
    match byte(input) & 0xf {
        0 => Request::Hello(Hello { version: VERSION, pid: 1, program: "fuzzed".to_owned() }),
        1 => Request::Addresses,
        2 | 3 => Request::Attach { address: None },
        4 => match earlier {
            Some(Attached { address, slot, token, .. }) => {
                Request::Resume { address: address.ip, slot: *slot, token: *token }
            }
            None => Request::Programs,
        },
        5 => ledger(LedgerEntry::Listens(number)),
        6 => ledger(LedgerEntry::Silent(number)),
        7 | 8 => ledger(LedgerEntry::from(cm::Entry::Connected(connected(own, number)))),
        9 => ledger(LedgerEntry::Ended(own)),
        10 => Request::Bind(PortClaim::from(&claim())),
        11 => {
            Request::Hold { claim: PortClaim::from(&Claim { reuse: true, ..claim() }), listens: number > 1 }
        }
        12 => program.bound.map_or(Request::Programs, Request::Listen),
        13 => program.bound.map_or(Request::Programs, Request::Release),
        14 => Request::Route { from: None, to: SocketAddr::new(PEER.into(), 4791) },
        _ => Request::Programs,
    }
}

fn ledger(entry: LedgerEntry) -> Request {
    Request::Ledger { entries: vec![entry], number: Some(1) }
}

fn connected(local: u32, number: u64) -> Connected {
    let gid = |ip: Ipv4Addr| Gid::from(IpAddr::V4(ip));
    let to = Destination {
        remote: gid(PEER),
        local: gid(PEER),
        flow_label: 0,
        traffic_class: 0,
        hop_limit: 1,
        sl: 0,
    };
    let remote_qpn = Qpn::new(number as u32);
    Connected { local: CommId(local), remote: CommId(7), local_qpn: Qpn::new(local >> 8), remote_qpn, to }
}

/// Up to four programs say anything to one daemon. When they are gone, nothing is left of them.
fn converse(daemon: &Trial, input: &mut Unstructured<'_>) {
    let mut programs = USERS.map(|user| Program::connect(daemon, user));
    let mut earlier: Option<Attached> = None;
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let what = byte(input);
        let program = &mut programs[usize::from(what & 3)];
        let len = usize::from(what >> 4) * 4;
        let goes_on = match (what >> 2) & 3 {
            // Bytes as they are, and bytes as a frame.
            0 => program.say(bytes(input, len)),
            1 => {
                let body = bytes(input, len);
                program.say(&(body.len() as u32).to_be_bytes()) && program.say(body)
            }
            2 | 3 if what >= 0x20 => {
                let request = request(program, earlier.as_ref(), input);
                program.say(&frame(&request))
            }
            _ => false,
        };
        earlier = program.attached.clone().or(earlier);
        if !goes_on {
            *program = Program::connect(daemon, program.user);
        }
        let slots =
            programs.iter().filter_map(|program| Some((program.attached.as_ref()?.slot, program.user)));
        let slots: Vec<(u8, u32)> = slots.collect();
        for (at, (slot, user)) in slots.iter().enumerate() {
            let others = &slots[..at];
            assert!(others.iter().all(|(other, _)| other != slot), "two programs have one slot: {slots:?}");
            assert!(others.iter().all(|(_, other)| other != user), "a user has two slots: {slots:?}");
        }
    }
    drop(programs);
    assert!(daemon.is_idle(), "something is left of programs that are gone");
}

/// The daemon whom all inputs talk to: opening one takes longer than an input does.
fn trial() -> &'static Mutex<Trial> {
    static DAEMON: OnceLock<Mutex<Trial>> = OnceLock::new();
    DAEMON.get_or_init(|| {
        let config = Config {
            addresses: vec![fresh_address().to_string()],
            users: USERS[..3].iter().map(u32::to_string).collect(),
            limits: LIMITS,
            ..Config::default()
        };
        Mutex::new(Trial::open(&config).expect("a loopback address"))
    })
}

/// Reads the input as frames, in both directions, and then as what programs say to a daemon.
///
/// # Panics
///
/// Panics if a guarantee is violated.
pub fn daemon(input: &[u8]) {
    decode::<Request>(input);
    decode::<Reply>(input);
    let daemon = trial().lock().unwrap_or_else(PoisonError::into_inner);
    converse(&daemon, &mut Unstructured::new(input));
}
