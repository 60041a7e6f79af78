//! What the connection manager of the process knows: channels, identifiers, and the events that wait.
//!
//! A lock protects it that is taken last: the lock of a port may be held, and nobody calls a port while holding this
//! one. So a command about a connection runs inside a call of the port's manager, and takes this lock there.

use super::abi::{ConnParam, Ece, EventAnswer, UdParam};
use super::name::Name;
use super::pipe::{Pipe, PipeId};
use super::service::Space;
use crate::errno::Errno;
use nix::unistd::Pid;
use rnic::QpType;
use rnic::cm::protocol::{ConnectionId, ListenerId, Path, QueryId, ResolutionId};
use rnic::cm::{Binding, PortTable};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// A channel: an open file of the device.
pub(super) struct Channel {
    pub(super) pipe: Pipe,
    pub(super) events: VecDeque<Waiting>,
    /// The thread that is handling an event or about to take one. A thread that waits for the next event is not.
    pub(super) away: Option<Pid>,
}

/// How long a thread that `poll` has woken may take until it asks for its event: a few slices of the scheduler.
pub(super) const SETTLES: Duration = Duration::from_millis(10);

/// An event that waits.
pub(super) struct Waiting {
    /// The identifier that it is counted for.
    pub(super) id: u32,
    /// The identifier of a new connection, which a listener's event announces.
    pub(super) announces: Option<u32>,
    /// The multicast group whose event it is.
    pub(super) group: Option<u32>,
    pub(super) answer: Box<EventAnswer>,
    /// When it made the channel readable.
    pub(super) since: Instant,
}

impl Waiting {
    pub(super) fn new(id: u32, answer: Box<EventAnswer>) -> Self {
        Self { id, announces: None, group: None, answer, since: Instant::now() }
    }
}

/// How far an identifier has come (`enum rdma_cm_state` of Linux).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Stage {
    Idle,
    Bound,
    Listening,
    AddressResolved,
    RouteResolved,
    Connecting,
}

/// What an identifier is at the endpoint of its device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Link {
    Connection(ConnectionId),
    Resolution(ResolutionId),
    Query(QueryId),
}

/// Options that a program sets.
#[derive(Clone, Copy, Default)]
pub(super) struct Options {
    pub(super) tos: u8,
    pub(super) reuse: bool,
    pub(super) only_family: Option<bool>,
    pub(super) ack_timeout: Option<u8>,
}

/// An identifier: `rdma_cm_id` of librdmacm.
pub(super) struct Id {
    pub(super) channel: PipeId,
    /// The program's name for it; 0 until it accepts the connection.
    pub(super) uid: u64,
    pub(super) space: Space,
    pub(super) qp_type: QpType,
    pub(super) stage: Stage,
    pub(super) src: Option<Name>,
    pub(super) dst: Option<Name>,
    /// The device, by its index.
    pub(super) device: Option<usize>,
    /// Its port, among those of its port space.
    pub(super) port: Option<Binding>,
    pub(super) link: Option<Link>,
    pub(super) path: Option<Path>,
    pub(super) listeners: Vec<(usize, ListenerId)>,
    pub(super) options: Options,
    /// Events of it that the program has taken.
    pub(super) reported: u32,
}

/// A multicast group that an identifier has joined.
pub(super) struct Group {
    pub(super) id: u32,
    pub(super) reported: u32,
}

/// All of it.
pub(super) struct State {
    pub(super) channels: BTreeMap<PipeId, Channel>,
    pub(super) ids: BTreeMap<u32, Id>,
    pub(super) groups: BTreeMap<u32, Group>,
    pub(super) links: BTreeMap<(usize, Link), u32>,
    pub(super) listeners: BTreeMap<(usize, ListenerId), u32>,
    /// Requests that came while their listener was being closed.
    pub(super) orphans: Vec<(usize, Link)>,
    pub(super) ports: Arc<dyn PortTable>,
    /// Descriptors of channels that were closed, with the threads that did.
    pub(super) closed_by: BTreeMap<c_int, Pid>,
    next_id: u32,
    next_group: u32,
}

