//! `rnic sysfs`: devices as files, for programs whose paths `rnic run` cannot redirect.

use crate::programs::Places;
use nix::sys::signal::{SigSet, Signal};
use rnic::process::SysFolder;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How often the files are updated. Prometheus reads them every 15 seconds.
const PERIOD: Duration = Duration::from_secs(1);

/// Keep the devices of running programs as files, as the kernel has them in /sys.
///
/// `rnic run` leads programs to their own devices under /sys/class/infiniband, unless they make system calls without the
/// C library, as programs in Go and static ones do. Those that can be told where /sys is find the devices of all running
/// programs in this folder, brought up to date every second:
///
///   rnic sysfs /tmp/rnic-sys &
///   prometheus-node-exporter --path.sysfs=/tmp/rnic-sys --collector.infiniband
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
#[command(after_help = "Each device has the name that its program calls it by and its address, as in \
                        `rnic0_127.0.0.1`. The command ends on Ctrl-C, and removes the files.")]
pub(crate) struct Args {
    /// A folder that does not exist, is empty, or was used for this before.
    folder: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    // The thread below inherits the mask, and waits for the signals.
    signals.thread_block()?;
    let failed = |error| format!("{}: {error}", args.folder.display());
    let mut folder = SysFolder::new(&args.folder, &Places::find().run_dir).map_err(failed)?;
    let (stop, stopped) = channel();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let _ = signals.wait();
        // If the files could not be written, the receiver is gone, and the program ends anyway.
        let _ = stop.send(());
    })?;
    loop {
        folder.update().map_err(failed)?;
        if stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
            folder.remove().map_err(failed)?;
            return Ok(ExitCode::SUCCESS);
        }
    }
}
