//! Pictures of known traces: the content of the SVG, and whether a bitmap is drawn.

mod bottleneck;
mod reader;

use super::*;
use bottleneck::Bottleneck;
use clap::Parser;
use reader::Picture;
use rnic::trace::{LinkHeader, PortSample, QpSample, Recorder, Sample, Trace};
use rnic_plot::{figure as shapes, svg};
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

/// A directory that is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rnic-plot-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for temporary files");
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn write(&self, name: &str, trace: &Trace) -> String {
        let path = self.path(name);
        let mut recorder = Recorder::create(&path, &trace.header).expect("a writable folder");
        for sample in &trace.samples {
            recorder.record(sample).expect("a writable folder");
        }
        recorder.finish().expect("a writable folder");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Leftovers are in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn args(words: &[&str]) -> Args {
    Cli::try_parse_from([&["plot"], words].concat()).expect("a command line").args
}

fn picture(words: &[&str]) -> Picture {
    let args = args(words);
    let figure = figure(&args).expect("a figure");
    let size = (args.width, args.height.unwrap_or_else(|| height(&figure, args.width)));
    Picture::parse(&svg(&figure, size).expect("a picture"))
}

fn refusal(words: &[&str]) -> String {
    let text = run(&args(words)).expect_err("no picture").to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// A sender with one sample per millisecond, in which its queue pairs have the rates of `rate` in Mb/s.
fn sender(qps: u32, millis: u64, rate: impl Fn(u32, u64) -> u64) -> Trace {
    let mut totals = vec![0; qps as usize];
    let sample = |milli: u64| {
        let qp = |(index, total): (u32, &mut u64)| {
            let label = Some("10.0.0.9".to_owned());
            let qp = QpSample { qpn: 17 + index, label, sent_bytes: *total, ..Default::default() };
            // 1 Mb/s is 125 bytes per millisecond.
            *total += 125 * rate(index, milli);
            qp
        };
        let qps = (0..).zip(&mut totals).map(qp).collect();
        Sample { at: Duration::from_millis(milli), qps, ..Default::default() }
    };
    let samples = (0..=millis).map(sample).collect();
    let header = Header { device: "10.0.0.1".into(), title: "Known rates".into(), ..Header::new() };
    Trace { header, samples }
}

#[test]
fn values_are_where_the_axes_say() {
    let folder = Folder::new();
    // 2 Gb/s for half a second, then 5 Gb/s.
    let file = folder.write("a.trace", &sender(1, 1000, |_, milli| if milli < 500 { 2000 } else { 5000 }));
    let picture = picture(&[&file]);
    let panel = picture.panel("goodput (Gb/s)");
    let lines = picture.lines(&panel, shapes::PALETTE[0], 2.0);
    assert_eq!(lines.len(), 1, "one queue pair, one line");
    let values = panel.values(&lines[0]);
    assert_eq!(values.len(), 200, "windows of 5 ms");
    for (at, value) in values {
        let expected = if at < 500.0 { 2.0 } else { 5.0 };
        assert!((value - expected).abs() < 0.01, "{value} at {at} ms");
    }
    assert!(picture.has_text("time (ms)") && picture.has_text("Known rates"));
    assert!(picture.has_text("averages over 5 ms"));
    assert!(picture.has_text("10.0.0.1 → 10.0.0.9"));
}

#[test]
fn each_queue_pair_has_a_line_of_its_own_colour() {
    let folder = Folder::new();
    let file = folder.write("a.trace", &sender(3, 100, |index, _| 100 * u64::from(index + 1)));
    let picture = picture(&[&file]);
    let panel = picture.panel("goodput (Mb/s)");
    for (index, color) in shapes::PALETTE[..3].iter().enumerate() {
        let lines = picture.lines(&panel, *color, 2.0);
        assert_eq!(lines.len(), 1);
        let expected = 100.0 * (index + 1) as f64;
        assert!(panel.values(&lines[0]).iter().all(|(_, value)| (value - expected).abs() < 1.0));
        assert!(
            picture.has_text(&format!("QP {}: 10.0.0.1 → 10.0.0.9", 17 + index)),
            "the same ends, other numbers"
        );
    }
    assert!(picture.lines(&panel, shapes::PALETTE[3], 2.0).is_empty());
}

#[test]
fn queue_pairs_beyond_the_colours_are_grey_and_move_least() {
    let folder = Folder::new();
    let file = folder.write("a.trace", &sender(20, 100, |index, _| 100 * u64::from(index + 1)));
    let picture = picture(&[&file]);
    let panel = picture.panel("goodput (Gb/s)");
    let fastest = picture.lines(&panel, shapes::PALETTE[7], 2.0);
    assert!((panel.values(&fastest[0])[3].1 - 2.0).abs() < 0.01);
    let grey = shapes::Look::of(usize::MAX, 0);
    assert_eq!(picture.lines(&panel, grey.color, grey.width).len(), 12);
    assert!(picture.has_text("12 more"));
}

#[test]
fn a_queue_pair_that_is_created_later_has_a_line_from_then_on() {
    let folder = Folder::new();
    let mut trace = sender(2, 1000, |_, _| 1000);
    for sample in &mut trace.samples[..500] {
        sample.qps.truncate(1);
    }
    for (index, sample) in trace.samples[500..].iter_mut().enumerate() {
        sample.qps[1].sent_bytes = 250_000 * index as u64;
    }
    let file = folder.write("a.trace", &trace);
    let picture = picture(&[&file]);
    let panel = picture.panel("goodput (Gb/s)");
    let late = panel.values(&picture.lines(&panel, shapes::PALETTE[1], 2.0)[0]);
    assert!((late[0].0 - 502.5).abs() < 0.5, "{late:?}");
    assert!(late[1..].iter().all(|(_, value)| (value - 2.0).abs() < 0.01), "{late:?}");
}

#[test]
fn traces_are_aligned_by_the_time_at_which_they_began() {
    let folder = Folder::new();
    let (mut early, mut late) = (sender(1, 1000, |_, _| 1000), sender(1, 500, |_, _| 3000));
    early.header.started = Duration::from_secs(1_767_225_600);
    late.header.started = early.header.started + Duration::from_millis(250);
    late.header.device = "10.0.0.2".into();
    let files = [folder.write("b.trace", &late), folder.write("a.trace", &early)];
    let picture = picture(&[&files[0], &files[1]]);
    let panel = picture.panel("goodput (Gb/s)");
    let late = panel.values(&picture.lines(&panel, shapes::PALETTE[0], 2.0)[0]);
    let (first, last) = (late[0].0, late[late.len() - 1].0);
    assert!((first - 252.5).abs() < 0.5 && (last - 747.5).abs() < 0.5, "{first} to {last}");
    let early = panel.values(&picture.lines(&panel, shapes::PALETTE[1], 2.0)[0]);
    assert!((early[0].0 - 2.5).abs() < 0.5);
}

#[test]
fn a_part_of_the_time_can_be_drawn() {
    let folder = Folder::new();
    let file = folder.write("a.trace", &sender(1, 1000, |_, milli| 1000 + milli));
    let picture =
        picture(&[&file, "--from", "0.2s", "--to", "400ms", "--window", "10ms", "--title", "A part"]);
    let panel = picture.panel("goodput (Mb/s)");
    let values = panel.values(&picture.lines(&panel, shapes::PALETTE[0], 2.0)[0]);
    assert_eq!(values.len(), 20);
    assert!((values[0].0 - 205.0).abs() < 0.2 && (values[19].0 - 395.0).abs() < 0.2, "{values:?}");
    assert!((values[0].1 - 1204.5).abs() < 3.0, "{values:?}");
    assert!(picture.has_text("A part") && !picture.has_text("Known rates"));
}

#[test]
fn idle_time_is_left_out_by_default() {
    let folder = Folder::new();
    let busy = |_, milli: u64| if (2000..3000).contains(&milli) { 1000 } else { 0 };
    let file = folder.write("a.trace", &sender(1, 9000, busy));
    let drawn = |more: &[&str]| {
        let span = figure(&args(&[&[file.as_str()], more].concat())).expect("a figure").span;
        [span.from, span.to].map(|at| (at * 1e3).round())
    };
    assert_eq!(drawn(&[]), [2000.0, 3000.0]);
    assert_eq!(drawn(&["--from", "0s"]), [0.0, 3000.0]);
    assert_eq!(drawn(&["--to", "4s"]), [2000.0, 4000.0]);
    assert_eq!(drawn(&["--from", "0s", "--to", "9s"]), [0.0, 9000.0]);
    assert_eq!(drawn(&["--from", "2.5s"]), [2500.0, 3000.0]);
}

#[test]
fn a_single_outlier_among_a_hundred_thousand_samples_is_visible() {
    let folder = Folder::new();
    let sample = |index: u64| {
        let queue = if index == 77_777 { 900_000 } else { 1000 + index % 100 };
        let port = PortSample { queue_bytes: Some(queue), queue_max: Some(queue), ..Default::default() };
        Sample { at: Duration::from_micros(100 * index), port, ..Default::default() }
    };
    let link = LinkHeader { kmin: Some(5_000), kmax: Some(200_000), ..Default::default() };
    let header = Header { device: "10.0.0.9".into(), link: Some(link), ..Header::new() };
    let file = folder.write("a.trace", &Trace { header, samples: (0..100_000).map(sample).collect() });
    let picture = picture(&[&file]);
    let panel = picture.panel("queue (KB)");
    let lines = picture.lines(&panel, shapes::Color(0x40, 0x40, 0x40), 1.5);
    let values = panel.values(&lines[0]);
    assert!(values.len() < 4 * 1280 + 4, "bounded by the width: {}", values.len());
    let peak = values.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)).expect("values");
    assert!((peak.0 - 7.7777).abs() < 0.01 && (peak.1 - 900.0).abs() < 2.0, "{peak:?}");
    assert!(picture.has_text("Kmin, 5 KB") && picture.has_text("Kmax, 200 KB"));
    for (color, level) in [(shapes::PALETTE[0], 5.0), (shapes::PALETTE[1], 200.0)] {
        let dashes = picture.lines(&panel, color, 1.5);
        assert!(dashes.len() > 20);
        assert!(panel.values(&dashes[3]).iter().all(|(_, value)| (value - level).abs() < 2.0));
    }
}

