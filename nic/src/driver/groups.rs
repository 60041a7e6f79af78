//! The sockets of a port's multicast groups.
//!
//! Without groups there is no overhead: no descriptor, and no check in a turn. The first group creates an epoll
//! descriptor that reports which groups have packets, so that a turn takes one call for all of them, and the background
//! thread can wait on it.

use crate::net::{GroupSocket, JoinError};
use crate::os::fork;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};

/// Groups that are read in one turn; the others follow in the next.
const GROUPS_PER_TURN: usize = 8;

/// The sockets of the groups of one port.
#[derive(Default)]
pub(super) struct Groups {
    ready: Option<Epoll>,
    sockets: slab::Slab<GroupSocket>,
    by_address: BTreeMap<IpAddr, usize>,
}

impl Groups {
    /// Adds the socket of a group.
    pub(super) fn add(&mut self, member: GroupSocket) -> Result<(), JoinError> {
        let group = member.group();
        let os = |errno: nix::Error| JoinError::Os { group, source: io::Error::from(errno) };
        let ready = match self.ready.take() {
            Some(ready) => ready,
            None => {
                let ready = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(os)?;
                fork::close_in_child(std::iter::once(ready.0.as_raw_fd()));
                ready
            }
        };
        let ready = self.ready.insert(ready);
        let place = self.sockets.vacant_entry();
        ready.add(&member, EpollEvent::new(EpollFlags::EPOLLIN, place.key() as u64)).map_err(os)?;
        fork::close_in_child(std::iter::once(member.raw_fd()));
        self.by_address.insert(group, place.key());
        place.insert(member);
        Ok(())
    }

    /// Leaves a group.
    pub(super) fn leave(&mut self, group: IpAddr) {
        let Some(socket) = self.by_address.remove(&group).and_then(|id| self.sockets.try_remove(id)) else {
            return;
        };
        if let Some(ready) = &self.ready {
            // Closing the socket would suffice, except that children that are about to be forked may have copies of the
            // descriptor.
            let _ = ready.delete(&socket);
        }
        socket.ask_drops();
        fork::forget(std::iter::once(socket.raw_fd()));
    }

    /// Calls `receive` for a few of the groups that have packets.
    pub(super) fn each_ready(&self, mut receive: impl FnMut(&GroupSocket)) {
        if self.sockets.is_empty() {
            return;
        }
        let Some(ready) = &self.ready else { return };
        let mut events = [EpollEvent::empty(); GROUPS_PER_TURN];
        // If interrupted, the call is repeated in the next turn.
        let count = ready.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        for event in &events[..count] {
            let socket = usize::try_from(event.data()).ok().and_then(|id| self.sockets.get(id));
            if let Some(socket) = socket {
                receive(socket);
            }
        }
    }

    /// Adds the kernel's drop counts of all groups to the counters of the port.
    pub(super) fn ask_drops(&self) {
        self.sockets.iter().for_each(|(_, socket)| socket.ask_drops());
    }

    /// The descriptor that is readable when a group has packets; `None` before the first group.
    pub(super) fn ready_fd(&self) -> Option<RawFd> {
        self.ready.as_ref().map(|ready| ready.0.as_raw_fd())
    }

    /// All descriptors.
    pub(super) fn raw_fds(&self) -> impl Iterator<Item = RawFd> {
        self.ready_fd().into_iter().chain(self.sockets.iter().map(|(_, socket)| socket.raw_fd()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{RoceSocket, SocketConfig};
    use std::net::Ipv4Addr;

    fn address(first: u8) -> IpAddr {
        Ipv4Addr::new(first, rand::random_range(1..=250), rand::random(), rand::random_range(1..=250)).into()
    }

    #[test]
    fn children_close_what_groups_open() {
        let socket = RoceSocket::bind(&SocketConfig::new(address(127))).unwrap();
        let (mut groups, group, other) = (Groups::default(), address(239), address(239));
        assert_eq!(
            (groups.ready_fd(), groups.raw_fds().count()),
            (None, 0),
            "without groups there is nothing"
        );
        groups.add(socket.join(group).unwrap()).unwrap();
        groups.add(socket.join(other).unwrap()).unwrap();
        let fds: Vec<RawFd> = groups.raw_fds().collect();
        assert_eq!(fds.len(), 3);
        assert!(fds.iter().all(|fd| fork::is_closed_in_child(*fd)), "{fds:?}");
        groups.leave(group);
        groups.leave(group);
        let left: Vec<RawFd> = groups.raw_fds().collect();
        assert_eq!(left.len(), 2);
        assert!(left.iter().all(|fd| fork::is_closed_in_child(*fd)), "{left:?}");
        fork::forget(left.iter().copied());
        assert!(!left.iter().any(|fd| fork::is_closed_in_child(*fd)));
    }

    #[test]
    fn groups_that_have_something_are_told_apart() {
        let socket = RoceSocket::bind(&SocketConfig::new(address(127))).unwrap();
        let (mut groups, quiet, busy) = (Groups::default(), address(239), address(239));
        groups.add(socket.join(quiet).unwrap()).unwrap();
        groups.add(socket.join(busy).unwrap()).unwrap();
        let _ = socket.send_train(0, &qp::wire::IpHeader::to(busy), 64, &[1; 64]).unwrap();
        let mut seen = Vec::new();
        let mut batch = crate::net::RecvBatch::new(1);
        while seen.is_empty() {
            groups.each_ready(|socket| {
                assert_eq!(socket.recv(&mut batch).unwrap(), 1);
                seen.push(socket.group());
            });
        }
        assert_eq!(seen, [busy]);
        fork::forget(groups.raw_fds());
    }
}
