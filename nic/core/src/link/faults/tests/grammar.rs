use super::*;
use proptest::prelude::*;
use qp::wire::mad::cm::Attribute;
use std::net::IpAddr;

/// The packet that carries a pause.
fn pause() -> OpcodePattern {
    Opcode::RnicPause.into()
}

fn error(text: &str) -> String {
    text.parse::<FaultRule>().unwrap_err().to_string()
}

#[test]
fn text_and_builder_are_equal_in_power() {
    let us = Duration::from_micros;
    let a: IpAddr = LOCAL.into();
    let b: IpAddr = PEER.into();
    let hosts = |name: &str| match name {
        "a" => Some(a),
        "b" => Some(b),
        _ => None,
    };
    let both_ways = Where::Path { from: Some(a), to: Some(b), both_ways: true };
    for (text, rule) in [
        ("a>b data psn=#3 drop", FaultRule::drop().path(a, b).class(Class::Data).psn(3)),
        (
            "lossy: a<>b data p=0.01 drop",
            FaultRule::drop().named("lossy").at(both_ways).class(Class::Data).probability(0.01),
        ),
        (
            "b>a ack psn=#7 try=1 delay 80us",
            FaultRule::delay(us(80)).path(b, a).class(Class::Ack).psn(7).attempt(1),
        ),
        ("*>* data p=0.01 drop", FaultRule::drop().class(Class::Data).probability(0.01)),
        (
            "tx>b qp=#1 psn=#2 corrupt icrc",
            FaultRule::corrupt(Corruption::Icrc).at(Where::Tx { to: Some(b) }).when(Match::NthQp(1)).psn(2),
        ),
        (
            "rx cnp delay 1.5ms +-10us once",
            FaultRule::delay(us(1500)).jitter(us(10)).rx().opcode(cnp()).once(),
        ),
        ("delay 1ms+-10us", FaultRule::delay(us(1000)).jitter(us(10))),
        ("dup", FaultRule::duplicate(1)),
        ("dup 3", FaultRule::duplicate(3)),
        ("dup 3 times", FaultRule::duplicate(1).times(3)),
        ("dup 3 4 times", FaultRule::duplicate(3).times(4)),
        ("reorder 2 from 1s for 2.5s", {
            FaultRule::reorder(2).starting(us(1_000_000)).lasting(us(2_500_000))
        }),
        ("rx data pause=3,4 for 2s", {
            FaultRule::pause(&[4, 3]).rx().class(Class::Data).lasting(us(2_000_000))
        }),
        ("pause pause=0 once", FaultRule::pause(&[0, 8]).opcode(pause()).once()),
        ("size>100 mark ce always", FaultRule::mark_ce().when(Match::LargerThan(100)).always()),
        ("  drop\t every=3 ", FaultRule::drop().every(3)),
        ("rx<fe80::1 drop", FaultRule::drop().at(Where::Rx { from: Some("fe80::1".parse().unwrap()) })),
        ("qp=0x11 drop", FaultRule::drop().qp(Qpn::new(17))),
    ] {
        let rule = if text.starts_with("*>*") {
            rule.at(Where::Path { from: None, to: None, both_ways: false })
        } else {
            rule
        };
        assert_eq!(FaultRule::parse(text, &hosts), Ok(rule), "{text}");
    }
}

fn cnp() -> OpcodePattern {
    Opcode::Cnp.into()
}

