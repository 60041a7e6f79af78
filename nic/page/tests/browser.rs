//! The page in a browser, as a person uses it: buttons, keys, sliders and links.
//!
//! What time does in a browser depends on the machine, so these tests wait for conditions, and compare what the page shows with
//! what the native engine says of the same virtual time.

mod support;

use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use support::chromium::Browser;
use support::{assert_same, page};

/// A call of a lab's run in the page, until it has ended.
fn run_ends(browser: &mut Browser) {
    browser.wait("!Lab.worker && (!$('l-picture').src || $('l-picture').complete)");
}

/// What the page shows of a lab's experiment is what the native program computes, and the picture is that of `rnic lab plot`, byte
/// for byte.
#[track_caller]
fn assert_native_lab(browser: &mut Browser) {
    run_ends(browser);
    let setup = browser.text("JSON.stringify(Lab.setup)");
    let native = rnic_page::lab_run(&setup).unwrap_or_else(|why| panic!("{setup}: {why}"));
    let picture = browser.text("Lab.shown.picture || ''");
    assert_same(native.picture.as_deref().unwrap_or_default(), &picture);
    if native.picture.is_some() {
        assert_eq!(
            browser.text("decodeURIComponent($('l-picture').src.split('utf-8,')[1])"),
            picture,
            "{setup}"
        );
        assert_eq!(browser.number("$('l-picture').naturalWidth"), 1280.0, "the browser draws it: {setup}");
        assert!(browser.text("$('l-picture').alt").starts_with(&native.title));
    }
    assert_eq!(browser.eval("$('l-picture').parentElement.hidden"), json!(native.picture.is_none()));
    assert_eq!(browser.text("$('l-ladder').textContent"), native.text);
    let rows =
        browser.eval("[...$('l-values').rows].map(row => [...row.cells].map(cell => cell.textContent))");
    assert_eq!(rows, json!(native.values), "{setup}");
}

#[test]
fn the_pictures_of_all_labs_are_the_native_ones() {
    let Some((mut browser, url)) = browser() else { return };
    let mut pictures = 0.0;
    for lab in rnic_page::labs().expect("labs") {
        for experiment in lab.experiments.iter().filter(|name| !name.starts_with("yours")) {
            browser.open(&format!("{url}#lab={}&experiment={experiment}&student=alice", lab.name));
            assert_native_lab(&mut browser);
            pictures += browser.number("Lab.shown.picture ? 1 : 0");
        }
    }
    assert!(pictures >= 15.0, "{pictures}");
    assert_no_complaints(&mut browser);
}

#[test]
fn an_experiment_is_changed_run_and_linked() {
    let Some((mut browser, url)) = browser() else { return };
    browser.open(&url);
    browser.click("#to-lab");
    browser.wait("!$('lab-view').hidden && $('cable-view').hidden");
    assert_eq!(browser.eval("Lab.shown"), json!(null), "nothing runs before somebody wants it");
    browser.set("#l-lab", "go-back-n");
    browser.set("#l-student", "bob");
    browser.click("#l-run");
    assert_native_lab(&mut browser);
    // Without faults nothing is lost. The file has a sign that is no ASCII.
    browser.eval("$('l-file').value = '# Größe\\n' + $('l-file').value.split('[faults]')[0]");
    browser.click("#l-run");
    assert_native_lab(&mut browser);
    assert!(!browser.text("Lab.shown.text").contains("dropped"));
    let (address, shown) = (browser.text("location.href"), browser.text("JSON.stringify(Lab.shown)"));
    browser.open(&address);
    run_ends(&mut browser);
    assert_eq!(browser.text("JSON.stringify(Lab.shown)"), shown, "the link has the change");
    // A mistake is told, and nothing old is left.
    browser.eval("$('l-file').value = 'latency = 3'");
    browser.click("#l-run");
    run_ends(&mut browser);
    assert!(browser.text("$('l-status').textContent").contains("loss.toml"), "the mistake");
    assert_eq!(browser.eval("$('l-picture').parentElement.hidden"), json!(true));
    browser.click("#l-restore");
    browser.click("#l-run");
    assert_native_lab(&mut browser);
    // The task waits for a choice.
    browser.set("#l-experiment", "yours");
    assert_eq!(browser.text("$('l-status').textContent"), "Choose, and run it.");
    browser.set("#l-task input", "2");
    browser.click("#l-run");
    assert_native_lab(&mut browser);
    assert!(browser.text("location.hash").contains("own="), "the link has the choice");
    assert_no_complaints(&mut browser);
}

