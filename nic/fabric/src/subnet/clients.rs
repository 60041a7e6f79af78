//! Programs that take part in a subnet: the datagrams of ibsim's protocol.
//!
//! A program connects with a datagram of control, attached to a node, and has a slot from then on. It sends and receives
//! management datagrams in requests, each with the LIDs and queue pairs at both ends. Requests to agents are answered here; a
//! datagram to a program, such as one to the subnet manager, is passed on. The slot of the sender is in the upper 16 bits of a
//! transaction, so that its answer finds the way back.
//!
//! Numbers of the control are in the order of the machine, as both ends are on one; those of requests are in that of the
//! network. For the caller: give datagrams to `handle_*`, and send what [`Clients::poll_transmit`] returns.

use super::mad::{AGENT, HOSTS, Mad, PERMISSIVE_LID, Refusal, class, method};
use super::node::{PKEYS, info};
use super::refusals::Refusals;
use super::requests::{Overdue, REQUEST_LEN, Request, Waiting, word};
use super::walk::Place;
use super::{CongestionLog, PortTraffic, Subnet};
use crate::topology::NodeId;
use std::collections::VecDeque;
use time::Instant;

/// Bytes of a datagram of control.
pub const CONTROL_LEN: usize = 80;

/// The most programs at a time: ibsim has ten, and its clients know no limit.
pub const SLOTS: usize = 32;

/// What begins every datagram of control.
const MAGIC: u32 = 0xDEAD_BEEF;

/// Where the data of control begin.
const CONTROL_DATA: usize = 16;

/// The status of a request that has found no way: the error of Linux for a time-out.
const TIMED_OUT: u32 = 110;

/// The most datagrams that wait to be sent. A program that takes none gets no more.
const MOST_WAITING: usize = 4096;

/// Kinds of control.
mod kind {
    pub(super) const ERROR: u32 = 0;
    pub(super) const CONNECT: u32 = 1;
    pub(super) const DISCONNECT: u32 = 2;
    pub(super) const GET_PORT: u32 = 3;
    pub(super) const GET_VENDOR: u32 = 4;
    pub(super) const GET_GID: u32 = 5;
    pub(super) const GET_GUID: u32 = 6;
    pub(super) const GET_NODE_INFO: u32 = 7;
    pub(super) const GET_PORT_INFO: u32 = 8;
    pub(super) const SET_MANAGER: u32 = 9;
    pub(super) const GET_P_KEYS: u32 = 10;
}

/// What becomes of a datagram of control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// The datagram is not a control message, and is dropped.
    Ignore,
    /// It is answered.
    Answer([u8; CONTROL_LEN]),
    /// A program takes part: its requests come through the socket of its slot, and go back to that of its number.
    Connected {
        /// Its slot.
        slot: usize,
        /// Its number, which is that of its process.
        id: u32,
        /// The answer.
        answer: [u8; CONTROL_LEN],
    },
    /// A program has left its slot.
    Disconnected {
        /// Its slot.
        slot: usize,
        /// The answer.
        answer: [u8; CONTROL_LEN],
    },
}

impl Control {
    /// The answer to a program that cannot take part, made from the datagram that asks for it, or from the answer that says it can.
    #[must_use]
    pub fn refusal(mut answer: [u8; CONTROL_LEN]) -> [u8; CONTROL_LEN] {
        answer[8..12].copy_from_slice(&kind::ERROR.to_ne_bytes());
        answer
    }
}

/// A program.
#[derive(Clone, Copy, Debug)]
struct Client {
    id: u32,
    qp: u32,
    at: Place,
    is_manager: bool,
}

/// Programs, and the subnet in which they take part.
#[derive(Debug)]
pub struct Clients {
    subnet: Subnet,
    slots: [Option<Client>; SLOTS],
    /// Datagrams that are due, each with its slot.
    due: VecDeque<(usize, [u8; REQUEST_LEN])>,
    /// Requests that programs have not answered.
    waiting: Waiting,
    /// What agents have refused.
    refusals: Refusals,
}

impl Clients {
    /// Nobody takes part yet. Those who name no node are attached to the first.
    #[must_use]
    pub fn new(subnet: Subnet) -> Self {
        Self {
            subnet,
            slots: [None; SLOTS],
            due: VecDeque::new(),
            waiting: Waiting::default(),
            refusals: Refusals::default(),
        }
    }

    /// The subnet.
    #[must_use]
    pub const fn subnet(&self) -> &Subnet {
        &self.subnet
    }

    /// A cable is cut or mended: [`Subnet::set_cable`].
    pub fn set_cable(&mut self, cable: usize, is_whole: bool) {
        self.subnet.set_cable(cable, is_whole);
    }

