//! What an identifier's addresses, device and path are.

use super::Ucma;
use super::abi::{self, QueryAddrAnswer, QueryPathAnswer, QueryRouteAnswer};
use super::name::Name;
use super::nic::Nic;
use super::pipe::PipeId;
use super::state::{Id, Stage};
use crate::abi::kernel::PathRec;
use crate::errno::Errno;
use crate::hub::locked;
use rnic::cm::protocol::{Path, ServiceId};
use rnic::process::speed;
use rnic::{Gid, PKey, QpType};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// What a query asks for (`enum` in `rdma_user_cm.h`).
const ADDRESS: u32 = 0;
const PATH: u32 = 1;
const GID: u32 = 2;

/// `IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL`, and that it can be used in both directions.
const FLAGS: u32 = 0x2b;

/// "Exactly", in the two bits before MTU, rate and lifetime of a path (IBTA 15.2.5.16).
const EXACTLY: u8 = 2 << 6;

/// The least room for an answer: programs of older interfaces do not know its last fields.
const LEAST_ADDRESS: usize = size_of::<QueryAddrAnswer>() - 8;
const LEAST_ROUTE: usize = size_of::<QueryRouteAnswer>() - 8;
const LEAST_PATH: usize = 8;

/// What a query needs to know.
struct Known {
    src: Option<Name>,
    dst: Option<Name>,
    nic: Option<Arc<Nic>>,
    path: Option<Path>,
    service: [ServiceId; 2],
}

impl Ucma {
    fn known(&self, channel: PipeId, id: u32) -> Result<Known, Errno> {
        let (known, device) = {
            let mut state = locked(&self.state);
            let id = state.id(channel, id)?;
            let has_path = id.stage >= Stage::RouteResolved && id.qp_type != QpType::Ud
                || id.stage == Stage::RouteResolved
                || id.stage == Stage::Connecting;
            let path = id.path.filter(|_| has_path);
            let service = [id.src, id.dst].map(|name| service(id, name));
            (Known { src: id.src, dst: id.dst, nic: None, path, service }, id.device)
        };
        Ok(Known { nic: device.map(|device| self.nics.get(device)).transpose()?, ..known })
    }

    pub(super) fn query(&self, channel: PipeId, command: &abi::Query, room: usize) -> Result<Vec<u8>, Errno> {
        let enough = |least| if room < least { Err(Errno(libc::ENOSPC)) } else { Ok(()) };
        match command.option {
            ADDRESS => {
                enough(LEAST_ADDRESS)?;
                Ok(address(&self.known(channel, command.id)?, false).as_bytes().to_vec())
            }
            GID => {
                enough(LEAST_ADDRESS)?;
                Ok(address(&self.known(channel, command.id)?, true).as_bytes().to_vec())
            }
            PATH => {
                enough(LEAST_PATH)?;
                Ok(path(&self.known(channel, command.id)?, room).as_bytes().to_vec())
            }
            _ => {
                self.known(channel, command.id)?;
                Err(Errno(libc::ENOSYS))
            }
        }
    }

    pub(super) fn query_route(
        &self,
        channel: PipeId,
        command: &abi::Query,
        room: usize,
    ) -> Result<Vec<u8>, Errno> {
        if room < LEAST_ROUTE {
            return Err(Errno(libc::ENOSPC));
        }
        Ok(route(&self.known(channel, command.id)?).as_bytes().to_vec())
    }
}

fn service(id: &Id, name: Option<Name>) -> ServiceId {
    match name {
        Some(Name::Ib(name)) => ServiceId(u64::from_be(name.sid)),
        Some(name) => id.space.service(name.port()),
        None => ServiceId(0),
    }
}

fn address(known: &Known, as_gids: bool) -> QueryAddrAnswer {
    let mut answer = QueryAddrAnswer { ibdev_index: u32::MAX, ..QueryAddrAnswer::default() };
    if let Some(nic) = &known.nic {
        (answer.node_guid, answer.port_num) = (nic.guid(), 1);
        answer.pkey = PKey::DEFAULT.0.to_be();
        answer.ibdev_index = nic.index as u32;
    }
    let as_gid = |name: &Name, service| match name {
        Name::Ib(_) => *name,
        name => Name::of_gid(Gid::from(name.ip()), PKey::DEFAULT.0, service),
    };
    let [src, dst] = [(known.src, known.service[0]), (known.dst, known.service[1])]
        .map(|(name, service)| name.map(|name| if as_gids { as_gid(&name, service) } else { name }));
    if let Some(name) = src {
        (answer.src, answer.src_size) = (name.bytes(), name.len() as u16);
    }
    if let Some(name) = dst {
        (answer.dst, answer.dst_size) = (name.bytes(), name.len() as u16);
    }
    answer
}

