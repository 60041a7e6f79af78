//! Metrics for Prometheus: the sums of all programs at each address, in the format of OpenMetrics.
//!
//! What node_exporter's infiniband collector reports of a device in the kernel is reported under the same names, so that the
//! same dashboards work; everything else begins with `rnic_`. Labels are bounded: devices and reasons, never programs.

use crate::nic::Nic;
use crate::programs::{Sums, is_peak};
use crate::server::Server;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text::encode};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use rnic::Counters;
use rnic::engine::DropReason;
use rnic::process::speed;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections at a time. One collector uses one.
const CONNECTIONS: usize = 16;

/// How long a connection may live, and how long it may take to send the head of a request.
const LIFE: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(10);

/// For how long the metrics that were last collected are good enough. Collecting them takes 20 ms if each program of a user has
/// filled its file, and nobody is served meanwhile.
const FRESH: Duration = Duration::from_millis(250);

/// The content type of OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The counters of node_exporter's infiniband collector that have a meaning here: its name for each, what it says, and how the
/// value is made from ours.
type KernelCounter = (&'static str, &'static str, fn(&Totals) -> u64);

const KERNEL: [KernelCounter; 7] = [
    ("port_data_received_bytes", "Number of data octets received on all links", |t| t.of("rx_bytes")),
    ("port_data_transmitted_bytes", "Number of data octets transmitted on all links", |t| t.of("tx_bytes")),
    ("port_packets_received", "Number of packets received on all VLs by this port", |t| t.of("rx_packets")),
    ("port_packets_transmitted", "Number of packets transmitted on all VLs from this port", |t| {
        t.of("tx_packets")
    }),
    ("port_errors_received", "Number of packets that were received and dropped", Totals::dropped),
    ("port_discards_transmitted", "Number of packets that a disabled port did not send", |t| {
        t.of("tx_port_down")
    }),
    ("excessive_buffer_overrun_errors", "Number of times that a receive buffer overran", |t| {
        t.of("excessive_buffer_overrun_errors")
    }),
];

/// The counters of an address.
#[derive(Debug)]
struct Totals(Sums);

impl Totals {
    fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    fn dropped(&self) -> u64 {
        DropReason::ALL.iter().map(|reason| self.of(reason.name())).sum()
    }
}

/// An address at the moment of a scrape.
#[derive(Debug)]
struct Sample {
    /// `rnic0` and so on, in the order of the configuration.
    device: String,
    address: String,
    totals: Totals,
    programs: usize,
    slots: usize,
    active: bool,
    /// Bytes per second.
    rate: u64,
}

impl Sample {
    fn take((index, nic): (usize, &Arc<Nic>)) -> Self {
        let speed = speed(nic.rate());
        Self {
            device: format!("rnic{index}"),
            address: nic.address.to_string(),
            totals: Totals(nic.totals()),
            programs: nic.programs().running(),
            slots: nic.slots(),
            active: nic.port_attr().active,
            rate: gigabits(speed.text()) / 8,
        }
    }

    fn port(&self) -> [(&str, &str); 2] {
        [("device", &self.device), ("port", "1")]
    }
}

/// Bits per second, from the kernel's text for a rate: `100 Gb/sec (4X EDR)`.
fn gigabits(text: &str) -> u64 {
    let number = text.split(' ').next().and_then(|number| number.parse::<f64>().ok());
    number.map_or(0, |number| (number * 1e9) as u64)
}

/// What all metrics are made from.
#[derive(Debug)]
struct Samples(Vec<Sample>);

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, value) in KERNEL {
            let name = format!("node_infiniband_{name}");
            self.series(&mut encoder, &name, help, |sample| ConstCounter::new(value(&sample.totals)))?;
        }
        let gauge =
            |encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: fn(&Sample) -> u64| {
                self.series(encoder, name, help, |sample| ConstGauge::new(value(sample)))
            };
        let e = &mut encoder;
        // Of the enumerations ib_port_state and ib_port_phys_state.
        gauge(
            e,
            "node_infiniband_state_id",
            "State of the InfiniBand port (1: down, 4: active)",
            |sample| {
                if sample.active { 4 } else { 1 }
            },
        )?;
        gauge(
            e,
            "node_infiniband_physical_state_id",
            "Physical state (3: disabled, 5: link up)",
            |sample| {
                if sample.active { 5 } else { 3 }
            },
        )?;
        gauge(e, "node_infiniband_rate_bytes_per_second", "Rate of the port", |sample| sample.rate)?;
        gauge(e, "rnic_programs", "Programs that have a slot of the address", |sample| {
            sample.programs as u64
        })?;
        gauge(e, "rnic_slots", "Slots of the address that exist, the daemon's own included", |sample| {
            sample.slots as u64
        })?;
        self.infos(e)?;
        self.drops(e)?;
        self.own(e)
    }
}

