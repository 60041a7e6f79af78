//! Files that are written and read again, files that are not traces, and samples of devices in virtual time.

use super::*;
use crate::link::LinkConfig;
use crate::sim::{DeviceSetup, Net};
use crate::{Device, RcEnd, WcStatus};
use cc::{Algorithm, Rate};
use proptest::prelude::*;
use std::io;
use std::sync::{Arc, Mutex};

/// A writer whose bytes can be looked at meanwhile.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().expect("no writer panics").clone()
    }

    fn lines(&self) -> usize {
        self.bytes().iter().filter(|byte| **byte == b'\n').count()
    }
}

impl io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A writer that is full.
struct Full;

impl io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The header fits.
        if bytes.starts_with(b"{\"rnic_trace\"") {
            Ok(bytes.len())
        } else {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn header() -> Header {
    Header {
        title: "two flows".into(),
        device: "127.0.0.1".into(),
        started: Duration::from_micros(1_767_225_600_000_001),
        link: Some(LinkHeader {
            name: "25 Gb/s".into(),
            rate: Some(25_000_000_000),
            buffer: Some(1 << 20),
            kmin: Some(5_000),
            kmax: Some(200_000),
        }),
        cc: Some("dcqcn paper".into()),
        command: Some("rnic perf client \"127.0.0.2\"".into()),
        ..Header::new()
    }
}

fn sample(at: Duration) -> Sample {
    let port = PortSample {
        tx_bytes: 1,
        queue_bytes: Some(0),
        queue_max: Some(9),
        link_dropped: 3,
        ..Default::default()
    };
    let qp = QpSample {
        qpn: 17,
        label: Some("127.0.0.2".into()),
        alpha: Some(0.1),
        rate: Some(7),
        ..Default::default()
    };
    let lane = LaneSample {
        peer: "127.0.0.2".into(),
        vl: 3,
        credits: Some(0),
        stalls: 2,
        stalled: Duration::from_nanos(5),
        ..Default::default()
    };
    Sample { at, port, qps: vec![qp], lanes: vec![lane] }
}

fn written(samples: &[Sample]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut recorder = Recorder::new(&mut bytes, &header()).expect("a vector takes all");
    for sample in samples {
        recorder.record(sample).expect("a vector takes all");
    }
    assert_eq!(recorder.finish().expect("a vector takes all"), samples.len() as u64);
    bytes
}

fn refusal(bytes: &[u8]) -> String {
    let text = Trace::read(bytes).expect_err("no trace").to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn what_is_written_is_read_again() {
    let samples = [sample(Duration::ZERO), Sample::default(), sample(Duration::from_nanos(1_000_000_007))];
    let trace = Trace::read(&written(&samples)[..]).expect("a trace");
    assert_eq!(trace, Trace { header: header(), samples: samples.to_vec() });
}

#[test]
fn a_header_and_a_sample_look_as_documented() {
    let port = PortSample { tx_bytes: 4096, tx_packets: 1, ..Default::default() };
    let qp = QpSample { qpn: 17, label: Some("127.0.0.2".into()), sent_bytes: 4096, ..Default::default() };
    let sample = Sample { at: Duration::from_millis(1), port, qps: vec![qp], lanes: vec![] };
    let head = Header {
        title: "RC RDMA WRITE bandwidth".into(),
        device: "127.0.0.1".into(),
        started: Duration::from_secs(1_767_225_600),
        cc: Some("dcqcn paper".into()),
        ..Header::new()
    };
    let lines =
        [serde_json::to_string(&head), serde_json::to_string(&sample)].map(|line| line.expect("plain data"));
    let documentation = include_str!("../trace.rs");
    for line in lines {
        assert!(documentation.contains(&format!("//! {line}\n")), "{line}");
    }
}

#[test]
fn keys_of_later_versions_are_ignored_and_missing_ones_are_zero() {
    let bytes =
        b"{\"rnic_trace\":1,\"colour\":\"red\"}\n{\"t\":5,\"port\":{\"smell\":1},\"qps\":[{\"qpn\":1}]}\n";
    let trace = Trace::read(&bytes[..]).expect("a trace");
    assert_eq!(trace.header, Header::new());
    assert_eq!(trace.samples[0].at, Duration::from_nanos(5));
    assert_eq!(trace.samples[0].port, PortSample::default());
    assert_eq!(trace.samples[0].qps, [QpSample { qpn: 1, ..Default::default() }]);
}

#[test]
fn errors_are_one_line_and_name_the_line_of_the_file() {
    assert!(refusal(b"").contains("empty"));
    assert!(refusal(b"\n").contains("line 1 is not the header"));
    assert!(refusal(b"\xd4\xc3\xb2\xa1 a capture").contains("line 1 is not the header"));
    assert!(refusal(b"{\"schema_version\":1}\n").contains("rnic_trace"));
    assert!(refusal(b"{\"rnic_trace\":2}\n").contains("version 2, this program reads version 1"));
    let good = written(&[sample(Duration::ZERO), sample(Duration::from_secs(1))]);
    assert!(refusal(&good[..good.len() - 2]).contains("line 3 ends in the middle of a sample"));
    let garbage = |line: &str| refusal(&[&good, line.as_bytes()].concat());
    assert!(garbage("{\"t\":\n").starts_with("line 4 is not a sample: EOF"));
    assert!(garbage("{\"t\":-1}\n").starts_with("line 4 is not a sample: "));
    assert!(garbage("{\"port\":{}}\n").contains("missing field `t`"));
    assert!(garbage("{\"t\":2000000000,\"qps\":[{\"alpha\":\"x\"}]}\n").contains("at column"));
    assert!(garbage("{\"t\":1}\n").contains("line 4 is of 1ns, before the line above it, which is of 1s"));
    assert!(garbage(&"x".repeat((1 << 20) + 1)).contains("line 4 is longer than 1048576 bytes"));
    let missing = Trace::open("/nowhere/at.trace").expect_err("no such file").to_string();
    assert!(missing.starts_with("cannot open /nowhere/at.trace: "), "{missing}");
}

#[test]
fn a_reader_ends_with_the_first_error() {
    let good = written(&[sample(Duration::ZERO)]);
    let bytes = [&good[..], b"garbage\n", b"{\"t\":1}\n"].concat();
    let reader = Reader::new(&bytes[..]).expect("a header");
    let items: Vec<_> = reader.collect();
    assert!(matches!(items[..], [Ok(_), Err(TraceError::Line { line: 3, .. })]), "{items:?}");
}

proptest! {
    #[test]
    fn no_file_makes_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0_usize..400) {
        let mut file = written(&[sample(Duration::ZERO), sample(Duration::from_secs(1))]);
        let end = at.min(file.len());
        file.splice(end.saturating_sub(3)..end, bytes);
        // Whatever it says of it.
        let _ = Trace::read(&file[..]);
    }
}

#[test]
fn lines_are_written_whole_and_no_later_than_a_tenth_of_a_second() {
    let out = Shared::default();
    let mut recorder = Recorder::new(out.clone(), &header()).expect("memory");
    assert_eq!(out.lines(), 1, "the header is there at once");
    for milli in 1..100 {
        recorder.record(&sample(Duration::from_millis(milli))).expect("memory");
    }
    assert_eq!(out.lines(), 1, "and the rest is collected");
    recorder.record(&sample(Duration::from_millis(100))).expect("memory");
    assert_eq!(out.lines(), 101);
    for _ in 0..2000 {
        recorder.record(&sample(Duration::from_millis(101))).expect("memory");
        assert_eq!(out.bytes().last(), Some(&b'\n'), "never part of a line");
    }
    assert!(out.lines() > 1000, "memory is bounded, whatever the time: {}", out.lines());
    drop(recorder);
    assert_eq!(out.lines(), 1 + 100 + 2000, "nothing is lost when it is dropped");
}

#[test]
fn a_full_disk_is_told() {
    let mut recorder = Recorder::new(Full, &header()).expect("the header fits");
    recorder.record(&sample(Duration::ZERO)).expect("collected");
    assert_eq!(recorder.finish().expect_err("no room").kind(), io::ErrorKind::StorageFull);
}

#[test]
fn a_port_that_does_nothing_fills_no_disk_and_a_change_has_its_time() {
    let out = Shared::default();
    let mut recorder = Recorder::new(out.clone(), &header()).expect("memory");
    for milli in 0..=1000 {
        let port = PortSample { tx_bytes: u64::from(milli >= 557), ..Default::default() };
        let at = Duration::from_millis(milli);
        recorder.record_change(Sample { at, port, ..Default::default() }).expect("memory");
    }
    recorder.finish().expect("memory");
    let trace = Trace::read(&out.bytes()[..]).expect("a trace");
    let times: Vec<_> = trace.samples.iter().map(|sample| sample.at.as_millis()).collect();
    assert_eq!(times, [0, 100, 200, 300, 400, 500, 556, 557, 657, 757, 857, 957]);
}

#[test]
fn a_device_shows_what_it_sent_once_and_what_it_sent_again() -> crate::Result<()> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let (left, right) = RcEnd::pair(&a, &b)?;
    let (idle, _other) = RcEnd::pair(&a, &b)?;
    assert_eq!(a.sample().port, PortSample::default());
    a.add_fault("tx data psn=#3 drop")?;
    b.add_fault("rx data psn=#1 mark ce")?;
    let source = left.register(&[7; 40_000])?;
    let target = right.register_remote(40_000)?;
    left.qp.write(1, source.all(), target.remote(0))?;
    assert_eq!(left.wait()?.status, WcStatus::Success);
    let (sent, received) = (a.sample(), b.sample());
    assert_eq!(sent.at, net.elapsed());
    let numbers = [left.qp.qpn().value(), idle.qp.qpn().value()];
    assert_eq!(sent.qps.iter().map(|qp| qp.qpn).collect::<Vec<_>>(), numbers);
    assert_eq!(sent.qps[0].label, Some(b.address().to_string()));
    assert_eq!(sent.qps[0].sent_bytes, 40_000, "each byte once");
    assert_eq!(received.qps[0].received_bytes, right.qp.counters().rcvd_bytes);
    assert!(received.qps[0].received_bytes >= 40_000);
    assert_eq!(sent.port.retransmitted_packets, left.qp.counters().retransmitted_pkts);
    assert!(sent.port.retransmitted_packets > 0, "a packet was lost");
    assert!(sent.port.tx_bytes > 40_000 && sent.port.tx_packets > 10);
    assert!(received.port.dropped_packets > 0, "what came behind the gap");
    assert_eq!(received.port.rx_ce_packets, 1);
    Ok(())
}