    /// What the fabric has counted at a port: [`Subnet::set_traffic`].
    pub fn set_traffic(&mut self, node: NodeId, port: usize, traffic: PortTraffic) {
        self.subnet.set_traffic(node, port, traffic);
    }

    /// What a node has logged of congestion: [`Subnet::set_log`].
    pub fn set_log(&mut self, now: Instant, node: NodeId, log: CongestionLog) {
        self.subnet.set_log(now, node, log);
    }

    /// Sends again what nobody has answered, traps and requests to programs and of hosts, and gives up what was sent often enough. To be
    /// called once in a second.
    pub fn repeat(&mut self) {
        self.subnet.repeat_traps();
        self.subnet.repeat_joins();
        let overdue = self.waiting.repeat();
        self.follow_up(overdue);
    }

    fn follow_up(&mut self, overdue: Vec<Overdue>) {
        for one in overdue {
            match one {
                Overdue::Again(slot, request) => self.send(slot, &request),
                Overdue::Lost(slot, request) => self.lose(slot, request),
            }
        }
    }

    /// The slots in use, each with the number of its program.
    pub fn connected(&self) -> impl Iterator<Item = (usize, u32)> {
        self.slots.iter().enumerate().filter_map(|(slot, client)| client.map(|client| (slot, client.id)))
    }

    /// What agents have refused, and how often.
    #[must_use]
    pub const fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// A program is gone.
    pub fn disconnect(&mut self, slot: usize) {
        if let Some(client) = self.slots.get_mut(slot).and_then(Option::take) {
            self.due.retain(|(to, _)| *to != slot);
            let others = self.slots.iter().flatten();
            if client.is_manager && !others.into_iter().any(|other| other.at == client.at && other.is_manager)
            {
                self.subnet.set_manager(client.at.node, false);
            }
            let lost = self.waiting.leave(slot);
            self.follow_up(lost);
        }
    }

    /// Takes a datagram of control.
    pub fn handle_control(&mut self, datagram: &[u8]) -> Control {
        let Ok(mut answer) = <[u8; CONTROL_LEN]>::try_from(datagram) else { return Control::Ignore };
        if word(&answer, 0) != MAGIC {
            return Control::Ignore;
        }
        let (slot, number) = (word(&answer, 4) as usize, word(&answer, 8));
        if number == kind::CONNECT {
            return self.connect(answer);
        }
        let Some(client) = self.slots.get(slot).copied().flatten() else {
            // One that is gone already may leave again.
            let kind = if number == kind::DISCONNECT && slot < SLOTS { number } else { kind::ERROR };
            answer[8..12].copy_from_slice(&kind.to_ne_bytes());
            return Control::Answer(answer);
        };
        let data = &mut answer[CONTROL_DATA..];
        if self.control(number, client, slot, data).is_none() {
            answer[8..12].copy_from_slice(&kind::ERROR.to_ne_bytes());
        } else if number == kind::DISCONNECT {
            return Control::Disconnected { slot, answer };
        }
        Control::Answer(answer)
    }

