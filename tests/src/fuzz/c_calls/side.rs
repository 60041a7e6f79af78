//! One device of a program, and its objects.

use super::book::{Book, CHANGE, END, MAKE, done, made, went};
use super::symbols::*;
use super::{Call, Common};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rnic_dropin::abi::*;
use std::ffi::c_int;
use std::mem::zeroed;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

/// Maximum number of objects of each kind, so that later calls use earlier objects.
pub(super) const OBJECTS: usize = 4;

/// A completion queue; `ex`: its completions can be read field by field.
#[derive(Clone, Copy)]
pub(super) struct Cq {
    pub(super) at: *mut ibv_cq,
    pub(super) ex: bool,
}

/// A queue pair.
pub(super) struct Qp {
    pub(super) at: *mut ibv_qp,
    pub(super) groups: Vec<u8>,
}

/// How a protection domain was created.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Domain {
    Own,
    Parent,
    Imported,
}

pub(super) struct Side {
    pub(super) context: *mut ibv_context,
    pub(super) index: usize,
    pub(super) pds: Vec<(*mut ibv_pd, Domain)>,
    pub(super) tds: Vec<*mut ibv_td>,
    pub(super) channels: Vec<*mut ibv_comp_channel>,
    pub(super) cqs: Vec<Cq>,
    pub(super) mrs: Vec<*mut ibv_mr>,
    pub(super) dms: Vec<*mut ibv_dm>,
    pub(super) mws: Vec<*mut ibv_mw>,
    pub(super) srqs: Vec<*mut ibv_srq>,
    pub(super) xrcds: Vec<*mut ibv_xrcd>,
    pub(super) ahs: Vec<*mut ibv_ah>,
    pub(super) qps: Vec<Qp>,
}

/// The object that a number selects; `None` if there is none.
pub(super) fn pick<T>(list: &[T], which: u8) -> Option<&T> {
    list.get(usize::from(which) % list.len().max(1))
}

/// The same for pointers: NULL if there is none, which the library refuses.
pub(super) fn pointer<T>(list: &[*mut T], which: u8) -> *mut T {
    pick(list, which).copied().unwrap_or(null_mut())
}

/// The index of the object that a number selects.
pub(super) fn place<T>(list: &[T], which: u8) -> Option<usize> {
    (!list.is_empty()).then(|| usize::from(which) % list.len())
}

/// Makes a descriptor of the library non-blocking.
pub(super) fn never_wait(fd: c_int) {
    // SAFETY: the library has opened it, and closes it with its object.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("an open descriptor");
}

fn open(index: usize) -> *mut ibv_context {
    let mut count = 0;
    // SAFETY: as the manual pages say.
    unsafe {
        let list = ibv_get_device_list(&raw mut count);
        assert!(!list.is_null() && count == 2, "{count} devices");
        let context = made(ibv_open_device(*list.add(index)), &[]).expect("a context");
        ibv_free_device_list(list);
        never_wait((*context).async_fd);
        context
    }
}

impl Side {
    pub(super) fn open(index: usize) -> Self {
        let context = open(index);
        // SAFETY: the context is open.
        let pd = made(unsafe { ibv_alloc_pd(context) }, &[]).expect("a domain");
        // SAFETY: likewise.
        let cq = made(unsafe { ibv_create_cq(context, 100, null_mut(), null_mut(), 0) }, &[]);
        Self {
            context,
            index,
            pds: vec![(pd, Domain::Own)],
            tds: Vec::new(),
            channels: Vec::new(),
            cqs: vec![Cq { at: cq.expect("a queue"), ex: false }],
            mrs: Vec::new(),
            dms: Vec::new(),
            mws: Vec::new(),
            srqs: Vec::new(),
            xrcds: Vec::new(),
            ahs: Vec::new(),
            qps: Vec::new(),
        }
    }

    /// The address of the port.
    pub(super) fn gid(&self) -> ibv_gid {
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open, and there is room.
        assert_eq!(unsafe { ibv_query_gid(self.context, 1, 0, &raw mut gid) }, 0);
        gid
    }

    pub(super) fn pd(&self, which: u8) -> *mut ibv_pd {
        pick(&self.pds, which).map_or(null_mut(), |(pd, _)| *pd)
    }