/// Two devices of a simulation with their ends connected, the first of 10 Gb/s, the second behind an emulated port.
fn behind(net: &Net, link: &str, cc: &str) -> crate::Result<[(Device, RcEnd); 2]> {
    let cc: Algorithm = cc.parse().expect("an algorithm");
    let mut config = LinkConfig::default();
    config.apply(link).expect("a link");
    let rate = Some(Rate::from_gbps(10));
    let sender = LinkConfig { model: config.model, pfc: config.pfc.clone(), rate, ..Default::default() };
    let a = net.device_with(&DeviceSetup { link: sender, cc: cc.clone(), ..Default::default() })?;
    let b = net.device_with(&DeviceSetup { link: config, cc, ..Default::default() })?;
    let (left, right) = RcEnd::pair(&a, &b)?;
    Ok([(a, left), (b, right)])
}

/// Writes this many bytes, and gives the samples of both ports every 10 us until that is done.
fn watched(net: &Net, ends: &[(Device, RcEnd); 2], bytes: usize) -> crate::Result<[Vec<Sample>; 2]> {
    let [(a, left), (b, right)] = ends;
    let source = left.register(&vec![7; bytes])?;
    let target = right.register_remote(bytes)?;
    left.qp.write(1, source.all(), target.remote(0))?;
    let mut samples = [vec![], vec![]];
    for _ in 0..100_000 {
        samples[0].push(a.sample());
        samples[1].push(b.sample());
        if let Some(wc) = left.cq().poll_one() {
            assert_eq!(wc.status, WcStatus::Success);
            return Ok(samples);
        }
        net.run_for(Duration::from_micros(10));
    }
    panic!("the write takes longer than a second");
}

