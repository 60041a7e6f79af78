//! The end of a world: all work completes, and nothing is left over.

use super::Check;
use super::conn::State;
use super::host::{Host, Shared};

use super::recv::Kind;

use super::wire::rnr_delay;
use super::world::{World, room_patience};
use rnic::FaultReport;
use std::time::Duration;

/// Counters that are recorded as coverage.
const COUNTERS: &[&str] = &[
    "duplicate_request",
    "out_of_seq_request",
    "rcvd_rnr_err",
    "rcvd_seq_err",
    "local_ack_timeout_err",
    "implied_nak_seq_err",
    "retransmitted_pkts",
    "ghost_responses",
    "ack_deferred",
    "held_pkts",
    "rcvd_selective_acks",
    "out_of_buffer",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "req_cqe_flush_error",
    "resp_cqe_flush_error",
    "dropped_bad_icrc",
    "dropped_no_qp",
    "dropped_no_receive",
    "dropped_unreliable",
    "dropped_stale_duplicate",
    "np_ecn_marked_roce_packets",
    "np_cnp_sent",
    "rp_cnp_handled",
    "window_stalls",
    "greeting_stalls",
    "partners_met",
    "partners_lost",
    "foreign_peers",
    "dropped_bad_token",
    "dropped_stranger",
    "hellos_ignored",
    "credit_stalls",
    "pause_stalls",
    "tx_pause",
    "tx_flow_control",
    "rx_flow_control",
    "rx_pause",
    "link_rx_dropped",
    "link_rx_marked",
];

/// Number of packets that a connection may need to complete its work, without faults.
const LOOKS: u32 = 10_000;

impl World<'_> {
    /// Lets all work complete, and destroys everything.
    pub(crate) fn finish(&mut self) -> Check {
        self.note(|| "the script is at its end".to_owned());
        for number in 0..self.hosts.len() {
            self.tally_faults(&self.hosts[number].device.faults());
            self.hosts[number].device.clear_faults();
        }
        self.passing.clear();
        self.serve(true)?;
        for c in 0..self.conns.len() {
            self.settle_down(c)?;
        }
        for c in 0..self.conns.len() {
            self.take_down(c)?;
        }
        self.run_for(self.air)?;
        self.serve(true)?;
        for c in 0..self.conns.len() {
            self.bring_up(c, [false; 2])?;
            self.take_down(c)?;
        }
        self.check_memory()?;
        self.judge_retries(Duration::MAX)?;
        for host in &self.hosts {
            host.check_cells()?;
            check_shared(&host.srq)?;
            check_shared(&host.xrc_srq)?;
        }
        self.conns.clear();
        while let Some(host) = self.hosts.pop() {
            self.tally(&host)?;
            self.destroy(host)?;
        }
        self.check_messages()
    }

    /// Without faults, and with receives posted, all outstanding work completes: successfully, or with an error
    /// because the peer is gone.
    fn settle_down(&mut self, c: usize) -> Check {
        for _ in 0..LOOKS {
            let (ended, outstanding) = self.look(c);
            let conn = &self.conns[c];
            if outstanding == 0 || matches!(conn.state, State::Down(_)) {
                return Ok(());
            }
            let Some(timeout) = conn.plan.timeout() else { return Ok(()) };
            // A message may be waiting at the end of a long RNR wait, and be lost once more for each retry.
            let waits = self.plan.waits(&conn.plan) + 1;
            let patience = (timeout + rnr_delay(conn.plan.rnr_timer)) * waits
                + self.air
                + self.stall
                + room_patience(self.plan, &conn.plan);
            let end = self.net.elapsed() + patience;
            while self.net.elapsed() < end && self.look(c) == (ended, outstanding) {
                for side in [0, 1] {
                    self.post_recv(c, side, Kind::Long)?;
                }
                let slice = (patience / 64).max(Duration::from_micros(1));
                self.run_for(slice)?;
                self.serve(true)?;
            }
            if self.look(c) == (ended, outstanding) && self.conns[c].plan.service.is_reliable() {
                return Err(format!(
                    "conn {c} ({}): {outstanding} sends are outstanding, and nothing has ended for {patience:?}",
                    self.conns[c].plan.service.name()
                ));
            }
        }
        Err(format!("conn {c}: packets come and go, and nothing ends"))
    }

    /// The progress of a connection, and its remaining work.
    fn look(&self, c: usize) -> (u64, usize) {
        let mut achieved = 0;
        let mut outstanding = 0;
        for end in &self.conns[c].ends {
            if let Some(qp) = &end.qp {
                achieved += qp.counters().rcvd_pkts;
            }
            outstanding += end.sends.entries.len();
            // Unsignalled requests at the end never report completion.
            if end.sends.entries.iter().all(|sent| !sent.signalled) && end.sends.failed.is_none() {
                outstanding -= end.sends.entries.len();
            }
        }
        (achieved, outstanding)
    }

    /// Records a device's counters.
    pub(crate) fn tally(&mut self, host: &Host) -> Check {
        self.check_partners(host)?;
        let counters = host.device.counters();
        for (name, value) in counters.iter() {
            if COUNTERS.contains(&name) {
                self.cover.add(name, value);
            }
            // Queue sizes and bytes: all of them are the same in a second run.
            self.observe(&[value]);
        }
        self.tally_faults(&host.device.faults());
        Ok(())
    }

    /// Records how often faults acted. They are removed afterwards.
    pub(crate) fn tally_faults(&mut self, faults: &[FaultReport]) {
        for fault in faults {
            let action = ["drop", "dup", "reorder", "delay", "corrupt", "mark"];
            if let Some(action) = action.iter().find(|action| fault.rule.contains(**action)) {
                self.cover.add(format!("fault {action}"), fault.hits);
            }
        }
    }

    /// Everything can be destroyed, because nothing uses it any more.
    fn destroy(&mut self, host: Host) -> Check {
        let still = |what: &'static str| {
            move |error: rnic::Error| format!("{what} is still in use in the end: {error}")
        };
        let Host { pd, cqs, srq, xrc_srq, xrcd, cells_region, other_region, device, .. } = host;
        let limit = device.link_stats().filter(|stats| stats.queue_bytes > 0);
        if let Some(stats) = limit {
            return Err(format!("{} bytes wait in a queue in the end", stats.queue_bytes));
        }
        cells_region.deregister().map_err(|e| still("a region")(e.error))?;
        other_region.deregister().map_err(|e| still("a region")(e.error))?;
        for shared in [srq, xrc_srq] {
            drop(shared.region);
            shared.queue.destroy().map_err(|e| still("a shared receive queue")(e.error))?;
        }
        xrcd.close().map_err(|e| still("an XRC domain")(e.error))?;
        for cq in cqs {
            cq.destroy().map_err(|e| still("a completion queue")(e.error))?;
        }
        pd.destroy().map_err(|e| still("a protection domain")(e.error))
    }
}

/// Every receive of a shared queue is still posted or has completed.
fn check_shared(shared: &Shared) -> Check {
    let (posted, there) = (shared.posted.len() as u32, shared.queue.outstanding());
    if posted < there || posted - there > shared.lost {
        return Err(format!(
            "{posted} receives of a shared queue have not completed, {there} are in it, and at most {} were lost",
            shared.lost
        ));
    }
    Ok(())
}