    /// The calls that do not concern queue pairs.
    pub(super) fn call(&mut self, common: &mut Common, call: Call) {
        match call {
            Call::AllocPd if self.pds.len() < OBJECTS => {
                // SAFETY: the context is open.
                let pd = made(unsafe { ibv_alloc_pd(self.context) }, MAKE);
                self.pds.extend(pd.map(|pd| (pd, Domain::Own)));
            }
            Call::AllocPd => {}
            Call::ParentDomain { pd, thread } => self.parent_domain(pd, thread),
            Call::ImportPd { pd } => self.import_pd(pd),
            Call::DeallocPd { pd } => self.dealloc_pd(pd),
            Call::OpenOnceMore => self.open_once_more(),
            Call::Query { what, port, index } => self.query(what, port, index.into()),
            Call::AsyncEvents => self.async_events(),
            call => self.call_about_objects(common, call),
        }
    }

    fn parent_domain(&mut self, pd: u8, thread: bool) {
        if self.pds.len() >= OBJECTS {
            return;
        }
        // SAFETY: the context is open, and so are the domains.
        unsafe {
            let table = table(self.context);
            let (alloc_td, alloc) =
                (table.alloc_td.expect("offered"), table.alloc_parent_domain.expect("offered"));
            let mut td = null_mut();
            if thread {
                let mut init = ibv_td_init_attr { comp_mask: 0 };
                td = made(alloc_td(self.context, &raw mut init), MAKE).unwrap_or(null_mut());
                self.tds.extend((!td.is_null()).then_some(td));
            }
            let mut init: ibv_parent_domain_init_attr = zeroed();
            (init.pd, init.td) = (self.pd(pd), td);
            let parent = made(alloc(self.context, &raw mut init), MAKE);
            self.pds.extend(parent.map(|parent| (parent, Domain::Parent)));
        }
    }

    fn import_pd(&mut self, pd: u8) {
        let Some((pd, _)) = pick(&self.pds, pd).filter(|_| self.pds.len() < OBJECTS) else { return };
        // SAFETY: the context is open, and so is the domain.
        let same = made(unsafe { ibv_import_pd(self.context, (**pd).handle) }, MAKE);
        self.pds.extend(same.map(|same| (same, Domain::Imported)));
    }

    fn dealloc_pd(&mut self, pd: u8) {
        let Some(at) = place(&self.pds, pd) else {
            // SAFETY: NULL is refused.
            assert_eq!(unsafe { ibv_dealloc_pd(null_mut()) }, libc::EINVAL);
            return;
        };
        let (pd, kind) = self.pds[at];
        let used = |of: &*mut ibv_pd| *of == pd;
        // In C, objects point to their domain. SAFETY: all of them exist.
        let pointed_to = unsafe {
            self.mrs.iter().any(|of| used(&(**of).pd))
                || self.qps.iter().any(|of| used(&(*of.at).pd))
                || self.srqs.iter().any(|of| used(&(**of).pd))
                || self.mws.iter().any(|of| used(&(**of).pd))
                || self.ahs.iter().any(|of| used(&(**of).pd))
        };
        match kind {
            _ if pointed_to && kind != Domain::Own => return,
            // SAFETY: it exists.
            Domain::Imported => unsafe { ibv_unimport_pd(pd) },
            // SAFETY: likewise.
            _ if !done(unsafe { ibv_dealloc_pd(pd) }, END) => return,
            _ => {}
        }
        self.pds.swap_remove(at);
    }

    /// Opens another context of the same device, with an object in it.
    fn open_once_more(&self) {
        let context = open(self.index);
        // SAFETY: the context is open until it is closed, and so is what is in it.
        unsafe {
            let pd = made(ibv_alloc_pd(context), MAKE);
            let cq = made(ibv_create_cq(context, 3, null_mut(), null_mut(), 0), MAKE);
            if let Some(pd) = pd {
                assert_eq!(ibv_dealloc_pd(pd), 0);
            }
            if let Some(cq) = cq {
                assert_eq!(ibv_destroy_cq(cq), 0);
            }
            assert_eq!(ibv_close_device(context), 0);
        }
    }

    fn query(&self, what: u8, port: u8, index: c_int) {
        // SAFETY: the context is open; there is room for what is asked for.
        unsafe {
            match what % 5 {
                0 => assert!(done(ibv_query_device(self.context, &mut zeroed()), &[])),
                1 => assert_eq!(done(ibv_query_port(self.context, port, &mut zeroed()), CHANGE), port == 1),
                2 => _ = went(ibv_query_gid(self.context, port, index, &mut zeroed()), CHANGE),
                3 => _ = went(ibv_query_pkey(self.context, port, index, &mut zeroed()), CHANGE),
                _ => {
                    let query = table(self.context).query_device_ex.expect("offered");
                    let room =
                        usize::from(index.unsigned_abs() as u16) % (size_of::<ibv_device_attr_ex>() + 1);
                    _ = done(query(self.context, null_mut(), &mut zeroed(), room), CHANGE);
                }
            }
        }
    }

