//! A served fabric, and programs that are attached to it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long anything may take, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where distributions put the library that connects programs.
const LIBRARIES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so",
    "/usr/lib/aarch64-linux-gnu/umad2sim/libumad2sim.so",
    "/usr/lib64/umad2sim/libumad2sim.so",
];

/// The library that connects programs, if it and all of these programs are there. If not, prints a message: the test is then
/// skipped.
pub(crate) fn installed(programs: &[&str]) -> Option<&'static str> {
    let library = LIBRARIES.into_iter().find(|path| Path::new(path).exists());
    if library.is_none() {
        println!("SKIPPED: libumad2sim.so of ibsim-utils is not installed");
    }
    for program in programs {
        let found =
            ["/usr/sbin", "/usr/bin", "/sbin"].iter().any(|folder| Path::new(folder).join(program).exists());
        if !found {
            println!("SKIPPED: {program} is not installed");
            return None;
        }
    }
    library
}

/// A fabric that is served.
pub(crate) struct Fabric {
    server: Child,
    commands: ChildStdin,
    lines: Receiver<String>,
    library: &'static str,
    name: String,
    folder: PathBuf,
}

impl Drop for Fabric {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A program that ends with its test.
pub(crate) struct Resident(Child);

impl Drop for Resident {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program rnic in a folder.
pub(crate) fn rnic(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rnic")).args(args).current_dir(folder).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Fabric {
    /// Serves a scenario, which is written to a file, under the name of its test.
    pub(crate) fn serve(test: &str, scenario: &str, library: &'static str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("subnet-{test}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("fabric.toml"), scenario).unwrap();
        let name = format!("rnic-{}-{test}", std::process::id());
        let mut server = Command::new(env!("CARGO_BIN_EXE_rnic"))
            .args(["fabric", "serve", "fabric.toml", "--save", "tables.toml", "--socket", &name])
            .current_dir(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (commands, output) = (server.stdin.take().unwrap(), server.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let fabric = Self { server, commands, lines, library, name, folder };
        fabric.until("quit");
        fabric
    }

    /// The name of its sockets.
    pub(crate) fn socket(&self) -> &str {
        &self.name
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Waits for a line of the server that begins so.
    pub(crate) fn until(&self, beginning: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line.trim_start().starts_with(beginning) => return line,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("no line `{beginning}`")
                }
            }
        }
    }

    /// Gives a command, and waits for the line that answers it.
    pub(crate) fn tell(&mut self, command: &str, answer: &str) -> String {
        writeln!(self.commands, "{command}").unwrap();
        self.until(answer)
    }

    fn command(&self, host: &str, program: &str, args: &[&str]) -> Command {
        // Every program has files of its own: the simulated /sys is in the folder that it runs in.
        let folder = self.folder.join(host);
        fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new(program);
        command
            .args(args)
            .current_dir(&folder)
            .stdin(Stdio::null())
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LD_PRELOAD", self.library)
            .env("IBSIM_SOCKNAME", &self.name)
            .env("SIM_HOST", host)
            .env("OSM_TMP_DIR", &folder)
            .env("OSM_CACHE_DIR", &folder);
        command
    }

    /// Runs a program at a host until it ends, and returns what it has printed.
    pub(crate) fn program(&self, host: &str, program: &str, args: &[&str]) -> String {
        self.try_program(host, program, args).unwrap_or_else(|why| panic!("{program} {args:?}: {why}"))
    }

    /// What a program has printed; as an error, if it fails or does not end.
    pub(crate) fn try_program(&self, host: &str, program: &str, args: &[&str]) -> Result<String, String> {
        // A file: a pipe could fill up while nobody reads.
        let path = self.folder.join(format!("{host}-{program}.txt"));
        let file = File::create(&path).unwrap();
        let mut command = self.command(host, program, args);
        let mut child = command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if Instant::now() > end {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let printed = text(&fs::read(&path).unwrap());
        if status.is_some_and(|status| status.success()) {
            Ok(printed)
        } else {
            Err(format!("{status:?}\n{printed}"))
        }
    }

    /// OpenSM configures the subnet once. Returns its log.
    pub(crate) fn configure(&self, args: &[&str]) -> String {
        let log = self.folder.join("opensm.log");
        let mut all = vec!["-o", "-f", log.to_str().unwrap()];
        all.extend(args);
        self.program("host0", "opensm", &all);
        text(&fs::read(&log).unwrap())
    }

    /// OpenSM goes on at a host until the test ends. Its log is in the folder of the host.
    pub(crate) fn manage(&self, host: &str, args: &[&str]) -> Resident {
        let log = self.folder.join(format!("{host}.log"));
        let mut command = self.command(host, "opensm", &["-f", log.to_str().unwrap()]);
        Resident(command.args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Runs a program again and again until it prints this.
    pub(crate) fn until_printed(&self, host: &str, program: &str, args: &[&str], wanted: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            let printed = self.try_program(host, program, args).unwrap_or_else(|printed| printed);
            if printed.contains(wanted) {
                return;
            }
            assert!(Instant::now() < end, "{program} does not say `{wanted}`: {printed}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}
