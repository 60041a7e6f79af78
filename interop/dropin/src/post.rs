//! Posting work requests.

use crate::abi::*;
use crate::ah::Ah;
use crate::call::{List, Object, Out, list, verbs};
use crate::errno::Errno;
use crate::mr::{Mr, access};
use crate::qp::Qp;
use crate::srq::Srq;
use rnic::{
    Bind, Destination, Error, Gather, Operation, PostError, QKey, QpType, Qpn, RecvWr, Remote, SendFlags,
    SendWr, Sge,
};
use std::ffi::c_int;

/// The largest number of elements that a device takes: a longer list is refused before it is read.
const MAX_SGE: usize = 32;

/// The scatter/gather elements of a work request.
pub(crate) fn elements<'a>(first: *const ibv_sge, count: c_int) -> Result<List<'a, ibv_sge>, Errno> {
    let known = usize::try_from(count).ok().filter(|count| *count <= MAX_SGE);
    let refused =
        || Errno::INVALID.because(format_args!("num_sge is {count}; this device takes 0 to {MAX_SGE}"));
    let count = known.ok_or_else(refused)?;
    if first.is_null() && count > 0 {
        return Err(Errno::INVALID.because(format_args!("num_sge is {count}, and sg_list is NULL")));
    }
    // SAFETY: the program guarantees `count` elements, and leaves them unchanged until the call returns.
    Ok(unsafe { list(first, count) })
}

pub(crate) const fn sge(of: ibv_sge) -> Sge {
    Sge { addr: of.addr, length: of.length, lkey: of.lkey }
}

/// The memory that a work request names.
pub(crate) fn gather(sges: List<'_, ibv_sge>) -> Gather {
    let mut each = sges.iter().map(sge);
    match sges.len() {
        0 => Gather::Empty,
        1 => each.next().map_or(Gather::Empty, Gather::One),
        _ => Gather::Many(each.collect()),
    }
}

/// The inline data of a work request: a copy of the bytes in the program's memory, at most `max`.
pub(crate) fn inline<'a>(
    parts: impl Iterator<Item = (*const u8, usize)> + Clone + 'a,
    max: u32,
) -> Result<Gather, Errno> {
    let length = parts.clone().try_fold(0usize, |sum, (_, length)| sum.checked_add(length));
    let given = length.unwrap_or(usize::MAX);
    let length = length.filter(|length| *length <= max as usize);
    let length = length.ok_or_else(|| Errno::from(Error::Post(PostError::TooMuchInline { given, max })))?;
    let mut bytes = Vec::with_capacity(length);
    for (addr, length) in parts {
        if addr.is_null() && length > 0 {
            return Err(Errno(libc::EFAULT).because("the address of inline data is NULL"));
        }
        // SAFETY: the program guarantees `length` bytes at `addr`.
        bytes.extend_from_slice(unsafe { crate::call::bytes(addr, length) });
    }
    Ok(Gather::Inline(bytes.into_boxed_slice()))
}

/// The operation of a work request.
fn operation(wr: &ibv_send_wr) -> Result<Operation, Errno> {
    // SAFETY: the union fields consist of numbers and pointers, for which any bit pattern is valid; the opcode
    // determines which fields count.
    let (number, rdma, atomic) = unsafe { (wr.__bindgen_anon_1.invalidate_rkey, wr.wr.rdma, wr.wr.atomic) };
    let imm = u32::from_be(number);
    let remote = Remote { addr: rdma.remote_addr, rkey: rdma.rkey };
    let counter = Remote { addr: atomic.remote_addr, rkey: atomic.rkey };
    Ok(match wr.opcode {
        IBV_WR_RDMA_WRITE => Operation::Write { remote, imm: None },
        IBV_WR_RDMA_WRITE_WITH_IMM => Operation::Write { remote, imm: Some(imm) },
        IBV_WR_SEND => Operation::Send { imm: None, invalidate: None },
        IBV_WR_SEND_WITH_IMM => Operation::Send { imm: Some(imm), invalidate: None },
        IBV_WR_SEND_WITH_INV => Operation::Send { imm: None, invalidate: Some(number) },
        IBV_WR_RDMA_READ => Operation::Read { remote },
        IBV_WR_ATOMIC_CMP_AND_SWP => {
            Operation::CompareSwap { remote: counter, compare: atomic.compare_add, swap: atomic.swap }
        }
        IBV_WR_ATOMIC_FETCH_AND_ADD => Operation::FetchAdd { remote: counter, add: atomic.compare_add },
        IBV_WR_LOCAL_INV => Operation::LocalInvalidate { key: number },
        IBV_WR_ATOMIC_WRITE => Operation::AtomicWrite { remote },
        IBV_WR_BIND_MW => {
            // SAFETY: the opcode selects this union field.
            let of = unsafe { wr.__bindgen_anon_2.bind_mw };
            Operation::BindWindow(bind(of.mw, of.rkey, &of.bind_info)?)
        }
        other => {
            return Err(
                Errno::INVALID.because(format_args!("opcode {other} is not one that this device has"))
            );
        }
    })
}

