//! Errors, and how the NICs recover.

use super::client::{Client, Connection};
use super::messages::Piece;
use super::operations::DRAWN;
use super::{Outcome, expect};
use rnic::{QpCounters, QpState, Remote, WcStatus};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A WRITE with a wrong key.
pub(super) fn refused(client: &mut Client<'_>) -> Outcome {
    client.page.section(
        "3. Refused and not ready",
        "A responder can answer with a NAK instead of an acknowledgement. Some NAKs are fatal, others ask for a retry.",
    );
    client.page.operation(
        "RDMA WRITE with a wrong rkey",
        "This uses a separate connection, because a refused access ends it: both queue pairs enter the error state.",
    );
    let c = client.connect(DRAWN)?;
    let (pattern, _) = client.fill(&c, 100)?;
    client.load(&c, 100)?;
    // The low byte of a key is chosen by its owner; the rest identifies the region.
    let wrong = Remote { rkey: c.remote.rkey ^ 0x5500, ..c.remote };
    c.end.qp.write(1, c.buffer.slice(0..100)?, wrong)?;
    let first = c.end.wait()?;
    client.draw();
    // The key is correct, but it is too late.
    c.end.qp.write(2, c.buffer.slice(0..100)?, c.remote)?;
    let second = c.end.wait()?;
    expect((first.wr_id, first.status) == (1, WcStatus::RemAccessErr), || {
        format!("a WRITE with a wrong rkey ended with {} instead of REM_ACCESS_ERR", first.status)
    })?;
    expect((second.wr_id, second.status) == (2, WcStatus::WrFlushErr), || {
        format!("the next WRITE ended with {} instead of WR_FLUSH_ERR", second.status)
    })?;
    client.page.paragraph(&format!("The WRITE completed with {}: {}.", first.status, first.status.explain()));
    client.page.paragraph(&format!(
        "The next WRITE, with the correct rkey, completed with {}: {}.",
        second.status,
        second.status.explain()
    ));
    expect(c.end.qp.state() == QpState::Err, || "the queue pair did not enter the error state".to_owned())?;
    let counters = client.server_counters(&c)?;
    expect(count(&counters, "resp_remote_access_errors") == 1, || {
        "the server did not count the refusal".to_owned()
    })?;
    client.compare(&c, Piece { at: 0, len: 100 }, pattern, 0)?;
    client.page.proved("both work requests failed as expected, and the server's memory is unchanged");
    Ok(())
}

/// A SEND that finds no receive.
pub(super) fn not_ready(client: &mut Client<'_>, c: &mut Connection) -> Outcome {
    client.page.operation(
        "SEND before a receive is posted",
        "The server answers with an RNR NAK (receiver not ready) that tells the client how long to wait. The client's NIC \
         then repeats the packet. The program only notices the delay.",
    );
    let before = c.end.qp.counters().rcvd_rnr_err;
    let pattern = client.load(c, 500)?;
    c.end.qp.send(20, c.buffer.slice(0..500)?)?;
    let deadline = Instant::now() + Duration::from_secs(5);
    while c.end.qp.counters().rcvd_rnr_err == before {
        expect(Instant::now() < deadline, || "no RNR NAK arrived".to_owned())?;
        client.device.progress();
    }
    client.post_receive(c, &[Piece { at: 0, len: 4096 }])?;
    client.succeed(c, 20)?;
    client.received(c, 500, None)?;
    client.compare(c, Piece { at: 0, len: 500 }, pattern, 0)?;
    client.draw();
    client.page.proved("the server received and verified 500 bytes");
    Ok(())
}

/// A packet that a fault rule drops.
pub(super) fn lost_packet(client: &mut Client<'_>) -> Outcome {
    client.page.section(
        "4. Lost packets",
        "A reliable connection recovers from lost packets. Fault rules drop packets on purpose to show how.",
    );
    client.page.operation(
        "RDMA WRITE of 5 packets, the third is lost: `tx data psn=#2 drop`",
        "The server detects the gap and requests everything from there on (NAK, PSN sequence error). This is go-back-N: the \
         packets after the gap are discarded and sent again.",
    );
    let story = Story {
        rule: "tx data psn=#2 drop",
        client: &["retransmitted_pkts", "rcvd_seq_err"],
        server: &["out_of_seq_request"],
    };
    story.tell(client)
}

/// An acknowledgement that a fault rule drops.
pub(super) fn lost_acknowledgement(client: &mut Client<'_>) -> Outcome {
    client.page.operation(
        "RDMA WRITE, its acknowledgement is lost: `rx ack drop once`",
        "The client repeats the request when its timer expires (timeout 14: 4.096 us x 2^14). The server has already \
         executed the request. It recognises the duplicate and only acknowledges it again.",
    );
    let story = Story {
        rule: "rx ack drop once",
        client: &["retransmitted_pkts", "local_ack_timeout_err"],
        server: &["duplicate_request"],
    };
    story.tell(client)
}

/// A loss: the rule, and the counters that must increase.
struct Story {
    rule: &'static str,
    client: &'static [&'static str],
    server: &'static [&'static str],
}

impl Story {
    fn tell(&self, client: &mut Client<'_>) -> Outcome {
        /// Five packets of the path MTU.
        const LEN: usize = 5 * 1024;
        // A new connection: the rule counts PSNs from its first.
        let c = client.connect(DRAWN)?;
        let before = [counters(&c), client.server_counters(&c)?];
        let pattern = client.load(&c, LEN)?;
        let fault = client.device.add_fault(self.rule)?;
        c.end.qp.write(1, c.buffer.slice(0..LEN)?, c.remote)?;
        client.succeed(&c, 1)?;
        let hits = client.device.faults().iter().find(|f| f.name == fault).map_or(0, |f| f.hits);
        client.device.remove_fault(&fault);
        client.compare(&c, Piece { at: 0, len: LEN }, pattern, 0)?;
        client.draw();
        expect(hits == 1, || format!("the rule '{}' matched {hits} times instead of once", self.rule))?;
        let after = [counters(&c), client.server_counters(&c)?];
        for (side, name, names) in [(0, "client", self.client), (1, "server", self.server)] {
            for counter in names {
                let [from, to] = [&before[side], &after[side]].map(|set| count(set, counter));
                client.page.row(&format!("{name}  {counter:<22} {from} -> {to:<3} "), meaning(counter));
                expect(to > from, || format!("the {name}'s counter {counter} did not increase"))?;
            }
        }
        client.page.proved(&format!("the server verified {LEN} bytes"));
        Ok(())
    }
}

fn counters(c: &Connection) -> BTreeMap<String, u64> {
    c.end.qp.counters().iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn count(counters: &BTreeMap<String, u64>, name: &str) -> u64 {
    counters.get(name).copied().unwrap_or(0)
}

fn meaning(name: &str) -> &'static str {
    QpCounters::describe().find(|(n, _)| *n == name).map_or("", |(_, meaning)| meaning)
}