#[test]
fn two_senders_and_their_receiver_make_all_panels() {
    let folder = Folder::new();
    let run = Bottleneck { length: Duration::from_millis(800), buffer: 1_000_000, ..Bottleneck::default() };
    let [a, b, server] = run.run();
    let files = [folder.write("a.trace", &a), folder.write("b.trace", &b), folder.write("s.trace", &server)];
    let files: Vec<_> = files.iter().map(String::as_str).collect();
    let picture = picture(&files);
    for label in ["goodput (Gb/s)", "queue (KB)", "alpha", "packets / ms", "lost / ms"] {
        let panel = picture.panel(label);
        assert!(panel.right < picture.width && panel.top < panel.bottom, "{label}");
        // No legend overlaps a panel.
        for text in picture.texts.iter().filter(|text| text.anchor == "start" && text.y > panel.top) {
            assert!(text.x > panel.right, "{text:?}");
        }
    }
    for legend in [
        "10.0.0.1 → 10.0.0.9",
        "10.0.0.2 → 10.0.0.9",
        "10.0.0.9 receives in total",
        "link, 10 Gb/s",
        "thin: rate allowed",
        "queue of 10.0.0.9",
        "packets marked by 10.0.0.9",
        "CNPs that slow down 10.0.0.1",
    ] {
        assert!(picture.has_text(legend), "{legend}");
    }
    assert!(picture.has_text("congestion control: dcqcn:preset=laptop"));
    let panel = picture.panel("goodput (Gb/s)");
    let total = panel.values(&picture.lines(&panel, shapes::Color::GREY, 2.0)[0]);
    assert!(total.iter().all(|(_, value)| (8.0..10.1).contains(value)), "the port is busy: {total:?}");
    let alpha = picture.panel("alpha");
    for color in &shapes::PALETTE[..2] {
        let values = alpha.values(&picture.lines(&alpha, *color, 2.0)[0]);
        assert!(values.iter().all(|(at, value)| *at > 499.0 && (0.0..=1.001).contains(value)), "{values:?}");
    }
}

