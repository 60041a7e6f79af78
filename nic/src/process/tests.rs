use super::*;
use crate::{Gid, Mtu};
use rnic_core::gid::{GidEntry, GidType};
use std::ffi::OsString;
use std::net::IpAddr;

fn settings(vars: &[(Variable, &str)]) -> std::result::Result<Settings, EnvError> {
    Settings::from_vars(|name| vars.iter().find(|(v, _)| *v == name).map(|(_, value)| OsString::from(value)))
}

fn process(vars: &[(Variable, &str)]) -> std::result::Result<ProcessConfig, EnvError> {
    settings(vars)?.process()
}

fn at(text: &str) -> HostAddress {
    text.parse().expect("an address")
}

#[test]
fn without_variables_there_is_one_device_as_it_always_is() {
    let process = process(&[(Variable::Mtu, ""), (Variable::Addr, "")]).expect("in order");
    let [device] = &*process.devices else { panic!("one device, not {:?}", process.devices) };
    assert_eq!(device.name, "rnic0");
    assert_eq!(format!("{:?}", device.config), format!("{:?}", DeviceConfig::default()));
    assert_eq!((process.gid_table, process.run_dir), (GidLayout::Any, None));
}

#[test]
fn every_variable_says_its_part() {
    let process = process(&[
        (Variable::Addr, "127.0.0.5"),
        (Variable::Mtu, "1024"),
        (Variable::Link, "ethernet:rate=5Gb/s"),
        (Variable::Cc, "dcqcn:preset=laptop"),
        (Variable::Fault, "tx data psn=#3 drop; rx ack delay 1ms\ntx nak drop"),
        (Variable::Seed, "77"),
        (Variable::Capture, "/x/%d-%%.pcapng"),
        (Variable::GidTable, "rxe"),
        (Variable::Explain, "1"),
        (Variable::RunDir, "/run/here"),
        (Variable::Gso, "off"),
    ])
    .expect("in order");
    let config = &process.devices[0].config;
    assert_eq!((config.address, config.mtu), (Some(at("127.0.0.5")), Some(Mtu::B1024)));
    assert_eq!(Ok(&config.link), "rate=5Gb/s".parse().as_ref());
    assert_eq!(Ok(&config.cc), "dcqcn:preset=laptop".parse().as_ref());
    assert_eq!(config.faults, ["tx data psn=#3 drop", "rx ack delay 1ms", "tx nak drop"]);
    assert_eq!(config.gso, Some(false));
    assert_eq!((config.fault_seed, &config.capture), (77, &Some("/x/rnic0-%.pcapng".into())));
    assert_eq!((process.gid_table, process.run_dir), (GidLayout::Rxe, Some("/run/here".into())));
    assert!(process.explain);
}

#[test]
fn what_is_set_for_a_process_is_what_it_reads() {
    let all = [
        (Variable::Config, "/etc/rnic.toml"),
        (Variable::Addr, "127.0.0.5,::1,fe80::1%7"),
        (Variable::Devices, "2"),
        (Variable::DeviceName, "mlx5_%d"),
        (Variable::Mtu, "512"),
        (Variable::Link, "ib-credits:buffer=1MB"),
        (Variable::Cc, "timely"),
        (Variable::Fault, "tx data drop; rx ack drop"),
        (Variable::Seed, "18446744073709551615"),
        (Variable::Capture, "/x/%p.pcapng"),
        (Variable::GidTable, "mlx5"),
        (Variable::Explain, "0"),
        (Variable::RunDir, "/run/here"),
        (Variable::Gso, "0"),
        (Variable::Daemon, "/run/daemon.sock"),
    ];
    let settings = settings(&all).expect("in order");
    let vars = settings.vars();
    let expected: Vec<_> = all.iter().map(|(variable, value)| (*variable, OsString::from(value))).collect();
    assert_eq!(vars, expected);
    assert_eq!(Settings::default().vars(), []);
    for absent in 0..all.len() {
        let some: Vec<_> = (0..all.len()).filter(|at| *at != absent).map(|at| all[at]).collect();
        let part = self::settings(&some).expect("in order");
        let vars = part.vars();
        let again = Settings::from_vars(|name| vars.iter().find(|(v, _)| *v == name).map(|(_, x)| x.clone()));
        assert_eq!(again.expect("what was written"), part);
    }
}

