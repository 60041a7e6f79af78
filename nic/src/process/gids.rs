//! GID tables in the layouts that programs expect.
//!
//! Programs name a GID by its index, and the index that works differs between drivers: scripts that were written for
//! mlx5 use 3, those for rxe and the Rust crates `ibverbs` and `async-rdma` use 1, and simple ones 0. By default all of
//! these lead to the port's address. That disturbs no program that searches the table instead, as perftest, UCX and
//! `ibv_create_ah_from_wc` do: they take the first entry that suits them, or the last, and all are the same.
//!
//! rnic can also lay out its table like that of mlx5 or rxe. Both layouts begin with a link-local GID that follows from the
//! hardware address. An rnic device has no hardware address, so it makes one up from its IPv4 address: `52:4e` and the four
//! bytes. The link-local GID is an alias: [`resolve`] returns the IPv4 address, which packets use.

use qp::Gid;
use rnic_core::gid::{self, GidEntry, GidType, eui64};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

/// How GID tables are laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GidLayout {
    /// The address at every index that programs commonly name, 0 to 3, RoCE v2.
    #[default]
    Any,
    /// The address at index 0, RoCE v2, and nothing else.
    Compact,
    /// The layout of mlx5, with each GID twice: the link-local one at 0 (RoCE v1) and 1 (RoCE v2), the address at 2 (RoCE v1)
    /// and 3 (RoCE v2). The RoCE v1 entries are listed but cannot be used: rnic does not support RoCE v1.
    Mlx5,
    /// The layout of Linux rxe: the link-local GID at 0, the address at 1, both RoCE v2.
    Rxe,
}

impl GidLayout {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Any, Self::Compact, Self::Mlx5, Self::Rxe];

    /// The name in `RNIC_GID_TABLE`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Compact => "compact",
            Self::Mlx5 => "mlx5",
            Self::Rxe => "rxe",
        }
    }

    /// The number of entries of a table. Most are empty, as in the tables of drivers, so that programs that look for an empty
    /// entry find one.
    pub const ENTRIES: u32 = 16;

    /// The index of the address of the port itself, for RoCE v2. Connections should use it.
    #[must_use]
    pub const fn address_index(self) -> u32 {
        match self {
            Self::Any | Self::Compact => 0,
            Self::Mlx5 => 3,
            Self::Rxe => 1,
        }
    }

    /// The table of a port whose own entry is `own`, as [`Device::gid_table`](crate::Device::gid_table) gives it: GID, type
    /// and interface of each index.
    ///
    /// An alias holds an IPv4 address only. A port with an IPv6 address has that address in place of the link-local GID,
    /// which it may well be.
    #[must_use]
    pub fn table(self, own: &GidEntry) -> Vec<GidEntry> {
        let alias = match own.gid.ip() {
            IpAddr::V4(v4) => link_local(v4),
            IpAddr::V6(_) => own.gid,
        };
        let (v1, v2) = (GidType::RoceV1, GidType::RoceV2);
        let rows = match self {
            Self::Any => vec![(own.gid, v2); 4],
            Self::Compact => vec![(own.gid, v2)],
            Self::Mlx5 => vec![(alias, v1), (alias, v2), (own.gid, v1), (own.gid, v2)],
            Self::Rxe => vec![(alias, v2), (own.gid, v2)],
        };
        (0..)
            .zip(rows)
            .map(|(index, (gid, gid_type))| GidEntry { index, gid, gid_type, ..own.clone() })
            .collect()
    }
}

impl fmt::Display for GidLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether packets can be sent from an entry. RoCE v1 entries cannot be used.
#[must_use]
pub fn is_usable(entry: &GidEntry) -> bool {
    entry.gid_type == GidType::RoceV2
}

/// The GID to which packets for `gid` go: the IPv4 address behind a link-local alias, and any other GID itself.
#[must_use]
pub fn resolve(gid: Gid) -> Gid {
    match gid.0 {
        [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x4e, a, 0xff, 0xfe, b, c, d] => {
            Gid::from(Ipv4Addr::new(a, b, c, d))
        }
        _ => gid,
    }
}

/// The link-local alias of an address.
fn link_local(address: Ipv4Addr) -> Gid {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[8..].copy_from_slice(&eui64(*b"RN", address.octets()));
    Gid(gid)
}

/// The GUID of a device. It contains the IPv4 address, or a hash of the IPv6 address, or, for a device without an address
/// before it is opened, the process ID and the number of the device.
#[must_use]
pub fn node_guid(address: Option<IpAddr>, pid: u32, number: u8) -> [u8; 8] {
    match address {
        Some(address) => gid::node_guid(address),
        // Linux gives process IDs of up to 22 bits (PID_MAX_LIMIT); a process has up to 16 devices.
        None => eui64(*b"RP", (pid << 4 | u32::from(number & 15)).to_be_bytes()),
    }
}