#[test]
fn the_link_rate_is_that_of_the_port_with_the_queue() {
    let folder = Folder::new();
    let link = |gbps: u64| {
        let (name, kmin) = (format!("{gbps} Gb/s"), Some(1000 * gbps));
        Some(LinkHeader { name, rate: Some(gbps * 1_000_000_000), kmin, ..Default::default() })
    };
    let mut sender = sender(1, 100, |_, _| 900);
    sender.header.link = link(2);
    let mut receiver = sender.clone();
    receiver.header.link = link(1);
    receiver.header.device = "10.0.0.9".into();
    for (sent, received) in sender.samples.iter_mut().zip(&mut receiver.samples) {
        sent.port.queue_bytes = Some(64);
        received.port.queue_bytes = Some(50_000);
        received.qps.clear();
    }
    let files = [folder.write("a.trace", &sender), folder.write("s.trace", &receiver)];
    let picture = picture(&[&files[0], &files[1]]);
    for text in ["link, 1000 Mb/s", "Kmin, 1 KB", "queue of 10.0.0.9", "link of 10.0.0.1: 2 Gb/s"] {
        assert!(picture.has_text(text), "{text}");
    }
    assert!(!picture.has_text("queue of 10.0.0.1"));
}

#[test]
fn credits_have_a_panel_with_the_time_of_stalls_shaded() {
    let folder = Folder::new();
    let file = folder.write("a.trace", &bottleneck::credits());
    let picture = picture(&[&file]);
    let panel = picture.panel("credits (KB)");
    let values = panel.values(&picture.lines(&panel, shapes::PALETTE[0], 2.0)[0]);
    assert!(
        values.iter().any(|(at, value)| (*at - 110.0).abs() < 3.0 && *value < 0.5),
        "none left: {values:?}"
    );
    assert!(values.iter().any(|(at, value)| (*at - 160.0).abs() < 3.0 && *value > 100.0), "{values:?}");
    let shaded = picture.rectangles.iter().filter(|r| (r.height - (panel.bottom - panel.top)).abs() < 0.2);
    let times: Vec<f64> = shaded.map(|r| panel.time(r.x + 0.5 * r.width)).collect();
    assert!(times.iter().any(|at| (at - 110.0).abs() < 3.0), "{times:?}");
    assert!(!times.iter().any(|at| (at - 160.0).abs() < 3.0), "{times:?}");
    assert!(picture.has_text("waits for credit"));
}

