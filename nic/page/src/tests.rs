//! A page, without a page.

use super::Bench;

fn log(setup: &str) -> String {
    Bench::log(setup, 3000.0).unwrap_or_else(|why| panic!("{why}: {setup}"))
}

/// Names of packets of a log, with a mark if their PSN was sent before.
fn names(log: &str) -> Vec<String> {
    let packets = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let name = |packet: serde_json::Value| {
        let again = if packet["again"] == true { "!" } else { "" };
        Some(format!("{}{again}", packet["name"].as_str()?))
    };
    packets.filter_map(name).collect()
}

#[test]
fn a_transfer_ends_and_is_the_same_again() {
    let once = log("{}");
    assert_eq!(once, log("{}"));
    assert!(once.contains("\"done\":4") && once.contains("SUCCESS"), "{once}");
    assert_eq!(names(&once).iter().filter(|name| *name == "WRITE_FIRST").count(), 4);
    assert!(once.contains("\"icrc\""), "all fields are there: {once}");
    let other = log("{\"seed\": 2, \"sliders\": {\"loss\": 20}}");
    assert_ne!(log("{\"seed\": 3, \"sliders\": {\"loss\": 20}}"), other);
}

/// A page adds microseconds up. A sum just above the time once went on for a nanosecond more.
#[test]
fn a_time_that_was_added_up_is_the_same_time() {
    let at = |until| Bench::log("{}", until).expect("a log");
    for nanoseconds in [205_771_u32, 205_772, 300_001] {
        let time = f64::from(nanoseconds) / 1e3;
        assert_eq!(at(time.next_up()), at(time));
        assert_eq!(at(time.next_down()), at(time));
        assert_ne!(at(time + 0.001), at(time));
    }
}

#[test]
fn a_packet_that_is_dropped_by_hand_is_sent_again() {
    let mut bench = Bench::new("{}").expect("a bench");
    bench.run(15.0).expect("it runs");
    let flying = bench.tell().packets.iter().position(|packet| packet.fate == "flying").expect("a packet");
    assert!(
        bench.act(&format!("{{\"do\": \"drop\", \"at\": 15, \"packet\": {flying}}}")).expect("an action")
    );
    assert!(
        !bench.act("{\"do\": \"drop\", \"at\": 15, \"packet\": 0}").expect("an action"),
        "it has arrived"
    );
    bench.run(3000.0).expect("it runs");
    let told = bench.tell();
    assert!(told.ended && told.status == "SUCCESS");
    let again: Vec<_> = told.packets.iter().filter(|packet| packet.again).collect();
    assert!(!again.is_empty() && told.packets.iter().any(|packet| packet.name == "NAK"));
    // The same from a set-up that has the action.
    let setup = format!("{{\"actions\": [{{\"do\": \"drop\", \"at\": 15, \"packet\": {flying}}}]}}");
    assert_eq!(names(&log(&setup)).iter().filter(|name| name.ends_with('!')).count(), again.len());
}

#[test]
fn packets_are_late_and_marked_by_hand() {
    let late = log("{\"actions\": [{\"do\": \"delay\", \"at\": 15, \"packet\": 1, \"by\": 50}]}");
    assert!(names(&late).contains(&"NAK".to_owned()), "the others overtake it: {late}");
    let marked = log(
        "{\"cc\": \"dcqcn:preset=laptop\", \"actions\": [{\"do\": \"mark\", \"at\": 15, \"packet\": 1}]}",
    );
    assert!(names(&marked).contains(&"CNP".to_owned()), "{marked}");
    assert!(
        !names(&log("{\"cc\": \"dcqcn:preset=laptop\", \"sliders\": {\"kmin\": 90000, \"kmax\": 99000}}"))
            .contains(&"CNP".to_owned())
    );
}

#[test]
fn sliders_do_what_they_say() {
    let lost = log("{\"sliders\": {\"loss\": 20}}");
    assert!(lost.contains("\"lost\""), "{lost}");
    let full = log("{\"sliders\": {\"buffer\": 4000}}");
    assert!(full.contains("\"dropped\""), "{full}");
    let end = |setup: &str| {
        let mut bench = Bench::new(setup).expect("a bench");
        while !bench.tell().ended {
            bench.step(1e6).expect("it runs");
        }
        bench.tell().now
    };
    let (whole, slow, by_hand) =
        (end("{}"), end("{\"sliders\": {\"rate_gbps\": 0.5}}"), end("{\"sliders\": {\"sender_gbps\": 0.5}}"));
    assert!(slow > 1.7 * whole && by_hand > 1.7 * whole, "{whole} {slow} {by_hand}");
    let wait = end("{\"operation\": \"send\", \"receiver_us\": 500, \"depth\": 1}");
    assert!(wait > 1000.0, "{wait}");
    for operation in ["send", "read"] {
        assert!(end(&format!("{{\"operation\": \"{operation}\"}}")) < 1000.0, "{operation}");
    }
}

/// The page once showed the fields that a packet had before it was marked.
#[test]
fn the_fields_of_a_packet_follow_its_mark() {
    let mut bench = Bench::new("{\"cc\": \"dcqcn:preset=laptop\"}").expect("a bench");
    bench.run(15.0).expect("it runs");
    let before = bench.tell().packets.remove(1);
    assert!(bench.act("{\"do\": \"mark\", \"at\": 15, \"packet\": 1}").expect("an action"));
    let after = bench.tell().packets.remove(0);
    assert_eq!((before.id, after.id, before.fields["ecn"].as_str()), (1, 1, Some("ect0")));
    assert_eq!(after.fields["ecn"].as_str(), Some("ce"));
}

/// The page once drew lines that began too early, or too late, after the cable's latency had changed and for late packets.
#[test]
fn packets_leave_when_they_left_whatever_happens_later() {
    let setup = "{\"actions\": [{\"do\": \"set\", \"at\": 12, \"sliders\": {\"latency_us\": 40}}, \
                 {\"do\": \"delay\", \"at\": 15, \"packet\": 1, \"by\": 50}]}";
    let mut bench = Bench::new(setup).expect("a bench");
    bench.run(200.0).expect("it runs");
    let mut free = 0.0;
    for packet in bench.tell().packets.iter().filter(|packet| packet.from == 0) {
        // The port of 1 Gb/s sends 1,000 bits in a microsecond.
        let left = packet.sent.max(free) + f64::from(packet.bytes) / 125.0;
        assert!(packet.left.is_none_or(|at| (at - left).abs() < 0.01), "{packet:?} leaves at {left}");
        free = left;
    }
    assert!(free > 50.0, "there were several");
}

#[test]
fn mistakes_are_told() {
    for wrong in ["", "{\"bytes\": 0}", "{\"speed\": 1}", "{\"cc\": \"reno\"}", "7"] {
        assert!(Bench::new(wrong).is_err(), "{wrong}");
    }
    let mut bench = Bench::new("{}").expect("a bench");
    assert!(bench.act("{\"do\": \"explode\", \"at\": 1}").is_err());
    assert!(!bench.act("{\"do\": \"drop\", \"at\": 1, \"packet\": 99999}").expect("an action"));
}
