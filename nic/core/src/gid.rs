//! The GID table.

use crate::engine::ResourceError;
use crate::error::Result;
use crate::verbs::device::Device;
use qp::Gid;
use std::fmt;
use std::net::IpAddr;

/// The kind of address of a GID (`ibv_gid_type`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[doc(alias = "ibv_gid_type")]
pub enum GidType {
    /// An Ethernet frame without IP. Such entries are listed because programs expect them
    /// (`rnic::process::GidLayout::Mlx5`), but are unusable, because rnic sends no such packets.
    RoceV1,
    /// An IP address, over UDP.
    RoceV2,
}

impl GidType {
    /// The name, as the kernel and rdma-core's tools spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoceV1 => "IB/RoCE v1",
            Self::RoceV2 => "RoCE v2",
        }
    }
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A network interface.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NetInterface {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
}

/// An entry of the GID table (`ibv_gid_entry`).
#[derive(Clone, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_gid_entry")]
pub struct GidEntry {
    /// The index in the table: the `sgid_index` of address vectors.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// The kind of address.
    pub gid_type: GidType,
    /// The port of the entry.
    pub port_num: u8,
    /// The interface that has the address; `None` in a simulation, and if the kernel does not report it.
    pub interface: Option<NetInterface>,
}

/// The interface identifier of a hardware address: `ff:fe` in its middle, and its second bit reversed (RFC 4291, appendix
/// A).
#[must_use]
pub const fn eui64(vendor: [u8; 2], [a, b, c, d]: [u8; 4]) -> [u8; 8] {
    [vendor[0] ^ 2, vendor[1], a, 0xff, 0xfe, b, c, d]
}

/// The GUID of a device at an address, in network byte order. It contains the IPv4 address, or a hash of the IPv6
/// address.
#[must_use]
pub fn node_guid(address: IpAddr) -> [u8; 8] {
    match address.to_canonical() {
        IpAddr::V4(v4) => eui64(*b"RN", v4.octets()),
        IpAddr::V6(v6) => eui64(*b"RO", fnv1a(&v6.octets()).to_be_bytes()),
    }
}

/// FNV-1a, 32 bits: the offset basis and prime are those of its authors.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

impl Device {
    /// The entries of the GID table: the address of the port. The table is empty while the host lacks that address,
    /// and in a forked child.
    #[must_use]
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gid_table(&self) -> Vec<GidEntry> {
        let port = &self.inner.port;
        if port.is_ours() {
            port.look_at_host();
        }
        if !port.inspect(|engine| engine.port_state().address).unwrap_or(false) {
            return Vec::new();
        }
        let interface = port.interface();
        vec![GidEntry { index: 0, gid: self.gid(), gid_type: GidType::RoceV2, port_num: 1, interface }]
    }

    /// The entry of the GID table at an index.
    ///
    /// # Errors
    /// [`ResourceError::Index`] if there is no such entry, or while the host does not have the address.
    #[doc(alias = "ibv_query_gid_ex")]
    pub fn query_gid(&self, index: u32) -> Result<GidEntry> {
        self.inner.port()?;
        let table = self.gid_table();
        let missing = ResourceError::Index { what: "GID", index, entries: table.len() };
        Ok(table.into_iter().find(|entry| entry.index == index).ok_or(missing)?)
    }
}