impl Samples {
    /// A metric of each device.
    fn series<M: EncodeMetric>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        metric: impl Fn(&Sample) -> M,
    ) -> fmt::Result {
        let Some(first) = self.0.first() else { return Ok(()) };
        let mut family = encoder.encode_descriptor(name, help, None, metric(first).metric_type())?;
        self.0.iter().try_for_each(|sample| metric(sample).encode(family.encode_family(&sample.port())?))
    }

    /// Constant gauges whose labels say what a device is.
    fn infos(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let metric = ConstGauge::new(1u64);
        let help = "Non-numeric data of the device, value is always 1";
        let mut family =
            encoder.encode_descriptor("node_infiniband_info", help, None, metric.metric_type())?;
        for sample in &self.0 {
            let version = env!("CARGO_PKG_VERSION");
            let labels = [
                ("board_id", "rnic"),
                ("device", &sample.device),
                ("firmware_version", version),
                ("hca_type", "rnic"),
            ];
            metric.encode(family.encode_family(&labels)?)?;
        }
        let help = "The address of the device, value is always 1";
        let mut family = encoder.encode_descriptor("rnic_address_info", help, None, metric.metric_type())?;
        self.0.iter().try_for_each(|sample| {
            let labels = [("device", &*sample.device), ("address", &*sample.address)];
            metric.encode(family.encode_family(&labels)?)
        })
    }

    /// Packets that were dropped, by reason.
    fn drops(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let metric = ConstCounter::new(0u64);
        let help = "Packets that were received and dropped, by reason";
        let mut family =
            encoder.encode_descriptor("rnic_dropped_packets", help, None, metric.metric_type())?;
        for sample in &self.0 {
            for reason in DropReason::ALL {
                let name = reason.name();
                let short = name.strip_prefix("dropped_").unwrap_or(name);
                let labels = [("device", &*sample.device), ("port", "1"), ("reason", short)];
                ConstCounter::new(sample.totals.of(name)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    /// All other counters of rnic.
    fn own(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let is_drop = |name: &str| DropReason::ALL.iter().any(|reason| reason.name() == name);
        let others = Counters::describe().filter(|(name, _)| !is_drop(name));
        for (name, meaning) in others {
            let full = format!("rnic_{name}");
            // The most that there ever was is no counter.
            if is_peak(name) {
                self.series(encoder, &full, meaning, |sample| ConstGauge::new(sample.totals.of(name)))?;
            } else {
                self.series(encoder, &full, meaning, |sample| ConstCounter::new(sample.totals.of(name)))?;
            }
        }
        Ok(())
    }
}

/// What is served.
struct Page {
    server: Arc<Server>,
    latest: Mutex<Option<(Instant, Bytes)>>,
}

impl Page {
    fn text(&self) -> Bytes {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, text)) = &*latest
            && at.elapsed() < FRESH
        {
            return text.clone();
        }
        let text = Bytes::from(render(self.server.nics().iter().enumerate().map(Sample::take).collect()));
        *latest = Some((Instant::now(), text.clone()));
        text
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let (status, kind, text) = match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, "/metrics") => (StatusCode::OK, OPEN_METRICS, self.text()),
            (_, "/metrics") => (StatusCode::METHOD_NOT_ALLOWED, "text/plain", Bytes::from("use GET\n")),
            _ => (StatusCode::NOT_FOUND, "text/plain", Bytes::from("the metrics are at /metrics\n")),
        };
        let mut response = Response::new(Full::new(text));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
        response
    }
}

fn render(samples: Vec<Sample>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Samples(samples)));
    let mut text = String::new();
    // Writing to a text does not fail.
    let _ = encode(&mut text, &registry);
    text
}

/// Listens for collectors; the future serves them.
///
/// # Errors
/// The address cannot be used.
pub(crate) async fn serve(
    address: SocketAddr,
    server: Arc<Server>,
) -> io::Result<impl Future<Output = ()> + Send> {
    let listener = TcpListener::bind(address).await?;
    let page = Arc::new(Page { server, latest: Mutex::new(None) });
    Ok(accept(listener, page))
}

async fn accept(listener: TcpListener, page: Arc<Page>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a collector of metrics cannot connect");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let page = Arc::clone(&page);
        let answer = move |request: Request<Incoming>| {
            let response = page.answer(&request);
            async move { Ok::<_, Infallible>(response) }
        };
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
        tokio::spawn(async move {
            let served = http.serve_connection(TokioIo::new(stream), service_fn(answer));
            if let Ok(Err(error)) = tokio::time::timeout(LIFE, served).await {
                tracing::debug!(%error, "a connection of a collector ends");
            }
            drop(permit);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(values: &[(&'static str, u64)]) -> Sample {
        Sample {
            device: "rnic0".to_owned(),
            address: "10.0.0.1".to_owned(),
            totals: Totals(values.iter().copied().collect()),
            programs: 2,
            slots: 5,
            active: true,
            rate: gigabits(speed(None).text()) / 8,
        }
    }

    #[test]
    fn what_the_kernel_has_too_has_the_names_of_its_collector() {
        let text =
            render(vec![sample(&[("tx_bytes", 4096), ("dropped_bad_icrc", 3), ("link_rx_queue_max", 9)])]);
        for line in [
            "node_infiniband_port_data_transmitted_bytes_total{device=\"rnic0\",port=\"1\"} 4096",
            "node_infiniband_port_errors_received_total{device=\"rnic0\",port=\"1\"} 3",
            "node_infiniband_state_id{device=\"rnic0\",port=\"1\"} 4",
            "node_infiniband_rate_bytes_per_second{device=\"rnic0\",port=\"1\"} 12500000000",
            "rnic_dropped_packets_total{device=\"rnic0\",port=\"1\",reason=\"bad_icrc\"} 3",
            "rnic_tx_bytes_total{device=\"rnic0\",port=\"1\"} 4096",
            "rnic_link_rx_queue_max{device=\"rnic0\",port=\"1\"} 9",
            "rnic_programs{device=\"rnic0\",port=\"1\"} 2",
            "rnic_address_info{device=\"rnic0\",address=\"10.0.0.1\"} 1",
            "# EOF",
        ] {
            assert!(text.lines().any(|of| of == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn names_are_unique_and_those_of_metrics() {
        let text = render(vec![sample(&[])]);
        let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        let is_fine = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        assert!(names.iter().all(|line| line.split(' ').next().is_some_and(is_fine)), "{names:?}");
    }
}
