//! The way of a packet: from a host's NIC, from node to node, to a host.

use super::flow::{destination_qp, flow_of};
use super::{Drop, Event, Fabric, Node, Port, Role, Travelling};
use crate::balance::{LeafQuality, Loads, Picos, Question, Tag};
use crate::switch::queues::Waiting;
use crate::switch::{Forwarding, Model};
use crate::topology::NodeId;
use cc::hpcc::Hop;
use rnic_core::sim::{BEGINNING, Packet, Reached, Room, Target};
use std::net::IpAddr;
use std::sync::Arc;
use time::{Duration, Instant};

/// The two ECN bits of the TOS, and their value for congestion experienced.
const ECN: u8 = 0b11;
const CONGESTION_EXPERIENCED: u8 = 0b11;

/// The bytes of a packet that a switch reads before it knows where the packet goes: Ethernet, IPv4 and UDP headers, and
/// preamble.
const HEADERS: u64 = 14 + 20 + 8 + 8;

/// No node.
const NOWHERE: NodeId = NodeId::MAX;

/// The time since the simulation began.
fn picos(now: Instant) -> Picos {
    Picos::try_from(now.picos_since(BEGINNING)).unwrap_or(Picos::MAX)
}

/// The ports of a switch, as its balancer sees them.
struct View<'a> {
    ports: &'a [Port],
    now: Instant,
}

impl Loads for View<'_> {
    fn queued(&self, port: u16) -> u64 {
        self.ports.get(usize::from(port)).map_or(0, |port| port.queues.bytes())
    }

    fn sent(&self, port: u16) -> u64 {
        self.ports.get(usize::from(port)).map_or(0, |port| port.stats.bytes)
    }

    fn rate(&self, port: u16) -> u64 {
        self.ports.get(usize::from(port)).map_or(0, |port| port.rate.bits_per_second())
    }

    fn blocked(&self, port: u16, class: u8) -> bool {
        self.ports.get(usize::from(port)).is_none_or(|port| port.is_blocked(self.now, class))
    }
}

impl Fabric {
    /// A port of the simulation is there: at the host that had its address before, or at the next one that has none. A port
    /// beyond the last host reaches nobody.
    pub(super) fn attach(&mut self, address: IpAddr) {
        let next = self.homes.len();
        let node = *self.homes.entry(address).or_insert(next);
        let site = self.sites.len();
        match self.nodes.get_mut(node) {
            Some(Node { role: Role::Host(host), .. }) => {
                host.site = site;
                self.sites.push(node);
            }
            _ => self.sites.push(NOWHERE),
        }
    }

    /// What the NIC of a host takes now.
    pub(super) fn room(&self, site: usize) -> Option<Room> {
        let port = self.nodes.get(*self.sites.get(site)?)?.ports.first()?;
        let mut room = Room::default();
        for (priority, room) in room.iter_mut().enumerate() {
            let left =
                self.host.queue.saturating_sub(port.queues.bytes_of(self.host.queue_of(port, priority)));
            *room = u32::try_from(left).unwrap_or(u32::MAX);
        }
        Some(room)
    }

    /// A device sends a packet: it waits in the NIC for the wire.
    pub(super) fn send(&mut self, now: Instant, from: Option<usize>, to: Target, packet: Packet) {
        self.now = now;
        // A packet that no port sends does not pass the fabric.
        let Some(from) = from else { return self.reached.push((to, Reached::Packet(packet))) };
        let node_of = |site: usize| self.sites.get(site).copied().unwrap_or(NOWHERE);
        let src = node_of(from);
        let bytes = packet.wire_bytes();
        let dst = match to {
            Target::Site(site) | Target::Member(site) => node_of(site),
            Target::Address | Target::Members => NOWHERE,
        };
        let class = usize::from(packet.ip.tos >> 5);
        let (flow, qp) = (flow_of(&packet.ip), destination_qp(&packet));
        let is_known = dst < self.leaves.len() || to == Target::Members;
        let travelling = Travelling {
            packet,
            to,
            src,
            dst,
            flow,
            qp,
            bytes,
            entry: (0, 0),
            tail: now,
            is_damaged: false,
            tag: Tag::default(),
        };
        self.tally.entered += 1;
        let number = self.insert(travelling);
        if !is_known || self.nodes.get(src).is_none_or(|node| node.ports.is_empty()) {
            return self.drop_packet(src, 0, number, Drop::NoHost);
        }
        let queue = self.host.queue;
        let node = &mut self.nodes[src];
        let Some(port) = node.ports.first_mut() else { return };
        let class = self.host.queue_of(port, class);
        if port.credit.is_some() && class >= 15 {
            return self.drop_packet(src, 0, number, Drop::NoLane);
        }
        port.queues.push(class, Waiting { packet: number, bytes, since: now });
        // The device may believe that the NIC is fuller than it is: of what it just sent, one packet may be on the wire.
        if let Role::Host(host) = &mut node.role
            && port.queues.bytes_of(class) > queue / 2
        {
            host.full |= 1 << class;
        }
        self.serve(src, 0);
    }

