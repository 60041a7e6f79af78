//! Posting: lists of work requests, and work requests that are built by calls.

use super::book::{Owner, POST, done};
use super::objects::Remote;
use super::queue_pairs::QKEY;
use super::side::{Side, pick, pointer};
use super::symbols::*;
use super::{Book, Common, Place};
use arbitrary::Arbitrary;
use rnic_dropin::abi::*;
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null_mut;

/// A work request for a send queue.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Send {
    opcode: u8,
    flags: u8,
    local: Local,
    remote: u32,
    /// Whether the address and the key of the other side belong to a region there.
    real: u8,
    number: u32,
    ah: u8,
    object: u8,
}

/// The memory that a work request names.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Local {
    mr: u8,
    count: u8,
    place: Place,
    /// Whether to use an invalid key.
    wrong: bool,
}

/// A work request for a receive queue.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Receive {
    local: Local,
    times: u8,
}

impl Local {
    /// `len` bytes of a region.
    #[cfg(test)]
    pub(super) const fn plain(len: u16) -> Self {
        Self { mr: 0, count: 1, place: Place { at: 64, len, more: 0 }, wrong: false }
    }
}

impl Send {
    /// A signalled one, to the queue pair with the same index at the other side.
    #[cfg(test)]
    pub(super) const fn plain(opcode: u8, len: u16, object: u8) -> Self {
        let (flags, local) = (IBV_SEND_SIGNALED as u8, Local::plain(len));
        Self { opcode, flags, local, remote: 8, real: 0, number: 0, ah: 0, object }
    }
}

impl Receive {
    /// A few receives.
    #[cfg(test)]
    pub(super) const fn plain() -> Self {
        Self { local: Local::plain(0x2000), times: 3 }
    }
}

/// Work requests that are built by calls, in any order.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Build {
    steps: [u8; 6],
    send: Send,
    abort: u8,
}

/// Number of elements that a work request may name here: more than any device supports.
const SGES: usize = 40;

impl Local {
    /// The elements, and the number that the work request claims. The claim may be anything, but all elements that
    /// are read exist.
    fn elements(&self, common: &Common, side: &Side, inline: bool) -> ([ibv_sge; SGES], c_int) {
        let lkey = if self.wrong { 0x1234 } else { side.lkey(self.mr) };
        let sge = |at: u32| {
            let word = self.place.at.wrapping_add(at * 64);
            let (addr, length) = match inline {
                true => common.arena.readable(word, self.place.length()),
                false => (common.arena.address(word), self.place.length()),
            };
            ibv_sge { addr, length, lkey }
        };
        let count = match self.count {
            0..0xc0 => c_int::from(self.count % 4),
            0xc0..0xf0 => c_int::from(self.count - 0xc0) % 40,
            0xf0..0xf8 => -c_int::from(self.count),
            // The library reads no element beyond the device's maximum.
            _ => c_int::MAX,
        };
        (std::array::from_fn(|at| sge(at as u32)), count)
    }
}

/// Number of work requests posted from a list: all, or those before the refused one.
fn posted<T>(code: c_int, list: &[T], bad: *const T) -> usize {
    if done(code, POST) {
        return list.len();
    }
    let refused = list.iter().position(|wr| std::ptr::eq(wr, bad));
    refused.expect("the one that was refused is one of the list")
}

impl Side {
    /// Records that the queues of a queue pair may receive one more completion.
    pub(super) fn watch_queues(&self, book: &mut Book, qp: *mut ibv_qp) {
        // SAFETY: the queue pair exists, and so do its queues.
        unsafe {
            for cq in [(*qp).send_cq, (*qp).recv_cq] {
                if !cq.is_null() {
                    book.watch(cq, (*cq).cqe);
                }
            }
        }
    }