/// The operands of a bind.
pub(crate) fn bind(mw: *const ibv_mw, key: u32, info: &ibv_mw_bind_info) -> Result<Bind, Errno> {
    // SAFETY: the program guarantees that the window and the region exist.
    let (window, mr) = unsafe { (mw.as_ref(), Mr::of(info.mr)) };
    let lkey = match mr {
        Some(mr) => mr.lkey(),
        // Unbinds the window.
        None if info.length == 0 => 0,
        None => {
            return Err(Errno::INVALID.because("bind_info names no memory region, and its length is not 0"));
        }
    };
    Ok(Bind {
        window: window.ok_or_else(|| Errno::INVALID.because("mw is NULL"))?.rkey,
        key,
        lkey,
        access: access(info.mw_access_flags),
        addr: info.addr,
        len: info.length,
    })
}

/// The destination of a work request on a queue pair of this type.
fn destination(qp_type: QpType, wr: &ibv_send_wr) -> Result<Destination, Errno> {
    // SAFETY: the union fields consist of numbers and pointers, for which any bit pattern is valid; the type determines
    // which fields count.
    let (ud, srqn) = unsafe { (wr.wr.ud, wr.qp_type.xrc.remote_srqn) };
    Ok(match qp_type {
        QpType::Ud => datagram(ud.ah, ud.remote_qpn, ud.remote_qkey)?,
        QpType::XrcSend => Destination::XrcSrq(srqn),
        _ => Destination::Connected,
    })
}

/// The destination of a datagram.
pub(crate) fn datagram(ah: *mut ibv_ah, qpn: u32, qkey: u32) -> Result<Destination, Errno> {
    // SAFETY: the program created it and has not destroyed it.
    let ah = unsafe { Ah::of(ah) };
    let ah = ah.ok_or_else(|| {
        Errno::INVALID.because("wr.ud.ah is NULL: a UD work request needs an address handle")
    })?;
    Ok(ah.inner.datagram(Qpn::new(qpn), QKey(qkey)))
}

/// The flags that concern the transport.
pub(crate) fn flags(of: u32) -> SendFlags {
    SendFlags::from_bits_truncate(of)
}

fn send(qp: &Qp, wr: &ibv_send_wr) -> Result<SendWr, Errno> {
    let sges = elements(wr.sg_list, wr.num_sge)?;
    let data = if wr.send_flags & IBV_SEND_INLINE == 0 {
        gather(sges)
    } else {
        inline(sges.iter().map(|sge| (sge.addr as *const u8, sge.length as usize)), qp.cap.max_inline_data)?
    };
    let operation = operation(wr)?;
    let data = if operation.is_local() { Gather::Empty } else { data };
    Ok(SendWr {
        wr_id: wr.wr_id,
        operation,
        data,
        flags: flags(wr.send_flags),
        to: destination(qp.qp_type, wr)?,
    })
}

fn receive(wr: &ibv_recv_wr) -> Result<RecvWr, Errno> {
    Ok(RecvWr { wr_id: wr.wr_id, data: gather(elements(wr.sg_list, wr.num_sge)?) })
}

/// A list of work requests, as programs link them.
trait Chain: Sized {
    fn next(&self) -> *mut Self;
}

impl Chain for ibv_send_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl Chain for ibv_recv_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

/// Walks a list of work requests. Each is read where it lies, which may be in a packed structure.
struct Walk<T>(*mut T);

impl<T: Chain> Iterator for Walk<T> {
    type Item = (*mut T, T);

    fn next(&mut self) -> Option<(*mut T, T)> {
        let at = self.0;
        if at.is_null() {
            return None;
        }
        // SAFETY: the program leaves the list unchanged until the call returns.
        let wr = unsafe { at.read_unaligned() };
        self.0 = wr.next();
        Some((at, wr))
    }
}