    /// Reads all pending events, and acknowledges them.
    pub(super) fn async_events(&self) {
        // SAFETY: the context is open; what an event is of is there until it is acknowledged.
        unsafe {
            let mut event: ibv_async_event = zeroed();
            while went(ibv_get_async_event(self.context, &raw mut event), &[libc::EAGAIN]) {
                assert!(event.event_type <= IBV_EVENT_WQ_FATAL, "event {}", event.event_type);
                ibv_ack_async_event(&raw mut event);
            }
        }
    }

    /// Polls all completions.
    pub(super) fn poll_all(&self, book: &mut Book) {
        for cq in &self.cqs {
            while self.poll(book, *cq, 16) > 0 {}
        }
    }

    /// Moves all queue pairs to ERR, where everything completes. In RESET nothing is outstanding, and ERR cannot be reached.
    pub(super) fn end_all(&mut self, common: &mut Common) {
        for qp in &self.qps {
            // SAFETY: a structure of numbers.
            let mut attr: ibv_qp_attr = unsafe { zeroed() };
            attr.qp_state = IBV_QPS_ERR;
            // SAFETY: the queue pair exists.
            let code = unsafe { ibv_modify_qp(qp.at, &raw mut attr, IBV_QP_STATE.cast_signed()) };
            // SAFETY: the queue pair exists.
            let is_reset = unsafe { (*qp.at).state } == IBV_QPS_RESET;
            assert_eq!(code, if is_reset { libc::EINVAL } else { 0 }, "any other state leads to ERR");
        }
        self.poll_all(&mut common.book);
        for qp in &self.qps {
            // SAFETY: the queue pair exists.
            let queues = unsafe { [(*qp.at).send_cq, (*qp.at).recv_cq] };
            if queues.iter().all(|cq| common.book.had_room(*cq)) {
                let owed = common.book.owed(qp.at);
                assert!(owed.is_empty(), "never completed: {owed:?}");
            }
        }
    }

    /// Destroys everything, users before the objects they use.
    pub(super) fn destroy_all(mut self, common: &mut Common) {
        while !self.qps.is_empty() {
            self.destroy_qp(common, 0);
        }
        self.async_events();
        // SAFETY: each is there until here.
        unsafe {
            let (table, ops) = (table(self.context), ops(self.context));
            self.ahs.drain(..).for_each(|ah| assert_eq!(ibv_destroy_ah(ah), 0));
            self.srqs.drain(..).for_each(|srq| assert_eq!(ibv_destroy_srq(srq), 0));
            let dealloc_mw = ops.dealloc_mw.expect("offered");
            self.mws.drain(..).for_each(|mw| assert_eq!(dealloc_mw(mw), 0));
            self.mrs.drain(..).for_each(|mr| assert_eq!(ibv_dereg_mr(mr), 0));
            let free_dm = table.free_dm.expect("offered");
            self.dms.drain(..).for_each(|dm| assert_eq!(free_dm(dm), 0));
            let close_xrcd = table.close_xrcd.expect("offered");
            self.xrcds.drain(..).for_each(|xrcd| assert_eq!(close_xrcd(xrcd), 0));
            (0..self.channels.len()).for_each(|which| self.cq_events(which as u8));
            self.cqs.drain(..).for_each(|cq| assert_eq!(ibv_destroy_cq(cq.at), 0));
            self.channels.drain(..).for_each(|channel| assert_eq!(ibv_destroy_comp_channel(channel), 0));
            for kind in [Domain::Parent, Domain::Imported, Domain::Own] {
                for (pd, _) in self.pds.iter().filter(|(_, of)| *of == kind) {
                    match kind {
                        Domain::Imported => ibv_unimport_pd(*pd),
                        _ => assert_eq!(ibv_dealloc_pd(*pd), 0),
                    }
                }
            }
            let dealloc_td = table.dealloc_td.expect("offered");
            self.tds.drain(..).for_each(|td| assert_eq!(dealloc_td(td), 0));
            assert_eq!(ibv_close_device(self.context), 0);
        }
    }
}
