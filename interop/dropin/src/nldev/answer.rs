//! Requests about devices, and the answer to each.

use super::message::{ATTRIBUTE, Body, HEADER, Header, aligned, attributes};
use super::resources;
use super::shown::{Devices, Shown};
use crate::errno::Errno;

// Numbers of `rdma_netlink.h`.
/// The part of a type that names whom a message is for (`RDMA_NL_NLDEV`): what is above the bits of the command.
pub(super) const NLDEV: u16 = 5 << COMMAND_BITS;
const COMMAND_BITS: u32 = 10;
/// Commands (`RDMA_NLDEV_CMD_...`).
pub(super) const GET: u16 = 1;
pub(super) const PORT_GET: u16 = 5;
pub(super) const SYS_GET: u16 = 6;
pub(super) const RES_GET: u16 = 9;
pub(super) const RES_QP_GET: u16 = 10;
pub(super) const STAT_GET: u16 = 17;
/// Attributes (`RDMA_NLDEV_ATTR_...`, `RDMA_NLDEV_SYS_ATTR_...`).
pub(super) const DEV_INDEX: u16 = 1;
pub(super) const DEV_NAME: u16 = 2;
pub(super) const PORT_INDEX: u16 = 3;
pub(super) const CAP_FLAGS: u16 = 4;
pub(super) const FW_VERSION: u16 = 5;
pub(super) const NODE_GUID: u16 = 6;
pub(super) const SYS_IMAGE_GUID: u16 = 7;
pub(super) const PORT_STATE: u16 = 12;
pub(super) const PORT_PHYS_STATE: u16 = 13;
pub(super) const DEV_NODE_TYPE: u16 = 14;
pub(super) const RES_SUMMARY: u16 = 15;
pub(super) const RES_SUMMARY_ENTRY: u16 = 16;
pub(super) const RES_SUMMARY_ENTRY_NAME: u16 = 17;
pub(super) const RES_SUMMARY_ENTRY_CURR: u16 = 18;
pub(super) const RES_QP: u16 = 19;
pub(super) const RES_QP_ENTRY: u16 = 20;
pub(super) const RES_LQPN: u16 = 21;
pub(super) const RES_RQPN: u16 = 22;
pub(super) const RES_RQ_PSN: u16 = 23;
pub(super) const RES_SQ_PSN: u16 = 24;
pub(super) const RES_TYPE: u16 = 26;
pub(super) const RES_STATE: u16 = 27;
pub(super) const RES_PID: u16 = 28;
pub(super) const RES_MR: u16 = 40;
pub(super) const NDEV_INDEX: u16 = 50;
pub(super) const NDEV_NAME: u16 = 51;
pub(super) const NETNS_MODE: u16 = 66;
pub(super) const DEV_PROTOCOL: u16 = 67;
pub(super) const STAT_RES: u16 = 75;
pub(super) const HWCOUNTERS: u16 = 80;
pub(super) const HWCOUNTER: u16 = 81;
pub(super) const HWCOUNTER_NAME: u16 = 82;
pub(super) const HWCOUNTER_VALUE: u16 = 83;
pub(super) const DEV_DIM: u16 = 84;
pub(super) const COPY_ON_FORK: u16 = 93;

// Numbers of `netlink.h`.
pub(super) const NLM_F_REQUEST: u16 = 1;
pub(super) const NLM_F_MULTI: u16 = 2;
pub(super) const NLM_F_ACK: u16 = 4;
/// The error repeats the header of the request alone.
pub(super) const NLM_F_CAPPED: u16 = 0x100;
pub(super) const NLM_F_DUMP: u16 = 0x300;
pub(super) const NLMSG_ERROR: u16 = 2;
pub(super) const NLMSG_DONE: u16 = 3;
/// Types below are those of netlink itself, which no one answers.
const NLMSG_MIN_TYPE: u16 = 16;

/// A device has one port.
pub(super) const PORT: u32 = 1;

/// The longest answer in bytes: tools receive into one page (`MNL_SOCKET_BUFFER_SIZE` of libmnl), and lose what is longer.
pub(super) const LONGEST: usize = 4096;

/// Counters that only files show, because one answer has no room for all: those of one priority each, of connection
/// management, and of the simulated link.
fn is_in_files_only(name: &str) -> bool {
    name.contains("_prio") || name.starts_with("cm_") || name.starts_with("link_")
}