#[test]
fn a_run_can_be_stopped_and_a_wrong_link_is_told() {
    let Some((mut browser, url)) = browser() else { return };
    browser.open(&format!("{url}#lab=dcqcn&experiment=fixed"));
    browser.click("#l-stop");
    let said = browser.text("$('l-status').textContent");
    // The machine may have been quicker than the hand.
    assert!(["The run was stopped.", "The run has ended."].contains(&&*said), "{said}");
    for (part, word) in [("lab=dcqcm", "There is no lab dcqcm."), ("lab=dcqcn&own=%%", "damaged")] {
        browser.open(&format!("{url}#{part}"));
        assert!(browser.text("$('l-status').textContent").contains(word), "{part}");
    }
    assert_no_complaints(&mut browser);
}

/// It once was unknown, and nothing said what can be opened.
#[test]
fn a_lab_without_experiments_leads_to_those_that_have_some() {
    let Some((mut browser, url)) = browser() else { return };
    browser.open(&format!("{url}#lab=first-write"));
    let said = browser.text("$('l-status').textContent");
    assert!(
        said.contains("rnic lab start first-write") && said.contains("These can be opened: go-back-n"),
        "{said}"
    );
    browser.click("#l-status a[href='#lab=dcqcn']");
    browser.wait("$('l-lab').value === 'dcqcn'");
    run_ends(&mut browser);
    assert_eq!(browser.text("Lab.setup.lab"), "dcqcn");
    assert_no_complaints(&mut browser);
}

/// A tab with the page, or nothing where it cannot be had: then a line says so.
fn browser() -> Option<(Browser, String)> {
    let url = format!("file://{}", page()?.display());
    Some((Browser::start()?, url))
}

/// The part of the address that has a set-up.
fn link(setup: &Value) -> String {
    format!("#{}", encoded(setup.to_string().as_bytes()))
}

/// Base64 for addresses, without padding (RFC 4648, section 5).
fn encoded(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..=chunk.len() {
            text.push(char::from(LETTERS[(bits >> (18 - 6 * at) & 63) as usize]));
        }
    }
    text
}

/// A set-up that never ends by itself while a test looks.
fn long() -> Value {
    json!({ "messages": 2000, "depth": 16, "bytes": 8192 })
}

/// What the page shows is what the native engine says of the same set-up, with what was done by hand in it, at the same time.
#[track_caller]
fn assert_native(browser: &mut Browser) {
    let (setup, now) = (browser.text("JSON.stringify(setup)"), browser.number("told.now"));
    let native = rnic_page::Bench::log(&setup, now).expect("a log");
    assert_same(&native, &browser.text(&format!("rnicLog({now})")));
    // JavaScript writes numbers in its own way, so the packets are compared there.
    let differences = browser.eval(&format!(
        "rnicLog({now}).trim().split('\\n').slice(0, -1).filter((line, id) => {{ const {{ relative, ...packet }} = packets[id]; \
         return JSON.stringify(JSON.parse(line)) !== JSON.stringify(packet); }})"
    ));
    assert_eq!(differences, json!([]), "the page shows other packets");
    let shown = browser.number("packets.length");
    assert_eq!(native.lines().count() as f64 - 1.0, shown, "the last line is a summary");
}

