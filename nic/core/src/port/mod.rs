//! What verbs need of a port, whatever drives it.
//!
//! A [`Port`] is an engine behind a lock, and somebody who drives it. There are two: a port on sockets, driven by the
//! threads of the program and a thread of its own, and a port in a simulation, driven by whoever moves virtual time.
//! The objects of the API hold an `Arc<dyn Port>` and know no more. The [`Datapath`] is what the two have in common:
//! the engine, the layers of the link, and the ways of packets through them.

mod datapath;
mod events;
mod readiness;
mod throttle;

pub use datapath::{Datapath, train_buffer};
pub use events::EventDesk;
pub use readiness::{Descriptor, Readiness, portable};
pub use throttle::{Throttle, bytes_of};

use crate::engine::{Departure, Engine, ResourceError};
use crate::error::{Error, JoinError};
use crate::gid::NetInterface;
use crate::queue::{QpShared, Waiters, Work, WorkQueue};
use crate::sim::SimPort;
use crate::tally::{Capabilities, SocketCounters};
use crate::verbs::Device;
use crate::verbs::cm::PortTable;
use qp::queue_pair::PostError;
use qp::{Gid, Mtu, Qpn};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use time::{Duration, Instant};

/// The number of forks between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The fork generation of this process.
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// This process is a child that was just forked. Safe in a signal handler.
pub fn note_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The port of a device.
#[must_use]
pub fn of(device: &Device) -> &Arc<dyn Port> {
    &device.inner.port
}

/// Where a port sends its packets, and which multicast groups reach it.
pub trait Io {
    /// The largest number of packets in a train.
    fn max_packets(&self) -> u32;

    /// The index of a UDP source port.
    fn via(&self, port: u16) -> usize;

    /// Sends a train; returns false if it has to wait.
    fn send(&mut self, departure: &Departure, bytes: &[u8]) -> bool;

    /// Joins a multicast group.
    fn join(&mut self, group: IpAddr) -> Result<(), JoinError>;

    /// Leaves a multicast group.
    fn leave(&mut self, group: IpAddr);
}

/// A request that runs under the lock of a port.
pub type Act<'a> = &'a mut dyn FnMut(&mut Datapath, &mut dyn Io);

/// A port, shared by all objects of its device.
pub trait Port: Send + Sync {
    /// Its address.
    fn address(&self) -> IpAddr;

    /// Returns whether this process opened the port. A forked child inherits its parent's memory but not its place in
    /// the network.
    fn is_ours(&self) -> bool;

    /// Returns whether the port was given up after a panic.
    fn is_wrecked(&self) -> bool;

    /// Gives the port up after a panic that the caller has caught, in a call that concerns the port. The caller must
    /// not hold the lock. Nothing happens in a forked child, which has no part in the port.
    fn fail_after_panic(&self);

    /// The current time.
    fn now(&self) -> Instant;

    /// Nanoseconds of the kernel's monotonic clock, or since the simulation began.
    fn clock(&self) -> Box<dyn Fn() -> u64 + Send + Sync>;

    /// The port in its simulation; `None` on the network.
    fn sim(&self) -> Option<&SimPort>;

    /// Largest path MTU of new connections: limited by the interface and by the program.
    fn active_mtu(&self) -> Mtu;

    /// The interface that has, or last had, the port's address, if that is known.
    fn interface(&self) -> Option<NetInterface>;

    /// Processes changes of the port's link and address since the last check.
    fn look_at_host(&self);

    /// The ports of connection management, if several processes share the address and its ports.
    fn shared_ports(&self) -> Option<Arc<dyn PortTable>> {
        None
    }

    /// The counters of its sockets; `None` in a simulation.
    fn socket_counters(&self) -> Option<SocketCounters>;

    /// The features that the kernel offers to its sockets; `None` in a simulation.
    fn capabilities(&self) -> Option<Capabilities>;

