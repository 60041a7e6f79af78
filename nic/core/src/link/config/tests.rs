use super::*;
use cc::Algorithm;
use cc::vl::Entry;
use qp::Mtu;

const OFF: Algorithm = Algorithm::Off;

fn ethernet() -> LinkConfig {
    LinkConfig { rate: Some(Rate::from_gbps(5)), ..LinkConfig::default() }
}

fn refused(link: &LinkConfig) -> (String, String) {
    let error = link.check().expect_err("not in order");
    (error.word().to_owned(), error.to_string())
}

/// The three ways to write the same settings: in a file, on a command line, in Rust.
#[test]
fn all_words_are_the_same_in_a_file_on_a_command_line_and_in_rust() {
    let file = r#"
        model = "ethernet"
        rate = "5 Gb/s"
        buffer = "1 MB"
        delay = "10 us"
        receiver_rate = "2.5 Gb/s"
        kmin = 5000
        kmax = "200 KB"
        pmax = 0.01
        pfc = [3, 4]
        xoff = "256 KiB"
        xon = 131072
        headroom = "64 KB"
        cable_m = 10
        detection_time = 200
        restoration_time = 300
        action = "alert"
        tsa = ["ets", "ets"]
        tc_bw = [60, 40]
        sl2vl = [1, 2]
        vlarb_low = [{ vl = 0, weight = 64 }, { vl = 1, weight = 32 }]
        vlarb_high = ["2:255"]
        high_limit = 5
        vls = 3
    "#;
    let line = "ethernet:rate=5Gb/s,buffer=1MB,delay=10us,receiver_rate=2.5 Gb/s,kmin=5000,kmax=200 KB,pmax=0.01,\
                pfc=3,4,xoff=256KiB,xon=131072,headroom=64KB,cable_m=10,detection_time=200,restoration_time=300,\
                action=alert,tsa=ets,ets,tc_bw=60,40,sl2vl=1,2,vlarb_low=0:64,1:32,vlarb_high=2:255,high_limit=5,\
                vls=3";
    let mut sl2vl = LinkConfig::default().sl2vl;
    sl2vl[..2].copy_from_slice(&[1, 2]);
    let mut tsa = [Tsa::Strict; 8];
    tsa[..2].fill(Tsa::Ets);
    let rust = LinkConfig {
        model: Model::Ethernet,
        rate: Some(Rate::from_gbps(5)),
        buffer: Some(1_000_000),
        delay: Duration::from_micros(10),
        receiver_rate: Some(Rate::from_mbps(2500)),
        kmin: Some(5_000),
        kmax: Some(200_000),
        pmax: Some(0.01),
        pfc: vec![3, 4],
        xoff: Some(262_144),
        xon: Some(131_072),
        headroom: Some(64_000),
        cable_m: 10,
        detection_time: 200,
        restoration_time: 300,
        action: Action::Alert,
        tsa,
        tc_bw: [60, 40, 0, 0, 0, 0, 0, 0],
        sl2vl,
        vlarb_low: vec![Entry { vl: 0, weight: 64 }, Entry { vl: 1, weight: 32 }],
        vlarb_high: vec![Entry { vl: 2, weight: 255 }],
        high_limit: 5,
        vls: 3,
    };
    assert_eq!(toml::from_str(file), Ok(rust.clone()));
    assert_eq!(line.parse(), Ok(rust.clone()));
    // Nothing has its default here but the model, and each word was said twice.
    let written = toml::Table::try_from(&rust).expect("a table");
    let default = toml::Table::try_from(LinkConfig::default()).expect("a table");
    for word in LinkConfig::WORDS {
        assert!(
            file.contains(&format!("{word} = ")) && line.contains(&format!("{word}=")) || *word == "model"
        );
        assert!(written.get(*word) != default.get(*word) || *word == "model", "{word}");
    }
    assert_eq!(written.len(), LinkConfig::WORDS.len(), "every field is a word");
    let text = toml::to_string(&rust).expect("text");
    assert_eq!(toml::from_str(&text), Ok(rust), "{text}");
}