#[test]
fn errors_say_where_and_what_was_meant() {
    for (text, message) in [
        ("tx data drp", "column 9, 'drp': unknown word; did you mean 'drop'?"),
        ("tx writ.first drop", "column 4, 'writ.first': unknown word; did you mean 'write.first'?"),
        ("tx pns=3 drop", "column 4, 'pns=3': unknown word; did you mean 'psn='?"),
        ("xyzzy drop", "column 1, 'xyzzy': unknown word; a rule reads like 'tx data psn=#3 drop once'"),
        (
            "tx data",
            "column 8, at the end: add an action: drop, dup, delay, reorder, corrupt, mark ce or pause=",
        ),
        ("", "column 1, at the end: add an action: drop, dup, delay, reorder, corrupt, mark ce or pause="),
        ("drop dup", "column 6, 'dup': a rule has only one action"),
        ("drop once always", "column 11, 'always': a rule has only one budget"),
        ("drop for 1s for 2s", "column 13, 'for': a rule has only one 'for'"),
        ("a>b drop", "column 1, 'a': neither an IP address nor the name of a host"),
        ("10.0.0.1>bob drop", "column 10, 'bob': neither an IP address nor the name of a host"),
        ("drop psn=#x", "column 11, 'x': expected a number"),
        ("drop psn=16777216", "column 10, '16777216': the maximum is 16777215"),
        ("drop ecn=cd", "column 10, 'cd': choose ce, ect0, ect1 or not; did you mean 'ce'?"),
        ("delay", "column 6, at the end: expected a time"),
        ("delay 5", "column 7, '5': expected a time such as 80us, 1.5ms or 2s"),
        ("delay 1.5.1us", "column 7, '1.5.1us': expected a time such as 80us, 1.5ms or 2s"),
        ("corrupt icr", "column 9, 'icr': choose icrc, payload, header or bit=N; did you mean 'icrc'?"),
        ("mark ec", "column 6, 'ec': the only mark is 'ce'; did you mean 'ce'?"),
        ("reorder", "column 8, at the end: expected the number of packets that overtake"),
        ("drop 3", "column 6, '3': write 'N times' for a number of times"),
        ("drop p=lots", "column 6, 'p=lots': p is a number from 0 to 1"),
        ("drop p=2", "column 1, 'drop p=2': p can be 0 to 1, not 2"),
        ("drop p=NaN", "column 1, 'drop p=NaN': p can be 0 to 1, not NaN"),
        ("drop nth=0", "column 1, 'drop nth=0': nth can be 1 to 18446744073709551615, not 0"),
        ("dup 101", "column 1, 'dup 101': copies can be 1 to 100, not 101"),
        ("delay 2000h", "column 7, '2000h': expected a time such as 80us, 1.5ms or 2s"),
        ("delay 3601s", "column 1, 'delay 3601s': a delay can be an hour at most"),
        ("ud.read.req drop", "column 1, 'ud.read.req drop': there is no packet ud.read.req"),
        (
            "n\u{e4}me: drop",
            "column 1, 'n\u{e4}me:': a name has letters, digits, '_', '-' and '.', not \"n\u{e4}me\"",
        ),
        (
            "n: n\u{e4}me drop",
            "column 4, 'n\u{e4}me': unknown word; a rule reads like 'tx data psn=#3 drop once'",
        ),
    ] {
        assert_eq!(error(text), message);
    }
}

fn time() -> impl Strategy<Value = Duration> {
    prop_oneof![0..=3_600_000_000_000_u64, (0..3600_u64).prop_map(|s| s * 1_000_000_000)]
        .prop_map(Duration::from_nanos)
}

fn place() -> impl Strategy<Value = Where> {
    let ip = || proptest::option::of(any::<IpAddr>().prop_map(|ip| ip.to_canonical()));
    prop_oneof![
        Just(Where::Any),
        ip().prop_map(|to| Where::Tx { to }),
        ip().prop_map(|from| Where::Rx { from }),
        (ip(), ip(), any::<bool>()).prop_map(|(from, to, both_ways)| Where::Path { from, to, both_ways }),
    ]
}

