//! How programs are run: `rnic` and its libraries as cargo builds them, ports, time limits, and output.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The time limit for a program with little to do: long enough for a slow host, but it catches a program that hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// The directory in which cargo puts the build output for these tests.
pub(crate) fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // target/PROFILE/deps/TEST
        let test = std::env::current_exe().expect("the path of this test");
        let folder = test.ancestors().nth(2).expect("a folder of a profile").to_path_buf();
        // Whoever runs a few of them again and again has built what they need.
        if std::env::var_os("RNIC_TESTS_BUILT").is_some() {
            return folder;
        }
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        // A test cannot depend on C libraries, so cargo builds them here, or finds that they are up to date.
        // The same features as for the tests, or everything would be compiled once more.
        build.args(["build", "--quiet", "--workspace", "--lib", "--bins", "--tests"]);
        // The folder of the profile dev has another name; those of others have the profile's.
        let profile = folder.file_name().and_then(OsStr::to_str).expect("a name");
        build.arg(format!("--profile={}", if profile == "debug" { "dev" } else { profile }));
        assert!(build.status().expect("cargo").success(), "what is to be tested cannot be built");
        folder
    })
}

/// The directory for software that is installed only for the tests.
pub(crate) fn installed() -> &'static Path {
    built().parent().expect("a target folder")
}

/// Whether a program is installed. If not, prints a message: the test is then skipped.
pub(crate) fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !found {
        println!("SKIPPED: {program} is not installed, so it was not run on rnic");
    }
    found
}

/// Whether a library is installed. If not, prints a message: the test is then skipped.
pub(crate) fn installed_library(name: &str) -> bool {
    let found = rnic::doctor::find_library(name).is_some();
    if !found {
        println!("SKIPPED: {name} is not installed, so programs that need it were not run on rnic");
    }
    found
}

/// A directory of one test, removed when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rnic-programs-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A command line of `rnic`, with a run directory in `folder`, and no rnic variables from the environment.
pub(crate) fn rnic(folder: &Folder) -> Command {
    let mut command = Command::new(built().join("rnic"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RNIC_") {
            command.env_remove(name);
        }
    }
    // A daemon of the host has nothing to do with a test.
    command.env("RNIC_RUN_DIR", folder.path().join("run")).env("RNIC_DAEMON", "off").stdin(Stdio::null());
    command
}

/// A program under `rnic run` with these options.
pub(crate) fn run(folder: &Folder, options: &[&str], program: impl AsRef<OsStr>) -> Command {
    let mut command = rnic(folder);
    command.arg("run").args(options).arg("--").arg(program);
    command
}

/// A running program.
pub(crate) struct Running {
    child: Child,
    output: PathBuf,
    started: Instant,
}

/// How a program ended, and what it printed.
pub(crate) struct Ended {
    /// `None` if it exceeded the time limit and was killed.
    pub(crate) status: Option<ExitStatus>,
    /// Standard output and standard error.
    pub(crate) text: String,
}

impl Running {
    /// Starts a program, with both of its streams redirected to one file.
    pub(crate) fn start(folder: &Folder, command: &mut Command) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let output = folder.path().join(format!("output-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let file = File::create(&output).expect("a file");
        command.stdout(file.try_clone().expect("a copy of it")).stderr(file);
        let child = command.spawn().expect("rnic");
        Self { child, output, started: Instant::now() }
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child of ours").is_some()
    }

    /// Whether it listens at a TCP port. Connecting would tell as well, but it would take that for its client.
    pub(crate) fn listens_at(&self, port: u16) -> bool {
        let listeners =
            ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
        let inode = |line: &str| {
            // sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode; 0A is LISTEN.
            let words: Vec<_> = line.split_whitespace().collect();
            let (_, at) = words.get(1)?.rsplit_once(':')?;
            let listens = words.get(3) == Some(&"0A") && u16::from_str_radix(at, 16) == Ok(port);
            listens.then(|| format!("socket:[{}]", words.get(9).copied().unwrap_or_default()))
        };
        let sockets: Vec<_> =
            listeners.iter().flat_map(|table| table.lines().skip(1)).filter_map(inode).collect();
        // Another program may listen at the same port of another address.
        let own = fs::read_dir(format!("/proc/{}/fd", self.id())).into_iter().flatten().flatten();
        own.filter_map(|fd| fs::read_link(fd.path()).ok())
            .any(|target| sockets.iter().any(|socket| target.as_os_str() == socket.as_str()))
    }

    /// What it has printed so far.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).expect("its output")).into_owned()
    }

