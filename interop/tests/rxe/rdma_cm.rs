//! Unmodified programs that connect by address and port, one end on rxe in the guest, the other on rnic under `rnic run`.

use crate::Test;
use crate::guest::{self, Ip, LIMIT, Remote};
use crate::programs::{Here, Server, rnic_run};
use std::process::Command;
use std::time::{Duration, Instant};

/// These run after those that count management datagrams.
pub(crate) const TESTS: &[Test] = &[
    ("rdma_cm::programs_with_rxe_as_server", || all(Server::Guest)),
    ("rdma_cm::programs_with_rxe_as_client", || all(Server::Here)),
    ("rdma_cm::nobody_listens_in_the_guest", || refused(Server::Guest)),
    ("rdma_cm::nobody_listens_here", || refused(Server::Here)),
];

/// The command lines of a server and a client, and what the client prints. `@` stands for the server's address.
struct Case {
    ip: Ip,
    server: &'static str,
    client: &'static str,
    prints: &'static str,
}

const fn case(server: &'static str, client: &'static str, prints: &'static str) -> Case {
    Case { ip: Ip::V4, server, client, prints }
}

/// The client of perftest 4.5 connects a second time before the server listens again. Linux refuses that, where rnic holds the
/// request for a second. So these need rnic as the server.
const HELD: &[Case] = &[
    case("ib_write_bw -R -F -n 50 -t 16 -u 18", "ib_write_bw -R -F -n 50 -t 16 -u 18 @", "65536"),
    case("ib_send_lat -R -F -n 20 -u 18", "ib_send_lat -R -F -n 20 -u 18 @", "t_typical"),
];

const CASES: &[Case] = &[
    case("rping -s -a @ -C 5 -V -S 5000", "rping -c -a @ -C 5 -V -S 5000", ""),
    Case { ip: Ip::V6, ..case("rping -s -a @ -C 5 -v", "rping -c -a @ -C 5 -v", "rdma-ping-4") },
    // The server of ucmatose disconnects; the client of rping did.
    case("ucmatose -c 4 -C 5 -S 3000 -b @", "ucmatose -c 4 -C 5 -S 3000 -s @", "return status 0"),
    case("udaddy -c 3 -b @", "udaddy -c 3 -s @", "return status 0"),
    case("rdma_server -s @", "rdma_client -s @", "rdma_client: end 0"),
    case("rstream -b @ -S 4096 -I 10 -C 20", "rstream -s @ -S 4096 -I 10 -C 20", "4k"),
];

fn address(ip: Ip, server: Server) -> String {
    if server == Server::Guest { ip.guest() } else { ip.program() }.to_string()
}

fn here(ip: Ip, line: &str) -> Command {
    let mut command = rnic_run(ip.program(), &[]);
    command.args(line.split(' '));
    command
}

/// Waits until a program in the guest listens.
fn await_guest() {
    guest::run(
        "for i in $(seq 3000); do rdma res show cm_id | grep -q LISTEN && exit; usleep 10000; done; exit 1",
    );
}

/// Waits until a device of a program on this side has its socket. A request that comes before it listens is held.
fn await_device() {
    let deadline = Instant::now() + LIMIT;
    // 4791.
    while !Command::new("grep")
        .args(["-q", ":12B7", "/proc/net/udp", "/proc/net/udp6"])
        .status()
        .expect("grep")
        .success()
    {
        assert!(Instant::now() < deadline, "no device here");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn all(server: Server) {
    let held = if server == Server::Here { HELD } else { &[] };
    CASES.iter().chain(held).for_each(|case| run(case, server));
}

fn run(case: &Case, server: Server) {
    let started = Instant::now();
    let [at_server, at_client] =
        [case.server, case.client].map(|line| line.replace('@', &address(case.ip, server)));
    let (here, there, client) = if server == Server::Guest {
        let there = Remote::start(&format!("exec {at_server}"));
        await_guest();
        let here = Here::start(&mut here(case.ip, &at_client)).end(LIMIT);
        let there = if here.0 == Some(0) { there.end() } else { (1, "was not waited for".to_owned()) };
        (here.clone(), there, here.1)
    } else {
        let here = Here::start(&mut here(case.ip, &at_server));
        await_device();
        let there = Remote::start(&format!("exec {at_client}")).end();
        // If one end failed, the other may wait for it forever.
        let limit = if there.0 == 0 { LIMIT } else { Duration::from_secs(2) };
        (here.end(limit), there.clone(), there.1)
    };
    assert!(
        there.0 == 0 && here.0 == Some(0) && client.contains(case.prints),
        "{} with {server:?} as server: in the guest {}:\n{}\nhere {:?}:\n{}",
        case.client,
        there.0,
        there.1,
        here.0,
        here.1
    );
    println!("  {} ({:.2} s)", case.client, started.elapsed().as_secs_f64());
}

fn refused(server: Server) {
    let said = "RDMA_CM_EVENT_REJECTED, error 8";
    let line = format!("rping -c -a {} -p 7999", address(Ip::V4, server));
    let text = if server == Server::Guest {
        Here::start(&mut here(Ip::V4, &line)).end(LIMIT).1
    } else {
        // A device that listens at another port.
        let other = Here::start(&mut here(Ip::V4, "rping -s -a 10.77.0.3 -p 7998"));
        await_device();
        let text = Remote::start(&line).end().1;
        drop(other);
        text
    };
    assert!(text.contains(said), "{text}");
}
