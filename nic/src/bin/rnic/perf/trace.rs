//! `--trace`: what the device does meanwhile, into a file that `rnic plot` draws.

use super::Failure;
use crate::duration::parse_duration;
use rnic::trace::{Header, MIN_INTERVAL, Recorder, RecorderThread};
use rnic::{Device, DeviceConfig};
use std::path::PathBuf;
use std::time::Duration;

/// What both sides take.
#[derive(Debug, clap::Args)]
pub(super) struct TraceArgs {
    /// Record what the device does meanwhile, for `rnic plot`.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// How often a sample is taken for --trace.
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = interval, requires = "trace")]
    trace_interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    if interval < MIN_INTERVAL { Err(format!("at least {MIN_INTERVAL:?}")) } else { Ok(interval) }
}

/// A trace that is being recorded, if one was asked for.
pub(super) struct Tracing {
    path: PathBuf,
    thread: RecorderThread,
}

impl TraceArgs {
    /// Begins the trace of a device that was opened with `config`. `title` says what is done.
    pub(super) fn start(
        &self,
        device: &Device,
        config: &DeviceConfig,
        title: impl Into<String>,
    ) -> Result<Option<Tracing>, Failure> {
        let Some(path) = &self.trace else { return Ok(None) };
        let command: Vec<_> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        let header = Header {
            title: title.into(),
            device: device.address().to_string(),
            command: Some(command.join(" ")),
            ..Header::now().of_port(&config.link, &config.cc)
        };
        let cannot = |error| format!("cannot write the trace {}: {error}", path.display());
        let recorder = Recorder::create(path, &header).map_err(cannot)?;
        let device = device.clone();
        let thread = recorder.every(self.trace_interval, move || device.sample()).map_err(cannot)?;
        Ok(Some(Tracing { path: path.clone(), thread }))
    }
}

impl Tracing {
    /// Ends the trace; says whether all of it was written.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let Self { path, thread } = self;
        let cannot = |error| format!("cannot write the trace {}: {error}", path.display());
        Ok(thread.stop().map(|_| ()).map_err(cannot)?)
    }
}