    /// Whether it runs still, and what it waits for then, or how it ended: for the message of a test that fails.
    pub(crate) fn state(&mut self) -> String {
        if let Some(status) = self.child.try_wait().expect("a child of ours") {
            return fault_of(status).unwrap_or_else(|| "ended with 0".to_owned());
        }
        // Where there is no gdb, or it may not look, the system calls must do.
        let mut gdb = Command::new("gdb");
        gdb.args(["-p", &self.id().to_string(), "-batch", "-ex", "thread apply all bt 12"])
            .stdin(Stdio::null());
        let stacks = gdb
            .output()
            .map_or_else(|_| String::new(), |shown| String::from_utf8_lossy(&shown.stdout).into_owned());
        let waits = waits_of(self.id());
        format!("it has been running for {:?}; its threads wait here:\n{waits}\n{stacks}", self.elapsed())
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The time since its start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Kills it, and waits until it is gone with its descriptors.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a child of ours");
        self.child.wait().expect("a child of ours");
    }

    /// Asks it to terminate.
    pub(crate) fn terminate(&self) {
        let pid = Pid::from_raw(self.id().cast_signed());
        kill(pid, Signal::SIGTERM).expect("a child of ours");
    }

    /// Waits until it ends, at most until `limit` after its start.
    pub(crate) fn wait(mut self, limit: Duration) -> Ended {
        while !self.has_ended() && self.started.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
        let in_time = self.has_ended();
        if !in_time {
            self.kill();
        }
        let status = self.child.wait().expect("a child of ours");
        Ended { status: in_time.then_some(status), text: self.text() }
    }
}

impl Drop for Running {
    /// A test that fails leaves no program behind, which would keep its address.
    fn drop(&mut self) {
        if self.child.kill().is_ok() {
            let _ = self.child.wait();
        }
    }
}

impl Ended {
    /// What is wrong with the way it ended, if anything.
    pub(crate) fn fault(&self) -> Option<String> {
        match self.status {
            None => Some("took too long".to_owned()),
            Some(status) => fault_of(status),
        }
    }
}

/// What is wrong with a status that a program ended with, if anything.
fn fault_of(status: ExitStatus) -> Option<String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("ended with {code}")),
        (None, signal) => Some(format!("was ended by signal {}", signal.unwrap_or_default())),
    }
}

