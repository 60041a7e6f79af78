//! Unmodified programs, one end on rxe in the guest, the other on rnic under `rnic run`.

use crate::Test;
use crate::guest::{self, Ip, LIMIT, Remote};
use std::fs::{self, File};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[
    ("programs::pingpongs_with_rxe_as_server_over_ipv4", || pingpongs(Ip::V4, Server::Guest)),
    ("programs::pingpongs_with_rxe_as_client_over_ipv4", || pingpongs(Ip::V4, Server::Here)),
    ("programs::pingpongs_with_rxe_as_server_over_ipv6", || pingpongs(Ip::V6, Server::Guest)),
    ("programs::pingpongs_with_rxe_as_client_over_ipv6", || pingpongs(Ip::V6, Server::Here)),
    ("programs::perftest_with_rxe_as_server_over_ipv4", || perftest(Ip::V4, Server::Guest)),
    ("programs::perftest_with_rxe_as_client_over_ipv6", || perftest(Ip::V6, Server::Here)),
];

/// `rnic run` with a device at this address. The caller adds the program.
pub(crate) fn rnic_run(address: IpAddr, options: &[&str]) -> Command {
    let mut command = Command::new(guest::built().join("rnic"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RNIC_") {
            command.env_remove(name);
        }
    }
    let run = std::env::temp_dir().join(format!("rnic-rxe-{}", std::process::id()));
    command.env("RNIC_RUN_DIR", run);
    command.args(["run", "--addr", &address.to_string()]).args(options).arg("--");
    command
}

/// Which end is the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Server {
    Guest,
    Here,
}

fn pingpongs(ip: Ip, server: Server) {
    for row in [
        &["ibv_rc_pingpong", "-n", "50", "-s", "20000", "-m", "1024", "-c"][..],
        &["ibv_rc_pingpong", "-n", "50", "-s", "20000", "-m", "4096", "-e"],
        &["ibv_uc_pingpong", "-n", "50", "-s", "4097"],
        &["ibv_ud_pingpong", "-n", "50", "-s", "1000"],
        &["ibv_srq_pingpong", "-n", "50", "-q", "4"],
    ] {
        pair(row, "-g", ip, server);
    }
}

fn perftest(ip: Ip, server: Server) {
    for row in [
        &["ib_write_bw", "-n", "50", "-t", "16"][..],
        &["ib_read_bw", "-n", "50", "-t", "16"],
        &["ib_send_bw", "-n", "50", "-t", "16", "-r", "64"],
        &["ib_send_bw", "-c", "UD", "-s", "1024", "-n", "50", "-t", "16", "-r", "64"],
        &["ib_atomic_bw", "-n", "50", "-t", "16"],
        &["ib_write_lat", "-n", "20"],
        &["ib_read_lat", "-n", "20"],
        &["ib_send_lat", "-n", "20"],
    ] {
        // -F: the clock of an emulated processor is not reliable.
        let row: Vec<_> = row.iter().copied().chain(["-F", "-u", "18"]).collect();
        pair(&row, "-x", ip, server);
    }
}

/// A program on this side, whose output goes to a file.
pub(crate) struct Here {
    child: Child,
    output: PathBuf,
}

impl Here {
    pub(crate) fn start(command: &mut Command) -> Self {
        static COUNT: AtomicU16 = AtomicU16::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let output = std::env::temp_dir().join(format!("rnic-rxe-{}-{number}", std::process::id()));
        let file = File::create(&output).expect("a file");
        command.stdin(Stdio::null()).stdout(file.try_clone().expect("a copy of it")).stderr(file);
        Self { child: command.spawn().expect("rnic run"), output }
    }

    pub(crate) fn end(mut self, limit: Duration) -> (Option<i32>, String) {
        let deadline = Instant::now() + limit;
        while self.child.try_wait().expect("a child of ours").is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let status = self.child.try_wait().expect("a child of ours").and_then(|status| status.code());
        let text = fs::read(&self.output).expect("what it printed");
        (status, String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(fs::remove_file(&self.output));
    }
}

/// The text in a line of /proc/net/tcp if a process listens at this port.
fn listening(port: u16) -> String {
    format!(":{port:04X} 0*:0000 0A")
}

/// Waits until a server on this side listens.
fn await_listener(port: u16) {
    let deadline = Instant::now() + LIMIT;
    let test = format!("grep -q '{}' /proc/net/tcp /proc/net/tcp6", listening(port));
    while !Command::new("sh").args(["-c", &test]).status().expect("sh").success() {
        assert!(Instant::now() < deadline, "no server listens at port {port}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs both ends of a program, which must succeed on both.
fn pair(row: &[&str], gid_option: &str, ip: Ip, server: Server) {
    let started = Instant::now();
    static PORT: AtomicU16 = AtomicU16::new(18_600);
    let port = PORT.fetch_add(1, Ordering::Relaxed);
    let mut here = rnic_run(ip.program(), &[]);
    here.args(row).args(["-d", "rnic0", gid_option, "0", "-p", &port.to_string()]);
    let gid = ip.guest_gid_index();
    let there = format!("{} -d rxe0 {gid_option} {gid} -p {port}", row.join(" "));
    // They meet over IPv4, whichever IP version connects their devices.
    let (here, there) = if server == Server::Guest {
        let there = Remote::start(&format!("exec {there}"));
        guest::run(&format!(
            "for i in $(seq 3000); do grep -q '{}' /proc/net/tcp /proc/net/tcp6 && exit; usleep 10000; done; exit 1",
            listening(port)
        ));
        (Here::start(here.arg(Ip::V4.guest().to_string())), there)
    } else {
        let here = Here::start(&mut here);
        await_listener(port);
        (here, Remote::start(&format!("exec {there} {}", Ip::V4.program())))
    };
    let (status, text) = there.end();
    // If one end failed, the other may wait for it forever.
    let (here_status, here_text) = here.end(if status == 0 { LIMIT } else { Duration::from_secs(2) });
    assert!(
        status == 0 && here_status == Some(0),
        "{} with {server:?} as server: in the guest {status}:\n{text}\nhere {here_status:?}:\n{here_text}",
        row.join(" ")
    );
    println!("  {} ({:.2} s)", row.join(" "), started.elapsed().as_secs_f64());
}