/// What answers a request: the bodies of messages.
type Bodies = Result<Vec<Body>, Errno>;

/// Answers the requests in these bytes, which came from the socket with this port ID: the messages to send there. `None` if
/// they are too short to be a request, so that nobody would know which one an error is about.
pub(super) fn answer(requests: &[u8], port: u32, devices: &dyn Devices) -> Option<Vec<Vec<u8>>> {
    let mut rest = requests;
    let mut parts = Vec::new();
    loop {
        let header = Header::parse(rest)?;
        let len = header.len as usize;
        let body = rest.get(HEADER..len);
        parts.extend(one(Header { port, ..header }, header, body, devices));
        rest = rest.get(aligned(len)..).unwrap_or_default();
        if body.is_none() || rest.is_empty() {
            return Some(parts);
        }
    }
}

/// The answer to one request with this header. `own` is the header of answers, but for their type and flags. There is no
/// body if the length is wrong.
fn one(own: Header, request: Header, body: Option<&[u8]>, devices: &dyn Devices) -> Vec<Vec<u8>> {
    let is_request = request.flags & NLM_F_REQUEST != 0 && request.kind >= NLMSG_MIN_TYPE;
    let is_dump = request.flags & NLM_F_DUMP != 0;
    let bodies = match body {
        None => Err(Errno::INVALID),
        Some(_) if !is_request => Ok(Vec::new()),
        Some(body) if is_dump => dump(request.kind, body, devices),
        Some(body) => single(request.kind, body, devices),
    };
    let error = |errno: i32| {
        let header = Header { kind: NLMSG_ERROR, flags: NLM_F_CAPPED, ..own };
        header.message(&[&(-errno).to_ne_bytes()[..], &request.bytes()].concat())
    };
    let bodies = match bodies {
        Ok(bodies) => bodies,
        Err(Errno(errno)) => return vec![error(errno)],
    };
    let ends = is_dump && is_request;
    let flags = if ends { NLM_F_MULTI } else { 0 };
    let mut parts: Vec<_> =
        bodies.into_iter().map(|body| Header { kind: request.kind, flags, ..own }.message(&body.0)).collect();
    if ends {
        parts.push(Header { kind: NLMSG_DONE, flags, ..own }.message(&0i32.to_ne_bytes()));
    } else if request.flags & NLM_F_ACK != 0 {
        parts.push(error(0));
    }
    parts
}

/// The answer about everything of a kind.
fn dump(kind: u16, body: &[u8], devices: &dyn Devices) -> Bodies {
    match kind.checked_sub(NLDEV) {
        Some(GET) => {
            Ok((0..).zip(&devices.all()).map(|(index, device)| device_body(index, device)).collect())
        }
        Some(PORT_GET) => {
            let (index, device) = asked(body, devices)?;
            Ok(vec![port_body(index, &device)])
        }
        Some(RES_GET) => {
            let all = (0..).zip(devices.all());
            Ok(all.map(|(index, device)| summary_body(index, &device, devices)).collect())
        }
        Some(RES_QP_GET) => {
            let (index, device) = asked(body, devices)?;
            Ok(resources::queue_pair_bodies(&head(index, &device), &devices.queue_pairs(&device.name)))
        }
        // No counter can be bound to a queue pair or a region here. For a driver like that, the kernel's list is empty too.
        Some(STAT_GET) => {
            asked(body, devices)?;
            let of = number(body, STAT_RES)?;
            if [RES_QP, RES_MR].map(u32::from).contains(&of) { Ok(Vec::new()) } else { Err(Errno::INVALID) }
        }
        _ => Err(Errno::UNSUPPORTED),
    }
}

