//! `rnic run` and `rnic env`: unmodified verbs programs on devices of rnic.
//!
//! The environment makes the dynamic loader use the drop-in libraries instead of those of rdma-core. It also configures the
//! devices ([`rnic::process`]), for the program and its children.

use rnic::daemon::{Daemon, DaemonError, Desk};
use rnic::doctor::find_library;
use rnic::process::{EnvError, Settings, Variable, default_run_dir};
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Exit codes as in env(1), unlikely to be the program's: rnic failed, the program cannot be executed, it was not found.
const FAILED: u8 = 125;
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// The same, for who runs this program.
pub(crate) const OWN: std::ops::RangeInclusive<i32> = FAILED as i32..=NOT_FOUND as i32;

/// The library of rdma-core that the drop-in library replaces.
const VERBS: &str = "libibverbs.so.1";

/// The library of rdma-core that runs on rnic as it is.
const CONNECTION_MANAGER: &str = "librdmacm.so.1";

/// The folder of a library of that name for hosts that have none: programs that need it start, and say what to install.
const FALLBACK: &str = "fallback";

/// The library that redirects programs to the files of the devices.
const SHIM: &str = "librnic_shim.so";

/// Run a program that uses libibverbs on devices of rnic. The program needs no changes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Options that are not given are taken from the environment; `rnic env` prints the variables.\n\n\
                        Examples:\n  rnic run -- ibv_devinfo\n  rnic run --link ethernet:rate=5Gb/s -- ib_write_bw\n\n\
                        Exit code: that of the program; 125 if rnic failed, 126 if the program cannot be executed, 127 \
                        if it was not found."
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    devices: Devices,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Print the environment of `rnic run` for a shell: `eval "$(rnic env)"`.
#[derive(Debug, clap::Args)]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    devices: Devices,
}

/// The devices of the program.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Devices")]
struct Devices {
    /// Addresses of this host, separated by commas: one for each device, or more, of which each device takes the first free
    /// one. An interface (`eth0`) or a host name stands for its first IPv4 address, else its first IPv6 address.
    /// [default: the first free ones of 127.0.0.1, 127.0.0.2, ...]
    #[arg(long, value_name = "ADDRESS,...")]
    addr: Option<OsString>,
    /// Create this number of devices: rnic0, rnic1 and so on. [default: 1, or one for each address]
    #[arg(long, value_name = "NUMBER")]
    devices: Option<OsString>,
    /// Name the devices: a list with commas between, or a pattern with `%d` for the number of the device, such as `mlx5_%d`.
    /// [default: rnic%d]
    #[arg(long, value_name = "NAME,...")]
    device_name: Option<OsString>,
    /// Limit the path MTU: 256, 512, 1024, 2048 or 4096. [default: the largest that the interface supports]
    #[arg(long, value_name = "BYTES")]
    mtu: Option<OsString>,
    /// Emulate a link, such as `ethernet:rate=5Gb/s,buffer=1MB` or `ib-credits`.
    #[arg(long, value_name = "LINK")]
    link: Option<OsString>,
    /// Control congestion, such as `dcqcn:preset=laptop` [off, dcqcn, dctcp, timely, swift, nscc, ibcc, hpcc].
    #[arg(long, value_name = "CC")]
    cc: Option<OsString>,
    /// Read a configuration file (TOML). Other options override its settings.
    #[arg(long, value_name = "FILE")]
    config: Option<OsString>,
    /// Inject a fault, such as `tx data psn=#3 drop`. Repeat for several.
    #[arg(long, value_name = "RULE")]
    fault: Vec<OsString>,
    /// Seed the randomness of fault rules.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<OsString>,
    /// Write all packets to a pcapng file. `%p` in its name becomes the process ID, `%d` the device.
    #[arg(long, value_name = "FILE")]
    capture: Option<OsString>,
    /// Lay out GID tables as `any` (the address at indices 0 to 3), `compact` (at 0 only), `mlx5` (at 3) or `rxe` (at 1).
    /// [default: any]
    #[arg(long, value_name = "LAYOUT")]
    gid_table: Option<OsString>,
    /// Share the addresses of the daemon that listens there, or use no daemon (`off`).
    /// [default: the daemon of the user or of the host, if there is one]
    #[arg(long, value_name = "PATH")]
    daemon: Option<OsString>,
    /// Print a line on standard error for each call that fails and for the first failure of each queue pair: it says why.
    #[arg(long)]
    explain: bool,
    /// Send each packet by itself instead of many in one system call (UDP GSO), so that a capture on a network interface
    /// shows packets. Slower.
    #[arg(long)]
    no_gso: bool,
    /// Repeat only the packets that were lost (selective repeat) instead of everything behind them, towards rnic peers that do
    /// so, too.
    #[arg(long)]
    selective_repeat: bool,
}