impl State {
    /// Nothing yet.
    pub(super) fn new(ports: Arc<dyn PortTable>) -> Self {
        Self {
            channels: BTreeMap::new(),
            ids: BTreeMap::new(),
            groups: BTreeMap::new(),
            links: BTreeMap::new(),
            listeners: BTreeMap::new(),
            orphans: Vec::new(),
            ports,
            closed_by: BTreeMap::new(),
            next_id: 0,
            next_group: 0,
        }
    }
}

/// What remains to be closed at the endpoints, without the lock of the state.
#[derive(Default)]
pub(super) struct Remains {
    pub(super) links: Vec<(usize, Link)>,
    pub(super) listeners: Vec<(usize, ListenerId)>,
}

impl Remains {
    pub(super) const fn is_empty(&self) -> bool {
        self.links.is_empty() && self.listeners.is_empty()
    }
}

impl Id {
    pub(super) fn new(channel: PipeId, uid: u64, space: Space, qp_type: QpType) -> Self {
        Self {
            channel,
            uid,
            space,
            qp_type,
            stage: Stage::Idle,
            src: None,
            dst: None,
            device: None,
            port: None,
            link: None,
            path: None,
            listeners: Vec::new(),
            options: Options::default(),
            reported: 0,
        }
    }

    /// Whether addresses of the other family stay out: by default, those of IPv4 and the whole host's setting for IPv6.
    pub(super) fn only_family(&self) -> bool {
        self.options.only_family.unwrap_or(matches!(self.src, Some(Name::V4(_))))
    }
}

/// A number that is not taken, from `next` on.
fn free<T>(taken: &BTreeMap<u32, T>, next: &mut u32) -> u32 {
    while taken.contains_key(next) {
        *next = next.wrapping_add(1);
    }
    let found = *next;
    *next = next.wrapping_add(1);
    found
}

impl State {
    /// The identifier with this number, if it belongs to the channel.
    pub(super) fn id(&mut self, channel: PipeId, id: u32) -> Result<&mut Id, Errno> {
        let found = self.ids.get_mut(&id).ok_or(Errno(libc::ENOENT))?;
        if found.channel == channel { Ok(found) } else { Err(Errno::INVALID) }
    }

    pub(super) fn add_id(&mut self, id: Id) -> u32 {
        let number = free(&self.ids, &mut self.next_id);
        self.ids.insert(number, id);
        number
    }

    pub(super) fn add_group(&mut self, group: Group) -> u32 {
        let number = free(&self.groups, &mut self.next_group);
        self.groups.insert(number, group);
        number
    }

    /// Makes an identifier stand for a connection, resolution or query of its device.
    pub(super) fn tie(&mut self, number: u32, device: usize, link: Link) {
        if let Some(id) = self.ids.get_mut(&number) {
            (id.device, id.link) = (Some(device), Some(link));
            self.links.insert((device, link), number);
        }
    }

    /// The endpoint has forgotten it.
    pub(super) fn untie(&mut self, device: usize, link: Link) {
        if let Some(id) = self.links.remove(&(device, link)).and_then(|number| self.ids.get_mut(&number)) {
            id.link = None;
        }
    }

    /// Queues an event for the channel of an identifier. An event of one without a name is dropped, as in the kernel: the
    /// program has not accepted that connection.
    pub(super) fn queue(&mut self, number: u32, waiting: Waiting) {
        let Some(id) = self.ids.get(&number) else { return };
        let named = waiting.answer.uid != 0 || waiting.announces.is_some() || waiting.group.is_some();
        let Some(channel) = self.channels.get_mut(&id.channel).filter(|_| named) else { return };
        channel.events.push_back(waiting);
        channel.pipe.hold(channel.events.len());
    }

