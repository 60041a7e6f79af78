//! The programs that run on rnic: those of this user, which publish in the run folder, and those at the daemon.

mod filter;

pub(crate) use filter::{Filter, Pattern, any};

use rnic::daemon::{Daemon, DaemonError, programs};
use rnic::process::{
    Published, PublishedQueuePairs, Variable, default_run_dir, published, published_queue_pairs,
};
use std::collections::HashSet;
use std::error::Error;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// A device of a program.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// The device, as its program calls it.
    pub(crate) device: String,
    pub(crate) address: IpAddr,
    /// In the namespace of whoever told it.
    pub(crate) pid: u32,
    pub(crate) comm: String,
    /// Its slot, at an address of the daemon.
    pub(crate) slot: Option<u8>,
    pub(crate) uid: u32,
    /// The name of its user, or the number.
    pub(crate) user: String,
    pub(crate) container: Option<String>,
    pub(crate) running: bool,
    pub(crate) counters: Option<Published>,
    pub(crate) queue_pairs: Option<PublishedQueuePairs>,
}

/// What a program says of itself, wherever it says so.
type Identity = (String, IpAddr, u32, String);

impl Seen {
    fn identity(&self) -> Option<Identity> {
        let of_counters =
            self.counters.as_ref().map(|of| (of.device.clone(), of.address, of.pid, of.comm.clone()));
        of_counters.or_else(|| {
            self.queue_pairs.as_ref().map(|of| (of.device.clone(), of.address, of.pid, of.comm.clone()))
        })
    }

    /// A counter; 0 if the program has none of this name.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let all = self.counters.iter().flat_map(|published| &published.counters);
        all.filter(|(of, _)| of == name).map(|(_, value)| *value).next().unwrap_or(0)
    }
}

/// Where programs are looked for.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub(crate) run_dir: PathBuf,
    pub(crate) daemon: Daemon,
}

impl Places {
    /// Those of the environment.
    pub(crate) fn find() -> Self {
        let set = std::env::var_os(Variable::RunDir.name()).filter(|dir| !dir.is_empty());
        Self { run_dir: set.map_or_else(default_run_dir, PathBuf::from), daemon: Daemon::find() }
    }

    /// In words.
    pub(crate) fn describe(&self) -> String {
        let at = |path: &Path| format!(" or at the daemon ({})", path.display());
        format!(
            "{}{}",
            self.run_dir.display(),
            self.daemon.place().map(|(path, _)| at(path)).unwrap_or_default()
        )
    }

    /// The programs of both. A program at the daemon publishes in the run folder too; it is listed once, as the daemon knows
    /// it. If the daemon was only found, and does not answer, `warn` is told.
    pub(crate) fn look(&self, warn: impl FnOnce(&DaemonError)) -> Result<Vec<Seen>, Box<dyn Error>> {
        // The folder first: whoever publishes there has done so at the daemon before.
        let own = in_folder(&self.run_dir)?;
        let mut all = match self.daemon.place() {
            None => Vec::new(),
            Some((path, is_asked_for)) => match programs(path) {
                Ok(found) => found.iter().map(of_daemon).collect(),
                Err(error) if is_asked_for => return Err(error.into()),
                Err(error) => {
                    warn(&error);
                    Vec::new()
                }
            },
        };
        let known: HashSet<Identity> = all.iter().filter_map(Seen::identity).collect();
        all.extend(own.into_iter().filter(|seen| seen.identity().is_none_or(|one| !known.contains(&one))));
        Ok(all)
    }
}

fn of_daemon(found: &rnic::daemon::WatchedProgram) -> Seen {
    let program = &found.program;
    let (counters, queue_pairs) = (found.counters(), found.queue_pairs());
    let said = counters.as_ref().map(|of| (of.device.clone(), of.pid));
    let (device, pid) = said.unwrap_or_else(|| ("-".to_owned(), 0));
    Seen {
        device,
        address: program.address,
        // The kernel knows better; but a program in another namespace may be unknown to the daemon.
        pid: if program.pid == 0 { pid } else { program.pid },
        comm: program.name.clone(),
        slot: Some(program.slot),
        uid: program.uid,
        user: name_of(program.uid),
        container: program.container.clone(),
        running: program.running,
        counters,
        queue_pairs,
    }
}

fn in_folder(run_dir: &Path) -> Result<Vec<Seen>, Box<dyn Error>> {
    let unreadable = |error| format!("cannot read {}: {error}", run_dir.display());
    let mut queue_pairs = published_queue_pairs(run_dir).map_err(unreadable)?;
    let uid = nix::unistd::geteuid().as_raw();
    let user = name_of(uid);
    let seen = |device: &str, address, pid, comm: &str| Seen {
        device: device.to_owned(),
        address,
        pid,
        comm: comm.to_owned(),
        slot: None,
        uid,
        user: user.clone(),
        container: None,
        running: true,
        counters: None,
        queue_pairs: None,
    };
    let mut all: Vec<Seen> = Vec::new();
    for counters in published(run_dir).map_err(unreadable)? {
        let is_its = |of: &PublishedQueuePairs| {
            (of.pid, of.address, &of.device, &of.comm)
                == (counters.pid, counters.address, &counters.device, &counters.comm)
        };
        let own = queue_pairs.extract_if(.., |of| counters.running && is_its(of)).next();
        all.push(Seen {
            running: counters.running,
            queue_pairs: own,
            ..seen(&counters.device, counters.address, counters.pid, &counters.comm)
        });
        if let Some(last) = all.last_mut() {
            last.counters = Some(counters);
        }
    }
    let rest = queue_pairs
        .into_iter()
        .map(|of| Seen { queue_pairs: Some(of.clone()), ..seen(&of.device, of.address, of.pid, &of.comm) });
    all.extend(rest);
    Ok(all)
}

/// The name of a user, or its number.
fn name_of(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}