    /// The instant of the next event.
    pub(super) fn next(&self) -> Option<Instant> {
        if self.reached.is_empty() { self.agenda.next() } else { Some(self.now) }
    }

    fn insert(&mut self, travelling: Travelling) -> u32 {
        u32::try_from(self.packets.insert(travelling)).unwrap_or(u32::MAX)
    }

    /// Runs up to the first instant at which something reaches a host.
    pub(super) fn run(&mut self, until: Instant, reached: &mut Vec<(Target, Reached)>) -> Option<Instant> {
        let mut stop = (!self.reached.is_empty()).then_some(self.now);
        while let Some((at, event)) = self.agenda.take_at(stop.map_or(until, |stop| stop.min(until))) {
            self.now = at;
            self.handle(event);
            if !self.reached.is_empty() {
                stop = Some(at);
            }
        }
        reached.append(&mut self.reached);
        stop
    }

    /// Has a port look again at a time, if it does not do so before.
    pub(super) fn look_at(&mut self, node: NodeId, port: usize, at: Instant) {
        let looks = &mut self.nodes[node].ports[port].looks;
        if looks.is_none_or(|planned| at < planned) {
            *looks = Some(at);
            self.agenda.set(at, Event::Look { node: node as u32, port: port as u16 });
        }
    }

    /// Sends the next packet of a port, if its line is free and one may be sent.
    pub(super) fn serve(&mut self, node: NodeId, port: usize) {
        let now = self.now;
        let at = &mut self.nodes[node].ports[port];
        if at.queues.waiting() == 0 || !at.is_up {
            return;
        }
        let free = at.line.free();
        if free > now {
            return self.look_at(node, port, free);
        }
        if at.expires {
            self.expire(node, port);
        }
        let at = &mut self.nodes[node].ports[port];
        let eligible = at.eligible(now);
        at.note_waits(now, eligible);
        let Some(queue) = at.queues.next(eligible) else { return self.wait(node, port) };
        let Some(first) = at.queues.take(queue, now) else { return };
        self.transmit(node, port, queue, first);
        // Whatever is left looks when the line is free.
        let at = &self.nodes[node].ports[port];
        if at.queues.waiting() != 0 {
            let free = at.line.free();
            self.look_at(node, port, free);
        }
    }

    /// Nothing at a port may be sent: notes when that may change by itself.
    fn wait(&mut self, node: NodeId, port: usize) {
        let at = &mut self.nodes[node].ports[port];
        at.stats.credit_waits += u64::from(at.credit.is_some() && at.queues.waiting() != 0);
        if at.pauses != 0 {
            // Those that are over must not hide the others.
            at.paused.handle_timeout(self.now);
            if let Some(ends) = at.paused.poll_timeout() {
                self.look_at(node, port, ends);
            }
        }
    }

