//! All objects except queue pairs: completion queues, memory, shared receive queues, address handles.

use super::book::{Book, CHANGE, END, MAKE, Owner, POST, REGISTER, done, made, went};
use super::side::{Cq, OBJECTS, Side, never_wait, pick, place, pointer};
use super::symbols::*;
use super::{Call, Common, Place, Way};
use crate::fuzz::verbs::sane;
use rnic_dropin::abi::*;
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;

/// What one side knows about the other: a region, and the numbers of its objects.
pub(super) struct Remote {
    pub(super) rkey: u32,
    pub(super) addr: u64,
    pub(super) qpns: Vec<u32>,
    pub(super) srqns: Vec<u32>,
}

/// Valid access rights, except those for huge pages.
fn rights(bits: u32) -> u32 {
    bits & (0x3ff | IBV_ACCESS_RELAXED_ORDERING) & !IBV_ACCESS_HUGETLB
}

/// Destroys an object, which stays in the list while something uses it. The function gets NULL if the list is empty.
fn end<T>(
    list: &mut Vec<*mut T>,
    which: u8,
    how: unsafe extern "C-unwind" fn(*mut T) -> c_int,
) -> Option<*mut T> {
    let Some(at) = place(list, which) else {
        // SAFETY: NULL is refused.
        assert_eq!(unsafe { how(null_mut()) }, libc::EINVAL);
        return None;
    };
    // SAFETY: the object exists.
    done(unsafe { how(list[at]) }, END).then(|| list.swap_remove(at))
}

impl Side {
    pub(super) fn call_about_objects(&mut self, common: &mut Common, call: Call) {
        match call {
            Call::CreateChannel if self.channels.len() < OBJECTS => {
                // SAFETY: the context is open.
                let channel = made(unsafe { ibv_create_comp_channel(self.context) }, MAKE);
                // SAFETY: the channel exists.
                channel.into_iter().for_each(|channel| never_wait(unsafe { (*channel).fd }));
                self.channels.extend(channel);
            }
            Call::DestroyChannel { channel } => {
                _ = end(&mut self.channels, channel, ibv_destroy_comp_channel)
            }
            Call::CreateCq { cqe, channel, vector } => self.create_cq(common, cqe, channel, vector),
            Call::CreateCqEx { cqe, channel, wc_flags, mask, flags } => {
                self.create_cq_ex(common, cqe, channel, wc_flags, mask, flags);
            }
            Call::ResizeCq { cq, cqe } => {
                let Some(cq) = pick(&self.cqs, cq) else { return };
                // SAFETY: the queue exists.
                if done(unsafe { ibv_resize_cq(cq.at, sane(cqe).cast_signed()) }, CHANGE) {
                    // SAFETY: likewise.
                    common.book.watch(cq.at, unsafe { (*cq.at).cqe });
                }
            }
            Call::Arm { cq, solicited } => {
                let Some(cq) = pick(&self.cqs, cq) else { return };
                // SAFETY: the queue exists.
                let code =
                    unsafe { ops(self.context).req_notify_cq.expect("offered")(cq.at, solicited.into()) };
                _ = done(code, CHANGE);
            }
            Call::CqEvents { channel } => self.cq_events(channel),
            Call::Poll { cq, room } => {
                let Some(cq) = pick(&self.cqs, cq) else { return };
                self.poll(&mut common.book, *cq, room.into());
            }
            Call::PollEx { cq, steps } => self.poll_ex(&mut common.book, cq, steps),
            Call::DestroyCq { cq } => self.destroy_cq(common, cq),
            call => self.call_about_memory(common, call),
        }
    }

    fn create_cq(&mut self, common: &mut Common, cqe: u32, channel: Option<u8>, vector: u8) {
        let channel = channel.map_or(null_mut(), |channel| pointer(&self.channels, channel));
        if self.cqs.len() >= OBJECTS {
            return;
        }
        let cqe = sane(cqe).cast_signed();
        let vector = c_int::from(vector.saturating_sub(0xf0));
        // SAFETY: the context is open, and the channel valid or NULL.
        let cq = made(unsafe { ibv_create_cq(self.context, cqe, null_mut(), channel, vector) }, MAKE);
        if let Some(at) = cq {
            // SAFETY: the queue exists.
            common.book.watch(at, unsafe { (*at).cqe });
            self.cqs.push(Cq { at, ex: false });
        }
    }