#[test]
fn a_model_and_words_stand_alone_or_together() {
    let ib = LinkConfig { model: Model::IbCredits, ..LinkConfig::default() };
    assert_eq!("ib-credits".parse(), Ok(ib.clone()));
    assert_eq!("model=ib-credits".parse(), Ok(ib.clone()));
    assert_eq!(" ib-credits : vls = 2 , ".parse(), Ok(LinkConfig { vls: 2, ..ib.clone() }));
    assert_eq!("rate=5Gb/s".parse(), Ok(ethernet()));
    assert_eq!("ethernet".parse(), Ok(LinkConfig::default()));
    assert_eq!("".parse(), Ok(LinkConfig::default()));
    let table = vec![Entry { vl: 0, weight: 1 }];
    assert_eq!("vlarb_low=0:1".parse(), Ok(LinkConfig { vlarb_low: table, ..LinkConfig::default() }));
    let mut link = ib;
    link.apply("rate=5Gb/s").expect("a word");
    assert_eq!(link, LinkConfig { model: Model::IbCredits, ..ethernet() }, "the model stays");
}

#[test]
fn what_is_no_word_or_value_is_named() {
    for (text, word) in [
        ("token-ring", "model"),
        ("ethernet:speed=5Gb/s", "speed"),
        ("rate=5", "rate"),
        ("rate=5Gb/s,pfc", "pfc"),
        ("ethernet:pfc", "pfc"),
        ("buffer=1 XB", "buffer"),
        ("buffer=-1", "buffer"),
        ("buffer=20000000000 GB", "buffer"),
        ("delay=10", "delay"),
        ("delay=10 parsecs", "delay"),
        ("pfc=three", "pfc"),
        ("tc_bw=1,2,3,4,5,6,7,8,9", "tc_bw"),
        ("tsa=cbs", "tsa"),
        ("vlarb_low=0", "vlarb_low"),
        ("pmax=x", "pmax"),
        ("vls=256", "vls"),
    ] {
        let error = text.parse::<LinkConfig>().expect_err(text);
        assert_eq!(error.word(), word, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    let unknown = "ethernet:speed=1".parse::<LinkConfig>().expect_err("no word").to_string();
    assert!(LinkConfig::WORDS.iter().all(|word| unknown.contains(word)), "{unknown}");
    for text in ["rate = 5", "pfc = \"three\"", "delay = 10", "vlarb_low = [{ vl = 1 }]", "speed = 1"] {
        assert!(toml::from_str::<LinkConfig>(text).is_err(), "{text}");
    }
}

#[test]
fn sizes_and_times_have_units() {
    let buffer =
        |text: &str| format!("buffer={text}").parse::<LinkConfig>().ok().and_then(|link| link.buffer);
    for (text, bytes) in [
        ("262144", 262_144),
        ("1.5 KB", 1_500),
        ("2 MiB", 2 << 20),
        ("3kB", 3_000),
        ("64k", 65_536),
        ("1 GB", 1_000_000_000),
    ] {
        assert_eq!(buffer(text), Some(bytes), "{text}");
    }
    let delay = |text: &str| format!("delay={text}").parse::<LinkConfig>().map(|link| link.delay);
    for (text, nanos) in [("7 ns", 7), ("1.5 us", 1_500), ("10ms", 10_000_000), ("0 s", 0)] {
        assert_eq!(delay(text), Ok(Duration::from_nanos(nanos)), "{text}");
        assert_eq!(
            delay(&words::Time(Duration::from_nanos(nanos)).to_string()),
            Ok(Duration::from_nanos(nanos))
        );
    }
}

#[test]
fn values_out_of_range_or_in_contradiction_are_refused() {
    assert_eq!(LinkConfig::default().check(), Ok(()));
    let ib = || LinkConfig { model: Model::IbCredits, ..LinkConfig::default() };
    let pfc = || LinkConfig { pfc: vec![3], ..ethernet() };
    let cases: Vec<(&str, LinkConfig)> = vec![
        ("rate", LinkConfig { rate: Some(Rate::default()), ..ethernet() }),
        ("receiver_rate", LinkConfig { receiver_rate: Some(Rate::default()), ..ethernet() }),
        ("delay", LinkConfig { delay: Duration::from_millis(1001), ..ethernet() }),
        ("buffer", LinkConfig { buffer: Some((1 << 30) + 1), ..ethernet() }),
        ("pmax", LinkConfig { pmax: Some(1.1), ..ethernet() }),
        ("pmax", LinkConfig { pmax: Some(f64::NAN), ..ethernet() }),
        ("kmin", LinkConfig { kmin: Some(2), kmax: Some(1), ..ethernet() }),
        ("pfc", LinkConfig { pfc: vec![3, 8], ..ethernet() }),
        ("pfc", LinkConfig { pfc: vec![3], rate: Some(Rate::from_gbps(1)), ..ib() }),
        ("xoff", LinkConfig { xoff: Some(1), ..ethernet() }),
        ("headroom", LinkConfig { headroom: Some(1), ..ethernet() }),
        ("xon", LinkConfig { xon: Some(2), xoff: Some(1), ..pfc() }),
        ("detection_time", LinkConfig { detection_time: 99, ..pfc() }),
        ("restoration_time", LinkConfig { restoration_time: 60_001, ..pfc() }),
        ("tc_bw", LinkConfig { tc_bw: [1, 0, 0, 0, 0, 0, 0, 0], ..ethernet() }),
        ("tsa", LinkConfig { tsa: [Tsa::Ets; 8], ..ib() }),
        ("vls", LinkConfig { vls: 2, ..ethernet() }),
        ("vls", LinkConfig { vls: 0, ..ib() }),
        ("vls", LinkConfig { vls: 16, ..ib() }),
        ("sl2vl", LinkConfig { sl2vl: [16; 16], ..ib() }),
        ("vlarb_low", LinkConfig { vlarb_low: vec![Entry { vl: 15, weight: 1 }], ..ib() }),
        ("vlarb_high", LinkConfig { vlarb_high: vec![Entry { vl: 0, weight: 1 }; 65], ..ib() }),
    ];
    for (word, link) in cases {
        let (named, text) = refused(&link);
        assert_eq!(named, word, "{text}");
    }
    assert_eq!(
        LinkConfig { buffer: Some(1 << 30), delay: Duration::from_secs(1), ..ethernet() }.check(),
        Ok(())
    );
    assert_eq!(LinkConfig { vls: 15, ..ib() }.check(), Ok(()));
}

#[test]
fn what_needs_a_queue_says_that_it_needs_a_rate() {
    for text in ["pfc=3", "buffer=1MB", "kmin=1", "kmax=1", "pmax=1", "tsa=ets", "tc_bw=100"] {
        let (word, error) = refused(&text.parse().expect("a word"));
        assert_eq!(word, text.split('=').next().expect("a word"));
        assert!(error.contains("`rate`"), "{error}");
    }
}

#[test]
fn a_queue_is_as_large_as_the_port_and_its_marks_need() {
    let buffer = |link: &str, cc: &str| {
        let link: LinkConfig = link.parse().expect("a link");
        link.at(&cc.parse().expect("an algorithm"), Mtu::B4096).map(|profile| profile.buffer)
    };
    // 1 ms.
    assert_eq!(buffer("rate=5Gb/s", "off"), Ok(625_000));
    // Four times 312.5 KB at 1 Gb/s.
    assert_eq!(buffer("rate=1Gb/s", "dcqcn:preset=laptop"), Ok(1_250_000));
    // Windows of flows that are not under control yet.
    assert_eq!(buffer("rate=1Gb/s", "timely"), Ok(1_000_000));
    // Two packets: 4096 + 40 of headers, 8 + 40 + 14 + 4 + 20 around them.
    assert_eq!(buffer("rate=1Mb/s", "off"), Ok(2 * 4222));
    assert_eq!(buffer("rate=1Mb/s,buffer=4222", "off"), Ok(4222));
    let error = buffer("rate=1Mb/s,buffer=4221", "off").expect_err("too small");
    assert_eq!(error.word(), "buffer");
    assert_eq!(buffer("receiver_rate=1Gb/s", "off"), Ok(0));
}

#[test]
fn marks_are_those_of_the_congestion_control_unless_said_otherwise() {
    let red = |link: &str, cc: &str| {
        let link: LinkConfig = link.parse().expect("a link");
        let cc: Algorithm = cc.parse().expect("an algorithm");
        link.at(&cc, Mtu::B4096).map(|profile| profile.red.map(|r| (r.kmin, r.kmax, r.pmax)))
    };
    assert_eq!(red("rate=10Gb/s", "off"), Ok(None));
    assert_eq!(red("rate=10Gb/s", "dcqcn"), Ok(Some((5_000, 200_000, 0.01))));
    assert_eq!(red("", "dcqcn"), Ok(None), "no queue, no marks");
    assert_eq!(red("rate=10Gb/s,kmax=90KB", "dcqcn"), Ok(Some((5_000, 90_000, 0.01))));
    assert_eq!(red("rate=10Gb/s,kmin=1,kmax=2,pmax=1", "off"), Ok(Some((1, 2, 1.0))));
    for (link, cc, word) in [
        ("rate=10Gb/s,kmin=1,kmax=2", "off", "pmax"),
        ("rate=10Gb/s,kmin=1,pmax=1", "off", "kmax"),
        ("rate=10Gb/s,kmax=1000", "dcqcn", "kmin"),
        ("rate=10Gb/s", "dcqcn:pmax=2", "pmax"),
        ("rate=10Gb/s", "dcqcn:kmean=2", "kmean"),
    ] {
        let error = match cc.parse::<Algorithm>() {
            Ok(_) => red(link, cc).expect_err(word),
            Err(error) => LinkConfigError::Cc(error),
        };
        assert_eq!(error.word(), word, "{error}");
    }
}

#[test]
fn lossless_priorities_get_thresholds_and_headroom() {
    let link: LinkConfig = "rate=10Gb/s,pfc=3".parse().expect("a link");
    let profile = link.at(&OFF, Mtu::B4096).expect("in order");
    let of = profile.thresholds[3].expect("a lossless priority");
    // Half of what a stock socket buffer takes from one peer.
    assert_eq!((of.xoff, of.xon), (186_368, 186_368 - 4222));
    assert!(profile.thresholds.iter().enumerate().all(|(p, t)| t.is_some() == (p == 3)));
    // The packet that crosses, the one that the pause waits for, the pause, 2 x 1 us and 67 quanta of 51.2 ns at 1.25
    // bytes a nanosecond, and the train that the peer has begun: 20 us, six packets. And two windows of the peer.
    let on_the_way = 2_500 + 67 * 64;
    let without_rounding = 2 * 4222 + 84 + on_the_way + 6 * 4222 + 2 * 372_736;
    assert!((without_rounding..without_rounding + 3).contains(&of.headroom), "{}", of.headroom);
    let far: LinkConfig = "rate=10Gb/s,pfc=3,delay=100us".parse().expect("a link");
    let far = far.at(&OFF, Mtu::B4096).expect("in order").thresholds[3].expect("lossless");
    assert_eq!(far.headroom - of.headroom, 250_000, "twice the delay");
    let own: LinkConfig = "rate=10Gb/s,pfc=0,xoff=9000,xon=7000,headroom=1".parse().expect("a link");
    let own = own.at(&OFF, Mtu::B4096).expect("in order").thresholds[0];
    assert_eq!(own.map(|t| (t.xoff, t.xon, t.headroom)), Some((9000, 7000, 1)));
    let wrong: LinkConfig = "rate=10Gb/s,pfc=0,xon=700000".parse().expect("a link");
    assert_eq!(wrong.at(&OFF, Mtu::B4096).expect_err("above xoff").word(), "xon");
}

#[test]
fn a_headroom_that_peers_can_overrun_is_refused_on_sockets() {
    let at = |link: &str, granted| {
        link.parse::<LinkConfig>().expect("a link").at_socket(&OFF, Mtu::B4096, granted)
    };
    let headroom =
        |link: &str, granted| at(link, granted).expect("in order").thresholds[3].expect("lossless").headroom;
    // A quarter more than the receive buffer, and what a port in hardware needs.
    assert!(headroom("rate=5Gb/s,pfc=3", 8 << 20) > 10 << 20);
    assert!(headroom("rate=5Gb/s,pfc=3", 425_984) > 425_984 + 425_984 / 4);
    assert_eq!(headroom("rate=5Gb/s,pfc=3,headroom=20MB", 8 << 20), 20_000_000);
    let error = at("rate=5Gb/s,pfc=3,xoff=50KB,headroom=30KB", 425_984).expect_err("30 KB hold nothing");
    assert_eq!(error.word(), "headroom");
    assert!(error.to_string().contains("532480 bytes on the way"), "{error}");
    // Without lossless priorities there is no headroom.
    assert!(at("rate=5Gb/s", 425_984).is_ok_and(|profile| profile.thresholds.iter().all(Option::is_none)));
}