    /// Drops packets that have waited too long, by the rules of InfiniBand's switches, whether or not others may be sent. Has
    /// the port look again when the next one will have.
    fn expire(&mut self, node: NodeId, port: usize) {
        let Role::Switch(switch) = &self.nodes[node].role else { return };
        let config = &self.configs[switch.config];
        let (head, life) = (config.head_of_queue, config.lifetime);
        for queue in super::port::bits(self.nodes[node].ports[port].queues.waiting()) {
            while let Some((first, head_since)) = self.nodes[node].ports[port].queues.first(queue) {
                let ends = [
                    (head.map(|time| head_since + time), Drop::HeadOfQueue),
                    (life.map(|time| first.since + time), Drop::Lifetime),
                ];
                let next =
                    ends.into_iter().filter_map(|(at, why)| Some((at?, why))).min_by_key(|(at, _)| *at);
                let Some((ends, why)) = next else { break };
                if ends > self.now {
                    self.look_at(node, port, ends);
                    break;
                }
                self.nodes[node].ports[port].queues.take(queue, self.now);
                self.leave(node, port, queue, first);
                self.drop_packet(node, port, first.packet, why);
            }
        }
    }

    /// A packet goes onto the wire.
    fn transmit(&mut self, node: NodeId, port: usize, queue: usize, first: Waiting) {
        let now = self.now;
        self.mark(node, port, queue, first);
        self.tell(node, port, first.packet);
        self.capture_departure(node, port, first.packet);
        self.leave(node, port, queue, first);
        let at = &mut self.nodes[node].ports[port];
        let travelling = &mut self.packets[first.packet as usize];
        at.line.begin(now);
        let mut end = at.line.carry(u64::from(first.bytes));
        if end < travelling.tail {
            // It was cut through: the wire cannot be ahead of what has arrived.
            end = travelling.tail;
            at.line.begin(end);
        }
        at.stats.packets += 1;
        at.stats.bytes += u64::from(first.bytes);
        at.flow.send(now, queue, travelling.packet.len());
        self.tally.hops += 1;
        if at.bit_errors > 0.0 {
            let (errors, bits) = (at.bit_errors, 8.0 * f64::from(first.bytes));
            let intact = libm::exp(bits * libm::log1p(-errors.min(1.0)));
            travelling.is_damaged |=
                rand_chacha::rand_core::Rng::next_u64(&mut self.lots) as f64 / u64::MAX as f64 >= intact;
        }
        if let Some(credit) = &mut at.credit {
            credit[queue].send(first.bytes);
        }
        let (peer, far) = at.peer;
        travelling.entry = (far, queue as u8);
        travelling.tail = end + at.delay;
        let mut arrives = travelling.tail + at.latency;
        if at.is_cut_through {
            // Its headers are there before its end is.
            arrives -= at.rate.time_for(u64::from(first.bytes).saturating_sub(HEADERS));
        }
        let arrive = Event::Arrive { node: peer as u32, port: far, packet: first.packet, cuts: at.cuts };
        self.agenda.set(arrives, arrive);
    }

    /// A port of a switch tells a packet that departs what it has sent before, and what waits behind it, if the packet collects
    /// that.
    fn tell(&mut self, node: NodeId, port: usize, packet: u32) {
        let Node { ports, role: Role::Switch(_), .. } = &self.nodes[node] else { return };
        let at = &ports[port];
        if let Some(telemetry) = self.packets[packet as usize].packet.telemetry_mut() {
            telemetry.push(Hop::new(at.rate, self.now, at.stats.bytes, at.queues.bytes()));
        }
    }

    /// Marks a packet that departs, if the queue behind it is long.
    fn mark(&mut self, node: NodeId, port: usize, queue: usize, first: Waiting) {
        let at = &mut self.nodes[node].ports[port];
        if at.marking.is_none() {
            return;
        }
        let length = at.queues.bytes_of(queue);
        self.mark_at(node, port, first.packet, length);
    }

    /// Marks an ECN-capable packet, if a queue of this length does.
    fn mark_at(&mut self, node: NodeId, port: usize, packet: u32, length: u64) {
        let at = &mut self.nodes[node].ports[port];
        let travelling = &mut self.packets[packet as usize];
        let (tos, bytes) = (&mut travelling.packet.ip.tos, travelling.bytes);
        if matches!(*tos & ECN, 0b01 | 0b10) && at.marks(length, bytes) {
            *tos |= CONGESTION_EXPERIENCED;
            at.stats.marked += 1;
            self.note_mark(node, packet);
        }
    }

