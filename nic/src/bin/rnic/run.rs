//! `rnic run` and `rnic env`: programs that were written for verbs, as they are, on devices of rnic.
//!
//! The dynamic loader does the work: it is told to take the drop-in libraries for those of rdma-core. What the devices are
//! goes along in the environment ([`rnic::process`]), and so to the program's children.

use rnic::process::{EnvError, Settings, Variable, default_run_dir};
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Exit codes as env(1) has them, so that they are not taken for the program's: rnic failed, the program cannot be run, there
/// is none.
const FAILED: u8 = 125;
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// What rdma-core's library is called; the drop-in library stands in for it.
const VERBS: &str = "libibverbs.so.1";

/// What leads programs to the devices in the file system.
const SHIM: &str = "librnic_shim.so";

/// Run a program that was written for verbs on devices of rnic.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The exit status is the program's; 125 if it could not be set up, 126 if it cannot be run, 127 if \
                        it was not found. What is not said here comes from the environment, as `rnic env` prints it."
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    devices: Devices,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Print what `rnic run` sets in the environment, for a shell: `eval "$(rnic env)"`.
#[derive(Debug, clap::Args)]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    devices: Devices,
}

/// What the devices of the program are.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Devices")]
struct Devices {
    /// Addresses of this host, separated by commas: one for each device, or more, of which each device takes the first free
    /// one. An interface (`eth0`) or a host name stands for its first IPv4 address, else its first IPv6 address.
    /// [default: the first free ones of 127.0.0.1, 127.0.0.2, ...]
    #[arg(long, value_name = "ADDRESS,...")]
    addr: Option<OsString>,
    /// How many devices, rnic0, rnic1 and so on. [default: one, or one for each address]
    #[arg(long, value_name = "NUMBER")]
    devices: Option<OsString>,
    /// What the devices are called: a name for each with commas between, or one with `%d` for the number of the device,
    /// such as `mlx5_%d`. [default: rnic%d]
    #[arg(long, value_name = "NAME,...")]
    device_name: Option<OsString>,
    /// The largest path MTU. [default: what the interface carries]
    #[arg(long, value_name = "BYTES")]
    mtu: Option<OsString>,
    /// The link: the port that each device behaves like, such as `ethernet:rate=5Gb/s,buffer=1MB` or `ib-credits`.
    #[arg(long, value_name = "LINK")]
    link: Option<OsString>,
    /// Congestion control, such as `dcqcn:preset=laptop`.
    #[arg(long, value_name = "CC")]
    cc: Option<OsString>,
    /// A configuration file (TOML); the other options come before it.
    #[arg(long, value_name = "FILE")]
    config: Option<OsString>,
    /// A fault rule, such as `tx data psn=#3 drop`. Repeat for several.
    #[arg(long, value_name = "RULE")]
    fault: Vec<OsString>,
    /// What the randomness of the fault rules follows from.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<OsString>,
    /// A pcapng file for all packets. `%p` in its name becomes the process ID, `%d` the device.
    #[arg(long, value_name = "FILE")]
    capture: Option<OsString>,
    /// How GID tables are laid out: `any` (the address at indices 0 to 3), `compact` (at 0 alone), `mlx5` (at 3) or `rxe`
    /// (at 1). [default: any]
    #[arg(long, value_name = "LAYOUT")]
    gid_table: Option<OsString>,
    /// Print a line on standard error for each call that fails and for the first failure of each queue pair: it says why.
    #[arg(long)]
    explain: bool,
    /// Send each packet by itself instead of many in one system call (UDP GSO), so that a capture on a network interface
    /// shows packets. Slower.
    #[arg(long)]
    no_gso: bool,
}

impl Devices {
    /// What the environment and, before it, the options say. Paths are made such that the program can change its folder.
    fn settings(&self) -> Result<Settings, Box<dyn Error>> {
        let mut settings = Settings::from_env()?;
        for (variable, value) in self.given() {
            let set = match variable {
                Variable::Addr => settings.look_up_addresses(&value),
                _ => settings.set(variable, &value),
            };
            set.map_err(|error| self.named(&error))?;
        }
        // Something that is wrong is better told now, by us.
        settings.process().map_err(|error| self.named(&error))?;
        settings.run_dir.get_or_insert_with(default_run_dir);
        for path in [&mut settings.config, &mut settings.capture, &mut settings.run_dir].into_iter().flatten()
        {
            *path = std::path::absolute(&*path)?;
        }
        Ok(settings)
    }

    /// The options that are given, as the variables that they stand for.
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
        ];
        all.into_iter().filter_map(|(variable, value)| Some((variable, value?))).collect()
    }

    /// An error under the name of the option that it is of, if the value came from one.
    fn named(&self, error: &EnvError) -> String {
        if self.given().iter().any(|(variable, _)| *variable == error.variable) {
            format!("{}: {}", option(error.variable), error.fault)
        } else {
            error.to_string()
        }
    }
}

/// The option that a variable can be set by.
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
        Variable::RunDir => variable.name(),
    }
}

/// What is set in the environment of the program: names and values.
fn environment(devices: &Devices) -> Result<Vec<(&'static str, OsString)>, Box<dyn Error>> {
    let settings = devices.settings()?;
    let folder = library_folder(&std::env::current_exe()?)?;
    let before = |name: &str, own: OsString, separators: &[u8]| {
        let mut value = own.clone();
        if let Some(old) = std::env::var_os(name).filter(|old| !old.is_empty()) {
            // Run by a program that was run this way, there is nothing to add.
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
    let mut all = vec![
        ("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", folder.clone().into_os_string(), b":;")),
        ("LD_PRELOAD", before("LD_PRELOAD", preload, b": ")),
    ];
    all.extend(settings.vars().into_iter().map(|(variable, value)| (variable.name(), value)));
    Ok(all)
}

/// Whether a list begins with another.
fn starts_with(list: &OsStr, beginning: &OsStr) -> bool {
    list.as_bytes()
        .strip_prefix(beginning.as_bytes())
        .is_some_and(|rest| matches!(rest.first(), None | Some(b':')))
}

/// The folder of the drop-in libraries: `dropin` beside this program, as cargo builds it, or `../lib/rnic`, as it is
/// installed.
fn library_folder(program: &Path) -> Result<PathBuf, Box<dyn Error>> {
    // A link to the program is not beside the libraries.
    let program = program.canonicalize()?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let installed = beside.parent().unwrap_or(Path::new("/")).join("lib/rnic");
    let folders = [beside.join("dropin"), installed];
    // A link whose file was not built leads nowhere, and counts as none.
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
    // The command line parser wants one.
    let Some((program, arguments)) = args.command.split_first() else { return ExitCode::from(FAILED) };
    let error = Command::new(program).args(arguments).envs(environment).exec();
    let program = program.display();
    if error.kind() == ErrorKind::NotFound {
        eprintln!("rnic: there is no program {program}");
        ExitCode::from(NOT_FOUND)
    } else {
        eprintln!("rnic: {program} cannot be run: {error}");
        ExitCode::from(CANNOT_RUN)
    }
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

/// A word for sh: nothing means anything within single quotes, except the one that ends them.
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