impl Devices {
    /// The settings of the environment, overridden by the options. Paths become absolute, because the program may change its
    /// directory.
    fn settings(&self) -> Result<Settings, Box<dyn Error>> {
        let mut settings = Settings::from_env()?;
        for (variable, value) in self.given() {
            let set = match variable {
                Variable::Addr => settings.look_up_addresses(&value),
                _ => settings.set(variable, &value),
            };
            set.map_err(|error| self.named(&error))?;
        }
        // Report errors before the program starts.
        settings.process().map_err(|error| self.named(&error))?;
        settings.run_dir.get_or_insert_with(default_run_dir);
        let daemon = settings.daemon.as_mut().filter(|path| **path != *"off" && **path != *"0");
        let paths = [&mut settings.config, &mut settings.capture, &mut settings.run_dir];
        for path in paths.into_iter().filter_map(Option::as_mut).chain(daemon) {
            *path = std::path::absolute(&*path)?;
        }
        Ok(settings)
    }

    /// The given options, as the variables that they set.
    fn given(&self) -> Vec<(Variable, OsString)> {
        let faults = (!self.fault.is_empty()).then(|| self.fault.join(OsStr::new("\n")));
        let all = [
            (Variable::Config, self.config.clone()),
            (Variable::Addr, self.addr.clone()),
            (Variable::Devices, self.devices.clone()),
            (Variable::DeviceName, self.device_name.clone()),
            (Variable::Mtu, self.mtu.clone()),
            (Variable::Link, self.link.clone()),
            (Variable::Cc, self.cc.clone()),
            (Variable::Fault, faults),
            (Variable::Seed, self.seed.clone()),
            (Variable::Capture, self.capture.clone()),
            (Variable::GidTable, self.gid_table.clone()),
            (Variable::Explain, self.explain.then(|| OsString::from("1"))),
            (Variable::Gso, self.no_gso.then(|| "0".into())),
            (Variable::SelectiveRepeat, self.selective_repeat.then(|| "1".into())),
            (Variable::Daemon, self.daemon.clone()),
        ];
        all.into_iter().filter_map(|(variable, value)| Some((variable, value?))).collect()
    }

    /// An error with the name of the option if the value came from one, and of the variable otherwise.
    fn named(&self, error: &EnvError) -> String {
        if self.given().iter().any(|(variable, _)| *variable == error.variable) {
            format!("{}: {}", option(error.variable), error.fault)
        } else {
            error.to_string()
        }
    }
}

/// The option that sets a variable.
fn option(variable: Variable) -> &'static str {
    match variable {
        Variable::Config => "--config",
        Variable::Addr => "--addr",
        Variable::Devices => "--devices",
        Variable::DeviceName => "--device-name",
        Variable::Mtu => "--mtu",
        Variable::Link => "--link",
        Variable::Cc => "--cc",
        Variable::Fault => "--fault",
        Variable::Seed => "--seed",
        Variable::Capture => "--capture",
        Variable::GidTable => "--gid-table",
        Variable::Explain => "--explain",
        Variable::Gso => "--no-gso",
        Variable::SelectiveRepeat => "--selective-repeat",
        Variable::Daemon => "--daemon",
        Variable::RunDir => variable.name(),
    }
}

/// The environment of the program: names and values.
fn environment(devices: &Devices) -> Result<Vec<(&'static str, OsString)>, Box<dyn Error>> {
    let settings = devices.settings()?;
    let folder = library_folder(&std::env::current_exe()?)?;
    let before = |name: &str, own: OsString, separators: &[u8]| {
        let mut value = own.clone();
        if let Some(old) = std::env::var_os(name).filter(|old| !old.is_empty()) {
            // If this runs inside another `rnic run`, there is nothing to add.
            let mut parts = old.as_bytes().split(|byte| separators.contains(byte));
            if old == own
                || parts.any(|part| part == folder.as_os_str().as_bytes())
                || starts_with(&old, &own)
            {
                return old;
            }
            value.push(":");
            value.push(old);
        }
        value
    };
    let mut preload = folder.join(SHIM).into_os_string();
    preload.push(":");
    preload.push(folder.join(VERBS));
    let mut path = before("LD_LIBRARY_PATH", folder.clone().into_os_string(), b":;");
    if find_library(CONNECTION_MANAGER).is_none() {
        path.push(":");
        path.push(folder.join(FALLBACK));
    }
    let mut all = vec![("LD_LIBRARY_PATH", path), ("LD_PRELOAD", before("LD_PRELOAD", preload, b": "))];
    all.extend(settings.vars().into_iter().map(|(variable, value)| (variable.name(), value)));
    Ok(all)
}