    fn create_cq_ex(
        &mut self,
        common: &mut Common,
        cqe: u32,
        channel: Option<u8>,
        wc_flags: u16,
        mask: u8,
        flags: u8,
    ) {
        if self.cqs.len() >= OBJECTS {
            return;
        }
        // SAFETY: a structure of numbers and pointers; the context is open, and the channel valid or NULL.
        let cq = unsafe {
            let mut init: ibv_cq_init_attr_ex = zeroed();
            init.cqe = sane(cqe);
            init.channel = channel.map_or(null_mut(), |channel| pointer(&self.channels, channel));
            init.wc_flags = u64::from(wc_flags);
            (init.comp_mask, init.flags) = (u32::from(mask), u32::from(flags));
            made(table(self.context).create_cq_ex.expect("offered")(self.context, &raw mut init), MAKE)
        };
        if let Some(at) = cq.map(<*mut ibv_cq_ex>::cast::<ibv_cq>) {
            // SAFETY: the queue exists.
            common.book.watch(at, unsafe { (*at).cqe });
            self.cqs.push(Cq { at, ex: true });
        }
    }

    /// Reads all events of a channel, and acknowledges them.
    pub(super) fn cq_events(&self, channel: u8) {
        let Some(channel) = pick(&self.channels, channel) else { return };
        let (mut cq, mut cq_context) = (null_mut(), null_mut());
        // SAFETY: the channel exists; the queue exists until its event is acknowledged.
        unsafe {
            while went(ibv_get_cq_event(*channel, &raw mut cq, &raw mut cq_context), &[libc::EAGAIN]) {
                assert!(self.cqs.iter().any(|ours| ours.at == cq), "an event of an unknown queue");
                ibv_ack_cq_events(cq, 1);
            }
        }
    }

    /// Polls completions, and returns their number.
    pub(super) fn poll(&self, book: &mut Book, cq: Cq, room: c_int) -> c_int {
        // SAFETY: structures of numbers.
        let mut list: [ibv_wc; 128] = unsafe { zeroed() };
        // SAFETY: the queue exists, and the list has room: `room` comes from an i8.
        let taken = unsafe { ops(self.context).poll_cq.expect("offered")(cq.at, room, list.as_mut_ptr()) };
        assert!(if room < 0 { taken == -1 } else { (0..=room).contains(&taken) }, "{taken} for {room}");
        for wc in list.iter().take(usize::try_from(taken).unwrap_or(0)) {
            book.complete(wc.wr_id, wc.status, wc.qp_num);
        }
        taken
    }

    fn poll_ex(&self, book: &mut Book, cq: u8, steps: u8) {
        let Some(cq) = pick(&self.cqs, cq).filter(|cq| cq.ex) else { return };
        let cq: *mut ibv_cq_ex = cq.at.cast();
        // SAFETY: the queue exists and is an extended one; `end_poll` follows a start that succeeded.
        unsafe {
            let mut attr = ibv_poll_cq_attr { comp_mask: u32::from(steps > 0xfc) };
            if !done((*cq).start_poll.expect("offered")(cq, &raw mut attr), &[libc::ENOENT, libc::EINVAL]) {
                return;
            }
            for _ in 0..=steps % 16 {
                let qpn = (*cq).read_qp_num.expect("offered")(cq);
                book.complete((*cq).wr_id, (*cq).status, qpn);
                _ = (*cq).read_opcode.expect("offered")(cq);
                _ = (*cq).read_byte_len.expect("offered")(cq);
                _ = (*cq).read_wc_flags.expect("offered")(cq);
                _ = (*cq).read_imm_data.expect("offered")(cq);
                _ = (*cq).read_src_qp.expect("offered")(cq);
                _ = (*cq).read_vendor_err.expect("offered")(cq);
                _ = (*cq).read_completion_ts.expect("offered")(cq);
                _ = (*cq).read_completion_wallclock_ns.expect("offered")(cq);
                if !done((*cq).next_poll.expect("offered")(cq), &[libc::ENOENT]) {
                    break;
                }
            }
            (*cq).end_poll.expect("offered")(cq);
        }
    }

