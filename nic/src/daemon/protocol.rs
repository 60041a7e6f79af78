//! What the daemon and its programs say to each other.
//!
//! A connection is a Unix stream socket. Each message is a frame: its length (4 bytes, big-endian, without itself), then
//! the message in the format of postcard. Descriptors travel with the first byte of the frame that they belong to. The
//! first frame of a connection is [`Request::Hello`]; what the connection is for follows.
//!
//! A connection is one of two kinds. That of a slot belongs to one device of a program: the daemon passes on datagrams and
//! news of the host, the program tells who listens and what is connected. Its end is the end of the slot's user. That of
//! a program's desk carries questions, each answered before the next: ports, multicast groups, routes.

use crate::net::MOST_SENDERS;
use bytes::{Buf, BufMut, BytesMut};
use cm::{CommId, Connected, Destination, Entry, PortSpace, ServiceId};
use qp::wire::mad::MAD_LEN;
use qp::{Gid, Qpn};
use rnic_core::cm::{Binding, Claim, PortError};
use rnic_core::tally::{Capabilities, Gso};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// The version of this protocol. Both sides must speak the same.
pub const VERSION: u16 = 2;

/// The longest frame. The longest message is a ledger of [`LEDGER_AT_ONCE`] entries, with less than 100 bytes each.
pub const MOST_FRAME: usize = 256 << 10;

/// The most descriptors with a frame: those of a slot.
pub const MOST_DESCRIPTORS: usize = MOST_SENDERS + 2 + REPORT_FILES;

/// The files in which a program publishes: its counters, and its queue pairs.
pub const REPORT_FILES: usize = 2;

/// The most entries of a ledger in one frame.
pub const LEDGER_AT_ONCE: usize = 1024;

/// What a program says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Begins a connection.
    Hello(Hello),
    /// Asks which addresses there are: answered by [`Reply::Addresses`].
    Addresses,
    /// Asks for a slot at an address, or at the first one: answered by [`Reply::Attached`] or [`Reply::Refused`].
    Attach {
        /// The address; `None` leaves the choice to the daemon.
        address: Option<IpAddr>,
    },
    /// Goes on with a slot of an earlier connection: answered by [`Reply::Host`], with new files to publish in, or
    /// [`Reply::Refused`].
    Resume {
        /// The address.
        address: IpAddr,
        /// The slot.
        slot: u8,
        /// The token that came with the slot.
        token: u128,
    },
    /// What changed. With a number, it is answered by [`Reply::Done`].
    Ledger {
        /// The changes.
        entries: Vec<LedgerEntry>,
        /// The number of the answer, if there is to be one.
        number: Option<u32>,
    },
    /// Claims a port.
    Bind(PortClaim),
    /// The holder of a port listens.
    Listen(PortBinding),
    /// Gives a port back.
    Release(PortBinding),
    /// Claims a port that an earlier connection held.
    Hold {
        /// The claim, with the port.
        claim: PortClaim,
        /// Whether it listens.
        listens: bool,
    },
    /// Asks for a socket of a multicast group.
    Join {
        /// The address of the device.
        address: IpAddr,
        /// The group.
        group: IpAddr,
    },
    /// Asks for the address from which the host sends to another.
    Route {
        /// The sender's address; `None` leaves the choice to the routes.
        from: Option<IpAddr>,
        /// The destination.
        to: SocketAddr,
    },
    /// Asks which programs there are: answered by a [`Reply::Program`] for each, then [`Reply::Done`].
    Programs,
}

/// Who begins a connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The program's [`VERSION`].
    pub version: u16,
    /// Its process ID, in its own namespace: for people, not trusted.
    pub pid: u32,
    /// Its name.
    pub program: String,
}

