//! The GID and P_Key tables.

use crate::abi::{IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, ibv_gid, ibv_gid_entry};
use crate::call::{Count, Out, Status, verbs};
use crate::context::Context;
use crate::errno::Errno;
use rnic::{GidEntry, GidType};
use std::ffi::{c_int, c_uint};

/// `ENODATA`: the kernel's error for an empty entry.
const NO_DATA: Errno = Errno(libc::ENODATA);

fn entry(context: &Context, port: u32, index: u32) -> Result<GidEntry, Errno> {
    let entries = context.hub.gid_entries();
    if port != 1 || index >= entries {
        let text =
            format_args!("GID {index} of port {port}: the device has one port, 1, with {entries} entries");
        return Err(Errno::INVALID.because(text));
    }
    context.hub.gids().into_iter().find(|entry| entry.index == index).ok_or(NO_DATA)
}

fn structure(entry: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid.0 },
        gid_index: entry.index,
        port_num: u32::from(entry.port_num),
        gid_type: match entry.gid_type {
            GidType::RoceV1 => IBV_GID_TYPE_ROCE_V1,
            GidType::RoceV2 => IBV_GID_TYPE_ROCE_V2,
        },
        ndev_ifindex: entry.interface.as_ref().map_or(0, |interface| interface.index),
    }
}

verbs! {
    fn ibv_query_gid(context: &Context, port: u8, index: c_int, gid: Out<ibv_gid>) -> Status {
        let index = u32::try_from(index).map_err(|_| Errno::INVALID.because(format_args!("index is {index}")))?;
        match entry(context, u32::from(port), index) {
            Ok(entry) => gid.put(ibv_gid { raw: entry.gid.0 }),
            // An empty entry reads as all zeros.
            Err(NO_DATA) => gid.put(ibv_gid { raw: [0; 16] }),
            Err(error) => return Err(error),
        }
        Ok(Status::OK)
    }

    /// Returns the type as in sysfs: 0 for RoCE v1, 1 for RoCE v2.
    fn ibv_query_gid_type(context: &Context, port: u8, index: c_uint, gid_type: Out<c_uint>) -> Status {
        let entry = entry(context, u32::from(port), index)?;
        gid_type.put(u32::from(entry.gid_type == GidType::RoceV2));
        Ok(Status::OK)
    }

    fn ibv_query_gid_ex(
        context: &Context,
        port: u32,
        index: u32,
        out: Out<ibv_gid_entry>,
        flags: u32,
        room: usize,
    ) -> () {
        if flags != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        out.put_sized(&structure(&entry(context, port, index)?), room);
        Ok(())
    }

    fn ibv_query_gid_table(
        context: &Context,
        out: Option<Out<ibv_gid_entry>>,
        max: usize,
        flags: u32,
        size: usize,
    ) -> Count {
        if flags != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        let entries = context.hub.gids();
        let count = entries.len().min(max);
        if count < entries.len() {
            // As in the kernel, a table that does not fit is not stored at all.
            let text = format_args!("the GID table has {} entries, and there is room for {max}", entries.len());
            return Err(Errno::INVALID.because(text));
        }
        let Some(out) = out else { return if count == 0 { Ok(Count(0)) } else { Err(Errno::INVALID) } };
        for (at, entry) in entries.iter().enumerate() {
            out.offset(at * size).put_sized(&structure(entry), size);
        }
        Ok(Count(isize::try_from(count).unwrap_or(0)))
    }

    fn ibv_query_pkey(context: &Context, port: u8, index: c_int, pkey: Out<u16>) -> Status {
        let index = usize::try_from(index).map_err(|_| Errno::INVALID.because(format_args!("index is {index}")))?;
        if port != 1 {
            return Err(Errno::INVALID);
        }
        let pkeys = context.hub.device.pkeys();
        let none = || Errno::INVALID.because(format_args!("the P_Key table has no entry {index}"));
        pkey.put(pkeys.get(index).ok_or_else(none)?.0.to_be());
        Ok(Status::OK)
    }

    fn ibv_get_pkey_index(context: &Context, port: u8, pkey: u16) -> Status {
        let pkeys = context.hub.device.pkeys();
        let found = pkeys.iter().position(|ours| port == 1 && ours.0.to_be() == pkey);
        found.and_then(|index| c_int::try_from(index).ok()).map(Status).ok_or_else(|| Errno::INVALID.because("the port has no such P_Key"))
    }
}