#[test]
fn variables_come_before_the_file() {
    let path = std::env::temp_dir().join(format!("rnic-process-{}.toml", std::process::id()));
    let text = "address = \"127.0.0.8\"\nmtu = 512\nfaults = [\"tx nak drop\"]\nfault_seed = 5\n\
                [link]\nrate = \"5 Gb/s\"\nbuffer = \"1 MB\"\n";
    std::fs::write(&path, text).expect("a file");
    let file = (Variable::Config, path.to_str().expect("a path in UTF-8"));
    let alone = process(&[file]);
    let over = process(&[
        file,
        (Variable::Addr, "127.0.0.9,127.0.0.10"),
        (Variable::Link, "rate=2Gb/s"),
        (Variable::Fault, "rx ack drop"),
    ]);
    let short = process(&[file, (Variable::Devices, "2")]);
    std::fs::remove_file(&path).expect("the file");
    let alone = alone.expect("in order").devices.remove(0);
    assert_eq!((alone.addresses, alone.config.fault_seed), (vec![at("127.0.0.8")], 5));
    assert_eq!((alone.config.mtu, &*alone.config.faults), (Some(Mtu::B512), &["tx nak drop".to_owned()][..]));
    let over = over.expect("in order");
    assert_eq!(over.devices.len(), 2, "one for each address");
    for device in &over.devices {
        assert_eq!(Ok(&device.config.link), "rate=2Gb/s,buffer=1MB".parse().as_ref());
        assert_eq!((&*device.config.faults, device.config.fault_seed), (&["rx ack drop".to_owned()][..], 5));
    }
    assert!(matches!(
        short.expect_err("one address").fault,
        EnvFault::Addresses { devices: 2, addresses: 1 }
    ));
}

#[test]
fn addresses_go_to_devices_in_turn() {
    let list = "127.0.0.2,127.0.0.3,127.0.0.4,127.0.0.5,127.0.0.6";
    let all = process(&[(Variable::Addr, list)]).expect("in order");
    let first: Vec<_> = all.devices.iter().map(|d| (&*d.name, d.config.address)).collect();
    let of = |text: &str| Some(at(text));
    assert_eq!(first[0], ("rnic0", of("127.0.0.2")));
    assert_eq!(first[4], ("rnic4", of("127.0.0.6")));
    assert_eq!(first.len(), 5);
    let two = process(&[(Variable::Addr, list), (Variable::Devices, "2")]).expect("in order");
    let lists: Vec<_> = two.devices.into_iter().map(|d| d.addresses).collect();
    assert_eq!(lists[0], ["127.0.0.2", "127.0.0.4", "127.0.0.6"].map(at));
    assert_eq!(lists[1], ["127.0.0.3", "127.0.0.5"].map(at));
    let many = process(&[(Variable::Devices, "16")]).expect("the bound");
    assert!(many.devices.iter().all(|device| device.addresses.is_empty()));
    assert_eq!(many.devices[15].name, "rnic15");
    let too_many = vec!["127.0.0.2"; MAX_DEVICES + 1].join(",");
    let error = process(&[(Variable::Addr, &too_many)]).expect_err("past the bound");
    assert_eq!(error.variable, Variable::Addr, "{error}");
}