/// What the daemon says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The slot, with its descriptors: the receiving socket, the pipe that ends with the daemon and its keeper, the files to
    /// publish in ([`REPORT_FILES`]), and the sockets to send from.
    Attached(Box<Attached>),
    /// The addresses that the program may use.
    Addresses(Vec<Address>),
    /// The daemon does not do it.
    Refused(Refusal),
    /// A port was granted.
    Bound(PortBinding),
    /// It is done.
    Done(Option<u32>),
    /// An address, in answer to [`Request::Route`].
    Source(IpAddr),
    /// A datagram of connection management for the program.
    Datagram(Datagram),
    /// The host has changed.
    Host(Host),
    /// The daemon ends, and with it the address.
    Ends {
        /// Why.
        why: String,
    },
    /// A program, with the files in which it publishes, for reading.
    Program(Program),
}

/// A program in a slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Program {
    /// The shared address.
    pub address: IpAddr,
    /// Its slot.
    pub slot: u8,
    /// Its process ID in the daemon's namespace, according to the kernel; 0 if it has none there.
    pub pid: u32,
    /// Its user, according to the kernel.
    pub uid: u32,
    /// Its name.
    pub name: String,
    /// The first 12 digits of the ID of its container, if its control group names one.
    pub container: Option<String>,
    /// Whether it still has the slot. If not, its counters are final.
    pub running: bool,
}

/// A slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attached {
    /// The address.
    pub address: Address,
    /// The slot.
    pub slot: u8,
    /// Proves to a daemon that was restarted who had the slot.
    pub token: u128,
    /// The scrambling of its queue pair numbers, and the first of them: see [`Share`](rnic_core::engine::Share).
    pub rounds: [u8; 4],
    /// See [`rounds`](Self::rounds).
    pub first: u16,
    /// What its sockets can do.
    pub offers: Offers,
    /// The state of the host.
    pub host: Host,
    /// The configuration of the address: TOML, as [`DeviceConfig::from_toml`](crate::DeviceConfig::from_toml) reads it.
    pub config: String,
}

/// An address that programs share.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// The interface index, for IPv6 link-local addresses; otherwise 0.
    pub scope_id: u32,
}

/// The state of an address on the daemon's host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Host {
    /// Whether the address exists.
    pub address: bool,
    /// Whether its link is up.
    pub link: bool,
    /// The IP MTU of the link.
    pub mtu: Option<u32>,
    /// The interface: its number and name.
    pub interface: Option<(u32, String)>,
}

/// Capabilities of sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offers {
    gso: Option<bool>,
    gro: bool,
    tos: bool,
    ttl: bool,
    drops: bool,
    no_checksum: bool,
    rcvbuf: u64,
}

impl From<Capabilities> for Offers {
    fn from(of: Capabilities) -> Self {
        let gso = match of.gso {
            Gso::Unknown => None,
            Gso::Works => Some(true),
            Gso::Refused => Some(false),
        };
        let Capabilities { gro, tos, ttl, drops, no_checksum, rcvbuf, .. } = of;
        Self { gso, gro, tos, ttl, drops, no_checksum, rcvbuf: rcvbuf as u64 }
    }
}

impl From<Offers> for Capabilities {
    fn from(of: Offers) -> Self {
        let gso = match of.gso {
            None => Gso::Unknown,
            Some(true) => Gso::Works,
            Some(false) => Gso::Refused,
        };
        let Offers { gro, tos, ttl, drops, no_checksum, rcvbuf, .. } = of;
        let rcvbuf = usize::try_from(rcvbuf).unwrap_or(usize::MAX);
        Self { gso, gro, tos, ttl, drops, no_checksum, rcvbuf }
    }
}

/// A datagram for queue pair 1 that the daemon has received.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Datagram {
    /// The sender.
    pub from: IpAddr,
    /// The UDP port that it was sent from; 0 if that is not known any more.
    pub port: u16,
    /// The address that it was sent to.
    pub to: IpAddr,
    /// The datagram, of [`MAD_LEN`] bytes.
    pub mad: Vec<u8>,
}

impl Datagram {
    /// The datagram, if it has the right length.
    #[must_use]
    pub fn mad(&self) -> Option<&[u8; MAD_LEN]> {
        self.mad.as_slice().try_into().ok()
    }
}

fn shares_not(address: IpAddr) -> String {
    if address.is_unspecified() {
        "shares no address".to_owned()
    } else {
        format!("does not share {address}")
    }
}