    fn destroy_cq(&mut self, common: &mut Common, cq: u8) {
        let Some(at) = place(&self.cqs, cq) else { return };
        // Events must be read and acknowledged first.
        self.async_events();
        // SAFETY: the queue exists.
        if done(unsafe { ibv_destroy_cq(self.cqs[at].at) }, END) {
            let cq = self.cqs.swap_remove(at);
            common.book.forget_queue(cq.at);
        }
    }

    fn call_about_memory(&mut self, common: &mut Common, call: Call) {
        match call {
            Call::Register { pd, place, access, iova } => self.register(common, pd, place, access, iova),
            Call::RegisterOther { pd, kind, len, access } => self.register_other(pd, kind, len, access),
            Call::Reregister { mr, flags, pd, place, access } => {
                let Some(mr) = pick(&self.mrs, mr) else { return };
                let (flags, access) = (c_int::from(flags), rights(access).cast_signed());
                let (addr, length) = (common.arena.address(place.at), place.length() as usize);
                let pd = self.pd(pd);
                // SAFETY: the objects exist; any memory range may be passed.
                let code = unsafe { ibv_rereg_mr(*mr, flags, pd, addr as *mut c_void, length, access) };
                // The call's own errors are negative, -1 to -6.
                assert!((-6..=0).contains(&code), "{code}");
            }
            Call::Advise { pd, advice, flags, mr, place, count } => {
                let (pd, lkey) = (self.pd(pd), self.lkey(mr));
                let (addr, length) = (common.arena.address(place.at), place.length());
                let mut sges = [ibv_sge { addr, length, lkey }; 8];
                let count = u32::from(count % 9);
                // SAFETY: the context is open, the domain valid or NULL, and there are that many elements.
                let code = unsafe {
                    let advise = table(self.context).advise_mr.expect("offered");
                    advise(pd, u32::from(advice % 5), flags.into(), sges.as_mut_ptr(), count)
                };
                _ = done(code, &[libc::EINVAL, libc::EFAULT, libc::EOPNOTSUPP, libc::EPERM]);
            }
            Call::Deregister { mr } => _ = end(&mut self.mrs, mr, ibv_dereg_mr),
            Call::AllocMw { pd, kind } if self.mws.len() < OBJECTS => {
                // SAFETY: the context is open, and the domain valid or NULL.
                let alloc = unsafe { ops(self.context).alloc_mw.expect("offered") };
                // SAFETY: likewise.
                self.mws.extend(made(unsafe { alloc(self.pd(pd), u32::from(kind % 4)) }, MAKE));
            }
            Call::DeallocMw { mw } => {
                // SAFETY: the context is open.
                let dealloc = unsafe { ops(self.context).dealloc_mw.expect("offered") };
                _ = end(&mut self.mws, mw, dealloc);
            }
            call => self.call_about_the_rest(common, call),
        }
    }

    pub(super) fn lkey(&self, mr: u8) -> u32 {
        // SAFETY: the region exists.
        pick(&self.mrs, mr).map_or(0, |mr| unsafe { (**mr).lkey })
    }

    /// What the other side knows about this one.
    pub(super) fn as_remote(&self) -> Remote {
        // SAFETY: all of them exist.
        unsafe {
            let (rkey, addr) = self.mrs.first().map_or((0, 0), |mr| ((**mr).rkey, (**mr).addr as u64));
            let qpns = self.qps.iter().map(|qp| (*qp.at).qp_num).collect();
            let get_srq_num = table(self.context).get_srq_num.expect("offered");
            let number = |srq: &*mut ibv_srq| {
                let mut number = 0;
                assert_eq!(get_srq_num(*srq, &raw mut number), 0);
                number
            };
            Remote { rkey, addr, qpns, srqns: self.srqs.iter().map(number).collect() }
        }
    }