#[test]
fn errors_name_the_variable_and_what_is_allowed() {
    for (variable, value, says) in [
        (Variable::Config, "/nowhere/at.toml", "/nowhere/at.toml"),
        (Variable::Addr, "127.0.0.1,host", "`host`: write an IPv4 or IPv6 address"),
        (Variable::Gso, "yes", "`0` or `off`"),
        (Variable::Addr, "127.0.0.1%lo", "IPv6"),
        (Variable::Addr, "fe80::1%no-such-0", "interface"),
        (Variable::Devices, "0", "1 to 16"),
        (Variable::Devices, "17", "1 to 16"),
        (Variable::Mtu, "1500", "invalid MTU 1500; choose 256, 512, 1024, 2048 or 4096"),
        (Variable::Link, "ethernet:speed=1", "rate"),
        (Variable::Link, "ethernet:bufer=1", "unknown setting `bufer`; did you mean `buffer`?"),
        (Variable::Cc, "dqcn", "did you mean `dcqcn`?"),
        (Variable::Cc, "dcqcn:rpg_ai_rat=1", "unknown setting `rpg_ai_rat`; did you mean `rpg_ai_rate`?"),
        (Variable::Link, "pfc=3", "`rate`"),
        (Variable::Link, "rate=1Mb/s,buffer=1", "buffer"),
        (Variable::Cc, "bbr", "dcqcn"),
        (Variable::Cc, "dcqcn:pmax=2", "pmax"),
        (Variable::Fault, "tx nak drop; tx data dorp", "drop"),
        (Variable::Seed, "-1", "2^64"),
        (Variable::Seed, "18446744073709551616", "2^64"),
        (Variable::GidTable, "mlx4", "did you mean `mlx5`?"),
        (Variable::GidTable, "irdma", "`compact`, `mlx5` or `rxe`"),
    ] {
        let with_rate = [(variable, value), (Variable::Link, "rate=1Gb/s")];
        let error = process(&with_rate).expect_err(value);
        assert_eq!(error.variable, variable, "{error}");
        let text = error.to_string();
        assert!(text.starts_with(variable.name()) && text.contains(says), "{text}");
    }
    use std::os::unix::ffi::OsStringExt;
    let odd = OsString::from_vec(vec![b'x', 0xff]);
    let mut settings = Settings::default();
    settings.set(Variable::RunDir, &odd).expect("paths are bytes");
    let error = settings.set(Variable::Addr, &odd).expect_err("no text");
    assert_eq!(error.to_string(), "RNIC_ADDR: the value is not UTF-8");
}

#[test]
fn captures_of_several_devices_are_several_files() {
    let files = |name: &str, devices: &str| -> Vec<String> {
        let of = process(&[(Variable::Capture, name), (Variable::Devices, devices)]).expect("in order");
        let name = |d: NamedDevice| d.config.capture.map(|path| path.to_string_lossy().into_owned());
        of.devices.into_iter().filter_map(name).collect()
    };
    assert_eq!(files("a.b/all.pcapng", "1"), ["a.b/all.pcapng"]);
    assert_eq!(files("a.b/all.pcapng", "2"), ["a.b/all.rnic0.pcapng", "a.b/all.rnic1.pcapng"]);
    assert_eq!(files("a.b/all", "2"), ["a.b/all.rnic0", "a.b/all.rnic1"]);
    assert_eq!(files("%d/x", "2"), ["rnic0/x", "rnic1/x"]);
    assert_eq!(files("100%", "1"), ["100%"]);
    assert_eq!(files("%é%x", "1"), ["%é%x"]);
    assert_eq!(files("%p", "1"), [std::process::id().to_string()]);
}

/// GID, type and index of each entry.
fn laid_out(layout: GidLayout, address: &str) -> Vec<(u32, String, GidType)> {
    let ip: IpAddr = address.parse().expect("an address");
    let own = GidEntry { index: 0, gid: ip.into(), gid_type: GidType::RoceV2, port_num: 1, interface: None };
    let table = layout.table(&own);
    assert_eq!(
        table.last().map(|last| last.gid),
        Some(own.gid),
        "the address is the last entry, whatever it is besides"
    );
    assert_eq!(table[layout.address_index() as usize].gid, own.gid);
    for entry in &table {
        assert_eq!(resolve(entry.gid), own.gid, "whatever a peer is told, packets reach the address");
    }
    table.into_iter().map(|entry| (entry.index, entry.gid.to_string(), entry.gid_type)).collect()
}

#[test]
fn gid_tables_are_laid_out_as_the_drivers_have_them() {
    let (v1, v2) = (GidType::RoceV1, GidType::RoceV2);
    let (alias, own) = ("fe80::504e:aff:fe14:1e28".to_owned(), "::ffff:10.20.30.40".to_owned());
    let address = "10.20.30.40";
    assert_eq!(laid_out(GidLayout::Any, address), [0, 1, 2, 3].map(|index| (index, own.clone(), v2)));
    assert_eq!(laid_out(GidLayout::Compact, address), [(0, own.clone(), v2)]);
    assert_eq!(laid_out(GidLayout::Rxe, address), [(0, alias.clone(), v2), (1, own.clone(), v2)]);
    assert_eq!(
        laid_out(GidLayout::Mlx5, address),
        [(0, alias.clone(), v1), (1, alias, v2), (2, own.clone(), v1), (3, own, v2)]
    );
    let six = "2001:db8::7".to_owned();
    assert_eq!(laid_out(GidLayout::Rxe, &six), [(0, six.clone(), v2), (1, six.clone(), v2)]);
    let foreign = "fe80::544e:aff:fe14:1e28".parse::<IpAddr>().map(Gid::from).expect("an address");
    assert_eq!(resolve(foreign), foreign, "other link-local addresses are addresses");
}