    /// Does what control asks for, with its data. None if that cannot be.
    fn control(&mut self, number: u32, client: Client, slot: usize, data: &mut [u8]) -> Option<()> {
        let port = self.subnet.port(client.at)?.clone();
        let mut at = client.at;
        match number {
            kind::DISCONNECT => self.disconnect(slot),
            kind::GET_PORT => {
                data[..2].copy_from_slice(&port.lid().to_ne_bytes());
                data[2] = port.state() as u8;
            }
            kind::GET_VENDOR => {
                let node = self.subnet.node_info(at).ok()?;
                let numbers = [
                    u32::from_be_bytes([0, node[37], node[38], node[39]]),
                    u32::from(u16::from_be_bytes([node[30], node[31]])),
                    u32::from_be_bytes([node[32], node[33], node[34], node[35]]),
                ];
                for (bytes, number) in data.chunks_exact_mut(4).zip(numbers) {
                    bytes.copy_from_slice(&number.to_ne_bytes());
                }
                data[16..24].copy_from_slice(&1u64.to_ne_bytes());
            }
            kind::GET_GID => {
                data[..8].copy_from_slice(&info::GID_PREFIX.get(&port.info).to_be_bytes());
                let guid = self.subnet.nodes.get(at.node)?.port_guid(at.port);
                data[8..16].copy_from_slice(&guid.to_be_bytes());
            }
            kind::GET_GUID => data[..8].copy_from_slice(&self.subnet.guid(at.node).to_be_bytes()),
            kind::GET_NODE_INFO => data.copy_from_slice(&self.subnet.node_info(at).ok()?),
            kind::GET_PORT_INFO => {
                if data[0] != 0 && self.subnet.port(Place { port: data[0], ..at }).is_some() {
                    at.port = data[0];
                }
                let mut info = self.subnet.port(at)?.info;
                info::LOCAL_PORT.set(&mut info, client.at.port.into());
                data.copy_from_slice(&info);
            }
            kind::SET_MANAGER => {
                let is_manager = data[..4].iter().any(|byte| *byte != 0);
                if is_manager && self.has_other_manager(at.node, slot) {
                    self.refusals.managers += 1;
                    return None;
                }
                self.set_manager(slot, is_manager);
            }
            kind::GET_P_KEYS => {
                for (bytes, key) in data.chunks_exact_mut(2).zip(&port.pkeys[..PKEYS]) {
                    bytes.copy_from_slice(&key.to_be_bytes());
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Whether another program at a node is the subnet manager there: both would take themselves for the only one, as neither
    /// gets what is for the other.
    fn has_other_manager(&self, node: NodeId, slot: usize) -> bool {
        let others = self.slots.iter().enumerate().filter(|(other, _)| *other != slot);
        others
            .filter_map(|(_, client)| client.as_ref())
            .any(|other| other.at.node == node && other.is_manager)
    }

    fn set_manager(&mut self, slot: usize, is_manager: bool) {
        let Some(client) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        client.is_manager = is_manager;
        let at = client.at;
        let any = self.slots.iter().flatten().any(|other| other.at == at && other.is_manager);
        self.subnet.set_manager(at.node, any);
    }

    /// A program wants to take part.
    fn connect(&mut self, mut answer: [u8; CONTROL_LEN]) -> Control {
        let data = &answer[CONTROL_DATA..];
        let (id, qp, is_manager) = (word(data, 0), word(data, 4), word(data, 8) != 0);
        let name = data.get(12..44).unwrap_or_default();
        let name =
            String::from_utf8_lossy(name.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned();
        let node = if name.is_empty() { Some(0) } else { self.named(&name) };
        let slot = self.slots.iter().position(Option::is_none);
        let place = |node: NodeId| self.subnet.nodes.get(node).map(|of| Place { node, port: of.own_port() });
        let (Some(at), Some(slot)) = (node.and_then(place), slot) else {
            return Control::Answer(Control::refusal(answer));
        };
        if is_manager && self.has_other_manager(at.node, slot) {
            self.refusals.managers += 1;
            return Control::Answer(Control::refusal(answer));
        }
        self.slots[slot] = Some(Client { id, qp, at, is_manager });
        if is_manager {
            self.set_manager(slot, true);
        }
        answer[CONTROL_DATA..][..4].copy_from_slice(&(slot as u32).to_ne_bytes());
        let name = self.subnet.nodes.get(at.node).map_or("", |node| node.name.as_str());
        let field = &mut answer[CONTROL_DATA + 12..CONTROL_DATA + 44];
        field.fill(0);
        // A zero stays behind it.
        field[..31].iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        Control::Connected { slot, id, answer }
    }

    /// The node of this name, or that describes itself so.
    fn named(&self, name: &str) -> Option<NodeId> {
        let described =
            |node: &super::node::Node| super::smp::description(&node.name, node.switch.is_none()) == name;
        self.subnet.numbers.get(name).copied().or_else(|| self.subnet.nodes.iter().position(described))
    }

    /// Takes a request that came through the socket of a slot.
    pub fn handle_request(&mut self, slot: usize, datagram: &[u8]) {
        let Some(client) = self.slots.get(slot).copied().flatten() else { return };
        let Some(mut request) = Request::read(datagram) else { return };
        let mad = &mut request.mad;
        if mad.method() == method::TRAP_REPRESS && mad.slot() == AGENT {
            return self.subnet.repress(mad);
        }
        if !mad.is_answer() {
            mad.set_slot(slot);
        }
        if mad.is_by_path() {
            let has_lids = mad.path_lids() != [PERMISSIVE_LID; 2];
            if has_lids || mad.hop_pointer() != 0 || mad.is_returning() != mad.is_response() {
                return self.lose(slot, request);
            }
        } else if request.slid == 0 {
            request.slid = self.subnet.lid(client.at.node);
        }
        let Some(at) = self.route(client.at, &mut request) else { return self.lose(slot, request) };
        let mad = &mut request.mad;
        if mad.is_answer() && mad.slot() == HOSTS {
            return self.subnet.joined(at, mad);
        }
        if mad.is_answer() {
            self.waiting.end(slot, mad);
            let to = self.answered(at, mad);
            return self.pass(to, slot, request);
        }
        let result = match mad.class() {
            class::SUBNET_BY_LID | class::SUBNET_BY_PATH => match mad.attribute() {
                super::smp::attribute::SM_INFO | super::smp::attribute::NOTICE => {
                    return self.pass(self.program(at, 0), slot, request);
                }
                // One that does not hear does not answer either.
                _ if !self.subnet.hears(at, request.slid, mad) => return self.lose(slot, request),
                _ => self.subnet.serve_smp(at, mad),
            },
            class::PERFORMANCE => self.subnet.serve_performance(at, mad),
            class::CONGESTION_CONTROL if !self.subnet.hears_congestion(at, mad) => {
                return self.lose(slot, request);
            }
            class::CONGESTION_CONTROL => self.subnet.serve_congestion(at, mad),
            class::SUBNET_ADMINISTRATION => return self.pass(self.program(at, 1), slot, request),
            _ => match self.program(at, request.dqp).filter(|_| request.dqp > 1) {
                Some(to) => return self.pass(Some(to), slot, request),
                None => Err(Refusal::Class),
            },
        };
        let refusal = result.err();
        if let Some(refusal) = refusal {
            self.refusals.note(&request.mad, refusal);
        }
        self.reply(client, slot, at, request, refusal);
    }

    /// Where a datagram ends.
    fn route(&mut self, from: Place, request: &mut Request) -> Option<Place> {
        let (lid, mad) = (request.dlid, &mut request.mad);
        match (mad.is_by_path(), mad.is_response()) {
            (true, false) => self.subnet.walk_out(from, mad),
            (true, true) => self.subnet.walk_back(from, mad),
            (false, _) => self.subnet.walk_to(from, lid, mad.is_smp()),
        }
    }

    /// Sends an answer of an agent back to the program that asked, if it finds the way.
    fn reply(
        &mut self,
        client: Client,
        slot: usize,
        at: Place,
        mut request: Request,
        refusal: Option<Refusal>,
    ) {
        request.mad.answer(refusal.map_or(0, Refusal::status));
        let mut request = request.turned();
        let own = self.subnet.nodes.get(at.node).map_or(0, super::node::Node::own_port);
        let from = if request.mad.is_by_path() { at } else { Place { node: at.node, port: own } };
        match self.route(from, &mut request) {
            Some(back) if back.node == client.at.node => self.send(slot, &request),
            _ => self.lose(slot, request),
        }
    }

    /// The slot to which an answer goes that has come to this port: that of the program that asked, or else the subnet manager.
    fn answered(&self, at: Place, mad: &Mad) -> Option<usize> {
        let slot = mad.slot();
        let asked = self.slots.get(slot).copied().flatten().filter(|client| client.at.node == at.node);
        asked.map(|_| slot).or_else(|| self.program(at, 1))
    }

    /// The slot of the program at a port that takes requests: the one with this queue pair, or for 0 and 1 the subnet manager.
    fn program(&self, at: Place, qp: u32) -> Option<usize> {
        let takes = |client: &Client| {
            client.at.node == at.node && if qp > 1 { client.qp == qp } else { client.is_manager }
        };
        self.slots.iter().position(|client| client.as_ref().is_some_and(takes))
    }

    /// Passes a datagram on to a program, or back to the one that sent it, if there is none.
    fn pass(&mut self, to: Option<usize>, from: usize, request: Request) {
        match to {
            Some(to) => {
                self.waiting.begin(from, to, &request);
                self.send(to, &request);
            }
            None => self.lose(from, request),
        }
    }

    /// Tells a program that its datagram has found no way. Answers are not answered.
    fn lose(&mut self, slot: usize, mut request: Request) {
        request.status = TIMED_OUT;
        self.send(slot, &request);
    }

    fn send(&mut self, slot: usize, request: &Request) {
        if self.due.len() < MOST_WAITING {
            self.due.push_back((slot, request.write()));
        }
    }

    /// Where a datagram to the subnet manager ends. A port that knows none sends nothing.
    fn walk_to_manager(&mut self, from: Place, manager: u16, is_smp: bool) -> Option<Place> {
        if manager == 0 { None } else { self.subnet.walk_to(from, manager, is_smp) }
    }

    /// A datagram to be sent through the socket of a slot.
    pub fn poll_transmit(&mut self) -> Option<(usize, [u8; REQUEST_LEN])> {
        while let Some((at, manager, mad)) = self.subnet.poll_trap() {
            let slid = self.subnet.lid(at.node);
            let found = self.walk_to_manager(at, manager, true);
            if let Some(slot) = found.and_then(|place| self.program(place, 0)) {
                self.send(slot, &Request { dlid: manager, slid, dqp: 0, sqp: 0, status: 0, mad });
            }
        }
        while let Some((at, manager, mad)) = self.subnet.poll_join() {
            let slid = self.subnet.lid(at.node);
            let found = self.walk_to_manager(at, manager, false);
            if let Some(slot) = found.and_then(|place| self.program(place, 1)) {
                self.send(slot, &Request { dlid: manager, slid, dqp: 1, sqp: 1, status: 0, mad });
            }
        }
        self.due.pop_front()
    }
}
