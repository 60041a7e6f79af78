//! A fabric whose agents programs manage: management is answered at once, and virtual time moves only when the caller says so.
//!
//! For `rnic fabric serve` and tests. What a subnet manager has written takes effect when time moves on.

use super::{
    Clients, CongestionLog, Control, LoggedEvent, LoggedKind, REQUEST_LEN, Subnet, SubnetError, Tables,
};
use crate::network::{Fabric, Forwarding};
use crate::run::{Run, RunError, address};
use crate::topology::{NodeId, Topology};
use qp::QpType;
use rnic_core::engine::CongestionEvent;
use rnic_core::sim::BEGINNING;
use std::net::IpAddr;
use time::Duration;

/// A fabric, its flows, and the programs that manage it.
pub struct Served {
    clients: Clients,
    run: Run,
    topology: Topology,
    /// The state of the tables that the fabric forwards by.
    applied: Option<u64>,
}

impl Served {
    /// A fabric before its beginning. Nothing is forwarded until a subnet manager has written tables.
    ///
    /// # Errors
    /// The topology cannot be a subnet.
    pub fn new(run: Run) -> Result<Self, SubnetError> {
        let topology = run.fabric().lock().topology().clone();
        let mut subnet = Subnet::new(&topology)?;
        for (group, hosts) in run.memberships() {
            hosts.iter().for_each(|host| subnet.join(*host, group));
        }
        let clients = Clients::new(subnet);
        Ok(Self { clients, run, topology, applied: None })
    }

    /// The nodes and cables.
    #[must_use]
    pub const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The agents.
    #[must_use]
    pub const fn subnet(&self) -> &Subnet {
        self.clients.subnet()
    }

    /// The programs.
    #[must_use]
    pub const fn clients(&self) -> &Clients {
        &self.clients
    }

    /// The flows and the fabric.
    pub const fn run(&mut self) -> &mut Run {
        &mut self.run
    }

    /// Takes a datagram of control: [`Clients::handle_control`].
    pub fn handle_control(&mut self, datagram: &[u8]) -> Control {
        self.clients.handle_control(datagram)
    }

    /// Takes a request: [`Clients::handle_request`].
    pub fn handle_request(&mut self, slot: usize, datagram: &[u8]) {
        self.clients.handle_request(slot, datagram);
    }

    /// What is to be sent through the socket of a slot: [`Clients::poll_transmit`].
    pub fn poll_transmit(&mut self) -> Option<(usize, [u8; REQUEST_LEN])> {
        self.clients.poll_transmit()
    }

    /// A program is gone: [`Clients::disconnect`].
    pub fn disconnect(&mut self, slot: usize) {
        self.clients.disconnect(slot);
    }

    /// Sends again what nobody has answered: [`Clients::repeat`].
    pub fn repeat(&mut self) {
        self.clients.repeat();
    }

    /// Cuts or mends a cable. Its switches tell the subnet manager.
    pub fn set_cable(&mut self, cable: usize, is_whole: bool) {
        self.clients.set_cable(cable, is_whole);
    }

    /// What subnet managers have written until now.
    #[must_use]
    pub fn tables(&self) -> Tables {
        self.subnet().tables()
    }

    /// Moves virtual time on, with the tables that are there now. Counters of ports follow.
    ///
    /// # Errors
    /// A verb fails that should not.
    pub fn run_for(&mut self, duration: Duration) -> Result<(), RunError> {
        self.apply()?;
        let until = self.run.elapsed() + duration;
        self.run.run(until, &mut |_| true)?;
        // All flows may have ended before.
        self.run.net().run_for(until.saturating_sub(self.run.elapsed()));
        self.count();
        Ok(())
    }

    /// Has the fabric forward by the tables that are there now.
    fn apply(&mut self) -> Result<(), RunError> {
        let version = self.subnet().version();
        if self.applied == Some(version) {
            return Ok(());
        }
        self.applied = Some(version);
        // A subnet names all nodes of its topology. Tables of lanes that cannot be leave the old ones.
        if let Ok(forwarding) = Forwarding::new(&self.tables(), &self.topology) {
            let at = BEGINNING + self.run.elapsed();
            self.fabric(|fabric| fabric.forward_from(at, &forwarding));
        }
        self.run.follow()
    }

    fn fabric<T>(&self, act: impl FnOnce(&mut Fabric) -> T) -> T {
        act(&mut self.run.fabric().lock())
    }

    /// Takes over what the fabric has counted.
    fn count(&mut self) {
        let now = BEGINNING + self.run.elapsed();
        // Before the fabric is borrowed: a port that is driven uses it.
        let nodes = 0..self.topology.nodes.len();
        let hosts: Vec<_> = nodes.map(|node| self.notified(node)).collect();
        let shared = self.run.fabric().clone();
        let fabric = shared.lock();
        for node in 0..self.topology.nodes.len() {
            let node: NodeId = node;
            let traffic = (0..).map_while(|port| fabric.port_traffic(node, port, now));
            for (port, traffic) in traffic.enumerate() {
                self.clients.set_traffic(node, port, traffic);
            }
            let log = hosts[node].clone().unwrap_or_else(|| fabric.marks(node));
            self.clients.set_log(now, node, log);
        }
    }