    /// A packet leaves the queues of a node: accounts, room and credit follow.
    pub(super) fn leave(&mut self, node: NodeId, port: usize, queue: usize, first: Waiting) {
        let (entry, class) = self.packets[first.packet as usize].entry;
        let (low, now) = (self.host.queue / 2, self.now);
        let Node { ports, role, .. } = &mut self.nodes[node];
        ports[port].flow.end_wait(now, queue);
        match role {
            Role::Host(host) => {
                let bit = 1 << queue;
                if host.full & bit != 0 && ports[port].queues.bytes_of(queue) <= low {
                    host.full &= !bit;
                    self.reached.push((Target::Site(host.site), Reached::Room));
                }
            }
            Role::Switch(switch) => {
                let (entry, class) = (usize::from(entry), usize::from(class));
                match &mut switch.buffer {
                    Some(buffer) => {
                        let signal = buffer.release((entry, class), (port, queue), first.bytes);
                        self.signal(node, entry, class, signal);
                    }
                    None => self.return_credit(node, entry, class, first.bytes),
                }
            }
        }
    }

    /// A packet comes to a node.
    pub(super) fn arrive(&mut self, node: NodeId, port: u16, packet: u32, cuts: u32) {
        let number = usize::from(port);
        let at = &self.nodes[node].ports[number];
        if at.cuts != cuts {
            return self.drop_packet(node, number, packet, Drop::CableCut);
        }
        let bytes = self.packets[packet as usize].packet.len();
        self.nodes[node].ports[number].flow.receive(bytes);
        match &self.nodes[node].role {
            Role::Host(_) => self.deliver(node, number, packet),
            Role::Switch(switch) => {
                let config = switch.config;
                self.forward(node, number, packet, config);
            }
        }
    }

    /// A packet has reached a host.
    fn deliver(&mut self, node: NodeId, port: usize, packet: u32) {
        let travelling = &self.packets[packet as usize];
        let ((_, lane), bytes) = (travelling.entry, travelling.bytes);
        if let Some(lanes) = &mut self.nodes[node].ports[port].lanes {
            lanes[usize::from(lane)].receive(bytes);
            self.return_credit(node, port, usize::from(lane), bytes);
        }
        let travelling = &self.packets[packet as usize];
        if travelling.is_damaged {
            return self.drop_packet(node, port, packet, Drop::Damaged);
        }
        let is_group = travelling.to == Target::Members;
        if !is_group && travelling.dst != node {
            return self.drop_packet(node, port, packet, Drop::NoHost);
        }
        let travelling = self.packets.remove(packet as usize);
        self.tally.delivered += 1;
        let to = match &self.nodes[node].role {
            Role::Host(host) if is_group => Target::Member(host.site),
            _ => travelling.to,
        };
        self.reached.push((to, Reached::Packet(travelling.packet)));
    }

    /// A packet has come to a switch: it goes in front of the port through which it leaves, or is dropped.
    fn forward(&mut self, node: NodeId, port: usize, packet: u32, config: usize) {
        let now = self.now;
        let travelling = &mut self.packets[packet as usize];
        let (bytes, (_, lane), dst) = (travelling.bytes, travelling.entry, travelling.dst);
        let config = &self.configs[config];
        let is_infiniband = config.model == Model::Infiniband;
        if let Some(lanes) = &mut self.nodes[node].ports[port].lanes
            && !lanes[usize::from(lane)].receive(bytes)
        {
            return self.refuse(node, port, packet, Drop::NoCredit);
        }
        if travelling.is_damaged && config.forwarding == Forwarding::StoreAndForward {
            return self.refuse(node, port, packet, Drop::Damaged);
        }
        let Some(left) = travelling.packet.ip.hop_limit.checked_sub(1).filter(|left| *left > 0) else {
            return self.refuse(node, port, packet, Drop::TimeToLive);
        };
        travelling.packet.ip.hop_limit = left;
        if travelling.to == Target::Members {
            if !self.reduce(node, port, packet) {
                self.flood(node, port, packet);
            }
            return;
        }
        let ways = self.routes.ports(node, dst);
        let by_lid = self.routes.lid_tables().map(|tables| tables.port(node, dst, travelling.flow));
        let Node { ports, role: Role::Switch(switch), .. } = &mut self.nodes[node] else { return };
        let tos = travelling.packet.ip.tos;
        let class = if is_infiniband { tos >> 5 } else { switch.classes[usize::from(tos >> 2)] };
        let out = match (by_lid, ways) {
            (Some(Some(port)), _) => port,
            (Some(None), _) | (None, []) => return self.refuse(node, port, packet, Drop::NoRoute),
            (None, [only]) => *only,
            (None, several) => {
                let Travelling { flow, qp, src, .. } = *travelling;
                let leaf = |host: usize| self.leaves.get(host).copied().unwrap_or_default();
                let (src_leaf, dst_leaf, now_picos) = (leaf(src), leaf(dst), picos(now));
                let question = Question {
                    now: now_picos,
                    flow,
                    qp,
                    dst,
                    src_leaf,
                    dst_leaf,
                    bytes,
                    class,
                    ports: several,
                };
                switch.balancer.choose(&question, &View { ports, now })
            }
        };
        self.enter(node, port, packet, usize::from(out));
    }

