//! A fabric whose agents programs manage: management is answered at once, and virtual time moves only when the caller says so.
//!
//! For `rnic fabric serve` and tests. What a subnet manager has written takes effect when time moves on.

use super::{Clients, Control, REQUEST_LEN, Subnet, SubnetError, Tables};
use crate::network::{Fabric, Forwarding};
use crate::run::{Run, RunError};
use crate::topology::{NodeId, Topology};
use rnic_core::sim::BEGINNING;
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
        let shared = self.run.fabric().clone();
        let fabric = shared.lock();
        for node in 0..self.topology.nodes.len() {
            let node: NodeId = node;
            let traffic = (0..).map_while(|port| fabric.port_traffic(node, port, now));
            for (port, traffic) in traffic.enumerate() {
                self.clients.set_traffic(node, port, traffic);
            }
        }
    }
}
