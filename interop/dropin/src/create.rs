//! The extended calls that create queue pairs and shared receive queues.

use crate::abi::*;
use crate::call::{Handle, InOut, Object, Out, verbs};
use crate::context::Context;
use crate::cq::Cq;
use crate::errno::Errno;
use crate::pd::Pd;
use crate::qp::{Parts, Qp};
use crate::qp_ex::check;
use crate::srq::Srq;
use crate::xrc::Xrcd;
use rnic::SrqInit;

/// Bytes that an ATOMIC_WRITE built by calls carries inline.
const ATOMIC: u32 = 8;

const QP_PARTS: u32 = IBV_QP_INIT_ATTR_PD
    | IBV_QP_INIT_ATTR_XRCD
    | IBV_QP_INIT_ATTR_CREATE_FLAGS
    | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;

const SRQ_PARTS: u32 =
    IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;

verbs! {
    fn create_qp_ex(context: &Context, init: InOut<'_, ibv_qp_init_attr_ex>) -> Handle<ibv_qp> {
        let mut init = init;
        let has = |part: u32| init.comp_mask & part != 0;
        let calls = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
        if init.comp_mask & !QP_PARTS != 0 || has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && init.create_flags != 0 {
            return Err(Errno::UNSUPPORTED.because("comp_mask or create_flags ask for what this device does not have"));
        }
        if calls {
            check(init.qp_type, init.send_ops_flags)?;
        }
        // SAFETY: the program created them and has not destroyed them.
        let (pd, xrcd) = unsafe {
            (
                Pd::of(init.pd).filter(|_| has(IBV_QP_INIT_ATTR_PD)),
                Xrcd::of(init.xrcd).filter(|_| has(IBV_QP_INIT_ATTR_XRCD)),
            )
        };
        let atomic_write = u64::from(IBV_QP_EX_WITH_ATOMIC_WRITE);
        if calls && init.send_ops_flags & atomic_write != 0 {
            init.cap.max_inline_data = init.cap.max_inline_data.max(ATOMIC);
        }
        let parts = Parts {
            pd,
            xrcd: xrcd.map(|xrcd| xrcd.inner.get().cloned()).transpose()?,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all != 0,
            qp_context: init.qp_context,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
        };
        let qp = Qp::new(context, &parts, &mut init.cap)?;
        if calls {
            qp.offer_calls();
        }
        Ok(qp.give())
    }

    fn create_srq_ex(context: &Context, init: InOut<'_, ibv_srq_init_attr_ex>) -> Handle<ibv_srq> {
        let mut init = init;
        let has = |part: u32| init.comp_mask & part != 0;
        if init.comp_mask & !SRQ_PARTS != 0 {
            return Err(Errno::UNSUPPORTED.because("comp_mask asks for what this device does not have"));
        }
        let kind = if has(IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { IBV_SRQT_BASIC };
        // SAFETY: the program created them and has not destroyed them.
        let (pd, xrcd, cq) = unsafe { (Pd::of(init.pd), Xrcd::of(init.xrcd), Cq::of(init.cq)) };
        let pd = pd.filter(|_| has(IBV_SRQ_INIT_ATTR_PD)).ok_or_else(|| Errno::INVALID.because("a shared receive queue needs a protection domain"))?;
        let wanted = SrqInit { max_wr: init.attr.max_wr, max_sge: init.attr.max_sge, limit: 0 };
        let inner = match kind {
            IBV_SRQT_BASIC => pd.inner.get()?.create_srq(&wanted)?,
            IBV_SRQT_XRC => {
                let xrcd = xrcd.filter(|_| has(IBV_SRQ_INIT_ATTR_XRCD)).ok_or_else(|| Errno::INVALID.because("one of type XRC needs an XRC domain"))?;
                let cq = cq.filter(|_| has(IBV_SRQ_INIT_ATTR_CQ)).ok_or_else(|| Errno::INVALID.because("one of type XRC needs a completion queue"))?;
                pd.inner.get()?.create_xrc_srq(&wanted, xrcd.inner.get()?, cq.inner.get()?)?
            }
            other => return Err(Errno::UNSUPPORTED.because(format_args!("srq_type {other} is not offered"))),
        };
        let given = inner.query()?;
        (init.attr.max_wr, init.attr.max_sge) = (given.max_wr, given.max_sge);
        Ok(Srq::new(inner, pd, context, init.srq_context).give())
    }

    fn get_srq_num(srq: &Srq, number: Out<u32>) -> () {
        number.put(srq.inner.get()?.srqn());
        Ok(())
    }
}
