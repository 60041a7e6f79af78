//! Posting lists.

use crate::queue::WorkQueue;
use crate::sim::Net;
use crate::{Error, Gather, Operation, PostError, QpInit, QpState, QueuePair, RcEnd, RecvWr, Result, SendWr};

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
    let refuse: [fn(&QueuePair, u64) -> Option<Error>; 2] = [
        |qp, room| qp.post_sends((0..room).map(send)).err().map(|(_, error)| error),
        |qp, room| qp.post_sends_or_none(&mut (0..room).map(send).collect()).err(),
    ];
    for refuse in refuse {
        qp.shared.set_state(QpState::Rts);
        let refused = refuse(&qp, room);
        assert!(matches!(refused, Some(Error::Post(PostError::State { .. }))), "{refused:?}");
        qp.shared.set_state(QpState::Rts);
        for wr_id in 0..room {
            qp.shared.reserve_send(&send(wr_id)).expect("all places are free");
        }
        qp.shared.finish(WorkQueue::Send, room as u32);
    }
    Ok(())
}