    /// The notifications that a host has logged. None if the node is no host.
    fn notified(&self, node: NodeId) -> Option<CongestionLog> {
        let log = self.run.device(node)?.congestion_log();
        let lid = |peer: IpAddr| {
            let IpAddr::V4(peer) = peer else { return None };
            let host = u32::from(peer).checked_sub(u32::from(address(0)))? as usize;
            (host < self.topology.hosts()).then(|| self.subnet().lid(host))
        };
        let event = |event: &CongestionEvent| LoggedEvent {
            at: event.at,
            level: event.level,
            what: LoggedKind::Notified {
                qpn: event.qpn.value(),
                service: match event.qp_type {
                    QpType::Uc => 1,
                    QpType::Ud => 3,
                    _ => 0,
                },
                peer_qpn: event.dest_qpn.value(),
                peer_lid: event.peer.and_then(lid).unwrap_or(0),
            },
        };
        Some(CongestionLog {
            counts: log.counts.to_vec(),
            latest: log.latest.iter().rev().map(event).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;
    use crate::subnet::{HostCongestion, LinkState, ServiceLevel, SwitchCongestion};
    use std::path::Path;

    /// Two hosts with LIDs 2 and 3 send to a third, with LID 1, through a switch that marks at once. Notifications are logged from the
    /// second index on.
    fn served() -> Served {
        let text = "name = \"logs\"\nabout = \"Congestion is logged.\"\nuntil = \"1 ms\"\n\
             [topology]\nkind = \"star\"\nhosts = 3\nlink = { rate = \"100 Gb/s\", delay = \"1 us\" }\n\
             [switch]\nmodel = \"infiniband\"\n\
             [[workload]]\npattern = \"incast\"\nto = \"host0\"\nbytes = \"1 MB\"\ndepth = 1\npriority = 5\n";
        let scenario = Scenario::read(text).expect("a scenario");
        let run = scenario.prepare(Path::new("."), 1).expect("a run");
        let mut served = Served::new(run).expect("it fits");
        let mut tables = served.tables();
        let of = ServiceLevel { ccti_timer: 50_000, ccti_increase: 1, trigger_threshold: 2, ccti_min: 0 };
        let congestion = HostCongestion {
            by_level: false,
            cct: "0:0,0:1,0:2".to_owned(),
            sl: [("5".to_owned(), of)].into(),
        };
        for (lid, host) in (1..).zip(tables.hosts.values_mut()) {
            (host.lid, host.port.state) = (lid, LinkState::Active);
            host.congestion = Some(congestion.clone());
        }
        for switch in tables.switches.values_mut() {
            switch.lft = vec![255, 1, 2, 3];
            switch.port.values_mut().for_each(|port| port.state = LinkState::Active);
            let at_once = SwitchCongestion { threshold: 15, packet_size: 0, marking_rate: 0 };
            // The port to the receiver alone.
            switch.port.get_mut("1").expect("a port").congestion = Some(at_once);
        }
        let forwarding = Forwarding::new(&tables, &served.topology).expect("tables");
        served.fabric(|fabric| fabric.forward_by(&forwarding));
        served.run.follow().expect("hosts follow");
        served.applied = Some(served.subnet().version());
        served
    }

    /// What was marked at the switch, and what that brought about at the hosts.
    #[test]
    fn marks_and_notifications_are_logged() {
        let mut served = served();
        served.run_for(Duration::from_millis(1)).expect("it runs");
        let marks = served.fabric(|fabric| fabric.marks(3));
        assert!(marks.counts[0] > 20 && marks.counts[1..] == [0, 0], "{marks:?}");
        assert_eq!(marks.latest.len(), 15);
        for mark in &marks.latest {
            let LoggedKind::Marked { slid, dlid } = mark.what else { panic!("{mark:?}") };
            assert_eq!((mark.level, dlid, matches!(slid, 2 | 3)), (5, 1, true));
        }
        assert!(marks.latest.iter().is_sorted_by(|newer, older| newer.at >= older.at));
        for host in [1, 2] {
            let log = served.notified(host).expect("a host");
            assert!(log.counts[5] > 0 && log.counts.iter().sum::<u64>() == log.counts[5], "{log:?}");
            let event = log.latest.first().expect("an event");
            let LoggedKind::Notified { service, peer_lid, .. } = event.what else { panic!("{event:?}") };
            // Nobody has given LIDs to the agents.
            assert_eq!((event.level, service, peer_lid), (5, 0, 0));
        }
        assert_eq!(served.notified(0).map(|log| log.latest.len()), Some(0), "it sends nothing");
        assert_eq!(served.notified(3), None, "a switch");
    }
}
