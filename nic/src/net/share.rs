//! The sockets of an address that several processes share.
//!
//! Sockets with `SO_REUSEPORT` at the same address and port form a group. A classic BPF program at the group steers each
//! datagram by the top byte of its destination queue pair number: the slot of the process that has the queue pair.
//!
//! The kernel numbers the members of a group in the order in which they were bound. When one is closed, the last one
//! takes its number: so the owner of a group keeps every member open, also those that other processes receive from. A
//! datagram for a slot without a socket goes to slot 0.
//!
//! All members belong to the user who bound the first one: the kernel lets nobody else in. Members trust each other. Each
//! of them can replace or detach the program.

use super::error::{BindError, not_bound};
use super::group::GroupSocket;
use super::receiver;
use super::recv::RecvBatch;
use super::sender::Sender;
use super::socket::{SlotSockets, SocketConfig, offered};
use super::sys;
use rnic_core::error::JoinError;
use rnic_core::tally::{Capabilities, Gso};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The most slots of an address, with slot 0. The last value of the byte is left out: in it lies the queue pair number that
/// means multicast.
pub const MOST_SLOTS: usize = 255;

/// The most sockets to send from that a slot gets: they travel in one message, which carries fewer than 253 descriptors
/// (`SCM_MAX_FD` of Linux).
pub const MOST_SENDERS: usize = 60;

/// Where the top byte of the destination queue pair number is in the UDP payload (IBTA 9.2: the BTH).
const SLOT_OFFSET: u32 = 5;

/// Datagrams that one call of [`SharedAddress::drain`] reads at most: more than fit a receive buffer of 8 MiB.
const DRAINED_AT_ONCE: usize = 1 << 15;

/// The receiving sockets of a shared address, one for each slot.
#[derive(Debug)]
pub struct SharedAddress {
    config: SocketConfig,
    capabilities: Capabilities,
    members: Vec<OwnedFd>,
}

impl SharedAddress {
    /// Takes the address: binds the socket of slot 0.
    ///
    /// # Errors
    /// As [`RoceSocket::bind`](super::RoceSocket::bind); [`BindError::NoSharing`] if the kernel has no such groups.
    pub fn bind(config: &SocketConfig) -> Result<Self, BindError> {
        let config = config.unicast()?;
        // Another group of the same user would take the new socket in, and nothing would be steered right: so nobody may have
        // the address, which only a socket that shares nothing finds out.
        let address = config.address(config.ip, config.port);
        let (alone, _) = receiver::unbound(&config, address)?;
        alone.bind(&address.into()).map_err(|error| not_bound(address, error))?;
        drop(alone);
        let (first, capabilities) = member(&config)?;
        let capabilities = offered(&config, capabilities);
        let shared = Self { config, capabilities, members: vec![first] };
        shared.steer()?;
        Ok(shared)
    }

    /// Takes over an address, with the sockets of all its slots in their order.
    ///
    /// # Errors
    /// [`BindError::NoSlot`] without any socket; [`BindError::NoSharing`] if the kernel refuses the program.
    pub fn adopt(config: &SocketConfig, members: Vec<OwnedFd>) -> Result<Self, BindError> {
        let config = config.unicast()?;
        let first = members.first().ok_or(BindError::NoSlot { ip: config.ip, most: MOST_SLOTS - 1 })?;
        let capabilities = offered(&config, receiver::enable(&config, first.as_fd()));
        let shared = Self { config, capabilities, members };
        shared.steer()?;
        Ok(shared)
    }