    /// A packet goes into the queue of a port, if the buffer of the switch takes it.
    fn enter(&mut self, node: NodeId, port: usize, packet: u32, out: usize) {
        let now = self.now;
        if self.nodes[node].ports.get(out).is_none_or(|out| !out.is_up) {
            return self.refuse(node, port, packet, Drop::CableCut);
        }
        let travelling = &mut self.packets[packet as usize];
        let (bytes, tos) = (travelling.bytes, travelling.packet.ip.tos);
        let Node { ports, role: Role::Switch(switch), .. } = &mut self.nodes[node] else { return };
        let queue = match &mut switch.buffer {
            Some(buffer) => {
                let class = usize::from(switch.classes[usize::from(tos >> 2)]);
                travelling.entry.1 = class as u8;
                if ports[out].discarded >> class & 1 == 1 {
                    return self.drop_packet(node, out, packet, Drop::Storm);
                }
                match buffer.admit((port, class), (out, class), bytes) {
                    Ok(signal) => self.signal(node, port, class, signal),
                    Err(full) => return self.drop_packet(node, port, packet, full.into()),
                }
                class
            }
            None => {
                let level = usize::from(tos >> 5);
                let lane = match &ports[out].sl2vl {
                    Some(lanes) => lanes.get(port).map_or(15, |of| of[level]),
                    None => self.configs[switch.config].vl.sl2vl[level],
                };
                if lane >= 15 {
                    return self.refuse(node, port, packet, Drop::NoLane);
                }
                usize::from(lane)
            }
        };
        let Role::Switch(switch) = &self.nodes[node].role else { return };
        if self.configs[switch.config].mark_at_enqueue {
            let length = self.nodes[node].ports[out].queues.bytes_of(queue);
            self.mark_at(node, out, packet, length);
        }
        self.nodes[node].ports[out].queues.push(queue, Waiting { packet, bytes, since: now });
        self.tag(node, packet, out);
        self.serve(node, out);
    }

    /// Has the balancer of a switch write to the tag of a packet, or read it, if it uses tags.
    fn tag(&mut self, node: NodeId, packet: u32, out: usize) {
        let now = self.now;
        let Node { ports, role: Role::Switch(switch), .. } = &mut self.nodes[node] else { return };
        if !switch.balancer.uses_tags() {
            return;
        }
        let travelling = &mut self.packets[packet as usize];
        let leaf = |host: usize| self.leaves.get(host).copied().unwrap_or_default();
        let (here, src, dst) = (node as u32, leaf(travelling.src), leaf(travelling.dst));
        if src == dst || travelling.to == Target::Members {
            return;
        }
        if here == src {
            travelling.tag = Tag::between(src, dst);
        }
        if here == dst {
            switch.balancer.on_delivered(picos(now), &travelling.tag);
        } else {
            let loads = View { ports, now };
            switch.balancer.on_forward(picos(now), out as u16, travelling.bytes, &loads, &mut travelling.tag);
        }
    }