    pub(super) fn post_send(&self, common: &mut Common, qp: u8, send: &Send, times: u8, remote: &Remote) {
        let Some(qp) = pick(&self.qps, qp).map(|qp| qp.at) else { return };
        let (mut sges, count) =
            send.local.elements(common, self, u32::from(send.flags) & IBV_SEND_INLINE != 0);
        let wr = self.send(common, qp, send, remote, &mut sges, count);
        let mut list: Vec<_> = (0..times % 4).map(|_| wr).collect();
        for at in 0..list.len() {
            list[at].wr_id = common.book.number();
            list[at].next = list.get_mut(at + 1).map_or(null_mut(), std::ptr::from_mut);
        }
        let (first, mut bad) = (list.first_mut().map_or(null_mut(), std::ptr::from_mut), null_mut());
        // SAFETY: the queue pair exists, and so do the objects in the list.
        let (code, number, all) = unsafe {
            let post = ops(self.context).post_send.expect("offered");
            (post(qp, first, &raw mut bad), (*qp).qp_num, signals_all(qp))
        };
        let owed = all || u32::from(send.flags) & IBV_SEND_SIGNALED != 0;
        for wr in list.iter().take(posted(code, &list, bad)) {
            common.book.post(wr.wr_id, Owner::Qp(qp, number), owed);
        }
        self.watch_queues(&mut common.book, qp);
    }

    /// The remote address and key that a work request names.
    fn remote(&self, common: &Common, send: &Send, remote: &Remote) -> (u64, u32) {
        let Remote { rkey, addr, .. } = *remote;
        match send.real {
            0..0xc0 if addr != 0 => (addr.wrapping_add(u64::from(send.remote & 0xfff)), rkey),
            // Regions that start at 0 are device memory, or all memory: work requests name the arena there.
            0..0xe0 => (common.arena.address(send.remote), rkey),
            _ => (common.arena.address(send.remote), send.number),
        }
    }

    fn send(
        &self,
        common: &Common,
        qp: *mut ibv_qp,
        send: &Send,
        remote: &Remote,
        sges: &mut [ibv_sge],
        count: c_int,
    ) -> ibv_send_wr {
        // SAFETY: a structure of numbers and pointers.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        wr.sg_list = sges.as_mut_ptr();
        wr.num_sge = count;
        wr.opcode = u32::from(if send.opcode < 0xf0 { send.opcode % 16 } else { send.opcode });
        wr.send_flags = u32::from(send.flags);
        wr.__bindgen_anon_1.imm_data = send.number;
        let (remote_addr, rkey) = self.remote(common, send, remote);
        // SAFETY: the queue pair exists.
        let qp_type = unsafe { (*qp).qp_type };
        match (qp_type, wr.opcode) {
            (IBV_QPT_UD, _) => {
                wr.wr.ud.ah = pointer(&self.ahs, send.ah);
                wr.wr.ud.remote_qpn = pick(&remote.qpns, send.object).copied().unwrap_or(send.number);
                wr.wr.ud.remote_qkey = if send.real < 0xe0 { QKEY } else { send.number };
            }
            (_, IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD) => {
                wr.wr.atomic.remote_addr = remote_addr;
                wr.wr.atomic.compare_add = send.number.into();
                wr.wr.atomic.rkey = rkey;
            }
            _ => {
                wr.wr.rdma.remote_addr = remote_addr;
                wr.wr.rdma.rkey = rkey;
            }
        }
        match wr.opcode {
            IBV_WR_BIND_MW => {
                let mw = pointer(&self.mws, send.object);
                wr.__bindgen_anon_2.bind_mw.mw = mw;
                wr.__bindgen_anon_2.bind_mw.rkey = send.number;
                wr.__bindgen_anon_2.bind_mw.bind_info = self.bind_info(common, send);
            }
            IBV_WR_LOCAL_INV | IBV_WR_SEND_WITH_INV if send.real & 1 == 0 => {
                wr.__bindgen_anon_1.invalidate_rkey = rkey;
            }
            _ => {}
        }
        let srqn = pick(&remote.srqns, send.object).copied();
        wr.qp_type.xrc.remote_srqn = srqn.unwrap_or(send.object.into());
        wr
    }

