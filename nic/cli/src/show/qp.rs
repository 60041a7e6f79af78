//! `rnic show qp`: the queue pairs of running programs, and `rnic show vendor-errors`.

use super::{Row, counters};
use crate::programs::{Filter, Places, Seen};
use rnic::VendorError;
use rnic::engine::QpSnapshot;
use serde_json::json;
use std::error::Error;

/// One row per queue pair. If there are none, says so on standard error.
pub(super) fn rows(filter: &Filter) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut all = super::look()?;
    all.retain(|one| one.queue_pairs.is_some());
    let total = all.len();
    all.retain(|one| filter.takes(one));
    if total == 0 {
        eprintln!(
            "no program publishes queue pairs in {}: `rnic run` has programs do so",
            Places::find().describe()
        );
    }
    let mut rows = Vec::new();
    for one in &all {
        let Some(published) = &one.queue_pairs else { continue };
        if published.more > 0 {
            let Seen { device, pid, .. } = one;
            eprintln!("{} more queue pairs of {device} in process {pid} are not shown", published.more);
        }
        rows.extend(published.queue_pairs.iter().filter(|qp| filter.takes_qp(qp)).map(|qp| row(one, qp)));
    }
    if rows.is_empty() && total > 0 {
        eprintln!("the options match no queue pair of {total} devices; `rnic show qp` lists them all");
    }
    Ok(rows)
}

fn row(one: &Seen, qp: &QpSnapshot) -> Row {
    let peer = qp.peer.map(|(address, qpn)| (address.to_string(), format!("{qpn:#08x}")));
    let (address, number) = peer.unwrap_or_else(|| ("-".to_owned(), "-".to_owned()));
    let mut pairs = vec![
        ("type", json!(qp.qp_type)),
        ("state", json!(qp.state)),
        ("peer", json!(address)),
        ("peer_qpn", json!(number)),
        ("sq_psn", json!(qp.next_psn)),
        ("unacked_psn", json!(qp.unacked_psn)),
        ("rq_psn", json!(qp.expected_psn)),
        ("sends", json!(qp.sends)),
        ("receives", json!(qp.recvs)),
        ("retries_left", json!(qp.retries_left)),
        ("rnr_retries_left", json!(qp.rnr_retries_left)),
    ];
    pairs.extend(counters::owner(one));
    // The last property of the line, because it contains spaces.
    pairs.extend(qp.last_failure.as_ref().map(|failure| ("last_failure", json!(failure))));
    let lqpn = format!("{:#08x}", qp.qpn);
    let head = format!("link {}/1 lqpn {lqpn}", one.device);
    Row { head, keys: vec![("ifname", json!(one.device)), ("port", json!(1)), ("lqpn", json!(lqpn))], pairs }
}

/// A row for each number.
pub(super) fn vendor_errors() -> Vec<Row> {
    let row = |error: &VendorError| Row {
        head: format!("vendor_err {:>3} {:<28} {}", error.code(), error.name(), error.meaning()),
        keys: vec![
            ("vendor_err", json!(error.code())),
            ("name", json!(error.name())),
            ("meaning", json!(error.meaning())),
        ],
        pairs: Vec::new(),
    };
    VendorError::ALL.iter().map(row).collect()
}
