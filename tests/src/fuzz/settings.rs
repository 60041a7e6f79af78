//! User input: configuration files, links, congestion control, fault rules, environment variables.

use super::byte;
use arbitrary::Unstructured;
use rnic::cc::Algorithm;
use rnic::link::faults::FaultRule;
use rnic::link::{LinkConfig, LinkConfigError};
use rnic::process::{Settings, Variable};
use rnic::sim::{DeviceSetup, Net};
use rnic::{DeviceConfig, Mtu, RcEnd};
use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

/// More events than a WRITE takes under any setting that lets it through.
const STEPS: u32 = 300;

/// Parses text of any kind, and runs devices with the parsed settings.
///
/// # Panics
///
/// Panics if a parsed setting does not parse, or has a different meaning, after it is written out.
pub fn settings(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let selector = byte(&mut input);
    let rest = input.take_rest();
    if selector % 6 == 5 {
        return variables(rest);
    }
    let Ok(text) = std::str::from_utf8(rest) else { return };
    match selector % 6 {
        0 => file(text),
        1 => fault(text),
        2 => link(text),
        3 => congestion_control(text),
        _ => both(text),
    }
}

fn file(text: &str) {
    match DeviceConfig::from_toml(text) {
        Ok(config) => live_with(&config.link, &config.cc, config.mtu, &config.faults),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn fault(text: &str) {
    let hosts = |name: &str| (name == "sim0").then(|| IpAddr::from([10, 0, 0, 1]));
    match FaultRule::parse(text, &hosts) {
        Ok(rule) => {
            let written = rule.to_string();
            let again = FaultRule::parse(&written, &hosts);
            assert_eq!(again.as_ref(), Ok(&rule), "{written:?}");
            live_with(&LinkConfig::default(), &Algorithm::Off, None, &[text.to_owned()]);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn link(text: &str) {
    match text.parse::<LinkConfig>() {
        Ok(config) => {
            if let Ok(written) = toml::to_string(&config) {
                let again: Result<LinkConfig, _> = toml::from_str(&written);
                assert_eq!(again.as_ref(), Ok(&config), "{written}");
            }
            live_with(&config, &Algorithm::Off, None, &[]);
        }
        Err(error) => told(&error),
    }
}

fn told(error: &LinkConfigError) {
    assert!(!error.to_string().is_empty());
}

fn congestion_control(text: &str) {
    if let Ok(algorithm) = text.parse::<Algorithm>() {
        let link = LinkConfig { rate: Some(rnic::cc::Rate::from_gbps(10)), ..LinkConfig::default() };
        live_with(&link, &algorithm, None, &[]);
    }
}

/// A link and a congestion control, on two lines.
fn both(text: &str) {
    let (link, cc) = text.split_once('\n').unwrap_or((text, "dcqcn"));
    if let (Ok(link), Ok(cc)) = (link.parse(), cc.parse()) {
        live_with(&link, &cc, Some(Mtu::B1024), &[]);
    }
}

fn variables(bytes: &[u8]) {
    let mut settings = Settings::default();
    let values = bytes.split(|byte| *byte == 0);
    for (variable, value) in Variable::ALL.into_iter().zip(values) {
        // Arbitrary file names are not read.
        if variable == Variable::Config {
            continue;
        }
        let _ = settings.set(variable, &OsString::from_vec(value.to_vec()));
    }
    let vars = settings.vars();
    let value = |of: Variable| vars.iter().find(|(variable, _)| *variable == of).map(|(_, v)| v.clone());
    let again = Settings::from_vars(value);
    assert!(again.as_ref().is_ok_and(|again| *again == settings), "{vars:?} are {again:?}");
    let _ = settings.process();
}

/// Two devices with these settings, and some traffic between them.
fn live_with(link: &LinkConfig, cc: &Algorithm, mtu: Option<Mtu>, faults: &[String]) {
    let net = Net::new();
    let setup = DeviceSetup {
        link: link.clone(),
        cc: cc.clone(),
        mtu: mtu.unwrap_or(Mtu::B4096),
        ..DeviceSetup::default()
    };
    let devices = (net.device_with(&setup), net.device_with(&setup));
    let (Ok(a), Ok(b)) = devices else { return };
    for rule in faults {
        // Rules that are inconsistent or have a duplicate name are refused here; parsing did not check that.
        let _ = a.add_fault(rule);
    }
    let (left, right) = RcEnd::pair(&a, &b).expect("a pair");
    let source = left.register(&[7; 9000]).expect("memory");
    let target = right.register_remote(9000).expect("memory");
    for number in 0..4 {
        left.qp.write(number, source.all(), target.remote(0)).expect("room");
        left.qp.read(number, source.all(), target.remote(0)).expect("room");
    }
    for _ in 0..STEPS {
        if !net.step() {
            break;
        }
    }
    net.run_for(Duration::from_millis(1));
    assert!(!a.faults().iter().any(|report| report.rule.is_empty()));
    assert!(a.sample().qps.len() <= 2);
    drop((left, right));
}