/// The errno for an error that keeps a work request out of a queue.
pub(crate) fn refused(qp: &Qp, error: Error) -> Errno {
    let full = matches!(error, Error::Post(PostError::QueueFull { queue: "send", .. }));
    let silent = if full && rnic::explain::is_on() {
        qp.inner.get().map_or(0, |inner| inner.unsignalled())
    } else {
        0
    };
    if silent == 0 {
        return error.into();
    }
    let text = error.to_string();
    Errno::from(error).because(format_args!(
        "{text}; {silent} unsignalled requests fill the send queue: only a completion says that their places are free"
    ))
}

/// Posts a list with `post`, whose error carries the number of work requests accepted before the refused one. `bad`
/// receives the refused one.
fn post<T: Chain, W>(
    first: *mut T,
    bad: Option<&Out<*mut T>>,
    explained: impl FnOnce(Error) -> Errno,
    convert: impl Fn(&T) -> Result<W, Errno>,
    post: impl FnOnce(&mut dyn Iterator<Item = W>) -> Result<(), (usize, Error)>,
) -> Result<(), Errno> {
    let (mut converted, mut wrong) = (0, None);
    let mut wrs = Walk(first).map_while(|(_, wr)| {
        convert(&wr).inspect(|_| converted += 1).map_err(|errno| wrong = Some(errno)).ok()
    });
    let posted = post(&mut wrs);
    let (before, errno) = match (posted, wrong) {
        (Ok(()), None) => return Ok(()),
        (Err((before, error)), _) => (before, explained(error)),
        (Ok(()), Some(errno)) => (converted, errno),
    };
    if let Some(bad) = bad {
        bad.put(Walk(first).nth(before).map_or(std::ptr::null_mut(), |(at, _)| at));
    }
    Err(errno)
}

verbs! {
    fn post_send(qp: &Qp, first: *mut ibv_send_wr, bad: Option<Out<*mut ibv_send_wr>>) -> () {
        let inner = qp.inner.get()?;
        post(first, bad.as_ref(), |error| refused(qp, error), |wr| send(qp, wr), |wrs| inner.post_sends(wrs))
    }

    fn post_recv(qp: &Qp, first: *mut ibv_recv_wr, bad: Option<Out<*mut ibv_recv_wr>>) -> () {
        let inner = qp.inner.get()?;
        post(first, bad.as_ref(), Errno::from, receive, |wrs| inner.post_recvs(wrs))
    }

    fn post_srq_recv(srq: &Srq, first: *mut ibv_recv_wr, bad: Option<Out<*mut ibv_recv_wr>>) -> () {
        let inner = srq.inner.get()?;
        post(first, bad.as_ref(), Errno::from, receive, |wrs| {
            wrs.enumerate().try_for_each(|(before, wr)| inner.post_recv(wr).map_err(|error| (before, error)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As libiscsi has them: behind a byte, in a structure without padding.
    #[repr(C, packed)]
    struct Packed {
        before: u8,
        wr: ibv_recv_wr,
        sges: [ibv_sge; 2],
    }

    #[test]
    fn work_requests_in_packed_structures_are_read() {
        // SAFETY: all zeroes is a value of each.
        let mut packed: Box<Packed> = Box::new(unsafe { std::mem::zeroed() });
        packed.sges = [ibv_sge { addr: 1, length: 2, lkey: 3 }, ibv_sge { addr: 4, length: 5, lkey: 6 }];
        let mut wr =
            ibv_recv_wr { wr_id: 7, next: std::ptr::null_mut(), sg_list: std::ptr::null_mut(), num_sge: 2 };
        wr.sg_list = (&raw mut packed.sges).cast();
        packed.wr = wr;
        assert!(!wr.sg_list.is_aligned() || !(&raw const packed.wr).is_aligned());
        let read: Vec<_> =
            Walk(&raw mut packed.wr).map(|(_, wr)| receive(&wr).map_err(|errno| errno.0)).collect();
        let expected = [Sge { addr: 1, length: 2, lkey: 3 }, Sge { addr: 4, length: 5, lkey: 6 }];
        assert_eq!(read, [Ok(RecvWr { wr_id: 7, data: Gather::Many(expected.into()) })]);
        assert_eq!(packed.before, 0);
    }
}
