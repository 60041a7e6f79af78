//! The agents as programs see them. Every test writes and reads the bytes of packets by the offsets of the specification, and
//! none through the fields of the room.

mod attributes;
mod congestion;
mod counters;
mod groups;
mod keys;
mod links;
mod protocol;
mod random;
mod ways;

use super::{CONTROL_LEN, Clients, Control, REQUEST_LEN, Subnet};
use crate::topology::Topology;
use crate::topology::config::Config;
use std::path::Path;

/// Two leaves with two hosts each, and two spines: nodes 0 to 3 are hosts, 4 and 5 leaves, 6 and 7 spines.
fn topology() -> Topology {
    let text = "kind = \"leaf-spine\"\nleaves = 2\nspines = 2\nhosts_per_leaf = 2\n";
    let config: Config = toml::from_str(text).expect("a topology");
    config.build(Path::new(".")).expect("it can be built")
}

/// A program at the first host, in slot 0.
fn program() -> Program {
    program_at(Clients::new(Subnet::new(&topology()).expect("it fits")), "")
}

struct Program {
    clients: Clients,
    slot: usize,
}

fn control(slot: usize, kind: u32, data: &[u8]) -> [u8; CONTROL_LEN] {
    let mut datagram = [0; CONTROL_LEN];
    for (at, number) in [(0, 0xDEAD_BEEF), (4, slot as u32), (8, kind), (12, data.len() as u32)] {
        datagram[at..at + 4].copy_from_slice(&u32::to_ne_bytes(number));
    }
    datagram[16..16 + data.len()].copy_from_slice(data);
    datagram
}

fn connect(clients: &mut Clients, id: u32, host: &str, is_manager: bool) -> Control {
    let mut info = [0; 44];
    info[..4].copy_from_slice(&id.to_ne_bytes());
    info[8..12].copy_from_slice(&u32::from(is_manager).to_ne_bytes());
    info[12..12 + host.len()].copy_from_slice(host.as_bytes());
    clients.handle_control(&control(0, 1, &info))
}

fn program_at(mut clients: Clients, host: &str) -> Program {
    let Control::Connected { slot, .. } = connect(&mut clients, 77, host, false) else {
        panic!("it connects")
    };
    Program { clients, slot }
}

/// A management datagram by a path, or to a LID if there is no path.
fn mad(class: u8, method: u8, attribute: u16, modifier: u32, path: &[u8], data: &[u8]) -> [u8; 256] {
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, class, 1, method]);
    mad[12..16].copy_from_slice(&[9, 8, 7, 6]);
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[20..24].copy_from_slice(&modifier.to_be_bytes());
    if class == 0x81 {
        mad[7] = path.len() as u8;
        mad[32..36].fill(0xFF);
        mad[129..129 + path.len()].copy_from_slice(path);
    }
    mad[64..64 + data.len()].copy_from_slice(data);
    mad
}

fn request(dlid: u16, mad: &[u8; 256]) -> [u8; REQUEST_LEN] {
    let mut request = [0; REQUEST_LEN];
    request[..2].copy_from_slice(&dlid.to_be_bytes());
    if dlid == 0xFFFF {
        request[4..6].fill(0xFF);
    }
    request[24..32].copy_from_slice(&256u64.to_be_bytes());
    request[32..].copy_from_slice(mad);
    request
}

/// What has come back.
struct Answer {
    /// The status of the request: 110 if it has found no way.
    lost: u32,
    mad: [u8; 256],
}

impl Answer {
    /// The status of the datagram, without the direction.
    fn status(&self) -> u16 {
        u16::from_be_bytes([self.mad[4] & 0x7F, self.mad[5]])
    }

    fn data(&self) -> &[u8] {
        &self.mad[64..128]
    }
}

impl Program {
    fn send(&mut self, dlid: u16, mad: &[u8; 256]) -> Answer {
        self.clients.handle_request(self.slot, &request(dlid, mad));
        let (slot, datagram) = self.clients.poll_transmit().expect("an answer");
        assert_eq!(slot, self.slot);
        read(&datagram)
    }

    /// Asks by a path.
    fn ask(&mut self, path: &[u8], attribute: u16, modifier: u32) -> Answer {
        self.send(0xFFFF, &mad(0x81, 1, attribute, modifier, path, &[]))
    }

    fn get(&mut self, path: &[u8], attribute: u16, modifier: u32) -> Vec<u8> {
        let answer = self.ask(path, attribute, modifier);
        assert_eq!(
            (answer.lost, answer.status(), answer.mad[3]),
            (0, 0, 0x81),
            "{attribute:#x} {modifier:#x}"
        );
        answer.data().to_vec()
    }

    /// Sets by a path.
    fn set(&mut self, path: &[u8], attribute: u16, modifier: u32, data: &[u8]) -> Answer {
        self.send(0xFFFF, &mad(0x81, 2, attribute, modifier, path, data))
    }

    /// Changes bytes of an attribute, and returns the status.
    fn change(&mut self, path: &[u8], attribute: u16, modifier: u32, changes: &[(usize, u8)]) -> u16 {
        let mut data = self.get(path, attribute, modifier);
        if attribute == 0x15 {
            // No change of state unless it is asked for.
            data[32] &= 0xF0;
            data[33] &= 0x0F;
        }
        changes.iter().for_each(|(at, value)| data[*at] = *value);
        self.set(path, attribute, modifier, &data).status()
    }

    /// Brings a port from initialized to active. Both ends need it in turn.
    fn state(&mut self, path: &[u8], port: u32, state: u8) -> u16 {
        let speed = self.get(path, 0x15, port)[32] & 0xF0;
        self.change(path, 0x15, port, &[(32, speed | state)])
    }
}

fn read(datagram: &[u8; REQUEST_LEN]) -> Answer {
    let lost = u32::from_be_bytes([datagram[16], datagram[17], datagram[18], datagram[19]]);
    let mut mad = [0; 256];
    mad.copy_from_slice(&datagram[32..]);
    Answer { lost, mad }
}
