use super::*;
use crate::memory::Access;
use std::collections::HashSet;

#[test]
fn lengths_of_gather_lists() {
    let sge = |length| Sge { addr: 0, length, lkey: 1 };
    let inline = |bytes: &[u8]| Gather::Inline(bytes.into());
    for (data, len, elements) in [
        (Gather::Empty, 0, 0),
        (sge(0).into(), 0, 1),
        (sge(7).into(), 7, 1),
        ([sge(u32::MAX), sge(2)][..].into(), 0x1_0000_0001, 2),
        ([sge(0), sge(0)][..].into(), 0, 2),
        (inline(b"abc"), 3, 0),
        (inline(b""), 0, 0),
    ] {
        let found = (data.len(), data.is_empty(), data.elements().len());
        assert_eq!(found, (len, len == 0, elements), "{data:?}");
    }
}

/// The values of `enum ibv_wc_status`, which programs also print as numbers, and the names without `IBV_WC_`.
#[test]
fn statuses_are_those_of_verbs() {
    use WcStatus as S;
    let listed = [
        (S::Success, "SUCCESS"),
        (S::LocLenErr, "LOC_LEN_ERR"),
        (S::LocQpOpErr, "LOC_QP_OP_ERR"),
        (S::LocEecOpErr, "LOC_EEC_OP_ERR"),
        (S::LocProtErr, "LOC_PROT_ERR"),
        (S::WrFlushErr, "WR_FLUSH_ERR"),
        (S::MwBindErr, "MW_BIND_ERR"),
        (S::BadRespErr, "BAD_RESP_ERR"),
        (S::LocAccessErr, "LOC_ACCESS_ERR"),
        (S::RemInvReqErr, "REM_INV_REQ_ERR"),
        (S::RemAccessErr, "REM_ACCESS_ERR"),
        (S::RemOpErr, "REM_OP_ERR"),
        (S::RetryExcErr, "RETRY_EXC_ERR"),
        (S::RnrRetryExcErr, "RNR_RETRY_EXC_ERR"),
        (S::LocRddViolErr, "LOC_RDD_VIOL_ERR"),
        (S::RemInvRdReqErr, "REM_INV_RD_REQ_ERR"),
        (S::RemAbortErr, "REM_ABORT_ERR"),
        (S::InvEecnErr, "INV_EECN_ERR"),
        (S::InvEecStateErr, "INV_EEC_STATE_ERR"),
        (S::FatalErr, "FATAL_ERR"),
        (S::RespTimeoutErr, "RESP_TIMEOUT_ERR"),
        (S::GeneralErr, "GENERAL_ERR"),
    ];
    for (code, (status, name)) in listed.into_iter().enumerate() {
        assert_eq!((status as usize, status.name(), status.to_string().as_str()), (code, name, name));
    }
}

/// Every status that a queue pair can report has an explanation of its own that says more than its name.
#[test]
fn statuses_explain_themselves() {
    use WcStatus as S;
    let given = [
        S::Success,
        S::LocLenErr,
        S::LocQpOpErr,
        S::LocProtErr,
        S::WrFlushErr,
        S::MwBindErr,
        S::BadRespErr,
        S::LocAccessErr,
        S::RemInvReqErr,
        S::RemAccessErr,
        S::RemOpErr,
        S::RetryExcErr,
        S::RnrRetryExcErr,
        S::GeneralErr,
    ];
    let explained: HashSet<_> = given.iter().map(|status| status.explain()).collect();
    assert_eq!(explained.len(), given.len());
    assert!(explained.iter().all(|text| text.split(' ').count() >= 4), "{explained:?}");
    // The two most common errors name what to check.
    assert!(S::RetryExcErr.explain().contains("retry_cnt"));
    assert!(S::LocProtErr.explain().contains("lkey"));
}

/// Operation names are those of `enum ibv_wr_opcode` without `IBV_WR_`; READs are `RDMA_READ`.
#[test]
fn operations_are_named_as_verbs_do() {
    let bind = Bind { window: 0, key: 0, lkey: 0, access: Access::empty(), addr: 0, len: 0 };
    let remote = Remote::default();
    for (operation, name, responds) in [
        (Operation::Send { imm: None, invalidate: None }, "SEND", false),
        (Operation::Send { imm: Some(0), invalidate: None }, "SEND_WITH_IMM", false),
        (Operation::Send { imm: None, invalidate: Some(0) }, "SEND_WITH_INV", false),
        (Operation::Write { remote, imm: None }, "RDMA_WRITE", false),
        (Operation::Write { remote, imm: Some(0) }, "RDMA_WRITE_WITH_IMM", false),
        (Operation::Read { remote }, "RDMA_READ", true),
        (Operation::CompareSwap { remote, compare: 0, swap: 0 }, "ATOMIC_CMP_AND_SWP", true),
        (Operation::FetchAdd { remote, add: 0 }, "ATOMIC_FETCH_AND_ADD", true),
        (Operation::AtomicWrite { remote }, "ATOMIC_WRITE", true),
        (Operation::Flush { remote, len: 0, flush: FlushKind::default() }, "FLUSH", true),
        (Operation::LocalInvalidate { key: 0 }, "LOCAL_INV", false),
        (Operation::BindWindow(bind), "BIND_MW", false),
    ] {
        assert_eq!((operation.name(), operation.expects_response()), (name, responds));
    }
}