#[test]
fn the_text_of_a_header_cannot_break_the_picture() {
    let folder = Folder::new();
    let mut trace = sender(1, 10, |_, _| 1000);
    trace.header.title = "<script>&\"'\u{1}\u{0} ]]>".into();
    trace.header.device = "x".repeat(5000);
    let link = LinkHeader {
        name: "\n\r".into(),
        rate: Some(u64::MAX),
        kmin: Some(0),
        kmax: Some(u64::MAX),
        buffer: None,
    };
    trace.header.link = Some(link);
    let file = folder.write("a.trace", &trace);
    let args = args(&[&file]);
    let text = svg(&figure(&args).expect("a figure"), (1280, 720)).expect("a picture");
    assert!(!text.contains("<script") && text.contains("&lt;script&gt;&amp;&quot;&apos;"));
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
    let picture = Picture::parse(&text);
    assert!(picture.texts.iter().all(|text| text.content.chars().count() < 200), "long names are cut");
}

#[test]
fn errors_are_one_line_each() {
    let folder = Folder::new();
    let whole = sender(1, 1000, |_, _| 1000);
    let good = folder.write("good.trace", &whole);
    let with = |count: usize| Trace { samples: whole.samples[..count].to_vec(), ..whole.clone() };
    let none = refusal(&[&folder.write("none.trace", &with(0))]);
    assert!(none.ends_with("none.trace: the trace has a header but no samples"), "{none}");
    assert!(refusal(&[&folder.write("one.trace", &with(1))]).contains("one sample; a line needs two"));
    let idle = folder.write("idle.trace", &sender(1, 10, |_, _| 0));
    let idle = refusal(&[&idle]);
    assert!(idle.contains("nothing to draw") && idle.contains("no goodput, no queue"), "{idle}");
    let outside = refusal(&[&good, "--from", "3s", "--to", "4s"]);
    assert!(outside.contains("nothing between 3 s and 4 s; the samples are from 0 s to 1 s"), "{outside}");
    assert!(
        refusal(&[&good, "--from", "0.5s", "--to", "0.4s"]).contains("--from 0.5s must be before --to 0.4s")
    );
    assert!(refusal(&[&good, "--window", "0s"]).contains("--window"));
    assert!(
        refusal(&[&good, "-o", &folder.path("picture.jpg")])
            .contains("use a file name that ends in .svg or .png")
    );
    assert!(refusal(&[&good, "-o", &folder.path("no/folder/a.svg")]).contains("cannot write"));
    let svg = folder.write("trace.svg", &whole);
    assert!(refusal(&[&svg]).contains("the picture would overwrite the trace"));
    let garbage = folder.path("garbage.trace");
    std::fs::write(&garbage, "{\"rnic_trace\":1}\n{\"t\":1}\nwhat?\n").expect("a writable folder");
    let garbage = refusal(&[&garbage]);
    assert!(garbage.contains("garbage.trace: line 3 is not a sample"), "{garbage}");
    let empty = folder.path("empty.trace");
    std::fs::write(&empty, "").expect("a writable folder");
    assert!(refusal(&[&empty]).ends_with("empty.trace: the file is empty"));
    let foreign = folder.path("foreign.trace");
    std::fs::write(&foreign, "root:x:0:0\n").expect("a writable folder");
    assert!(refusal(&[&foreign]).contains("not a trace of `rnic perf --trace`"));
    assert!(refusal(&[&folder.path("nothing")]).contains("cannot open"));
    let many = vec![good.as_str(); MAX_FILES + 1];
    assert!(refusal(&many).contains("at most"));
}