/// Why the daemon does not do something.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The other side speaks another version.
    #[error(
        "the daemon speaks version {daemon} of its protocol, and this program version {program}: update the older one"
    )]
    Version {
        /// The daemon's.
        daemon: u16,
        /// The program's.
        program: u16,
    },
    /// The user is not admitted.
    #[error(
        "the daemon does not serve {user}: an operator adds users and groups to `users` and `groups` of its configuration"
    )]
    User {
        /// Who asked.
        user: String,
    },
    /// The daemon does not have the address, or not for this user. The unspecified address if it has none at all.
    #[error("the daemon {} with this user", shares_not(*.0))]
    Address(IpAddr),
    /// The user has as many as allowed.
    #[error("this user has {have} {what}, and the daemon allows no more (`limits.{what}`)")]
    Limit {
        /// What is limited: a key of the configuration.
        what: String,
        /// The limit.
        have: u32,
    },
    /// The address has no free slot.
    #[error("all slots of the address are in use")]
    NoSlot,
    /// The slot has another user by now.
    #[error("the slot was given away")]
    SlotLost,
    /// A port is not granted.
    #[error("{0}")]
    Port(PortFault),
    /// The kernel refuses something.
    #[error("{what}: {}", std::io::Error::from_raw_os_error(*errno))]
    Os {
        /// What was attempted.
        what: String,
        /// The kernel's error.
        errno: i32,
    },
    /// The sockets of a slot cannot be made.
    #[error("{0}")]
    Sockets(String),
    /// The program said something that means nothing here.
    #[error("the daemon did not understand: {0}")]
    Malformed(String),
}

/// Why a port is not granted: [`PortError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum PortFault {
    /// As [`PortError::InUse`].
    #[error("port {0} is in use at this address")]
    InUse(u16),
    /// As [`PortError::Taken`].
    #[error("port {0} is in use at another address, and one of the two is for any address")]
    Taken(u16),
    /// As [`PortError::Exhausted`].
    #[error("no port is free")]
    Exhausted,
    /// As [`PortError::Privileged`].
    #[error("port {0} needs a privilege")]
    Privileged(u16),
    /// As [`PortError::Unknown`].
    #[error("the port was given back already")]
    Unknown,
}

impl From<PortError> for PortFault {
    fn from(of: PortError) -> Self {
        match of {
            PortError::InUse(port) => Self::InUse(port),
            PortError::Taken(port) => Self::Taken(port),
            PortError::Exhausted => Self::Exhausted,
            PortError::Privileged(port) => Self::Privileged(port),
            PortError::Unknown | PortError::Daemon => Self::Unknown,
        }
    }
}

impl From<PortFault> for PortError {
    fn from(of: PortFault) -> Self {
        match of {
            PortFault::InUse(port) => Self::InUse(port),
            PortFault::Taken(port) => Self::Taken(port),
            PortFault::Exhausted => Self::Exhausted,
            PortFault::Privileged(port) => Self::Privileged(port),
            PortFault::Unknown => Self::Unknown,
        }
    }
}

/// A claim of a port: [`Claim`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortClaim {
    space: u8,
    local: SocketAddr,
    remote: Option<SocketAddr>,
    reuse: bool,
    family_only: bool,
    privileged: bool,
}

impl From<&Claim> for PortClaim {
    fn from(of: &Claim) -> Self {
        let Claim { space, local, remote, reuse, family_only, privileged } = *of;
        Self { space: space.to_u8(), local, remote, reuse, family_only, privileged }
    }
}

impl From<PortClaim> for Claim {
    fn from(of: PortClaim) -> Self {
        let PortClaim { space, local, remote, reuse, family_only, privileged } = of;
        Self { space: PortSpace::from_u8(space), local, remote, reuse, family_only, privileged }
    }
}

/// A port that was granted: [`Binding`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortBinding {
    space: u8,
    port: u16,
    holder: u64,
}

impl From<Binding> for PortBinding {
    fn from(Binding { space, port, holder }: Binding) -> Self {
        Self { space: space.to_u8(), port, holder }
    }
}