/// Whether a list begins with another.
fn starts_with(list: &OsStr, beginning: &OsStr) -> bool {
    list.as_bytes()
        .strip_prefix(beginning.as_bytes())
        .is_some_and(|rest| matches!(rest.first(), None | Some(b':')))
}

/// The directory of the drop-in libraries: `dropin` beside this program, where cargo builds them, or `../lib/rnic`,
/// where they are installed.
pub(crate) fn library_folder(program: &Path) -> Result<PathBuf, Box<dyn Error>> {
    // Resolve symbolic links: a link to the program may be in another directory.
    let program = program.canonicalize()?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let installed = beside.parent().unwrap_or(Path::new("/")).join("lib/rnic");
    let folders = [beside.join("dropin"), installed];
    // A dangling link counts as missing.
    let missing = |folder: &&PathBuf| [VERBS, SHIM].into_iter().find(|name| !folder.join(name).exists());
    let Some(folder) = folders.iter().find(|folder| missing(folder).is_none()) else {
        let name = folders.iter().find(|folder| folder.is_dir()).and_then(|folder| missing(&folder));
        let [beside, installed] = folders.each_ref().map(|folder| folder.display());
        let name = name.unwrap_or(VERBS);
        return Err(format!(
            "there is no {name} in {beside} or {installed}: `cargo build --release` makes it"
        )
        .into());
    };
    if folder.as_os_str().as_bytes().iter().any(|byte| b":; ".contains(byte)) {
        let text =
            "has a space, colon or semicolon in its name, which the dynamic loader takes for the end of it";
        return Err(format!("{} {text}", folder.display()).into());
    }
    Ok(folder.clone())
}

pub(crate) fn run(args: &RunArgs) -> ExitCode {
    let environment = match environment(&args.devices) {
        Ok(environment) => environment,
        Err(error) => {
            eprintln!("rnic: {error}");
            return ExitCode::from(FAILED);
        }
    };
    // The command line parser requires one.
    let Some((program, arguments)) = args.command.split_first() else { return ExitCode::from(FAILED) };
    if let Err(error) = say_whose(&environment) {
        eprintln!("rnic: {error}");
        return ExitCode::from(FAILED);
    }
    let error = Command::new(program).args(arguments).envs(environment).exec();
    let program = program.display();
    if error.kind() == ErrorKind::NotFound {
        eprintln!("rnic: {program}: program not found");
        ExitCode::from(NOT_FOUND)
    } else {
        eprintln!("rnic: {program} cannot be run: {error}");
        ExitCode::from(CANNOT_RUN)
    }
}

/// Says whose addresses the program gets, if they are a daemon's.
fn say_whose(environment: &[(&'static str, OsString)]) -> Result<(), DaemonError> {
    let value = |wanted: Variable| {
        environment.iter().find(|(name, _)| *name == wanted.name()).map(|(_, value)| value)
    };
    if let Some(desk) = Desk::of(&Daemon::named(value(Variable::Daemon).map(OsString::as_os_str)))? {
        let addresses: Vec<_> = desk.addresses()?.iter().map(|of| of.ip.to_string()).collect();
        eprintln!("rnic: the daemon at {} shares {}", desk.path().display(), addresses.join(", "));
    }
    Ok(())
}

pub(crate) fn env(args: &EnvArgs) -> Result<ExitCode, Box<dyn Error>> {
    let mut text = Vec::new();
    for (name, value) in environment(&args.devices)? {
        text.extend(format!("export {name}=").bytes());
        text.extend(quoted(value.as_bytes()));
        text.push(b'\n');
    }
    std::io::stdout().write_all(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Quotes a word for sh: within single quotes nothing is special except the single quote itself.
fn quoted(word: &[u8]) -> Vec<u8> {
    let mut text = vec![b'\''];
    for byte in word {
        match byte {
            b'\'' => text.extend(br"'\''"),
            other => text.push(*other),
        }
    }
    text.push(b'\'');
    text
}