    /// The address.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        self.config.ip
    }

    /// The number of slots that have a socket, slot 0 among them.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.members.len()
    }

    /// The receiving socket of a slot.
    #[must_use]
    pub fn member(&self, slot: usize) -> Option<BorrowedFd<'_>> {
        self.members.get(slot).map(AsFd::as_fd)
    }

    /// Adds a slot, and returns its number.
    ///
    /// # Errors
    /// [`BindError`]; [`BindError::NoSlot`] if there are [`MOST_SLOTS`] already.
    pub fn grow(&mut self) -> Result<usize, BindError> {
        if self.members.len() >= MOST_SLOTS {
            return Err(BindError::NoSlot { ip: self.config.ip, most: MOST_SLOTS - 1 });
        }
        let (member, _) = member(&self.config)?;
        self.members.push(member);
        // Until then, packets for the new slot reach slot 0.
        self.steer()?;
        Ok(self.members.len() - 1)
    }

    /// The sockets of a slot, for the process that is to have it: its receiving socket, and fresh ones to send from, at most
    /// [`MOST_SENDERS`].
    ///
    /// # Errors
    /// [`BindError`].
    pub fn hand_out(&self, slot: usize) -> Result<SlotSockets, BindError> {
        let os = |error| not_bound(self.config.address(self.config.ip, self.config.port), error);
        let member = self.members.get(slot);
        let member = member.ok_or(BindError::NoSlot { ip: self.config.ip, most: MOST_SLOTS - 1 })?;
        let receiver = member.try_clone().map_err(os)?;
        let senders = (0..self.config.source_ports.min(MOST_SENDERS))
            .map(|_| Sender::bind(&self.config).map(Sender::into_fd));
        Ok(SlotSockets {
            receiver,
            senders: senders.collect::<Result<_, _>>()?,
            capabilities: self.capabilities,
        })
    }

    /// A socket of a multicast group, a member on the interface of the address.
    ///
    /// # Errors
    /// As [`RoceSocket::join`](super::RoceSocket::join).
    pub fn join(&self, group: IpAddr) -> Result<OwnedFd, JoinError> {
        GroupSocket::join(&self.config, group, Arc::default()).map(GroupSocket::into_fd)
    }

    /// Reads and discards what waits in a slot that nobody has; returns the number of datagrams.
    pub fn drain(&self, slot: usize) -> usize {
        let Some(fd) = self.member(slot) else { return 0 };
        // Only the beginning of each is stored.
        let mut batch = RecvBatch::with_buffers(32, 64);
        let mut count = 0;
        while count < DRAINED_AT_ONCE {
            match batch.fill(fd, self.config.ip) {
                Ok(0) => break,
                Ok(filled) => count += filled,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // An error of an earlier send; it is gone now.
                Err(_) => count += 1,
            }
        }
        count
    }

    /// Attaches the program that steers to the slots that there are, again if a member has detached it.
    ///
    /// # Errors
    /// [`BindError::NoSharing`].
    pub fn steer(&self) -> Result<(), BindError> {
        let slots = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        let Some(first) = self.members.first() else { return Ok(()) };
        sys::steer(first.as_fd(), SLOT_OFFSET, slots)
            .map_err(|source| BindError::NoSharing { name: "SO_ATTACH_REUSEPORT_CBPF", source })
    }
}

