//! What programs of a subnet say: control, management datagrams, and whatever else comes through their sockets.
//!
//! Requests have their fields from the input, near to right ones, so that sequences reach deep: LIDs are given, tables are
//! written, links become active. Any byte of them may then be changed.

use super::{byte, bytes};
use arbitrary::Unstructured;
use rnic_fabric::network::Forwarding;
use rnic_fabric::scenario::Scenario;
use rnic_fabric::subnet::{CONTROL_LEN, Control, REQUEST_LEN, SLOTS, Served, Tables};
use std::path::Path;
use std::time::Duration;

/// Steps of an input that are carried out.
const STEPS: usize = 200;

/// Where a management datagram is in a request.
const MAD: usize = 32;

/// The management classes of requests: by path, by LID, performance, subnet administration, congestion control, a vendor's.
const CLASSES: [u8; 6] = [0x81, 0x01, 0x04, 0x03, 0x21, 0x09];

/// Get, Set, Trap, TrapRepress, and answers.
const METHODS: [u8; 6] = [1, 2, 5, 7, 0x81, 0x15];

/// The most datagrams that are due after one request: an answer, and two traps of each of the nodes.
const MOST_DUE: usize = 1 + 2 * NODES;

/// The nodes of the fabric: four hosts and four switches.
const NODES: usize = 8;

const SCENARIO: &str = r#"
name = "managed"
about = "Two leaves and two spines."
until = "1 ms"
topology = { kind = "leaf-spine", leaves = 2, spines = 2, hosts_per_leaf = 2 }
switch = { model = "infiniband" }
nic = { timeout = 1 }
[[workload]]
pattern = "incast"
to = "host3"
bytes = "4 KB"
priority = 0
"#;

/// A datagram of control: a slot, a kind, and data. Some name a host.
fn control(input: &mut Unstructured<'_>) -> Vec<u8> {
    let [slot, kind, name, cut] = [byte(input), byte(input), byte(input), byte(input)];
    let mut datagram = vec![0; CONTROL_LEN];
    let numbers = [0xDEAD_BEEF, u32::from(slot) % 40, u32::from(kind) % 14, 64];
    for (to, number) in datagram.chunks_exact_mut(4).zip(numbers) {
        to.copy_from_slice(&number.to_ne_bytes());
    }
    let given = bytes(input, usize::from(name >> 4) * 4);
    datagram[16..16 + given.len()].copy_from_slice(given);
    if name & 8 == 0 {
        let node = ["host0", "host3 rnic0", "leaf1", "spine0"][usize::from(name & 3)];
        datagram[28..28 + node.len()].copy_from_slice(node.as_bytes());
    }
    datagram.truncate(if cut < 240 { CONTROL_LEN } else { usize::from(cut - 240) });
    datagram
}

/// A request: a management datagram with its addresses.
fn request(input: &mut Unstructured<'_>) -> Vec<u8> {
    let [class, method, attribute, lid] = [byte(input), byte(input), byte(input), byte(input)];
    let mut datagram = vec![0; REQUEST_LEN];
    let class = CLASSES[usize::from(class) % CLASSES.len()];
    datagram[MAD..MAD + 4].copy_from_slice(&[1, class, 1, METHODS[usize::from(method) % METHODS.len()]]);
    datagram[MAD + 16..MAD + 18].copy_from_slice(&u16::from(attribute).to_be_bytes());
    let [block, high, low] = [byte(input), byte(input), byte(input)];
    datagram[MAD + 20..MAD + 24].copy_from_slice(&[block, 0, high, low]);
    if class == CLASSES[0] {
        datagram[..8].fill(0xFF);
        let len = usize::from(byte(input) % 6);
        datagram[MAD + 7] = len as u8;
        datagram[MAD + 32..MAD + 36].fill(0xFF);
        for at in 0..len {
            datagram[MAD + 129 + at] = byte(input) % 6;
        }
    } else {
        datagram[1] = lid;
        datagram[11] = lid & 1;
    }
    let len = usize::from(byte(input) % 65);
    let data = bytes(input, len);
    datagram[MAD + 64..MAD + 64 + data.len()].copy_from_slice(data);
    for _ in 0..byte(input) % 4 {
        let at = usize::from(byte(input)) + usize::from(byte(input) & 31);
        datagram[at] = byte(input);
    }
    datagram
}

/// Has a fabric hear anything from programs, and forward by what they have written.
///
/// # Panics
///
/// Panics if there are more programs than slots, or more answers than one request can have; if the saved tables cannot be
/// read again; or if the accounts of the fabric do not add up.
pub fn subnet(data: &[u8]) {
    let scenario = Scenario::read(SCENARIO).expect("a scenario");
    let run = scenario.prepare(Path::new("."), 1).expect("it fits together");
    let mut served = Served::new(run).expect("InfiniBand has room for it");
    let mut input = Unstructured::new(data);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let what = byte(&mut input);
        match what % 16 {
            0 | 1 => {
                let datagram = control(&mut input);
                if let Control::Connected { slot, .. } | Control::Disconnected { slot, .. } =
                    served.handle_control(&datagram)
                {
                    assert!(slot < SLOTS);
                }
            }
            2 => served.set_cable(usize::from(what >> 4), byte(&mut input) & 1 == 1),
            3 => served.repeat(),
            4 => served.disconnect(usize::from(what >> 4)),
            5 => {
                let len = usize::from(byte(&mut input)) * 2;
                served.handle_request(usize::from(what >> 4), bytes(&mut input, len));
            }
            6 if what >> 4 == 0 => served.run_for(Duration::from_micros(50)).expect("verbs do not fail"),
            _ => served.handle_request(usize::from(what >> 5), &request(&mut input)),
        }
        // A repetition, and the end of a program, concern all requests that wait.
        let most = if what % 16 < 5 { MOST_DUE + STEPS } else { MOST_DUE };
        let due = std::iter::from_fn(|| served.poll_transmit()).take(most + 1).count();
        assert!(due <= most, "{due} datagrams for one");
        assert!(served.clients().connected().count() <= SLOTS);
    }
    let tables = served.tables();
    assert_eq!(tables.hosts.len() + tables.switches.len(), NODES);
    let text = toml::to_string(&tables).expect("text");
    assert_eq!(toml::from_str::<Tables>(&text).as_ref(), Ok(&tables));
    // A fabric can take them, or says why not.
    drop(Forwarding::new(&tables, served.topology()));
    served.run_for(Duration::from_micros(200)).expect("verbs do not fail");
    served.run().fabric().lock().check();
}
