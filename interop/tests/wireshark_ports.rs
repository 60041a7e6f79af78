//! Wireshark's dissector as a judge of the packets that rnic ports send to each other: hellos are vendor management
//! datagrams, credits and pauses are vendor packets, and none is malformed.

use qp::QKey;
use qp::wire::mad::MAD_LEN;
use qp::wire::mad::hello::{Counting, Features, Hello, Kind, SourcePorts, VERSION};
use qp::wire::{Headers, PauseTimes};
use rnic::capture::{Decoder, IcrcCheck};
use rnic_interop::{pcap, tshark};

/// tshark's decoding of these packets: the fields of each, empty if absent. No packet may be malformed.
fn judge(name: &str, packets: &[Vec<u8>], fields: &[&str]) -> Vec<Vec<String>> {
    let file = pcap::file(packets);
    let ours: Vec<_> = Decoder::new(&file[..]).expect("a capture").map(|p| p.expect("a packet")).collect();
    assert_eq!(ours.len(), packets.len());
    assert!(ours.iter().all(|p| p.icrc.is_some_and(IcrcCheck::is_ok)));
    let path = std::env::temp_dir().join(format!("rnic-ports-{name}-{}.pcap", std::process::id()));
    std::fs::write(&path, file).expect("a temporary file");
    let columns: Vec<&str> = fields.iter().copied().chain(["_ws.malformed"]).collect();
    let rows = tshark::fields(&path, "infiniband", &columns);
    std::fs::remove_file(&path).expect("the file is ours");
    assert_eq!(rows.len(), packets.len(), "all are InfiniBand");
    for row in &rows {
        assert_eq!(row[fields.len()], "", "{row:?}");
    }
    rows
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn wireshark_takes_hellos_for_datagrams_of_a_vendor() {
    if !tshark::is_installed() {
        return;
    }
    let mut hello = Hello {
        kind: Kind::Ask,
        transaction_id: 0x0102_0304_0506_0708,
        version: VERSION,
        slot: 0xa5,
        lanes: 4,
        features: Features::CNP | Features::CREDITS,
        instance: 0x1112_1314_1516_1718,
        block: 64,
        counting: Counting::DatagramCharge,
        ports: SourcePorts::new(&[0xc001, 0xc002]).expect("two are not too many"),
        token: 0x2122_2324_2526_2728,
        proof: 0x3132_3334_3536_3738,
    };
    let fields = [
        "infiniband.bth.opcode",
        "infiniband.bth.destqp",
        "infiniband.deth.q_key",
        "infiniband.deth.srcqp",
        "infiniband.mad.baseversion",
        "infiniband.mad.mgmtclass",
        "infiniband.mad.classversion",
        "infiniband.mad.method",
        "infiniband.mad.status",
        "infiniband.mad.transactionid",
        "infiniband.mad.attributeid",
    ];
    let columns: Vec<&str> = fields.into_iter().chain(["infiniband.mad.data"]).collect();
    for ipv6 in [false, true] {
        for kind in [Kind::Ask, Kind::Answer] {
            hello.kind = kind;
            let mut mad = [0; MAD_LEN];
            hello.emit(&mut mad);
            let rows = judge(&format!("hello-{ipv6}"), &[pcap::mad_packet(ipv6, 5, &mad)], &columns);
            let numbers: Vec<_> =
                rows[0].iter().take(fields.len()).map(|text| tshark::number(text)).collect();
            let qkey = u64::from(QKey::GSI.0);
            assert_eq!(qkey, 0x8001_0000);
            let method = kind as u64;
            let expected = [0x64, 1, qkey, 1, 1, 0x3f, 1, method, 0, 0x0102_0304_0506_0708, 1];
            assert_eq!(numbers, expected.map(Some));
            // What follows the header is vendor data: OUI at 37, the slot at 42, the ports from 60 on.
            let data = rows[0][fields.len()].replace(':', "");
            assert_eq!(data, hex(&mad[24..]));
            let at = |byte: usize| &data[2 * (byte - 24)..];
            assert!(at(37).starts_with("02726e0002a504"), "{data}");
            assert!(at(60).starts_with("c001c002"), "{data}");
        }
    }
}

/// Wireshark knows neither opcode, and decodes both BTHs as rnic wrote them.
#[test]
fn wireshark_takes_credits_and_pauses_for_packets_of_a_vendor() {
    if !tshark::is_installed() {
        return;
    }
    let said = |body: &[u8]| [&[0xab; 8][..], body].concat();
    let lanes: Vec<u8> = (0..15).flat_map(|vl: u8| [0x00, 0x0c, vl << 4 | 0x08, 0x0c]).collect();
    let mut times = PauseTimes::default();
    (times.0[0], times.0[7]) = (Some(u16::MAX), Some(0));
    let fields = [
        "infiniband.bth.opcode",
        "infiniband.bth.destqp",
        "infiniband.bth.psn",
        "infiniband.bth.p_key",
        "infiniband.vendor",
    ];
    for ipv6 in [false, true] {
        let all = [
            (Headers::flow_control(0x12, 0x34, 0x5678), said(&lanes[..4])),
            (Headers::flow_control(0, 0, 0), said(&lanes)),
            (Headers::pause(0x12, 0x34, 0x5679), said(&times.emit())),
        ];
        let packets: Vec<_> = all.iter().map(|(h, payload)| pcap::ip_packet(ipv6, h, payload)).collect();
        let rows = judge(&format!("control-{ipv6}"), &packets, &fields);
        for ((headers, payload), row) in all.iter().zip(rows) {
            let numbers: Vec<_> = row[..4].iter().map(|text| tshark::number(text)).collect();
            let (qpn, psn) = (headers.dest_qpn.value(), headers.psn.value());
            let expected = [headers.opcode as u32, qpn, psn, 0xffff].map(|n| Some(u64::from(n)));
            assert_eq!(numbers, expected);
            // To Wireshark, what follows the BTH is vendor data; version 4.0 shows the first four bytes of it.
            let theirs = row[4].replace(':', "");
            assert_eq!(theirs.get(..8), Some(&*hex(&payload[..4])), "{theirs}");
        }
    }
}