    /// Queues a simple event of an identifier.
    pub(super) fn tell(&mut self, number: u32, event: u32, status: i32) {
        self.tell_with(number, event, status, &[], Ece::default());
    }

    /// Queues an event of an identifier with its parameters.
    pub(super) fn tell_with(&mut self, number: u32, event: u32, status: i32, param: &[u8], ece: Ece) {
        let Some(id) = self.ids.get(&number) else { return };
        let answer = answer(id.uid, number, event, status, param, ece);
        self.queue(number, Waiting::new(number, answer));
    }

    /// The thread that may be about to take an event of an identifier, which has just come.
    ///
    /// `poll` may already have told that thread that the channel is readable. If the event were removed now, the thread
    /// would block in its read forever. rping would hang, because its event thread can only be stopped while it polls. The
    /// kernel has the same race, over fewer instructions.
    pub(super) fn taker(&self, channel: PipeId, number: u32) -> Option<Pid> {
        let channel = self.channels.get(&channel)?;
        let is_fresh = |waiting: &Waiting| waiting.id == number && waiting.since.elapsed() < SETTLES;
        channel.away.filter(|_| channel.events.iter().any(is_fresh))
    }

    /// Removes the events of an identifier that wait, and returns the new identifiers that they announced.
    fn drop_events(&mut self, channel: PipeId, is_gone: impl Fn(&Waiting) -> bool) -> Vec<u32> {
        let Some(channel) = self.channels.get_mut(&channel) else { return Vec::new() };
        let (gone, kept): (VecDeque<_>, _) =
            std::mem::take(&mut channel.events).into_iter().partition(|waiting| is_gone(waiting));
        channel.events = kept;
        channel.pipe.hold(channel.events.len());
        gone.into_iter().filter_map(|waiting| waiting.announces).collect()
    }

    /// Removes an identifier, its events, and the connections that they announced. What the endpoints have to close is
    /// added to `remains`.
    pub(super) fn remove(&mut self, number: u32, remains: &mut Remains) -> Option<Id> {
        let id = self.ids.remove(&number)?;
        if let (Some(device), Some(link)) = (id.device, id.link) {
            self.links.remove(&(device, link));
            remains.links.push((device, link));
        }
        for listener in &id.listeners {
            self.listeners.remove(listener);
            remains.listeners.push(*listener);
        }
        if let Some(port) = id.port {
            self.ports.release(port);
        }
        self.groups.retain(|_, group| group.id != number);
        for new in self.drop_events(id.channel, |waiting| waiting.id == number) {
            self.remove(new, remains);
        }
        Some(id)
    }

    /// Removes a group and its events; returns how many of them the program has taken.
    pub(super) fn leave(&mut self, channel: PipeId, number: u32) -> Option<u32> {
        let group = self.groups.remove(&number)?;
        self.drop_events(channel, |waiting| waiting.group == Some(number));
        Some(group.reported)
    }

    /// Removes a channel with everything that belongs to it.
    pub(super) fn close(&mut self, channel: PipeId, remains: &mut Remains) {
        let of_channel = self.ids.iter().filter(|(_, id)| id.channel == channel);
        let numbers: Vec<u32> = of_channel.map(|(number, _)| *number).collect();
        for number in numbers {
            self.remove(number, remains);
        }
        self.channels.remove(&channel);
    }

