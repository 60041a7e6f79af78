//! Why a call fails, for programs that see an errno only: see [`rnic::explain`].
//!
//! Where an error becomes a number, its reason is kept for the thread; the boundary prints it if the call then fails.

use crate::errno::Errno;
use std::cell::RefCell;
use std::fmt;

thread_local! {
    /// The reason of the last error of this thread, and its number.
    static REASON: RefCell<Option<(Errno, String)>> = const { RefCell::new(None) };
}

/// Has failures explained and logged, if the environment asks for it.
pub(crate) fn begin(config: &rnic::process::ProcessConfig) {
    config.explain();
    log();
}

/// Logs what rnic has to say, if `RNIC_LOG` names a level or a filter.
fn log() {
    if std::env::var_os("RNIC_LOG").is_none_or(|level| level.is_empty()) {
        return;
    }
    let filter = tracing_subscriber::EnvFilter::try_from_env("RNIC_LOG")
        .inspect_err(|error| eprintln!("rnic: RNIC_LOG: {error}"))
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    // A program in Rust may have a log of its own.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .without_time()
        .try_init();
}

impl Errno {
    /// The same number, with its reason.
    #[must_use]
    pub(crate) fn because(self, reason: impl fmt::Display) -> Self {
        if rnic::explain::is_on() {
            // A thread that is ending has no reasons any more.
            let _ = REASON.try_with(|kept| kept.replace(Some((self, reason.to_string()))));
        }
        self
    }

    /// Says that it only tells that there is nothing to be had: programs ask until there is.
    fn is_no_failure(self) -> bool {
        matches!(self.0, libc::EAGAIN | libc::ENOENT | libc::ENODATA)
    }
}

/// A call begins: forgets the reasons of errors before it.
#[inline]
pub(crate) fn begin_call() {
    if rnic::explain::is_on() {
        let _ = REASON.try_with(|kept| kept.take());
    }
}

/// The type of a structure in C.
pub(crate) fn type_name<T>() -> &'static str {
    std::any::type_name::<T>().rsplit("::").next().unwrap_or_default()
}

/// Takes the reason of an error.
pub(crate) fn reason(of: Errno) -> Option<String> {
    if !rnic::explain::is_on() {
        return None;
    }
    let kept = REASON.try_with(|kept| kept.take()).ok().flatten();
    kept.filter(|(errno, _)| *errno == of).map(|(_, reason)| reason)
}

/// A verb fails: `subject` says what it was about.
#[cold]
pub(crate) fn failed(verb: &'static str, errno: Errno, subject: impl FnOnce() -> Option<String>) {
    if !rnic::explain::is_on() {
        return;
    }
    let reason = reason(errno);
    if errno.is_no_failure() {
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
