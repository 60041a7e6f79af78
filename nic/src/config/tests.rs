use super::*;
use cc::{Algorithm, Rate};
use std::net::IpAddr;

fn wrong(text: &str) -> ConfigError {
    DeviceConfig::from_toml(text).expect_err(text)
}

#[test]
fn a_file_says_all_that_a_program_can() {
    let config = DeviceConfig::from_toml(
        r#"
        address = "127.0.0.9"
        mtu = 2048
        offload = false
        gso = true
        source_ports = 2
        recv_buffer = "1 MB"
        peer_window = 50000
        unacked_rate = 7
        pkeys = [0xffff, 0x8001]
        faults = ["tx data psn=#3 drop", "rx ack delay 1ms"]
        fault_seed = 11
        capture = "all.pcapng"
        [link]
        rate = "5 Gb/s"
        [cc]
        algorithm = "dcqcn"
        preset = "laptop"
        rpg_ai_rate = 9
        "#,
    )
    .expect("in order");
    assert_eq!(config.address, Some(IpAddr::from([127, 0, 0, 9]).into()));
    assert_eq!(config.gso, Some(true));
    assert_eq!((config.mtu, config.offload), (Some(Mtu::B2048), Some(false)));
    assert_eq!((config.source_ports, config.recv_buffer), (Some(2), Some(1_000_000)));
    assert_eq!((config.peer_window, config.unacked_rate), (Some(50_000), Some(7)));
    assert_eq!(config.pkeys, [PKey::DEFAULT, PKey(0x8001)]);
    assert_eq!(config.faults, ["tx data psn=#3 drop", "rx ack delay 1ms"]);
    assert_eq!((config.fault_seed, config.capture), (11, Some("all.pcapng".into())));
    assert_eq!(config.link, LinkConfig { rate: Some(Rate::from_gbps(5)), ..LinkConfig::default() });
    assert_eq!(Ok(config.cc), "dcqcn:preset=laptop,rpg_ai_rate=9".parse::<Algorithm>().map(as_in_a_file));
}

/// A number is a number in a file and text on a command line; to the settings it is the same.
fn as_in_a_file(algorithm: Algorithm) -> Algorithm {
    match algorithm {
        Algorithm::Dcqcn(options) => Algorithm::Dcqcn(options.with("rpg_ai_rate", 9u32)),
        other => other,
    }
}

#[test]
fn an_empty_text_leaves_all_defaults() {
    let config = DeviceConfig::from_toml("").expect("in order");
    assert_eq!(format!("{config:?}"), format!("{:?}", DeviceConfig::default()));
}

#[test]
fn errors_name_the_line_and_the_word() {
    for (text, line, word) in [
        ("\nadress = \"10.0.0.1\"", 2, "adress"),
        ("mtu = 1500", 1, "1500"),
        ("recv_buffer = \"208 XB\"", 1, "XB"),
        ("peer_window = \"5 GB\"", 1, "too many"),
        ("[link]\nrate = \"5\"", 2, "Gb/s"),
        ("[link]\n\nspeed = 1", 3, "speed"),
        ("mtu = 1024\n[link]\nbuffer = 1\npfc = [3]", 3, "rate"),
        ("[link]\nmodel = \"ethernet\"\nvls = 2", 3, "ib-credits"),
        ("[link]\nrate = \"1 Gb/s\"\n[cc]\nalgorithm = \"dcqcn\"\npmax = 2.0", 5, "pmax"),
        ("[cc]\nalgorithm = \"dcqcn\"\nrpg_speed = 2", 3, "rpg_speed"),
        ("[cc]\nalgorithm = \"bbr\"", 2, "bbr"),
        ("[link\n", 1, ""),
    ] {
        let error = wrong(text);
        assert_eq!(error.line, Some(line), "{error}");
        assert!(error.to_string().contains(word) && error.path.is_none(), "{error}");
    }
    // What is missing stands in no line.
    let error = wrong("[link]\nrate = \"1 Gb/s\"\nkmin = 1");
    assert!(matches!(&error.fault, ConfigFault::Link(fault) if fault.word() == "kmax"), "{error}");
    assert_eq!(error.line, None);
}

#[test]
fn a_file_is_named_in_its_errors() {
    let path = std::env::temp_dir().join(format!("rnic-config-{}.toml", std::process::id()));
    std::fs::write(&path, "fault_seed = 5\n").expect("a file");
    assert_eq!(DeviceConfig::load(&path).expect("in order").fault_seed, 5);
    std::fs::write(&path, "\nseed = 5\n").expect("a file");
    let error = DeviceConfig::load(&path).expect_err("no such word").to_string();
    assert!(error.starts_with(&format!("{}, line 2: ", path.display())), "{error}");
    std::fs::remove_file(&path).expect("the file");
    let error = DeviceConfig::load(&path).expect_err("no file");
    assert!(matches!(error.fault, ConfigFault::Read(_)), "{error}");
}

#[test]
fn an_address_can_be_that_of_an_interface() {
    let at = |text: &str| DeviceConfig::from_toml(&format!("address = \"{text}\""));
    let loopback = at("lo").expect("an interface of every host");
    assert_eq!(loopback.address, Some(IpAddr::from([127, 0, 0, 1]).into()));
    let link_local = at("fe80::1%lo").expect("an address with its interface");
    assert!(link_local.address.is_some_and(|at| at.scope_id > 0), "{link_local:?}");
    let error = at("no-such-0").expect_err("no interface").to_string();
    assert!(error.contains("line 1") && error.contains("the name of one of its interfaces"), "{error}");
}

#[test]
fn a_misspelt_setting_is_suggested() {
    for (text, says) in [
        ("adress = \"10.0.0.1\"", "unknown setting `adress`; did you mean `address`?"),
        ("[link]\nbufer = \"1 MB\"", "unknown setting `bufer`; did you mean `buffer`?"),
        (
            "[cc]\nalgorithm = \"dcqcn\"\nrpg_ai_rat = 1",
            "unknown setting `rpg_ai_rat`; did you mean `rpg_ai_rate`?",
        ),
        ("[link]\nmodel = \"etherent\"", "invalid value `etherent`: did you mean `ethernet`?"),
        ("[link]\nrate = 5", "invalid value `5`: the unit is missing; write `5 Gb/s` or `5 Mb/s`"),
        ("mtu = 9000", "invalid MTU 9000; choose 256, 512, 1024, 2048 or 4096"),
    ] {
        let error = wrong(text).to_string();
        assert!(error.ends_with(says), "{error}");
    }
    let error = wrong("colour = 1").to_string();
    assert!(error.contains("the settings are address, "), "{error}");
}

/// The list of settings that errors draw on is that of the fields.
#[test]
fn every_field_of_a_file_is_a_known_setting() {
    let error = toml::from_str::<DeviceConfig>("xyzzy = 1").expect_err("no such field").to_string();
    let fields: Vec<_> = error.split('`').skip(3).step_by(2).collect();
    assert_eq!(fields, words(), "{error}");
}

#[test]
fn an_empty_file_is_called_empty() {
    let path = std::env::temp_dir().join(format!("rnic-config-empty-{}.toml", std::process::id()));
    std::fs::write(&path, " \n").expect("a file");
    let error = DeviceConfig::load(&path).expect_err("nothing in it");
    std::fs::remove_file(&path).expect("the file");
    assert_eq!(error.to_string(), format!("{}: the file is empty", path.display()));
}