/// The path, as far as there is room for it.
fn path(known: &Known, room: usize) -> QueryPathAnswer {
    let mut answer = QueryPathAnswer::default();
    if let Some(path) = known.path {
        answer.num_paths = 1;
        if room >= size_of::<QueryPathAnswer>() {
            (answer.flags, answer.path) = (FLAGS, packed(&path, known));
        }
    }
    answer
}

/// The code of the port's rate (`enum ib_rate`), by its name in Gb/s. `ibv_rate` has no exact code for some.
fn rate(known: &Known) -> u8 {
    let speed = known.nic.as_ref().map(|nic| speed(nic.hub.named.config.link.rate));
    match speed.and_then(|speed| speed.text().split(' ').next()) {
        Some("2.5") => 2,
        Some("10") => 3,
        Some("20") => 6,
        Some("25") => 15,
        Some("40") => 7,
        Some("50") => 20,
        Some("100") => 16,
        Some("200") => 17,
        Some("400") => 21,
        _ => 0,
    }
}

/// A PathRecord attribute (IBTA 15.2.5.16), in network byte order.
fn packed(path: &Path, known: &Known) -> [u8; 64] {
    let mut record = [0; 64];
    let to = path.to;
    record[..8].copy_from_slice(&known.service[1].0.to_be_bytes());
    record[8..24].copy_from_slice(&to.remote.0);
    record[24..40].copy_from_slice(&to.local.0);
    record[44..48].copy_from_slice(&(to.flow_label << 8 | u32::from(to.hop_limit)).to_be_bytes());
    record[48] = to.traffic_class;
    // Reversible, one path.
    record[49] = 1 << 7 | 1;
    record[50..52].copy_from_slice(&path.pkey.0.to_be_bytes());
    record[53] = to.sl & 0xf;
    record[54] = EXACTLY | path.mtu as u8;
    record[55] = EXACTLY | rate(known);
    record[56] = EXACTLY | path.lifetime.code();
    record
}

/// The answer for programs that know no addresses of InfiniBand.
fn route(known: &Known) -> QueryRouteAnswer {
    let mut answer = QueryRouteAnswer { ibdev_index: u32::MAX, ..QueryRouteAnswer::default() };
    let short = |name: Option<Name>| {
        let mut bytes = [0; abi::IN6];
        if let Some(name) = name {
            bytes.copy_from_slice(&name.bytes()[..abi::IN6]);
        }
        bytes
    };
    (answer.src, answer.dst) = (short(known.src), short(known.dst));
    let Some(nic) = &known.nic else { return answer };
    (answer.node_guid, answer.port_num, answer.ibdev_index) = (nic.guid(), 1, nic.index as u32);
    let Some(path) = known.path else {
        // Without a path, the kernel still tells the addresses (`ucma_copy_iboe_route`).
        if let (Some(dst), true) = (known.dst, known.src.is_some()) {
            (answer.paths[0].dgid, answer.paths[0].sgid) = (Gid::from(dst.ip()).0, nic.gid().0);
            answer.paths[0].pkey = PKey::DEFAULT.0.to_be();
        }
        return answer;
    };
    answer.num_paths = 1;
    answer.paths[0] = PathRec {
        dgid: path.to.remote.0,
        sgid: path.to.local.0,
        flow_label: path.to.flow_label.to_be(),
        reversible: 1,
        mtu: path.mtu as u32,
        pkey: path.pkey.0.to_be(),
        hop_limit: path.to.hop_limit,
        traffic_class: path.to.traffic_class,
        sl: path.to.sl,
        mtu_selector: 2,
        rate_selector: 2,
        rate: rate(known),
        packet_life_time_selector: 2,
        packet_life_time: path.lifetime.code(),
        ..PathRec::default()
    };
    answer
}
