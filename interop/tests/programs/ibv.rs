//! The programs of ibverbs-utils.

use crate::lab::{self, Folder, LIMIT, Running, has};

fn output(program: &str, arguments: &[&str]) -> String {
    let folder = Folder::new();
    let ended =
        Running::start(&folder, lab::run(&folder, &["--addr", "127.90.1.1"], program).args(arguments));
    let ended = ended.wait(LIMIT);
    assert_eq!(ended.fault(), None, "{program}: {}", ended.text);
    ended.text
}

/// The value behind a name in the output of ibv_devinfo.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':').map(str::trim))
}

#[test]
fn ibv_devices_lists_the_device() {
    if has("ibv_devices") {
        let text = output("ibv_devices", &[]);
        assert!(text.lines().any(|line| line.split_whitespace().eq(["rnic0", "504e7ffffe5a0101"])), "{text}");
    }
}

#[test]
fn ibv_devinfo_tells_what_the_device_can_do() {
    if !has("ibv_devinfo") {
        return;
    }
    let text = output("ibv_devinfo", &["-v"]);
    for (name, expected) in [
        ("hca_id", "rnic0"),
        ("transport", "InfiniBand (0)"),
        ("node_guid", "504e:7fff:fe5a:0101"),
        ("phys_port_cnt", "1"),
        ("state", "PORT_ACTIVE (4)"),
        ("link_layer", "Ethernet"),
        ("max_mtu", "4096 (5)"),
        ("active_mtu", "4096 (5)"),
        ("phys_state", "LINK_UP (5)"),
        ("GID[  0]", "::ffff:127.90.1.1, RoCE v2"),
    ] {
        assert_eq!(value(&text, name), Some(expected), "{name} in:\n{text}");
    }
    for name in ["max_qp", "max_cq", "max_mr", "max_srq", "max_qp_rd_atom", "max_mw", "max_ah"] {
        let number = value(&text, name).and_then(|value| value.parse::<u64>().ok());
        assert!(number.is_some_and(|number| number > 0), "{name} in:\n{text}");
    }
}

/// Programs and their options, the same for both ends.
const PINGPONGS: [(&str, &[&[&str]]); 5] = [
    (
        "ibv_rc_pingpong",
        &[
            &[],
            &["-e"],
            &["-m", "256"],
            &["-m", "512"],
            &["-m", "1024"],
            &["-m", "2048"],
            &["-m", "4096"],
            &["-t"],
            &["-N"],
            &["-N", "-e"],
            &["-c"],
            &["-o"],
            &["-O"],
            &["-j"],
            &["-s", "1"],
            &["-s", "1000000", "-n", "100", "-c"],
            &["-r", "1", "-e"],
        ],
    ),
    (
        "ibv_uc_pingpong",
        &[&[], &["-e"], &["-m", "256"], &["-m", "512"], &["-m", "2048"], &["-m", "4096"], &["-c"]],
    ),
    ("ibv_ud_pingpong", &[&[], &["-e"], &["-s", "1"], &["-s", "4096"], &["-c"]]),
    (
        "ibv_srq_pingpong",
        &[
            &[],
            &["-e"],
            &["-m", "256"],
            &["-m", "512"],
            &["-m", "2048"],
            &["-m", "4096"],
            &["-q", "1"],
            &["-c"],
        ],
    ),
    ("ibv_xsrq_pingpong", &[&[], &["-e"], &["-m", "256"], &["-m", "512"], &["-m", "1024"], &["-m", "4096"]]),
];

#[test]
fn pingpongs_go_back_and_forth() {
    if !has("ibv_rc_pingpong") {
        return;
    }
    let rows = PINGPONGS.into_iter().flat_map(|(program, rows)| rows.iter().map(move |row| (program, *row)));
    let ended = rows.map(|(program, row)| {
        let common = [&["-g", "0"], row].concat();
        let ends = lab::pair(program, &[], &common, [&[], &[]]);
        let says = |_, text: &str| {
            let told = if program == "ibv_xsrq_pingpong" {
                text.lines().any(|line| line == "success")
            } else {
                text.lines().any(|line| line.contains(" bytes in ") && line.contains("Mbit/sec"))
            };
            (!told).then(|| "told no result".to_owned())
        };
        (format!("{program} {}", row.join(" ")), lab::faults(&ends, says))
    });
    lab::matrix("pingpongs", ended);
}