    /// A switch tells its neighbours how good its ways are, and does so again later.
    pub(super) fn report(&mut self, node: NodeId) {
        let now = self.now;
        let Node { ports, role: Role::Switch(switch), .. } = &mut self.nodes[node] else { return };
        let Some(interval) = switch.balancer.report_interval() else { return };
        let mut hosts: Vec<usize> = (0..self.leaves.len()).collect();
        // One host of each leaf stands for all of them.
        hosts.sort_by_key(|host| self.leaves[*host]);
        hosts.dedup_by_key(|host| self.leaves[*host]);
        let ways = hosts.iter().filter(|host| self.leaves[**host] as usize != node);
        let ways = ways.map(|host| (self.leaves[*host], self.routes.ports(node, *host)));
        let report: Arc<[LeafQuality]> =
            switch.balancer.report(picos(now), ways, &View { ports, now }).into();
        for port in ports.iter().filter(|port| port.is_up) {
            let (peer, far) = port.peer;
            let number = self.reports.insert(Arc::clone(&report));
            let event = Event::Report { node: peer as u32, port: far, report: number as u32 };
            self.agenda.set(now + port.delay, event);
        }
        self.agenda.set(now.plus_picos(interval.into()), Event::Tell { node: node as u32 });
    }

    /// A report comes from the neighbour at a port.
    pub(super) fn take_report(&mut self, node: NodeId, port: u16, number: u32) {
        let Some(report) = self.reports.try_remove(number as usize) else { return };
        if let Role::Switch(switch) = &mut self.nodes[node].role {
            switch.balancer.on_report(port, &report);
        }
    }

    /// Drops a packet that came through a port, whose buffer it leaves.
    pub(super) fn refuse(&mut self, node: NodeId, port: usize, packet: u32, why: Drop) {
        self.free_lane(node, port, packet);
        self.drop_packet(node, port, packet, why);
    }

    /// A switch keeps what a packet says, and nothing of the packet.
    pub(super) fn absorb(&mut self, node: NodeId, port: usize, packet: u32) {
        self.free_lane(node, port, packet);
        self.packets.remove(packet as usize);
        self.tally.absorbed += 1;
    }

    /// A packet leaves the buffer of the port through which it came, without having been in a queue.
    fn free_lane(&mut self, node: NodeId, port: usize, packet: u32) {
        let travelling = &self.packets[packet as usize];
        let ((_, lane), bytes) = (travelling.entry, travelling.bytes);
        if self.nodes[node].ports[port].lanes.is_some() {
            self.return_credit(node, port, usize::from(lane), bytes);
        }
    }

    /// A packet to a group goes to all other ports of the tree.
    fn flood(&mut self, node: NodeId, port: usize, packet: u32) {
        let tree = self.tree_of(self.packets[packet as usize].packet.ip.dst);
        let outs: Vec<u16> = tree[node].iter().copied().filter(|out| usize::from(*out) != port).collect();
        self.spread(node, port, packet, &outs);
    }

    /// A packet that came through a port leaves through several.
    pub(super) fn spread(&mut self, node: NodeId, port: usize, packet: u32, outs: &[u16]) {
        let Some((last, others)) = outs.split_last() else {
            return self.refuse(node, port, packet, Drop::NoRoute);
        };
        for out in others {
            let from = &self.packets[packet as usize];
            let copy = Travelling { packet: from.packet.clone(), ..*from };
            self.tally.entered += 1;
            let copy = self.insert(copy);
            if let Some(lanes) = &mut self.nodes[node].ports[port].lanes {
                // Each copy holds the buffer, and gives it back.
                let travelling = &self.packets[copy as usize];
                lanes[usize::from(travelling.entry.1)].receive(travelling.bytes);
            }
            self.enter(node, port, copy, usize::from(*out));
        }
        self.enter(node, port, packet, usize::from(*last));
    }
}

/// The time that a pause frame, or a packet of credits, waits for the wire.
pub(super) fn after(now: Instant, port: &mut Port, bytes: u32) -> (Instant, Duration) {
    port.line.begin(now);
    (port.line.carry(u64::from(bytes)), port.delay)
}