#[track_caller]
fn assert_no_complaints(browser: &mut Browser) {
    // What has been said until now has been heard once a call has been answered.
    browser.eval("1");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn time_passes_between_play_and_pause() {
    let Some((mut browser, url)) = browser() else { return };
    browser.open(&(url + &link(&long())));
    let begin = browser.number("told.now");
    browser.frames(5);
    assert_eq!(browser.number("told.now"), begin, "nothing happens before play");
    browser.click("#play");
    browser.wait(&format!("told.now > {begin} + 5"));
    assert_eq!(browser.text("$('play').textContent"), "Pause");
    browser.click("#play");
    assert_eq!(browser.text("$('play').textContent"), "Play");
    let paused = browser.number("told.now");
    browser.frames(5);
    assert_eq!(browser.number("told.now"), paused, "nothing happens after pause");
    // The space bar does the same.
    browser.eval("document.activeElement.blur()");
    browser.press(" ");
    browser.wait(&format!("told.now > {paused} + 1"));
    browser.press(" ");
    assert_eq!(browser.eval("playing"), json!(false));
    assert_native(&mut browser);
    assert_no_complaints(&mut browser);
}

#[test]
fn a_step_delivers_a_packet() {
    let Some((mut browser, url)) = browser() else { return };
    // One message of one packet and its acknowledgement, which arrive one after the other.
    browser.open(&(url + &link(&json!({ "messages": 1, "depth": 1, "bytes": 1024 }))));
    let fates = "packets.map(packet => `${packet.name} ${packet.fate}`).join()";
    browser.click("#step");
    assert_eq!(browser.text(fates), "WRITE_ONLY arrived");
    browser.click("#step");
    assert_eq!(browser.text(fates), "WRITE_ONLY arrived,ACK arrived");
    assert!(browser.text("$('status').textContent").contains("SUCCESS"));
    assert_native(&mut browser);
    assert_no_complaints(&mut browser);
}

/// The packets in the ladder, as a screen reader says them.
fn ladder(browser: &mut Browser) -> Vec<String> {
    let labels = browser
        .eval("[...document.querySelectorAll('#ladder g.packet')].map(g => g.getAttribute('aria-label'))");
    labels.as_array().expect("labels").iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[test]
fn a_packet_that_is_dropped_is_missed_and_sent_again() {
    let Some((mut browser, url)) = browser() else { return };
    browser.open(&url);
    browser.set("#zoom", "2000");
    while browser.eval("packets.filter(packet => packet.fate === 'flying').length > 0") == json!(false) {
        browser.click("#step");
    }
    // A packet has the focus, and d drops it.
    let number = browser.number("packets.findIndex(packet => packet.fate === 'flying')");
    browser.eval(&format!("document.querySelector('#ladder [data-id=\"{number}\"]').focus()"));
    browser.press("d");
    assert_eq!(browser.text(&format!("packets[{number}].fate")), "lost");
    assert_eq!(browser.eval("setup.actions.map(action => action.do)"), json!(["drop"]));
    assert!(ladder(&mut browser).iter().any(|label| label.ends_with("lost")));
    for _ in 0..200 {
        if browser.eval("told.ended") == json!(true) {
            break;
        }
        browser.click("#step");
    }
    assert_eq!(browser.text("told.status"), "SUCCESS");
    let shown = ladder(&mut browser);
    assert!(shown.iter().any(|label| label.contains(" NAK ")), "a NAK (PSN sequence error): {shown:?}");
    assert!(
        shown.iter().any(|label| label.contains(&format!("PSN {number} again"))),
        "what was lost comes again: {shown:?}"
    );
    let log = browser.text("rnicLog(told.now)");
    let packets: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let nak = packets.iter().find(|packet| packet["name"] == "NAK").expect("a NAK in the log");
    assert!(nak["fields"].to_string().contains("psn-sequence-error"), "{nak}");
    assert!(packets.iter().any(|packet| packet["again"] == true && packet["psn"] == nak["psn"]), "{log}");
    let counters = browser.text("$('counters').textContent");
    assert!(counters.contains("rcvd_seq_err 1"), "{counters}");
    assert_native(&mut browser);
    assert_no_complaints(&mut browser);
}

/// The page once said nothing.
#[test]
fn a_mark_that_a_packet_does_not_take_is_told() {
    let Some((mut browser, url)) = browser() else { return };
    let mut told = |cc: &str| {
        browser
            .open(&(url.clone() + &link(&json!({ "messages": 50, "depth": 16, "bytes": 8192, "cc": cc }))));
        let flying = "packets.findIndex(packet => packet.kind === 'data' && packet.fate === 'flying')";
        while browser.number(flying) < 0.0 {
            browser.click("#step");
        }
        browser.eval(&format!("choose({flying})"));
        let before = browser.text("$('status').textContent");
        browser.click("#mark");
        let marked = browser.number("packets.filter(packet => packet.marked).length");
        browser.eval("go(100)");
        let cnps = browser.number("packets.filter(packet => packet.name === 'CNP').length");
        assert_native(&mut browser);
        assert_no_complaints(&mut browser);
        (
            before.contains("mark"),
            browser.text("$('status').textContent").contains("nobody reacts to a mark"),
            marked,
            cnps > 0.0,
        )
    };
    assert_eq!(told("off"), (false, true, 0.0, false));
    assert_eq!(told("dcqcn:preset=laptop"), (false, false, 1.0, true));
}

#[test]
fn sliders_move_the_queue() {
    let Some((mut browser, url)) = browser() else { return };
    browser.open(&(url + &link(&json!({ "messages": 2000, "depth": 16, "cc": "off", "sliders": { "latency_us": 10, "loss": 0,
        "rate_gbps": 10, "sender_gbps": 0.5, "buffer": 400_000, "kmin": 10_000, "kmax": 40_000, "pmax": 0 } }))));
    // The port is faster than what comes, so next to nothing waits.
    browser.eval("go(told.now + 500)");
    let before = browser.number("told.queue");
    assert!(before < 3000.0, "{before}");
    assert!(
        browser
            .text("$('queue').getAttribute('aria-label')")
            .ends_with(&format!("now {:.1} KB", before / 1000.0))
    );
    browser.set("#s-rate_gbps", "0.1");
    browser.eval("go(told.now + 500)");
    let after = browser.number("told.queue");
    // 0.4 Gb/s more come than go, for 500 us.
    assert!((20_000.0..30_000.0).contains(&after), "{after}");
    assert!(
        browser
            .text("$('queue').getAttribute('aria-label')")
            .ends_with(&format!("now {:.1} KB", after / 1000.0))
    );
    assert_eq!(browser.number("samples[samples.length - 1].queue"), after, "the curve ends there");
    browser.set("#s-rate_gbps", "10");
    browser.eval("go(told.now + 500)");
    assert!(browser.number("told.queue") < 3000.0, "the queue empties");
    assert_native(&mut browser);
    assert_no_complaints(&mut browser);
}

#[test]
fn a_link_has_the_same_run() {
    let Some((mut browser, url)) = browser() else { return };
    let setup = json!({ "seed": 7, "messages": 50, "depth": 16, "cc": "dcqcn:preset=laptop", "sliders": { "latency_us": 10,
        "loss": 3, "rate_gbps": 1.3, "sender_gbps": 0, "buffer": 100_000, "kmin": 10_000, "kmax": 40_000, "pmax": 20 } });
    browser.open(&(url + &link(&setup)));
    // Whatever the speed of the machine makes of this, the link has it.
    browser.set("#speed", "1000");
    browser.click("#play");
    browser.wait("told.now > 50");
    browser.set("#s-latency_us", "31");
    browser.wait("told.now > 100");
    browser.click("#play");
    while browser.eval("packets.some(packet => packet.fate === 'flying')") == json!(false) {
        browser.click("#step");
    }
    browser.eval("choose(packets.findIndex(packet => packet.fate === 'flying'))");
    browser.click("#drop");
    browser.click("#step");
    browser.eval("go(told.now + 300)");
    assert_native(&mut browser);
    let (address, now) = (browser.text("location.href"), browser.number("told.now"));
    let shown = "JSON.stringify(packets.map(({ relative, ...packet }) => packet))";
    let (packets, log) = (browser.text(shown), browser.text("rnicLog(told.now)"));
    browser.open(&address);
    assert_eq!(browser.eval("setup.actions.map(action => action.do)"), json!(["set", "drop"]));
    assert_eq!(browser.text("$('s-latency_us').value"), "31", "the slider is where it was left");
    browser.eval(&format!("go({now})"));
    assert_eq!(browser.text(shown), packets);
    assert_eq!(browser.text("rnicLog(told.now)"), log);
    assert_no_complaints(&mut browser);
}

#[test]
fn a_damaged_link_is_told() {
    let Some((mut browser, url)) = browser() else { return };
    browser.open(&(url + "#this-is-no-set-up"));
    assert!(browser.text("$('status').textContent").contains("damaged"), "the page says so");
    browser.click("#step");
    assert!(browser.number("packets.length") > 0.0, "and works");
    assert_no_complaints(&mut browser);
}

/// A step over a long time without packets once left an empty window.
#[test]
fn a_long_wait_takes_little_room() {
    let Some((mut browser, url)) = browser() else { return };
    // The last packet of the message is lost, so that only the timeout repeats it.
    let drop = json!({ "do": "drop", "at": 15.0, "packet": 0 });
    browser.open(
        &(url + &link(&json!({ "messages": 1, "depth": 1, "bytes": 1024, "timeout": 8, "actions": [drop] }))),
    );
    browser.click("#step");
    assert!(browser.number("told.now") > 1000.0, "4.096 us x 2^8 at least");
    let shown = ladder(&mut browser);
    assert!(shown.iter().any(|label| label.contains(" PSN 0, lost")), "what was before the wait: {shown:?}");
    assert!(shown.iter().any(|label| label.contains(" PSN 0 again")), "what ends it: {shown:?}");
    let gaps = browser.eval("[...document.querySelectorAll('#ladder .gap')].map(gap => gap.textContent)");
    assert_eq!(gaps.as_array().map(Vec::len), Some(1), "{gaps}");
    assert!(
        gaps[0].as_str().is_some_and(|text| text.starts_with("no packet for ") && text.ends_with(" ms")),
        "{gaps}"
    );
    assert_native(&mut browser);
    assert_no_complaints(&mut browser);
}

/// The page once showed 60 packets that wait, however many there were.
#[test]
fn packets_that_wait_are_counted_where_there_is_no_room() {
    let Some((mut browser, url)) = browser() else { return };
    browser.open(
        &(url
            + &link(
                &json!({ "messages": 50, "depth": 32, "bytes": 8192, "sliders": { "buffer": 400_000 } }),
            )),
    );
    browser.eval("go(10)");
    let waiting = browser
        .number("packets.filter(p => p.from === 0 && (p.fate === 'queued' || p.left > told.now)).length");
    for width in [1280, 390] {
        browser.resize(width);
        let marks = browser.number("document.querySelectorAll('#ladder rect').length");
        let more = browser.text("document.querySelector('#ladder .more').textContent");
        assert_eq!(more, format!("+ {} more", waiting - marks), "{width}");
        let inside = "[...document.querySelectorAll('#ladder rect, #ladder .more')].every(mark => \
                      mark.getBoundingClientRect().right <= $('ladder').getBoundingClientRect().right)";
        assert_eq!(browser.eval(inside), json!(true), "{width}");
    }
    assert_no_complaints(&mut browser);
}

/// With four messages it was over before the first notification.
#[test]
fn congestion_control_gets_time_to_show_something() {
    let Some((mut browser, url)) = browser() else { return };
    browser.open(&url);
    browser.set("#cc", "dcqcn:preset=laptop");
    assert_eq!(browser.number("setup.messages"), 2000.0);
    browser.eval("go(told.now + 1000)");
    browser.set("#s-rate_gbps", "0.3");
    browser.eval("go(told.now + 6000)");
    let allowed = browser.number("told.rate");
    assert!(allowed < 0.9, "the sender has been told: {allowed} Gb/s");
    assert!(browser.number("packets.filter(packet => packet.name === 'CNP').length") > 0.0);
    assert_eq!(browser.number("packets.filter(packet => packet.again).length"), 0.0, "nothing was lost");
    browser.resize(1280);
    browser.picture(&pictures().join("cable-dcqcn.png"));
    assert_native(&mut browser);
    assert_no_complaints(&mut browser);
}

/// Where pictures for a person to look at are.
fn pictures() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/page");
    fs::create_dir_all(&folder).expect("a folder for the pictures");
    folder
}

/// Nothing is wider than the window, on a screen and on a phone. The pictures are for a person to look at.
#[test]
fn the_page_fits_a_screen_and_a_phone() {
    let Some((mut browser, url)) = browser() else { return };
    browser.open(
        &(url.clone()
            + &link(
                &json!({ "seed": 3, "messages": 50, "depth": 16, "sliders": { "latency_us": 10, "loss": 5,
        "rate_gbps": 1, "sender_gbps": 0, "buffer": 100_000, "kmin": 10_000, "kmax": 40_000, "pmax": 20 } }),
            )),
    );
    browser.eval("go(told.now + 300)");
    assert_fits(&mut browser, "cable");
    browser.open(&(url.clone() + "#fabric"));
    browser.eval("Fabric.go(900)");
    assert_fits(&mut browser, "fabric");
    for (lab, experiment) in [("dcqcn", "late"), ("go-back-n", "loss")] {
        browser.open(&format!("{url}#lab={lab}&experiment={experiment}"));
        run_ends(&mut browser);
        assert_fits(&mut browser, &format!("lab-{lab}"));
    }
    assert_no_complaints(&mut browser);
}

#[track_caller]
fn assert_fits(browser: &mut Browser, name: &str) {
    for width in [1280, 390] {
        browser.resize(width);
        browser.picture(&pictures().join(format!("{name}-{width}.png")));
        let wide = browser.number("document.documentElement.scrollWidth");
        let window = browser.number("document.documentElement.clientWidth");
        assert!(
            wide <= window && window <= f64::from(width),
            "{name}: {wide} pixels in a window of {window}"
        );
    }
}

/// The fabric that is shown is what the native engine says of the same set-up at the same time.
#[track_caller]
fn assert_native_fabric(browser: &mut Browser) {
    let (setup, now) = (browser.text("JSON.stringify(Fabric.setup)"), browser.number("Fabric.told.now"));
    let native = rnic_page::FabricBench::log(&setup, now).expect("a log");
    assert_same(&native, &browser.text(&format!("rnicFabricLog({now})")));
    let shown = browser.text("JSON.stringify(Fabric.samples)");
    let samples = browser.text(&format!(
        "JSON.stringify(rnicFabricLog({now}).split('\\n').slice(1, 1 + Fabric.samples.length).map(line => JSON.parse(line)))"
    ));
    assert_eq!(shown, samples, "the page shows something else");
}

#[test]
fn a_fabric_is_played_stepped_and_linked() {
    let Some((mut browser, url)) = browser() else { return };
    browser.open(&url);
    browser.click("#to-fabric");
    browser.wait("!$('fabric-view').hidden && $('cable-view').hidden");
    browser.click("#f-step");
    assert!(browser.number("Fabric.told.tally.delivered") >= 1.0);
    browser.set("#f-speed", "500");
    browser.click("#f-play");
    browser.wait("Fabric.told.now > 60");
    browser.press("s");
    assert_eq!(browser.eval("Fabric.playing"), json!(false), "a step ends playing");
    let paused = browser.number("Fabric.told.now");
    browser.frames(5);
    assert_eq!(browser.number("Fabric.told.now"), paused, "nothing happens after pause");
    assert_native_fabric(&mut browser);
    // What would have happened until now with other settings.
    browser.set("#f-senders", "6");
    browser.set("#f-buffer", "300");
    assert_eq!(browser.number("Fabric.told.now"), paused);
    assert_eq!(browser.number("Fabric.parts.flows.length"), 7.0);
    assert_native_fabric(&mut browser);
    let (address, log) = (browser.text("location.href"), browser.text("rnicFabricLog(Fabric.told.now)"));
    browser.open(&address);
    assert_eq!(browser.number("Fabric.told.now"), paused, "the link has the time, too");
    assert_eq!(browser.text("rnicFabricLog(Fabric.told.now)"), log);
    assert_eq!(browser.text("$('f-senders').value + ' ' + $('f-buffer').value"), "6 300");
    // The other view is where it was.
    browser.click("#to-cable");
    browser.wait("!$('cable-view').hidden && $('fabric-view').hidden");
    browser.click("#to-fabric");
    browser.wait("!$('fabric-view').hidden");
    assert_eq!(browser.number("Fabric.told.now"), paused);
    assert_no_complaints(&mut browser);
}

#[test]
fn the_examples_of_the_fabric_show_what_they_say() {
    let Some((mut browser, url)) = browser() else { return };
    browser.open(&(url + "#fabric"));
    let mut victims = Vec::new();
    for (number, name) in ["pauses", "drops", "dcqcn"].iter().enumerate() {
        browser.click(&format!("#f-examples button:nth-child({})", number + 1));
        browser.eval("Fabric.go(3000)");
        browser.resize(1280);
        browser.picture(&pictures().join(format!("fabric-{name}.png")));
        let label = browser.text("$('f-rates').getAttribute('aria-label')");
        let victim = label.split("victim ").nth(1).and_then(|rest| rest.split(' ').next());
        victims.push(victim.and_then(|rate| rate.parse::<f64>().ok()).expect("the victim's rate"));
        assert_native_fabric(&mut browser);
    }
    let counters = browser.text("$('f-counters').textContent");
    assert!(counters.contains("packets marked") && !counters.contains("dropped"), "{counters}");
    assert!(victims[0] < 10.0 && victims[1] > 12.0 && victims[2] > 12.0, "Gb/s of the victim: {victims:?}");
    assert_no_complaints(&mut browser);
}

#[test]
fn a_damaged_link_to_the_fabric_is_told() {
    let Some((mut browser, url)) = browser() else { return };
    let damaged = encoded(br#"{"senders": 77}"#);
    browser.open(&format!("{url}#fabric={damaged}"));
    assert!(browser.text("$('f-status').textContent").contains("damaged"), "the page says so");
    browser.click("#f-step");
    assert!(browser.number("Fabric.told.now") > 0.0, "and works");
    assert_no_complaints(&mut browser);
}