#[test]
fn congestion_is_seen_where_it_is_and_where_it_comes_from() -> crate::Result<()> {
    let net = Net::new();
    let ends = behind(&net, "rate=1Gb/s,buffer=500KB,kmin=5KB,kmax=20KB", "dcqcn:preset=laptop")?;
    let [sent, received] = watched(&net, &ends, 2 << 20)?;
    let (last, there) = (sent.last().expect("samples"), received.last().expect("samples"));
    assert!(there.port.link_marked > 0 && there.port.np_cnp_sent > 0, "{there:?}");
    assert!(there.port.rx_ce_packets > 0);
    assert_eq!(last.port.rp_cnp_handled + last.port.rp_cnp_ignored, there.port.np_cnp_sent);
    let rates = || sent.iter().filter_map(|sample| sample.qps[0].rate);
    assert!(rates().max() > rates().min(), "it slowed down");
    assert!(rates().all(|rate| rate <= 10_000_000_000));
    assert!(sent.iter().any(|sample| sample.qps[0].alpha.is_some_and(|alpha| alpha > 0.0)));
    assert!(sent.iter().any(|sample| sample.qps[0].target_rate.is_some()));
    let queues: Vec<_> = received.iter().filter_map(|s| s.port.queue_bytes.zip(s.port.queue_max)).collect();
    assert_eq!(queues.len(), received.len());
    assert!(queues.iter().all(|(now, most)| now <= most));
    let highest = ends[1].0.link_stats().expect("an emulated port").queue_bytes_max;
    assert_eq!(queues.iter().map(|(_, most)| *most).max(), Some(highest), "no peak is lost between samples");
    assert!(queues.iter().any(|(_, most)| *most < highest), "and each is of its own time");
    assert!(sent.iter().all(|sample| sample.port.link_marked == 0), "the sender's port is not the full one");
    Ok(())
}

