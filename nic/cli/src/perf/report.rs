//! The results, as perftest's table or as JSON.

use super::control::SideReport;
use super::delivery::{Delivery, Tally};
use super::params::{Params, Test};
use super::stream::Sent;
use super::{Counters, Failure};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::io::{ErrorKind, Write, stdout};
use std::net::IpAddr;

/// Changes whenever a field of the JSON document is removed or changes its meaning.
const SCHEMA_VERSION: u32 = 2;

/// 2^20.
const MIB: f64 = 1_048_576.0;

/// perftest's columns.
const BANDWIDTH_HEADER: &str =
    " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]";
const LATENCY_HEADER: &str = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
                              t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] ";

/// The figures of one size.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Figures {
    Bandwidth {
        /// Messages of all queue pairs; of both sides if both sent.
        iterations: u64,
        seconds: f64,
        bw_peak_mib_per_s: f64,
        bw_average_mib_per_s: f64,
        msg_rate_mpps: f64,
    },
    Latency {
        iterations: u64,
        t_min_usec: f64,
        t_max_usec: f64,
        /// The median.
        t_typical_usec: f64,
        t_avg_usec: f64,
        t_stdev_usec: f64,
        percentile_99_usec: f64,
        percentile_99_9_usec: f64,
    },
}

impl Figures {
    pub(super) fn bandwidth(size: u32, sent: &Sent) -> Self {
        let rate = if sent.seconds > 0.0 { sent.messages as f64 / sent.seconds } else { 0.0 };
        let size = f64::from(size);
        Self::Bandwidth {
            iterations: sent.messages,
            seconds: sent.seconds,
            bw_peak_mib_per_s: sent.peak * size / MIB,
            bw_average_mib_per_s: rate * size / MIB,
            msg_rate_mpps: rate / 1e6,
        }
    }

    /// From nanoseconds.
    pub(super) fn latency(latencies: &Histogram<u64>) -> Self {
        let usec = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        Self::Latency {
            iterations: latencies.len(),
            t_min_usec: usec(if latencies.is_empty() { 0 } else { latencies.min() }),
            t_max_usec: usec(latencies.max()),
            t_typical_usec: usec(latencies.value_at_quantile(0.5)),
            t_avg_usec: latencies.mean() / 1e3,
            t_stdev_usec: latencies.stdev() / 1e3,
            percentile_99_usec: usec(latencies.value_at_quantile(0.99)),
            percentile_99_9_usec: usec(latencies.value_at_quantile(0.999)),
        }
    }

    /// Adds the messages that the server sent.
    pub(super) fn add_server(&mut self, size: u32, server: &SideReport) {
        let sent = Sent { messages: server.messages, seconds: server.seconds, peak: server.peak };
        let Self::Bandwidth {
            iterations: more,
            bw_peak_mib_per_s: more_peak,
            bw_average_mib_per_s: more_average,
            msg_rate_mpps: more_rate,
            ..
        } = Self::bandwidth(size, &sent)
        else {
            return;
        };
        if let Self::Bandwidth {
            iterations, bw_peak_mib_per_s, bw_average_mib_per_s, msg_rate_mpps, ..
        } = self
        {
            *iterations += more;
            *bw_peak_mib_per_s += more_peak;
            *bw_average_mib_per_s += more_average;
            *msg_rate_mpps += more_rate;
        }
    }

    /// A line of the table.
    fn row(&self, size: u32) -> String {
        match *self {
            Self::Bandwidth {
                iterations, bw_peak_mib_per_s, bw_average_mib_per_s, msg_rate_mpps, ..
            } => format!(
                " {size:<10} {iterations:<14} {bw_peak_mib_per_s:<19.2} {bw_average_mib_per_s:<21.2} {msg_rate_mpps:.6}"
            ),
            Self::Latency {
                iterations,
                t_min_usec,
                t_max_usec,
                t_typical_usec,
                t_avg_usec,
                t_stdev_usec,
                percentile_99_usec,
                percentile_99_9_usec,
            } => format!(
                " {size:<6} {iterations:<14} {t_min_usec:<14.2} {t_max_usec:<12.2} {t_typical_usec:<18.2} \
                 {t_avg_usec:<14.2} {t_stdev_usec:<15.2} {percentile_99_usec:<22.2} {percentile_99_9_usec:.2}"
            ),
        }
    }
}

/// The number of messages sent, and of those lost: messages that did not arrive or, in a latency test, were not
/// answered.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Loss {
    pub(super) sent: u64,
    pub(super) lost: u64,
}

/// The run of one size.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Run {
    pub(super) size: u32,
    #[serde(flatten)]
    pub(super) figures: Figures,
    /// For unreliable services.
    #[serde(flatten)]
    pub(super) loss: Option<Loss>,
    /// The counters of the client's device during the run.
    #[serde(rename = "client_counters")]
    pub(super) client: Counters,
    /// The counters of the server's device during the run. They include other clients.
    #[serde(rename = "server_counters")]
    pub(super) server: Counters,
    /// The counters of the server's queue pairs for this client during the run.
    #[serde(rename = "server_qp_counters")]
    pub(super) server_qps: Counters,
}

impl Run {
    /// Replaces the figures by those of the messages that arrived at the server. Receiving takes at least as long as
    /// sending.
    pub(super) fn count_arrivals(&mut self, sent: &Sent, server: &SideReport) {
        let seconds = server.arrival_seconds.max(sent.seconds);
        let arrived = Sent { messages: server.arrived, seconds, peak: 0.0 };
        self.figures = Figures::bandwidth(self.size, &arrived);
        self.loss = Some(Loss { sent: sent.messages, lost: sent.messages.saturating_sub(server.arrived) });
    }
}

