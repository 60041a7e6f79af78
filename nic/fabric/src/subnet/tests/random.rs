//! Whatever programs send: nothing panics, and nothing grows without bound.

use super::{Clients, Subnet, connect, control, mad, request, topology};
use proptest::prelude::*;

/// Requests that are near to right ones, and bytes that are not.
fn datagram() -> impl Strategy<Value = Vec<u8>> {
    let class = prop_oneof![Just(1u8), Just(0x81), Just(4), Just(3), any::<u8>()];
    let attribute = prop_oneof![0u16..0x40, any::<u16>()];
    let modifier = prop_oneof![0u32..8, any::<u32>(), (0u32..6, 0u32..6).prop_map(|(a, b)| a << 16 | b)];
    let path = prop::collection::vec(0u8..6, 0..6);
    let near = (class, prop_oneof![Just(1u8), Just(2), Just(0x81), any::<u8>()], attribute, modifier, path);
    let near = (
        near,
        prop::collection::vec(any::<u8>(), 0..=64),
        0u16..9,
        prop::collection::vec((0usize..288, any::<u8>()), 0..4),
    );
    let near = near.prop_map(|((class, method, attribute, modifier, path), data, lid, flips)| {
        let lid = if class == 0x81 { 0xFFFF } else { lid };
        let mut datagram = request(lid, &mad(class, method, attribute, modifier, &path, &data)).to_vec();
        flips.iter().for_each(|(at, value)| datagram[*at] = *value);
        datagram
    });
    prop_oneof![9 => near, 1 => prop::collection::vec(any::<u8>(), 0..600)]
}

/// Control: a slot, a kind, data, and whether all of it is there.
fn told() -> impl Strategy<Value = (usize, u32, Vec<u8>, bool)> {
    (0usize..40, 0u32..14, prop::collection::vec(any::<u8>(), 0..=64), any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn requests_never_panic(datagrams in prop::collection::vec((0usize..5, datagram(), 0usize..12, any::<bool>()), 1..120)) {
        let mut clients = Clients::new(Subnet::new(&topology()).expect("it fits"));
        for (id, host) in [(1, "host0"), (2, "host3"), (3, "leaf1"), (4, "host0")] {
            connect(&mut clients, id, host, id == 2);
        }
        for (slot, datagram, cable, is_whole) in datagrams {
            clients.handle_request(slot, &datagram);
            clients.set_cable(cable, is_whole);
            clients.repeat();
            let sent = std::iter::from_fn(|| clients.poll_transmit()).take(100).count();
            prop_assert!(sent < 20, "{} datagrams for one", sent);
        }
        // What was written is a table that names every node, and a fabric can take it or say why not.
        let tables = clients.subnet().tables();
        prop_assert_eq!((tables.hosts.len(), tables.switches.len()), (4, 4));
        let _ = crate::network::Forwarding::new(&tables, &topology());
        let text = toml::to_string(&tables).expect("text");
        prop_assert_eq!(toml::from_str::<crate::subnet::Tables>(&text).expect("tables"), tables);
    }

    #[test]
    fn control_never_panics(datagrams in prop::collection::vec(told(), 1..100)) {
        let mut clients = Clients::new(Subnet::new(&topology()).expect("it fits"));
        for (slot, kind, data, is_whole) in datagrams {
            let datagram = control(slot, kind, &data);
            clients.handle_control(if is_whole { &datagram } else { &datagram[..data.len()] });
            prop_assert!(clients.connected().count() <= crate::subnet::SLOTS);
        }
    }
}