impl From<PortBinding> for Binding {
    fn from(PortBinding { space, port, holder }: PortBinding) -> Self {
        Self { space: PortSpace::from_u8(space), port, holder }
    }
}

/// An entry of a ledger: [`Entry`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LedgerEntry {
    /// As [`Entry::Listens`].
    Listens(u64),
    /// As [`Entry::Silent`].
    Silent(u64),
    /// As [`Entry::Connected`].
    Connected(ConnectedWith),
    /// As [`Entry::Ended`], with the local communication ID.
    Ended(u32),
}

/// An established connection: [`Connected`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectedWith {
    local: u32,
    remote: u32,
    local_qpn: u32,
    remote_qpn: u32,
    from: [u8; 16],
    to: [u8; 16],
    flow_label: u32,
    traffic_class: u8,
    hop_limit: u8,
    sl: u8,
}

impl From<Entry> for LedgerEntry {
    fn from(of: Entry) -> Self {
        match of {
            Entry::Listens(ServiceId(id)) => Self::Listens(id),
            Entry::Silent(ServiceId(id)) => Self::Silent(id),
            Entry::Ended(connection) => Self::Ended(connection.comm_id().0),
            Entry::Connected(Connected { local, remote, local_qpn, remote_qpn, to }) => {
                Self::Connected(ConnectedWith {
                    local: local.0,
                    remote: remote.0,
                    local_qpn: local_qpn.value(),
                    remote_qpn: remote_qpn.value(),
                    from: to.local.0,
                    to: to.remote.0,
                    flow_label: to.flow_label,
                    traffic_class: to.traffic_class,
                    hop_limit: to.hop_limit,
                    sl: to.sl,
                })
            }
        }
    }
}

impl From<ConnectedWith> for Connected {
    fn from(of: ConnectedWith) -> Self {
        let to = Destination {
            remote: Gid(of.to),
            local: Gid(of.from),
            flow_label: of.flow_label,
            traffic_class: of.traffic_class,
            hop_limit: of.hop_limit,
            sl: of.sl,
        };
        Self {
            local: CommId(of.local),
            remote: CommId(of.remote),
            local_qpn: Qpn::new(of.local_qpn),
            remote_qpn: Qpn::new(of.remote_qpn),
            to,
        }
    }
}

impl ConnectedWith {
    /// The local communication ID.
    #[must_use]
    pub const fn local(&self) -> u32 {
        self.local
    }

    /// The address of the peer.
    #[must_use]
    pub fn peer(&self) -> IpAddr {
        Gid(self.to).ip()
    }
}

/// A frame that cannot be read: the connection is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// It is longer than [`MOST_FRAME`].
    #[error("a frame of {0} bytes")]
    TooLong(usize),
    /// It is not a message.
    #[error("a frame that is no message")]
    Malformed,
}

/// Appends a message to a buffer, as a frame.
pub fn write_frame(message: &impl Serialize, to: &mut BytesMut) {
    let start = to.len();
    to.put_u32(0);
    // Serialising into memory does not fail.
    if let Ok(bytes) = postcard::to_stdvec(message) {
        to.put_slice(&bytes);
    }
    let len = u32::try_from(to.len() - start - 4).unwrap_or(u32::MAX);
    to[start..start + 4].copy_from_slice(&len.to_be_bytes());
}

/// Takes the first frame from a buffer; `None` if it is not complete yet.
///
/// # Errors
/// [`FrameError`].
pub fn read_frame<M: DeserializeOwned>(from: &mut BytesMut) -> Result<Option<M>, FrameError> {
    let Some(prefix) = from.first_chunk::<4>() else { return Ok(None) };
    let len = u32::from_be_bytes(*prefix) as usize;
    if len > MOST_FRAME {
        return Err(FrameError::TooLong(len));
    }
    if from.len() < 4 + len {
        return Ok(None);
    }
    from.advance(4);
    let frame = from.split_to(len);
    postcard::from_bytes(&frame).map(Some).map_err(|_| FrameError::Malformed)
}

#[cfg(test)]
mod tests;