/// The answer about one thing.
fn single(kind: u16, body: &[u8], devices: &dyn Devices) -> Bodies {
    let body = match kind.checked_sub(NLDEV) {
        Some(GET) => {
            let (index, device) = asked(body, devices)?;
            device_body(index, &device)
        }
        Some(PORT_GET) => {
            let (index, device) = asked(body, devices)?;
            if number(body, PORT_INDEX)? != PORT {
                return Err(Errno::INVALID);
            }
            port_body(index, &device)
        }
        Some(RES_GET) => {
            let (index, device) = asked(body, devices)?;
            summary_body(index, &device, devices)
        }
        Some(RES_QP_GET) => {
            let (index, device) = asked(body, devices)?;
            let wanted = number(body, RES_LQPN)?;
            let all = devices.queue_pairs(&device.name);
            let found = all.iter().find(|one| one.qp.qpn == wanted).ok_or(Errno(libc::ENOENT))?;
            resources::queue_pair(head(index, &device), found)
        }
        Some(STAT_GET) => {
            let (index, device) = asked(body, devices)?;
            if number(body, STAT_RES).is_ok() {
                return Err(Errno::UNSUPPORTED);
            }
            if number(body, PORT_INDEX)? != PORT {
                return Err(Errno::INVALID);
            }
            counters_body(index, &device, devices.counters(&device.name))
        }
        // The devices exist in all network namespaces, and a child of `fork` may use the memory of its parent.
        Some(SYS_GET) => Body::default().u8(NETNS_MODE, 1).u8(COPY_ON_FORK, 1),
        _ => return Err(Errno::UNSUPPORTED),
    };
    Ok(vec![body])
}

/// The device that a request is about. The kernel, too, refuses one that does not exist with EINVAL.
fn asked(body: &[u8], devices: &dyn Devices) -> Result<(u32, Shown), Errno> {
    let index = number(body, DEV_INDEX)?;
    let at = usize::try_from(index).map_err(|_| Errno::INVALID)?;
    devices.all().into_iter().nth(at).map(|device| (index, device)).ok_or(Errno::INVALID)
}

/// The number in an attribute of a request.
fn number(body: &[u8], wanted: u16) -> Result<u32, Errno> {
    let all = attributes(body).ok_or(Errno::INVALID)?;
    let value = all.iter().rev().find(|(number, _)| *number == wanted).map(|(_, value)| *value);
    let bytes = value.and_then(|value| value.try_into().ok()).ok_or(Errno::INVALID)?;
    Ok(u32::from_ne_bytes(bytes))
}

/// What names a device at the beginning of an answer.
fn head(index: u32, device: &Shown) -> Body {
    Body::default().u32(DEV_INDEX, index).text(DEV_NAME, &device.name)
}

fn summary_body(index: u32, device: &Shown, devices: &dyn Devices) -> Body {
    resources::summary(head(index, device), devices.queue_pairs(&device.name).len())
}

fn device_body(index: u32, device: &Shown) -> Body {
    head(index, device)
        // How many there are.
        .u32(PORT_INDEX, PORT)
        .u64(CAP_FLAGS, crate::query::ALL_FLAGS)
        .maybe(device.firmware.as_deref(), |body, text| body.text(FW_VERSION, text))
        .maybe(device.node_guid, |body, guid| body.u64(NODE_GUID, guid))
        .maybe(device.sys_image_guid, |body, guid| body.u64(SYS_IMAGE_GUID, guid))
        .maybe(device.node_type, |body, kind| body.u8(DEV_NODE_TYPE, kind))
        // Moderation of completions.
        .u8(DEV_DIM, 0)
        .text(DEV_PROTOCOL, "roce")
}

/// The kernel leaves the capabilities and LIDs of InfiniBand out for RoCE.
fn port_body(index: u32, device: &Shown) -> Body {
    head(index, device)
        .u32(PORT_INDEX, PORT)
        .maybe(device.port_state, |body, state| body.u8(PORT_STATE, state))
        .maybe(device.physical_state, |body, state| body.u8(PORT_PHYS_STATE, state))
        .maybe(device.netdev.as_ref(), |body, (index, name)| {
            body.u32(NDEV_INDEX, *index).text(NDEV_NAME, name)
        })
}

/// The counters of the port. Packets that were dropped, by reason, come last: if others are added one day, these give way.
fn counters_body(index: u32, device: &Shown, mut counters: Vec<(String, u64)>) -> Body {
    counters.retain(|(name, _)| !is_in_files_only(name));
    counters.sort_by(|(a, _), (b, _)| (a.starts_with("dropped_"), a).cmp(&(b.starts_with("dropped_"), b)));
    let head = head(index, device).u32(PORT_INDEX, PORT);
    let room = LONGEST - HEADER - head.0.len() - ATTRIBUTE;
    let mut entries = Body::default();
    for (name, value) in &counters {
        let entry = Body::default().text(HWCOUNTER_NAME, name).u64(HWCOUNTER_VALUE, *value);
        if entries.0.len() + ATTRIBUTE + entry.0.len() <= room {
            entries = entries.nested(HWCOUNTER, &entry);
        }
    }
    head.nested(HWCOUNTERS, &entries)
}