fn condition() -> impl Strategy<Value = Match> {
    let ecn = prop_oneof![Just(Ecn::Ce), Just(Ecn::Ect0), Just(Ecn::Ect1), Just(Ecn::Not)];
    let class = prop_oneof![
        Just(Class::Data),
        Just(Class::Ack),
        Just(Class::Nak),
        Just(Class::Rnr),
        Just(Class::Atomic),
        Just(Class::Cm)
    ];
    let attribute = (0..Attribute::ALL.len()).prop_map(|i| Match::Cm(Attribute::ALL[i]));
    let opcode =
        (0..Opcode::ALL.len(), any::<bool>(), any::<bool>()).prop_map(|(i, any_transport, any_shape)| {
            let mut pattern = OpcodePattern::from(Opcode::ALL[i]);
            pattern.transport = pattern.transport.filter(|_| !any_transport);
            pattern.shape = pattern.shape.filter(|_| !any_shape);
            Match::Opcode(pattern)
        });
    prop_oneof![
        class.prop_map(Match::Class),
        opcode,
        any::<u32>().prop_map(|n| Match::Qp(Qpn::new(n))),
        any::<u32>().prop_map(Match::NthQp),
        any::<u32>().prop_map(|n| Match::Psn(Psn::new(n))),
        (0..1_u32 << 24).prop_map(Match::RelativePsn),
        (1..u32::MAX).prop_map(Match::Try),
        (1..u64::MAX).prop_map(Match::Nth),
        (1..u64::MAX).prop_map(Match::Every),
        any::<u32>().prop_map(Match::LargerThan),
        any::<u32>().prop_map(Match::SmallerThan),
        ecn.prop_map(Match::Ecn),
        attribute,
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let corruption = prop_oneof![
        Just(Corruption::Icrc),
        Just(Corruption::Payload),
        Just(Corruption::Header),
        any::<u32>().prop_map(Corruption::Bit),
    ];
    prop_oneof![
        Just(Action::Drop),
        Just(Action::MarkCe),
        (1..=100_u32).prop_map(Action::Duplicate),
        (1..=1000_u32).prop_map(Action::Reorder),
        (time(), time()).prop_map(|(by, jitter)| Action::Delay { by, jitter }),
        corruption.prop_map(Action::Corrupt),
    ]
}

fn budget() -> impl Strategy<Value = Budget> {
    prop_oneof![
        Just(Budget::Always),
        (1..u64::MAX).prop_map(Budget::Times),
        (0.0..=1.0_f64).prop_map(Budget::Probability),
    ]
}

prop_compose! {
    fn rule()(
        name in proptest::option::of("[A-Za-z0-9_.-]{1,12}"),
        place in place(),
        matches in proptest::collection::vec(condition(), 0..5),
        action in action(),
        budget in proptest::option::of(budget()),
        from in proptest::option::of(time()),
        lasting in proptest::option::of(time()),
    ) -> FaultRule {
        FaultRule { name, place, matches, action, budget, from, lasting }
    }
}

proptest! {
    #[test]
    fn a_rule_survives_its_text(rule in rule()) {
        let text = rule.to_string();
        prop_assert_eq!(text.parse::<FaultRule>(), Ok(rule), "{}", text);
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,60}") {
        let _ = text.parse::<FaultRule>();
    }

    #[test]
    fn no_mix_of_words_panics(words in proptest::collection::vec(
        prop_oneof!["[a-z]{1,5}[=<>.#]?[0-9a-z.]{0,4}", Just("tx".to_owned()), Just("dup".to_owned()),
            Just("delay".to_owned()), Just("3".to_owned()), Just("times".to_owned()), Just("1ms".to_owned()),
            Just("from".to_owned()), Just("p=0.5".to_owned()), Just("a:".to_owned()), Just("drop".to_owned())],
        0..8,
    )) {
        let text = words.join(" ");
        if let Ok(rule) = text.parse::<FaultRule>() {
            prop_assert_eq!(rule.to_string().parse::<FaultRule>(), Ok(rule));
        }
    }
}

#[test]
fn a_pause_names_priorities() {
    assert!(error("rx pause=8").contains("the maximum is 7"), "{}", error("rx pause=8"));
    assert!(error("rx pause=").contains("expected a number"), "{}", error("rx pause="));
    assert!(error("rx pose=3").contains("did you mean 'pause='?"), "{}", error("rx pose=3"));
    let nothing = FaultLayer::new(1).add(Instant::EPOCH, FaultRule::pause(&[]));
    assert!(nothing.expect_err("a pause of nothing").to_string().contains("priority"));
}
