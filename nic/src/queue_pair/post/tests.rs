//! Posting lists.

use crate::sim::Net;
use crate::{Error, Gather, Operation, PostError, QpInit, QpState, RcEnd, RecvWr, Result, SendWr};

fn send(wr_id: u64) -> SendWr {
    SendWr::new(wr_id, Operation::Send { imm: None, invalidate: None }, Gather::Empty)
}

#[test]
fn a_list_is_read_before_the_port_is_locked() -> Result<()> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let (left, _right) = RcEnd::pair(&a, &b)?;
    // Whoever takes the lock twice panics. The lists are shorter and longer than what needs no allocation.
    let look = || a.inner.port.inspect(|engine| engine.has_no_events());
    let mut read = 0;
    for len in [1, 16, 17, 40] {
        left.qp
            .post_sends((0..len).map(send).inspect(|_| read += u32::from(look().is_some())))
            .expect("room");
        let receives = (0..len).map(|wr_id| RecvWr { wr_id, data: Gather::Empty });
        left.qp.post_recvs(receives.inspect(|_| read += u32::from(look().is_some()))).expect("room");
    }
    assert_eq!(read, 2 * (1 + 16 + 17 + 40));
    Ok(())
}

/// The queue pair goes to RESET between the first look at its state and the second, under the lock.
#[test]
fn a_list_that_is_refused_under_the_lock_takes_no_places() -> Result<()> {
    let device = Net::new().device();
    let cq = device.create_cq(16)?;
    let qp = device.alloc_pd()?.create_qp(&QpInit::rc(&cq, &cq))?;
    let room = u64::from(QpInit::rc(&cq, &cq).cap.max_send_wr);
    for _ in 0..3 {
        qp.shared.set_state(QpState::Rts);
        let refused = qp.post_sends((0..room).map(send));
        assert!(matches!(refused, Err((0, Error::Post(PostError::State { .. })))), "{refused:?}");
        let refused = qp.post_sends_or_none(&mut (0..room).map(send).collect());
        assert!(matches!(refused, Err(Error::Post(PostError::State { .. }))), "{refused:?}");
    }
    Ok(())
}