#[test]
fn a_bitmap_has_the_requested_size_and_is_not_blank() {
    let folder = Folder::new();
    let file = folder.write("a.trace", &sender(2, 100, |index, _| 1000 + 500 * u64::from(index)));
    let output = folder.path("a.png");
    run(&args(&[&file, "-o", &output, "--width", "640", "--height", "400"])).expect("a picture");
    let decoder =
        png::Decoder::new(std::io::BufReader::new(std::fs::File::open(&output).expect("the picture")));
    let mut reader = decoder.read_info().expect("a PNG");
    let mut pixels = vec![0; reader.output_buffer_size().expect("a small picture")];
    let info = reader.next_frame(&mut pixels).expect("a frame");
    assert_eq!((info.width, info.height, info.color_type), (640, 400, png::ColorType::Rgb));
    let count = |color: shapes::Color| {
        pixels.chunks_exact(3).filter(|pixel| **pixel == [color.0, color.1, color.2]).count()
    };
    assert!(count(shapes::Color(255, 255, 255)) > 640 * 400 / 2, "paper");
    for color in &shapes::PALETTE[..2] {
        assert!(count(*color) > 300, "a line across the picture has {} pixels of its colour", count(*color));
    }
    // Text of the title, in the upper left corner.
    let dark =
        |y: usize| pixels[3 * 640 * y..3 * (640 * y + 320)].chunks_exact(3).filter(|p| p[0] < 0x60).count();
    assert!((5..40).map(dark).sum::<usize>() > 100, "a title");
}

#[test]
fn the_picture_goes_next_to_the_trace() {
    let folder = Folder::new();
    let file = folder.write("a.trace", &sender(1, 10, |_, _| 1000));
    run(&args(&[&file])).expect("a picture");
    let text = std::fs::read_to_string(folder.path("a.svg")).expect("the picture");
    assert!(
        text.starts_with("<svg width=\"1280\" height=\"720\" viewBox=\"0 0 12800 7200\""),
        "{}",
        &text[..80]
    );
}