    /// Moves an identifier and its events to another channel.
    pub(super) fn migrate(&mut self, number: u32, from: PipeId, to: PipeId) -> Result<u32, Errno> {
        let reported = self.id(from, number)?.reported;
        if from == to {
            return Ok(reported);
        }
        if !self.channels.contains_key(&to) {
            return Err(Errno::INVALID);
        }
        let Some(old) = self.channels.get_mut(&from) else { return Err(Errno::INVALID) };
        let (moved, kept): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut old.events).into_iter().partition(|waiting| waiting.id == number);
        old.events = kept;
        old.pipe.hold(old.events.len());
        let announced: Vec<u32> = moved.iter().filter_map(|waiting| waiting.announces).collect();
        for id in announced.into_iter().chain([number]) {
            if let Some(id) = self.ids.get_mut(&id) {
                id.channel = to;
            }
        }
        if let Some(new) = self.channels.get_mut(&to) {
            new.events.extend(moved);
            new.pipe.hold(new.events.len());
        }
        Ok(reported)
    }

    /// Takes the next event of a channel.
    pub(super) fn take(&mut self, channel: PipeId) -> Option<Box<EventAnswer>> {
        let channel = self.channels.get_mut(&channel)?;
        let taken = channel.events.pop_front();
        channel.pipe.hold(channel.events.len());
        let Waiting { id, group, answer, .. } = taken?;
        if let Some(id) = self.ids.get_mut(&id) {
            id.reported += 1;
        }
        if let Some(group) = group.and_then(|group| self.groups.get_mut(&group)) {
            group.reported += 1;
        }
        Some(answer)
    }
}

/// An event with the beginning of its parameters; the rest are zeros.
pub(super) fn answer(uid: u64, id: u32, event: u32, status: i32, param: &[u8], ece: Ece) -> Box<EventAnswer> {
    let mut answer = Box::new(EventAnswer { uid, id, event, ..EventAnswer::default() });
    answer.status = status.cast_unsigned();
    answer.param[..param.len()].copy_from_slice(param);
    answer.ece.copy_from_slice(ece.as_bytes());
    answer
}

/// Parameters with private data: as much as there is, of the length of the message's field.
pub(super) fn conn_param(private_data: &[u8]) -> ConnParam {
    let mut param = ConnParam::default();
    let (room, len) = filled(private_data);
    (param.private_data, param.private_data_len) = (room, len);
    param
}

/// As [`conn_param`], for datagrams.
pub(super) fn ud_param(private_data: &[u8]) -> UdParam {
    let mut param = UdParam::default();
    let (room, len) = filled(private_data);
    (param.private_data, param.private_data_len) = (room, len);
    param
}

fn filled(private_data: &[u8]) -> ([u8; super::abi::PRIVATE], u8) {
    let mut room = [0; super::abi::PRIVATE];
    let len = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
    room[..len.into()].copy_from_slice(&private_data[..len.into()]);
    (room, len)
}

/// Reads a structure from the beginning of bytes, with zeros for what is missing.
pub(super) fn read<T: FromBytes + IntoBytes>(bytes: &[u8]) -> T {
    let mut value = T::new_zeroed();
    let room = value.as_mut_bytes();
    let len = room.len().min(bytes.len());
    room[..len].copy_from_slice(&bytes[..len]);
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use rnic::cm::Ports;
    use std::sync::Mutex;

    #[test]
    fn an_event_that_has_just_come_is_safe_from_the_end_of_its_identifier() {
        let (pipe, read) = Pipe::new(0).expect("a pipe");
        let channel = pipe.id;
        let mut state = State::new(Arc::new(Mutex::new(Ports::new(1024..=2048, 1))));
        state.channels.insert(channel, Channel { pipe, events: VecDeque::new(), away: None });
        let [fresh, old, none] =
            [1, 2, 3].map(|uid| state.add_id(Id::new(channel, uid, Space::Tcp, QpType::Rc)));
        let at = |id, since| Waiting { since, ..Waiting::new(id, answer(1, id, 0, 0, &[], Ece::default())) };
        let now = Instant::now();
        state.queue(fresh, at(fresh, now + Duration::from_secs(3600)));
        state.queue(old, at(old, now.checked_sub(SETTLES).expect("a clock that has run for a while")));
        for away in [None, Some(Pid::from_raw(7))] {
            state.channels.get_mut(&channel).expect("there is one").away = away;
            assert_eq!([fresh, old, none].map(|id| state.taker(channel, id)), [away, None, None]);
        }
        // SAFETY: the descriptor is that of this test.
        unsafe { libc::close(read) };
    }
}