    fn bind_info(&self, common: &Common, send: &Send) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: pointer(&self.mrs, send.local.mr),
            addr: common.arena.address(send.local.place.at),
            length: send.local.place.length().into(),
            mw_access_flags: u32::from(send.ah),
        }
    }

    pub(super) fn post_recv(&self, common: &mut Common, qp: u8, receive: &Receive) {
        let Some(qp) = pick(&self.qps, qp).map(|qp| qp.at) else { return };
        // SAFETY: the queue pair exists.
        let (number, post) = unsafe { ((*qp).qp_num, ops(self.context).post_recv.expect("offered")) };
        // SAFETY: likewise, and so do the objects in the list.
        self.receive(common, receive, Owner::Qp(qp, number), |first, bad| unsafe { post(qp, first, bad) });
        self.watch_queues(&mut common.book, qp);
    }

    pub(super) fn post_srq(&self, common: &mut Common, srq: u8, receive: &Receive) {
        let Some(srq) = pick(&self.srqs, srq).copied() else { return };
        // SAFETY: the context is open.
        let post = unsafe { ops(self.context).post_srq_recv.expect("offered") };
        // SAFETY: the queue exists, and so do the objects in the list.
        self.receive(common, receive, Owner::Srq(srq), |first, bad| unsafe { post(srq, first, bad) });
        // A completion queue may receive their completions, through any queue pair.
        self.cqs.iter().for_each(|cq| common.book.watch(cq.at, 0));
    }

    fn receive(
        &self,
        common: &mut Common,
        receive: &Receive,
        owner: Owner,
        post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    ) {
        let (mut sges, count) = receive.local.elements(common, self, false);
        let mut list: Vec<_> = (0..receive.times % 4)
            .map(|_| ibv_recv_wr {
                wr_id: common.book.number(),
                next: null_mut(),
                sg_list: sges.as_mut_ptr(),
                num_sge: count,
            })
            .collect();
        for at in 0..list.len() {
            list[at].next = list.get_mut(at + 1).map_or(null_mut(), std::ptr::from_mut);
        }
        let (first, mut bad) = (list.first_mut().map_or(null_mut(), std::ptr::from_mut), null_mut());
        let code = post(first, &raw mut bad);
        for wr in list.iter().take(posted(code, &list, bad)) {
            common.book.post(wr.wr_id, owner, true);
        }
    }

    /// Builds work requests by calls, in any order, between a start and an end.
    pub(super) fn build(&self, common: &mut Common, qp: u8, build: &Build, remote: &Remote) {
        let Some(qp) = pick(&self.qps, qp).map(|qp| qp.at) else { return };
        // SAFETY: the queue pair exists, and so do all objects named; every start has an end.
        unsafe {
            let by = ibv_qp_to_qp_ex(qp);
            if by.is_null() {
                return;
            }
            (*by).wr_start.expect("offered")(by);
            let mut begun = Vec::new();
            for step in build.steps {
                if step < 0x80 {
                    (*by).wr_id = common.book.number();
                    (*by).wr_flags = u32::from(build.send.flags);
                    if self.begin(common, by, step, &build.send, remote) {
                        begun.push((*by).wr_id);
                    }
                } else {
                    self.complete(common, by, step, &build.send, remote);
                }
            }
            if build.abort > 0xe0 {
                (*by).wr_abort.expect("offered")(by);
            } else if done((*by).wr_complete.expect("offered")(by), POST) {
                let owed = signals_all(qp) || u32::from(build.send.flags) & IBV_SEND_SIGNALED != 0;
                for wr_id in begun {
                    common.book.post(wr_id, Owner::Qp(qp, (*qp).qp_num), owed);
                }
            }
        }
        self.watch_queues(&mut common.book, qp);
    }

    /// Starts a work request. Returns whether such a call exists.
    ///
    /// # Safety
    ///
    /// The queue pair exists, and has been started.
    unsafe fn begin(
        &self,
        common: &Common,
        by: *mut ibv_qp_ex,
        step: u8,
        send: &Send,
        remote: &Remote,
    ) -> bool {
        let (addr, rkey) = self.remote(common, send, remote);
        let (number, wide) = (send.number, u64::from(send.number));
        // SAFETY: the caller guarantees it.
        unsafe {
            match step % 12 {
                0 => (*by).wr_send.expect("offered")(by),
                1 => (*by).wr_send_imm.expect("offered")(by, number),
                2 => (*by).wr_send_inv.expect("offered")(by, rkey),
                3 => (*by).wr_rdma_write.expect("offered")(by, rkey, addr),
                4 => (*by).wr_rdma_write_imm.expect("offered")(by, rkey, addr, number),
                5 => (*by).wr_rdma_read.expect("offered")(by, rkey, addr),
                6 => (*by).wr_atomic_cmp_swp.expect("offered")(by, rkey, addr, wide, !wide),
                7 => (*by).wr_atomic_fetch_add.expect("offered")(by, rkey, addr, wide),
                8 => {
                    let (value, _) = common.arena.readable(send.local.place.at, 8);
                    (*by).wr_atomic_write.expect("offered")(by, rkey, addr, value as *const _);
                }
                9 => (*by).wr_local_inv.expect("offered")(by, rkey ^ u32::from(send.ah & 1)),
                10 => {
                    let mw = pointer(&self.mws, send.object);
                    let info = self.bind_info(common, send);
                    (*by).wr_bind_mw.expect("offered")(by, mw, number, &raw const info);
                }
                // The calls of later header versions come after all others; they do nothing here.
                _ => return false,
            }
        }
        true
    }

    /// Adds details to the work request that was started last.
    ///
    /// # Safety
    ///
    /// The queue pair exists, and has been started.
    unsafe fn complete(&self, common: &Common, by: *mut ibv_qp_ex, step: u8, send: &Send, remote: &Remote) {
        let place = send.local.place;
        let (addr, length) = common.arena.readable(place.at, place.length());
        let buffers = [ibv_data_buf { addr: addr as *mut _, length: length as usize / 2 }; 2];
        let (sges, count) = send.local.elements(common, self, false);
        // SAFETY: the caller guarantees it.
        unsafe {
            match step % 6 {
                0 => {
                    let qpn = pick(&remote.qpns, send.object).copied().unwrap_or(send.number);
                    (*by).wr_set_ud_addr.expect("offered")(by, pointer(&self.ahs, send.ah), qpn, QKEY);
                }
                1 => {
                    let srqn = pick(&remote.srqns, send.object).copied();
                    (*by).wr_set_xrc_srqn.expect("offered")(by, srqn.unwrap_or(send.object.into()));
                }
                2 => (*by).wr_set_inline_data.expect("offered")(by, addr as *mut _, length as usize),
                3 => (*by).wr_set_inline_data_list.expect("offered")(by, 2, buffers.as_ptr()),
                4 => {
                    let place = common.arena.address(place.at);
                    (*by).wr_set_sge.expect("offered")(by, self.lkey(send.local.mr), place, length);
                }
                // As a size, the number is just as arbitrary.
                _ => (*by).wr_set_sge_list.expect("offered")(by, count as usize, sges.as_ptr()),
            }
        }
    }
}

/// Whether all work requests of a send queue are signalled.
///
/// # Safety
///
/// The queue pair exists.
unsafe fn signals_all(qp: *mut ibv_qp) -> bool {
    // SAFETY: structures of numbers and pointers; the queue pair exists.
    unsafe {
        let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = (zeroed(), zeroed());
        ibv_query_qp(qp, &raw mut attr, 0, &raw mut init);
        init.sq_sig_all != 0
    }
}