/// The JSON document.
#[derive(Debug, Serialize)]
struct Document<'a> {
    schema_version: u32,
    rnic_version: &'static str,
    device: &'static str,
    client: IpAddr,
    server: IpAddr,
    path_mtu: u32,
    parameters: &'a Params,
    interrupted: bool,
    results: &'a [Run],
    /// What the counters say about lost and repeated packets.
    delivery: Delivery,
    /// The counters behind this conclusion, over all runs.
    losses: Losses,
}

#[derive(Debug, Default, Serialize)]
struct Losses {
    client: Counters,
    server: Counters,
}

/// A table that is printed row by row, or a JSON document that is printed at the end.
pub(super) struct Report {
    params: Params,
    client: IpAddr,
    server: IpAddr,
    mtu: u32,
    json: bool,
    runs: Vec<Run>,
}

impl Report {
    /// Starts a report; prints the head of a table.
    pub(super) fn new(
        params: &Params,
        client: IpAddr,
        server: IpAddr,
        mtu: u32,
        json: bool,
    ) -> Result<Self, Failure> {
        let report = Self { params: params.clone(), client, server, mtu, json, runs: Vec::new() };
        if !json {
            let header = if params.test == Test::Bw { BANDWIDTH_HEADER } else { LATENCY_HEADER };
            print(&format!("{}\n{header}\n", report.title()))?;
        }
        Ok(report)
    }

    fn title(&self) -> String {
        let Params { qps, depth, cq_mod, events, test, .. } = &self.params;
        let how = if *events { "events" } else { "polling" };
        let queues = match test {
            Test::Bw => format!("{qps} QP x {depth} outstanding, 1 of {cq_mod} signalled, "),
            Test::Lat => String::new(),
        };
        format!(
            "rnic, a NIC in software over UDP sockets (not a measurement of hardware)\n\
             {}\n\
             {} to {}, MTU {}\n\
             {queues}{how}",
            self.params.title(),
            self.client,
            self.server,
            self.mtu
        )
    }

    /// Adds a run.
    pub(super) fn add(&mut self, run: Run) -> Result<(), Failure> {
        if !self.json {
            print(&format!("{}\n", run.figures.row(run.size)))?;
        }
        self.runs.push(run);
        Ok(())
    }

    /// Prints the number of messages that an unreliable service lost.
    fn print_lost_messages(&self) -> Result<(), Failure> {
        let mut lossless = !self.params.service.is_reliable();
        for run in &self.runs {
            if let Some(Loss { sent, lost: lost @ 1.. }) = run.loss {
                print(&format!("{} bytes: {lost} of {sent} messages were lost\n", run.size))?;
                lossless = false;
            }
        }
        if lossless { print("No messages were lost\n") } else { Ok(()) }
    }

    /// Ends the report.
    pub(super) fn finish(self, interrupted: bool) -> Result<(), Failure> {
        let mut tally = Tally::default();
        for run in &self.runs {
            tally.add(run);
        }
        let delivery = tally.delivery(self.params.service.is_reliable());
        if !self.json {
            self.print_lost_messages()?;
            let explained = delivery.explain().filter(|_| !tally.is_empty());
            return explained.map_or(Ok(()), |text| print(&format!("{text}\n{tally}")));
        }
        let document = Document {
            schema_version: SCHEMA_VERSION,
            rnic_version: env!("CARGO_PKG_VERSION"),
            device: "rnic, a NIC in software, over UDP sockets",
            client: self.client,
            server: self.server,
            path_mtu: self.mtu,
            parameters: &self.params,
            interrupted,
            results: &self.runs,
            delivery,
            losses: Losses { client: tally.client, server: tally.server },
        };
        print(&format!("{}\n", serde_json::to_string_pretty(&document)?))
    }
}

/// Prints and flushes, so that a table grows line by line in a pipe as well.
fn print(text: &str) -> Result<(), Failure> {
    match stdout().write_all(text.as_bytes()).and_then(|()| stdout().flush()) {
        // A reader that closed the pipe has seen enough.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(format!("cannot print: {error}").into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_is_in_mebibytes_and_both_sides_add_up() {
        let sent = Sent { messages: 1000, seconds: 0.5, peak: 4000.0 };
        let mut figures = Figures::bandwidth(1 << 20, &sent);
        assert_eq!(
            figures.row(1 << 20).split_whitespace().collect::<Vec<_>>(),
            ["1048576", "1000", "4000.00", "2000.00", "0.002000"]
        );
        figures.add_server(
            1 << 20,
            &SideReport { messages: 500, seconds: 0.5, peak: 1000.0, ..Default::default() },
        );
        assert_eq!(
            figures.row(1 << 20).split_whitespace().collect::<Vec<_>>(),
            ["1048576", "1500", "5000.00", "3000.00", "0.003000"]
        );
    }

    #[test]
    fn latency_is_in_microseconds() {
        let mut latencies = Histogram::new_with_bounds(1, 1_000_000, 3).unwrap();
        assert_eq!(Figures::latency(&latencies).row(2).split_whitespace().nth(1), Some("0"));
        for nanoseconds in [1000, 2000, 3000] {
            latencies.record(nanoseconds).unwrap();
        }
        let row = Figures::latency(&latencies).row(2);
        let columns: Vec<_> = row.split_whitespace().collect();
        assert_eq!(columns[..6], ["2", "3", "1.00", "3.00", "2.00", "2.00"]);
        assert_eq!(columns.len(), 9);
    }
}
