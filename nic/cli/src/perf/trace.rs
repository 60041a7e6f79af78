//! `--trace`: records the activity of the device for `rnic plot`.

use super::Failure;
use rnic::cc::quantity::parse_seconds;
use rnic::trace::{Header, MIN_INTERVAL, Recorder, RecorderThread, header_now};
use rnic::{Device, DeviceConfig};
use std::path::PathBuf;
use std::time::Duration;

/// The options of both sides.
#[derive(Debug, clap::Args)]
pub(super) struct TraceArgs {
    /// Record rates, queues and congestion control over time, for `rnic plot`.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// The time between two samples of --trace.
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = interval, requires = "trace")]
    trace_interval: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = parse_seconds(text).map_err(|error| error.to_string())?;
    if interval < MIN_INTERVAL { Err(format!("the minimum is {MIN_INTERVAL:?}")) } else { Ok(interval) }
}

/// A trace that is being recorded.
pub(super) struct Tracing {
    path: PathBuf,
    thread: RecorderThread,
}

impl TraceArgs {
    /// Starts the trace of a device that was opened with `config`, if the user asked for one.
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
            ..header_now().of_port(&config.link, &config.cc)
        };
        let cannot = |error| format!("cannot write the trace {}: {error}", path.display());
        let recorder = Recorder::create(path, &header).map_err(cannot)?;
        let device = device.clone();
        let thread =
            RecorderThread::start(recorder, self.trace_interval, move || device.sample()).map_err(cannot)?;
        Ok(Some(Tracing { path: path.clone(), thread }))
    }
}

impl Tracing {
    /// Ends the trace. Fails if it could not be written completely.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let Self { path, thread } = self;
        let cannot = |error| format!("cannot write the trace {}: {error}", path.display());
        Ok(thread.stop().map(|_| ()).map_err(cannot)?)
    }
}