#[test]
fn devices_are_called_as_the_settings_say() {
    let named = |devices: &str, names: &str| {
        let process = process(&[(Variable::Devices, devices), (Variable::DeviceName, names)]);
        process.map(|process| process.devices.into_iter().map(|device| device.name).collect::<Vec<_>>())
    };
    assert_eq!(named("2", "").expect("a default"), ["rnic0", "rnic1"]);
    assert_eq!(named("1", "mlx5_0").expect("a name"), ["mlx5_0"]);
    assert_eq!(named("3", "mlx5_%d").expect("a pattern"), ["mlx5_0", "mlx5_1", "mlx5_2"]);
    assert_eq!(named("", "mlx5_0, mlx5_bond_0").expect("a list"), ["mlx5_0", "mlx5_bond_0"]);
    let most = "x".repeat(61) + "%d";
    assert_eq!(named("16", &most).expect("63 bytes")[15].len(), 63);
    for (devices, names) in [
        ("2", "mlx5_0"),
        ("1", "mlx5_0,mlx5_1"),
        ("2", "mlx5_0,mlx5_0"),
        ("1", "a/b"),
        ("1", ".."),
        ("1", "a b"),
        ("1", "mlx5_0:1"),
        ("1", "%d%d"),
        ("1", &*("x".repeat(62) + "%d")),
    ] {
        let error = named(devices, names).expect_err(names);
        assert_eq!(error.variable, Variable::DeviceName, "{error}");
    }
}

#[test]
fn no_two_devices_of_a_host_have_the_same_guid() {
    let mut all: Vec<_> = [(70, 0), (70, 1), (71, 0), ((1 << 22) - 1, 15)]
        .into_iter()
        .map(|(pid, number)| node_guid(None, pid, number))
        .collect();
    let addresses = ["127.0.0.1", "127.0.0.2", "::1", "2001:db8::1"];
    all.extend(addresses.map(|ip| node_guid(ip.parse().ok(), 70, 0)));
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
    assert_eq!(node_guid("127.0.0.1".parse().ok(), 1, 0), node_guid("::ffff:127.0.0.1".parse().ok(), 2, 1));
}

#[test]
fn a_device_takes_the_first_of_its_addresses_that_is_free() {
    let list = "127.83.1.1,127.83.1.2";
    let first = || process(&[(Variable::Addr, list), (Variable::Devices, "1")]).expect("in order");
    let (one, other) = (first().devices.remove(0), first().devices.remove(0));
    let (one, other) = (one.open().expect("the first"), other.open().expect("the second"));
    assert_eq!(one.address(), at("127.83.1.1").ip);
    assert_eq!(other.address(), at("127.83.1.2").ip);
    let error = first().devices.remove(0).open().expect_err("none is left");
    assert!(matches!(error, Error::Open(BindError::AddressInUse(_))), "{error}");
    let foreign = process(&[(Variable::Addr, "192.0.2.1,127.83.1.3"), (Variable::Devices, "1")]);
    let error = foreign.expect("in order").devices.remove(0).open().expect_err("not of this host");
    assert!(matches!(error, Error::Open(BindError::NotLocal(_))), "{error}");
}

/// Found by fuzzing: `RNIC_LINK=" "` was stored as a link description, but never used.
#[test]
fn bug_of_2026_11_blanks_alone_set_nothing() {
    let mut settings = Settings::default();
    for variable in Variable::ALL
        .into_iter()
        .filter(|v| !matches!(v, Variable::Config | Variable::Capture | Variable::RunDir | Variable::Daemon))
    {
        settings.set(variable, &OsString::from(" \t\n")).expect("nothing to refuse");
    }
    assert_eq!(settings, Settings::default());
}