    fn register(&mut self, common: &Common, pd: u8, place: Place, access: u32, iova: Option<u32>) {
        if self.mrs.len() >= OBJECTS {
            return;
        }
        let (pd, access) = (self.pd(pd), rights(access));
        let (mut addr, mut length) = (common.arena.address(place.at), place.length() as usize);
        if place.more == 1 {
            // All memory of the process; work requests only name the arena.
            (addr, length) = (0, usize::MAX);
        }
        let addr = addr as *mut c_void;
        // SAFETY: the domain is valid or NULL; any memory range may be passed.
        let mr = unsafe {
            match iova {
                None => ibv_reg_mr(pd, addr, length, access.cast_signed()),
                Some(iova) => ibv_reg_mr_iova2(pd, addr, length, common.arena.address(iova), access),
            }
        };
        self.mrs.extend(made(mr, REGISTER));
    }

    fn register_other(&mut self, pd: u8, kind: u8, len: u16, access: u32) {
        let pd = self.pd(pd);
        if self.mrs.len() >= OBJECTS || self.dms.len() >= OBJECTS {
            return;
        }
        // SAFETY: the context is open, and the domain valid or NULL.
        unsafe {
            let table = table(self.context);
            if kind.is_multiple_of(2) {
                self.mrs.extend(made(table.alloc_null_mr.expect("offered")(pd), MAKE));
                return;
            }
            let mut attr: ibv_alloc_dm_attr = zeroed();
            attr.length = len.into();
            let dm = made(table.alloc_dm.expect("offered")(self.context, &raw mut attr), MAKE);
            let Some(dm) = dm else { return };
            self.dms.push(dm);
            let flags = rights(access) | IBV_ACCESS_ZERO_BASED;
            let (offset, length) = (u64::from(access >> 16), usize::from(len) / 2);
            self.mrs.extend(made(table.reg_dm_mr.expect("offered")(pd, dm, offset, length, flags), REGISTER));
        }
    }

    #[expect(clippy::too_many_arguments, reason = "as many as the call has")]
    pub(super) fn bind_mw(
        &self,
        common: &mut Common,
        qp: u8,
        mw: u8,
        mr: u8,
        place: Place,
        access: u32,
        flags: u8,
    ) {
        let (Some(qp), Some(mw)) = (pick(&self.qps, qp), pick(&self.mws, mw)) else { return };
        let wr_id = common.book.number();
        let bind_info = ibv_mw_bind_info {
            mr: pointer(&self.mrs, mr),
            addr: common.arena.address(place.at),
            length: place.length().into(),
            mw_access_flags: rights(access),
        };
        let mut bind = ibv_mw_bind { wr_id, send_flags: flags.into(), bind_info };
        // SAFETY: the objects exist; the region is valid or NULL.
        unsafe {
            if done(ops(self.context).bind_mw.expect("offered")(qp.at, *mw, &raw mut bind), POST) {
                let owner = Owner::Qp(qp.at, (*qp.at).qp_num);
                common.book.post(wr_id, owner, u32::from(flags) & IBV_SEND_SIGNALED != 0);
                self.watch_queues(&mut common.book, qp.at);
            }
        }
    }