    /// Runs `act`, sends what became ready and wakes the waiters.
    fn control_datapath(&self, act: Act<'_>);

    /// Runs `act` without sending anything. It must not be called in a forked child.
    fn visit_datapath(&self, act: Act<'_>);

    /// As [`visit_datapath`](Self::visit_datapath), for an `act` that changes nothing: in virtual time, whether somebody looks must
    /// not make a difference.
    fn look_at_datapath(&self, act: Act<'_>) {
        self.visit_datapath(act);
    }

    /// Posts work requests that have their places reserved in `qp`, up to the first that is refused; the error comes
    /// with the number of requests posted before it. `queue`: the queue that they are for.
    fn post_list(
        &self,
        qp: &QpShared,
        queue: WorkQueue,
        works: &mut dyn Iterator<Item = Work>,
    ) -> Result<(), (usize, PostError)>;

    /// Posts a work request that has its place reserved in `qp`.
    fn post(&self, qp: &QpShared, work: Work) -> Result<(), PostError> {
        let queue = work.queue();
        self.post_list(qp, queue, &mut std::iter::once(work)).map_err(|(_, error)| error)
    }

    /// Takes a turn in a program thread that waits for something. Returns whether anything happened. In virtual time
    /// nothing ever does: time stands still while a program polls.
    fn progress(&self) -> bool;

    /// The program is about to sleep: everything due is sent, and others drive the port from now on.
    fn hand_over(&self);

    /// Waits until `is_ready` or until `deadline`. In virtual time the simulation advances time, and the wait also ends
    /// when nothing will ever happen again.
    fn wait_until(&self, deadline: Instant, is_ready: &mut dyn FnMut() -> bool);

    /// The tasks that await an event.
    fn event_waiters(&self) -> &Waiters;

    /// The flag that is raised while events are pending.
    fn event_flag(&self) -> io::Result<Arc<dyn Readiness>>;

    /// A new flag for the program to wait for.
    fn new_flag(&self) -> io::Result<Box<dyn Readiness>>;

    /// Sleeps until a flag is raised, or for `timeout`, or less. In virtual time nobody sleeps.
    fn sleep(&self, flag: &dyn Readiness, timeout: Duration);

    /// From now on, the port is driven whether the program polls or not.
    fn serve(&self) -> io::Result<()>;

    /// From now on, the port tells its peers when the process ends, also if a signal ends it.
    fn tell_peers_at_end(&self);

    /// Sends everything that is due, as far as the network takes it, because the port may be closed next.
    fn flush(&self);

    /// Its device is closed: nobody has to drive the port any more.
    fn close(&self);

    /// A multicast group was joined.
    fn has_joined(&self);
}

impl dyn Port {
    /// The end of `timeout`: at most 136 years from now, because instants have an upper bound.
    pub fn deadline(&self, timeout: Duration) -> Instant {
        let now = self.now();
        now.checked_add(timeout).unwrap_or_else(|| now + Duration::from_secs(u64::from(u32::MAX)))
    }

    /// Runs `change` on the engine, sends what became ready and wakes the waiters.
    pub fn control<R>(&self, change: impl FnOnce(&mut Engine) -> R) -> R {
        self.control_with(|datapath, _| change(&mut datapath.engine))
    }

    fn control_with<R>(&self, change: impl FnOnce(&mut Datapath, &mut dyn Io) -> R) -> R {
        once(change, |act| self.control_datapath(act))
    }

    /// Runs `act` on everything behind the lock. It must not be called in a forked child.
    pub fn with_datapath<R>(&self, act: impl FnOnce(&mut Datapath) -> R) -> R {
        once(|datapath, _| act(datapath), |act| self.visit_datapath(act))
    }

    /// Inspects the engine without driving it. `None` in a forked child: there, the lock may be held by a thread that
    /// does not exist.
    pub fn inspect<R>(&self, look: impl FnOnce(&Engine) -> R) -> Option<R> {
        self.is_ours().then(|| once(|datapath, _| look(&datapath.engine), |act| self.look_at_datapath(act)))
    }

    /// Waits until `ready` returns something or `timeout` has passed. In virtual time, `None` also means that nothing
    /// will ever happen again.
    pub fn wait<R>(&self, timeout: Duration, mut ready: impl FnMut() -> Option<R>) -> Option<R> {
        let mut found = None;
        self.wait_until(self.deadline(timeout), &mut || {
            found = ready();
            found.is_some()
        });
        found
    }

    /// Attaches a queue pair to a multicast group.
    pub fn attach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), Error> {
        self.control_with(|datapath, io| datapath.attach_mcast(qpn, group, io))?;
        self.has_joined();
        Ok(())
    }

    /// Detaches a queue pair from a multicast group.
    pub fn detach_mcast(&self, qpn: Qpn, group: Gid) -> Result<(), ResourceError> {
        self.control_with(|datapath, io| datapath.detach_mcast(qpn, group, io))
    }

    /// Destroys a queue pair after detaching it from all its groups.
    pub fn discard_qp(&self, qpn: Qpn) {
        self.control_with(|datapath, io| {
            for group in datapath.engine.groups_of(qpn) {
                // The queue pair is attached to each of these groups.
                let _ = datapath.detach_mcast(qpn, group, io);
            }
            // No other queue pair can have the number yet.
            let _ = datapath.engine.destroy_qp(qpn);
        });
    }
}

/// Lets `run` call `act` once, and returns what that returned.
fn once<R>(act: impl FnOnce(&mut Datapath, &mut dyn Io) -> R, run: impl FnOnce(Act<'_>)) -> R {
    let (mut act, mut result) = (Some(act), None);
    run(&mut |datapath, io| result = act.take().map(|act| act(datapath, io)));
    match result {
        Some(result) => result,
        None => unreachable!("a port runs every request"),
    }
}
