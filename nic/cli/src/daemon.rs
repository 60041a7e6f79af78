//! `rnic daemon`: programs share an address; and `rnic keeper`, which the daemon starts.

use rnic_daemon::{Config, ConfigError, EXAMPLE, run as run_daemon, store};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Share addresses: many programs and containers, one NIC.
///
/// Programs find the daemon by themselves: `rnic run`, and programs of the Rust API. Each gets a slot of the address; packets
/// do not pass through the daemon. Runs in the foreground until SIGTERM or Ctrl-C; SIGHUP reads the configuration again.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  rnic daemon --addr 10.0.0.1\n  rnic daemon --config /etc/rnic/daemon.toml\n  \
                        rnic daemon --example > daemon.toml"
)]
pub(crate) struct Args {
    /// Addresses to share, or interfaces for all their addresses; separated by commas.
    #[arg(long, value_name = "ADDRESS,...")]
    addr: Option<String>,
    /// Read a configuration file (TOML). Other options override its settings.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Listen there. [default: /run/rnic/daemon.sock for root, else $XDG_RUNTIME_DIR/rnic/daemon.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Let systemd hold the sockets instead of a keeper: for units with FileDescriptorStoreMax=.
    #[arg(long)]
    systemd_store: bool,
    /// How to write the log, on standard error. RNIC_LOG sets its level.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log: LogFormat,
    /// Print a commented configuration file, and end.
    #[arg(long)]
    example: bool,
}

/// The format of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum LogFormat {
    /// Lines for people.
    Text,
    /// An object of JSON for each line.
    Json,
}

/// Hold the sockets of a daemon. The daemon starts this by itself.
#[derive(Debug, clap::Args)]
pub(crate) struct KeeperArgs {
    /// Where to listen.
    socket: PathBuf,
}

impl Args {
    /// Whether the log is JSON.
    pub(crate) fn logs_json(&self) -> bool {
        self.log == LogFormat::Json
    }

    fn config(&self) -> Result<Config, ConfigError> {
        let mut config = self.config.as_deref().map_or_else(|| Ok(Config::default()), Config::load)?;
        if let Some(addresses) = &self.addr {
            config.addresses = vec![addresses.clone()];
        }
        config.socket = self.socket.clone().or(config.socket);
        config.systemd_store |= self.systemd_store;
        Ok(config)
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    if args.example {
        print!("{EXAMPLE}");
        return Ok(ExitCode::SUCCESS);
    }
    let config = args.config()?;
    let program = std::env::current_exe()?;
    let ready = |socket: &Path| eprintln!("rnic daemon: programs connect at {}", socket.display());
    run_daemon(&config, || args.config(), &program, ready)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn keep(args: &KeeperArgs) -> Result<ExitCode, Box<dyn Error>> {
    store::keep(&args.socket)?;
    Ok(ExitCode::SUCCESS)
}