/// Binds a member of the group.
fn member(config: &SocketConfig) -> Result<(OwnedFd, Capabilities), BindError> {
    let address = config.address(config.ip, config.port);
    let (socket, capabilities) = receiver::unbound(config, address)?;
    socket.set_reuse_port(true).map_err(|source| BindError::NoSharing { name: "SO_REUSEPORT", source })?;
    socket.bind(&address.into()).map_err(|error| not_bound(address, error))?;
    Ok((socket.into(), Capabilities { gso: Gso::Unknown, ..capabilities }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::RoceSocket;
    use qp::wire::IpHeader;
    use std::net::Ipv4Addr;

    fn config() -> SocketConfig {
        let ip = Ipv4Addr::new(127, 100, rand::random(), rand::random_range(1..=250)).into();
        SocketConfig { source_ports: 2, ..SocketConfig::new(ip) }
    }

    /// A datagram for a queue pair of a slot, recognisable by its last byte.
    fn packet(slot: u8, mark: u8) -> [u8; 32] {
        let mut bytes = [0; 32];
        (bytes[5], bytes[31]) = (slot, mark);
        bytes
    }

    fn received(socket: &RoceSocket) -> Vec<u8> {
        let mut batch = RecvBatch::new(1);
        let mut marks = Vec::new();
        while socket.recv(&mut batch).expect("a socket") > 0 {
            marks
                .extend(batch.datagrams().flat_map(|d| d.segments().map(|(_, s)| s[31]).collect::<Vec<_>>()));
        }
        marks
    }

    #[test]
    fn datagrams_reach_the_slot_that_they_name_and_others_slot_0() {
        let config = config();
        let mut shared = SharedAddress::bind(&config).expect("a free address");
        for slot in 1..=8 {
            assert_eq!(shared.grow().expect("room"), slot);
        }
        let adopt =
            |slot| RoceSocket::adopt(&config, shared.hand_out(slot).expect("sockets")).expect("a slot");
        let slots: Vec<RoceSocket> = (0..=8).map(adopt).collect();
        assert_eq!(slots[3].source_ports(), 2);
        assert_ne!(slots[3].source_port(0), slots[4].source_port(0));
        let to = IpHeader::to(config.ip);
        for (mark, slot) in [8, 0, 3, 9, 200, 255, 1].into_iter().enumerate() {
            let _ = slots[5].send_train(1, &to, 32, &packet(slot, mark as u8)).expect("it is sent");
        }
        // A train reaches one slot.
        let train = [packet(7, 10), packet(7, 11), packet(7, 12)].concat();
        let _ = slots[5].send_train(0, &to, 32, &train).expect("it is sent");
        let all: Vec<Vec<u8>> = slots.iter().map(received).collect();
        let none = Vec::new();
        let expected = [
            vec![1, 3, 4, 5],
            vec![6],
            none.clone(),
            vec![2],
            none.clone(),
            none.clone(),
            none,
            vec![10, 11, 12],
            vec![0],
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn a_slot_keeps_its_packets_while_others_come_and_go() {
        let config = config();
        let mut shared = SharedAddress::bind(&config).expect("a free address");
        (1..=3).for_each(|_| assert!(shared.grow().is_ok()));
        let adopt = |shared: &SharedAddress, slot| {
            RoceSocket::adopt(&config, shared.hand_out(slot).expect("sockets")).expect("a slot")
        };
        let (first, third) = (adopt(&shared, 1), adopt(&shared, 3));
        let to = IpHeader::to(config.ip);
        // The process of slot 1 ends; its socket stays open with the owner of the group.
        drop(first);
        let send = |slot, mark| {
            let _ = third.send_train(0, &to, 32, &packet(slot, mark)).expect("it is sent");
        };
        send(3, 1);
        send(1, 2);
        assert_eq!(received(&third), [1]);
        // The owner ends too, and another takes over: the sockets are the same.
        let members =
            (0..shared.slots()).map(|slot| shared.member(slot).expect("a slot").try_clone_to_owned());
        let members: Vec<OwnedFd> = members.collect::<io::Result<_>>().expect("descriptors");
        drop(shared);
        send(3, 3);
        assert_eq!(received(&third), [3]);
        let shared = SharedAddress::adopt(&config, members).expect("the same group");
        assert_eq!((shared.slots(), shared.drain(1), shared.drain(1), shared.drain(9)), (4, 1, 0, 0));
        let first = adopt(&shared, 1);
        send(1, 4);
        assert_eq!((received(&first), received(&third)), (vec![4], vec![]));
    }

    #[test]
    fn nobody_else_gets_a_shared_address() {
        let config = config();
        let _shared = SharedAddress::bind(&config).expect("a free address");
        let error = RoceSocket::bind(&config).expect_err("it is taken");
        assert!(matches!(error, BindError::AddressInUse(_)), "{error}");
        let error = SharedAddress::bind(&config).expect_err("it is shared out already");
        assert!(matches!(error, BindError::AddressInUse(_)), "{error}");
        let other = self::config();
        let _alone = RoceSocket::bind(&other).expect("a free address");
        let error = SharedAddress::bind(&other).expect_err("it is taken");
        assert!(matches!(error, BindError::AddressInUse(_)), "{error}");
    }

    #[test]
    fn an_address_has_254_slots_for_processes() {
        let mut shared = SharedAddress::bind(&config()).expect("a free address");
        while shared.slots() < MOST_SLOTS {
            shared.grow().expect("room");
        }
        let error = shared.grow().expect_err("full");
        assert!(matches!(error, BindError::NoSlot { most: 254, .. }), "{error}");
    }
}
