//! `rnic show qp`: the queue pairs of running programs, and `rnic show vendor-errors`.

use super::Row;
use rnic::VendorError;
use rnic::engine::QpSnapshot;
use rnic::process::{PublishedQueuePairs, published_queue_pairs};
use serde_json::json;
use std::error::Error;
use std::path::Path;

/// A row for each queue pair. Prints a message if there are no programs.
pub(super) fn rows(run_dir: &Path) -> Result<Vec<Row>, Box<dyn Error>> {
    let unreadable = |error| format!("{} cannot be read: {error}", run_dir.display());
    let published = published_queue_pairs(run_dir).map_err(unreadable)?;
    if published.is_empty() {
        eprintln!("no program publishes queue pairs in {}: `rnic run` has programs do so", run_dir.display());
    }
    for one in published.iter().filter(|one| one.more > 0) {
        let PublishedQueuePairs { device, pid, more, .. } = one;
        eprintln!("{more} more queue pairs of {device} in process {pid} are not shown");
    }
    Ok(published.iter().flat_map(|one| one.queue_pairs.iter().map(|qp| row(one, qp))).collect())
}

fn row(one: &PublishedQueuePairs, qp: &QpSnapshot) -> Row {
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
        ("pid", json!(one.pid)),
        ("comm", json!(one.comm)),
    ];
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