    fn call_about_the_rest(&mut self, common: &mut Common, call: Call) {
        match call {
            Call::CreateSrq { pd, wr, sge } if self.srqs.len() < OBJECTS => {
                let attr = ibv_srq_attr { max_wr: sane(wr), max_sge: sane(sge), srq_limit: 0 };
                let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
                // SAFETY: the domain is valid or NULL.
                self.srqs.extend(made(unsafe { ibv_create_srq(self.pd(pd), &raw mut init) }, MAKE));
            }
            Call::CreateSrqEx { pd, xrcd, cq, kind, mask, wr } if self.srqs.len() < OBJECTS => {
                self.create_srq_ex(pd, xrcd, cq, (kind, mask), wr);
            }
            Call::ModifySrq { srq, wr, limit, mask } => {
                let mut attr = ibv_srq_attr { max_wr: sane(wr), max_sge: 1, srq_limit: sane(limit) };
                let srq = pointer(&self.srqs, srq);
                // SAFETY: the queue is valid or NULL.
                _ = done(unsafe { ibv_modify_srq(srq, &raw mut attr, mask.into()) }, CHANGE);
                // SAFETY: likewise.
                let found = done(unsafe { ibv_query_srq(srq, &raw mut attr) }, CHANGE);
                assert_eq!(found, !srq.is_null());
            }
            Call::DestroySrq { srq } => {
                self.async_events();
                let ended = end(&mut self.srqs, srq, ibv_destroy_srq);
                ended.into_iter().for_each(|srq| common.book.orphan(srq));
            }
            Call::OpenXrcd { mask, fd, oflags } if self.xrcds.len() < OBJECTS => {
                // An existing file, no file, or an invalid descriptor.
                let file = std::fs::File::open("/dev/null").ok();
                let own = file.as_ref().map_or(-1, std::os::fd::AsRawFd::as_raw_fd);
                let fd = match fd % 4 {
                    0 => own,
                    1 => -2,
                    _ => -1,
                };
                let oflags = if oflags & 1 == 0 { libc::O_CREAT } else { libc::O_EXCL };
                let mut init = ibv_xrcd_init_attr { comp_mask: u32::from(mask), fd, oflags };
                // SAFETY: the context is open.
                let opened =
                    unsafe { table(self.context).open_xrcd.expect("offered")(self.context, &raw mut init) };
                let errors = [libc::EINVAL, libc::ENOMEM, libc::EBADF, libc::EAGAIN];
                self.xrcds.extend(made(opened, &errors));
            }
            Call::CloseXrcd { xrcd } => {
                // SAFETY: the context is open.
                let close = unsafe { table(self.context).close_xrcd.expect("offered") };
                _ = end(&mut self.xrcds, xrcd, close);
            }
            Call::CreateAh { pd, way } if self.ahs.len() < OBJECTS => {
                let mut attr = way.attributes(common);
                // SAFETY: the domain is valid or NULL.
                self.ahs.extend(made(unsafe { ibv_create_ah(self.pd(pd), &raw mut attr) }, MAKE));
            }
            Call::CreateAhFromWc { pd, flags, at, port } if self.ahs.len() < OBJECTS => {
                // SAFETY: a structure of numbers.
                let mut wc: ibv_wc = unsafe { zeroed() };
                wc.wc_flags = flags.into();
                let (grh, _) = common.arena.readable(at.into(), 0);
                // SAFETY: the domain is valid or NULL; the arena's pages are contiguous, so 40 bytes are readable.
                let ah =
                    unsafe { ibv_create_ah_from_wc(self.pd(pd), &raw mut wc, grh as *mut ibv_grh, port) };
                self.ahs.extend(made(ah, MAKE));
            }
            Call::DestroyAh { ah } => _ = end(&mut self.ahs, ah, ibv_destroy_ah),
            _ => {}
        }
    }

    fn create_srq_ex(&mut self, pd: u8, xrcd: u8, cq: u8, (kind, mask): (u8, u8), wr: u32) {
        // SAFETY: a structure of numbers and pointers; the objects in it are valid or NULL.
        let srq = unsafe {
            let mut init: ibv_srq_init_attr_ex = zeroed();
            init.attr = ibv_srq_attr { max_wr: sane(wr), max_sge: 2, srq_limit: 0 };
            init.srq_type = u32::from(kind % 4);
            init.comp_mask = u32::from(mask);
            (init.pd, init.xrcd) = (self.pd(pd), pointer(&self.xrcds, xrcd));
            init.cq = pick(&self.cqs, cq).map_or(null_mut(), |cq| cq.at);
            made(table(self.context).create_srq_ex.expect("offered")(self.context, &raw mut init), MAKE)
        };
        self.srqs.extend(srq);
    }
}

impl Way {
    /// The path attributes of an address handle or a queue pair.
    pub(super) fn attributes(self, common: &Common) -> ibv_ah_attr {
        // SAFETY: a structure of numbers.
        let mut attr: ibv_ah_attr = unsafe { zeroed() };
        attr.grh.dgid = match self.to {
            0..=0xdf => common.gids[usize::from(self.to & 1)],
            to => ibv_gid { raw: [to; 16] },
        };
        attr.grh.sgid_index = self.index.saturating_sub(0xf0);
        (attr.grh.hop_limit, attr.grh.traffic_class) = (64, self.class);
        attr.sl = self.sl;
        attr.is_global = u8::from(self.global < 0xf0);
        attr.port_num = 1 ^ self.port.saturating_sub(0xf0);
        attr
    }
}