#[test]
fn a_port_without_an_emulated_one_has_no_queue_and_no_lanes() -> crate::Result<()> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let ends = RcEnd::pair(&a, &b)?;
    let samples = watched(&net, &[(a, ends.0), (b, ends.1)], 100_000)?;
    for sample in samples.iter().flatten() {
        assert_eq!((sample.port.queue_bytes, sample.port.queue_max), (None, None));
        assert!(sample.lanes.is_empty() && sample.qps[0].rate.is_none());
    }
    Ok(())
}

#[test]
fn credits_and_the_time_without_are_seen_while_it_lasts() -> crate::Result<()> {
    let net = Net::new();
    let ends = behind(&net, "ib-credits:rate=100Mb/s", "off")?;
    let [sent, _] = watched(&net, &ends, 1 << 20)?;
    let lanes: Vec<_> =
        sent.iter().filter_map(|sample| sample.lanes.iter().find(|lane| lane.credits.is_some())).collect();
    assert_eq!(lanes[0].peer, ends[1].0.address().to_string());
    let busiest = || sent.iter().filter_map(|sample| sample.lanes.iter().max_by_key(|lane| lane.stalled));
    let last = busiest().next_back().expect("lanes");
    assert!(last.stalls > 0 && last.stalled > Duration::ZERO, "{last:?}");
    let steps: Vec<_> = busiest().map(|lane| lane.stalled).collect();
    let longest = steps.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max();
    assert!(longest <= Some(Duration::from_micros(10)), "time passes in no other way: {longest:?}");
    Ok(())
}

#[test]
fn pauses_are_seen_while_they_last() -> crate::Result<()> {
    let net = Net::new();
    let ends = behind(&net, "rate=100Mb/s,pfc=0,xoff=20KB,headroom=400KB", "off")?;
    // The first packets make the ports known to each other; only then are pauses sent.
    watched(&net, &ends, 1000)?;
    let [sent, _] = watched(&net, &ends, 1 << 20)?;
    let paused: Vec<_> = sent.iter().filter_map(|sample| Some(sample.lanes.first()?.paused)).collect();
    assert!(paused.last() > Some(&Duration::from_millis(1)), "{:?}", paused.last());
    let longest = paused.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max();
    assert!(longest <= Some(Duration::from_micros(10)), "time passes in no other way: {longest:?}");
    Ok(())
}

#[test]
fn a_header_says_how_the_port_is_set_up() {
    let of = |link: &str, cc: &str| {
        let mut config = LinkConfig::default();
        config.apply(link).expect("a link");
        Header::new().of_port(&config, &cc.parse().expect("an algorithm"))
    };
    assert_eq!(Header::new().of_port(&LinkConfig::default(), &Algorithm::Off), Header::new());
    let header = of("rate=10Gb/s,buffer=1MB,delay=5us,pfc=3", "dcqcn:preset=paper,rpg_ai_rate=10");
    assert_eq!(header.cc.as_deref(), Some("dcqcn, preset paper, rpg_ai_rate=10"));
    let link = header.link.expect("a link");
    assert_eq!(
        link.name,
        "ethernet, 10 Gb/s, buffer 1000 KB, delay 5µs, pauses each peer on priority 3 above 186.368 KB"
    );
    assert_eq!((link.rate, link.buffer), (Some(10_000_000_000), Some(1_000_000)));
    assert_eq!((link.kmin, link.kmax), (Some(5_000), Some(200_000)));
    let slow = of("ib-credits:receiver_rate=1Gb/s", "dctcp");
    assert_eq!(slow.cc.as_deref(), Some("dctcp"));
    let link = slow.link.expect("a link");
    assert_eq!(link.name, "ib-credits, receiver reads 1 Gb/s");
    assert_eq!((link.rate, link.kmin), (None, None));
}

#[test]
fn a_sample_has_a_bound() -> crate::Result<()> {
    let net = Net::new();
    let (a, b) = (net.device(), net.device());
    let pairs: Vec<_> = (0..MAX_QPS).map(|_| RcEnd::pair(&a, &b)).collect::<crate::Result<_>>()?;
    assert_eq!(a.sample().qps.len(), MAX_QPS);
    let _one_more = RcEnd::pair(&a, &b)?;
    assert_eq!(a.sample().qps.len(), MAX_QPS);
    assert_eq!(pairs.len(), MAX_QPS);
    Ok(())
}