/// The system calls in which the threads of a process are, a line each: its name, the number of the call and its arguments.
fn waits_of(process: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let read =
        |folder: &Path, name| fs::read_to_string(folder.join(name)).unwrap_or_default().trim().to_owned();
    let lines = tasks.map(|task| {
        let folder = task.path();
        format!("{} {}: {}", read(&folder, "comm"), read(&folder, "wchan"), read(&folder, "syscall"))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// TCP ports for programs to meet at. Each is returned once. None is among those from which Linux takes the ports of
/// connections and of listeners that ask for any (32,768 and up): a neighbour would get it before the program does.
pub(crate) fn free_port() -> u16 {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    static NEXT: OnceLock<Mutex<u16>> = OnceLock::new();
    // Another process of tests, which may run beside this one, begins elsewhere.
    let next = NEXT.get_or_init(|| Mutex::new((std::process::id() % u32::from(COUNT)) as u16));
    let mut next = next.lock().expect("no test panics here");
    loop {
        let port = FIRST + *next;
        *next = (*next + 1) % COUNT;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}

/// Waits until a server listens at a TCP port, or has ended. Returns whether it listens.
pub(crate) fn await_listener(port: u16, server: &mut Running) -> bool {
    while !server.has_ended() && server.elapsed() < LIMIT {
        if server.listens_at(port) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// Serializes tests while the guard lives. Programs that poll take a processor each, and two pairs of them on two
/// processors wait out each other's time slices until connections fail.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs both ends of a program that meet at a TCP port (`-p`): the server, and a client that connects to 127.0.0.1.
/// Each end has its own options after the common ones.
pub(crate) fn pair(program: &str, options: &[&str], common: &[&str], ends: [&[&str]; 2]) -> [Ended; 2] {
    let folder = Folder::new();
    let common = [&["-d", "rnic0"], common].concat();
    meet(&folder, ends, |port, own| {
        let mut command = run(&folder, options, program);
        command.args(["-p", port]).args(&common).args(own);
        command
    })
}

/// Runs both ends of a program; the last argument of the client is 127.0.0.1. `end` makes the command line of an end
/// from the TCP port and the options of that end.
pub(crate) fn meet<O: ?Sized>(
    folder: &Folder,
    ends: [&O; 2],
    end: impl Fn(&str, &O) -> Command,
) -> [Ended; 2] {
    let _alone = alone();
    let port = free_port();
    let text = port.to_string();
    let mut server = Running::start(folder, &mut end(&text, ends[0]));
    await_listener(port, &mut server);
    let client = Running::start(folder, end(&text, ends[1]).arg("127.0.0.1"));
    let client = client.wait(LIMIT);
    // A server whose client failed may wait forever.
    let patience = if client.fault().is_some() { Duration::from_secs(2) } else { Duration::from_secs(20) };
    let limit = server.elapsed() + patience;
    [server.wait(limit), client]
}

/// Sums one counter over all programs of a run directory. Also returns the number of programs.
pub(crate) fn counted(folder: &Folder, counter: &str) -> (u64, usize) {
    let shown = rnic(folder).args(["show", "counters", "--json"]).output().expect("rnic");
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&shown.stdout).expect("JSON");
    (rows.iter().filter_map(|row| row[counter].as_u64()).sum(), rows.len())
}

/// The addresses of all programs of a run directory.
pub(crate) fn addresses(folder: &Folder) -> BTreeSet<String> {
    let shown = rnic(folder).args(["show", "counters", "--json"]).output().expect("rnic");
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&shown.stdout).expect("JSON");
    rows.iter().filter_map(|row| row["address"].as_str().map(str::to_owned)).collect()
}

/// What is wrong with either end: how it ended, or what `check` finds in its output.
pub(crate) fn faults(ends: &[Ended; 2], check: impl Fn(usize, &str) -> Option<String>) -> Option<String> {
    let named = ["server", "client"].into_iter().zip(ends).enumerate();
    let mut all = named.filter_map(|(at, (name, end))| {
        let fault = end.fault().or_else(|| check(at, &end.text))?;
        // Print all lines: unbuffered errors come first, followed by the earlier output of the program.
        let lines: Vec<_> = end.text.lines().filter(|line| !line.trim().is_empty()).collect();
        let lines = lines.get(..40).unwrap_or(&lines).join("\n    ");
        Some(format!("{name} {fault}:\n    {lines}"))
    });
    all.next()
}

/// Runs all rows of a matrix and panics with a list of those that failed.
pub(crate) fn matrix(what: &str, rows: impl Iterator<Item = (String, Option<String>)>) {
    let (mut count, mut failed) = (0, Vec::new());
    for (row, fault) in rows {
        count += 1;
        match fault {
            Some(fault) => failed.push(format!("{row}: {fault}")),
            None => println!("ok {row}"),
        }
    }
    println!("{what}: {} of {count}", count - failed.len());
    assert!(count > 0, "{what}: nothing was run");
    assert!(failed.is_empty(), "{what}: {} of {count} failed:\n{}", failed.len(), failed.join("\n"));
}
