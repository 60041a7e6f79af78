//! Explains why a call fails to programs that see only an errno: see [`rnic::explain`].
//!
//! When an error becomes a number, the thread keeps its reason; the boundary prints the reason if the call then fails.

use crate::errno::Errno;
use std::cell::RefCell;
use std::fmt;

thread_local! {
    /// The number and the reason of this thread's last error.
    static REASON: RefCell<Option<(Errno, String)>> = const { RefCell::new(None) };
}

/// Turns on explanations and logging, if the environment asks for them.
pub(crate) fn begin(config: &rnic::process::ProcessConfig) {
    config.explain();
    log();
}

/// Logs the messages of rnic, if `RNIC_LOG` names a level or a filter.
fn log() {
    if std::env::var_os("RNIC_LOG").is_none_or(|level| level.is_empty()) {
        return;
    }
    let filter = tracing_subscriber::EnvFilter::try_from_env("RNIC_LOG")
        .inspect_err(|error| eprintln!("rnic: RNIC_LOG: {error}"))
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    // A program in Rust may have its own logger.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .without_time()
        .try_init();
}

impl Errno {
    /// Records a reason for this number, and returns the number.
    #[must_use]
    pub(crate) fn because(self, reason: impl fmt::Display) -> Self {
        if rnic::explain::is_on() {
            // A thread that is exiting no longer has storage for a reason.
            let _ = REASON.try_with(|kept| kept.replace(Some((self, reason.to_string()))));
        }
        self
    }

    /// Whether the number only means that nothing is available: programs retry until something is.
    fn is_no_failure(self) -> bool {
        matches!(self.0, libc::EAGAIN | libc::ENOENT | libc::ENODATA)
    }
}

/// Starts a call: forgets the reasons of earlier errors.
#[inline]
pub(crate) fn begin_call() {
    if rnic::explain::is_on() {
        let _ = REASON.try_with(|kept| kept.take());
    }
}

/// The C name of a structure type.
pub(crate) fn type_name<T>() -> &'static str {
    std::any::type_name::<T>().rsplit("::").next().unwrap_or_default()
}

/// Takes the recorded reason of an error.
pub(crate) fn reason(of: Errno) -> Option<String> {
    if !rnic::explain::is_on() {
        return None;
    }
    let kept = REASON.try_with(|kept| kept.take()).ok().flatten();
    kept.filter(|(errno, _)| *errno == of).map(|(_, reason)| reason)
}

/// Verbs that librdmacm calls for each connection, to learn whether the device has what they are for. It goes on without.
const QUESTIONS: [&str; 2] = ["ibv_query_ece", "ibv_set_ece"];

/// Explains the failure of a verb: `subject` names the object.
#[cold]
pub(crate) fn failed(verb: &'static str, errno: Errno, subject: impl FnOnce() -> Option<String>) {
    if !rnic::explain::is_on() {
        return;
    }
    let reason = reason(errno);
    if errno.is_no_failure() || errno == Errno::UNSUPPORTED && QUESTIONS.contains(&verb) {
        return;
    }
    let subject = subject().map(|subject| format!("{subject}: ")).unwrap_or_default();
    let prefix = if verb.starts_with("ibv_") || verb.starts_with("rdma_") { "" } else { "ibv_" };
    let name = nix::errno::Errno::from_raw(errno.0);
    match reason {
        Some(reason) => {
            rnic::explain::say(verb, format_args!("{prefix}{verb}: {subject}{reason} ({name:?})"))
        }
        None => rnic::explain::say(verb, format_args!("{prefix}{verb}: {subject}{name:?}, {}", name.desc())),
    }
}
