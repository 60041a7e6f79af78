//! The server: what all programs share, and the life of the daemon.

use crate::config::{Admitted, Config, ConfigError, Limits, Wanted};
use crate::metrics;
use crate::nic::Nic;
use crate::program::Program;
use crate::session::Peer;
use crate::slots::Kept;
use crate::store::{Store, keeper_socket};
use dashmap::DashMap;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{getsockopt, sockopt};
use rnic::cm::Ports;
use rnic::daemon::protocol::Refusal;
use rnic::process::{HostAddress, port_range};
use sd_notify::NotifyState;
use std::collections::BTreeMap;
use std::io::{self, Read, Seek, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How often the daemon looks whether the keeper is still there and whether there are new addresses, and repeats how packets
/// are steered.
const CHECKS: Duration = Duration::from_millis(500);

/// How long programs may take to hear that the daemon ends.
const FAREWELL: Duration = Duration::from_millis(300);

/// Connections that a user may have: those of slots, with one for the ports of each program, and some for questions.
const LINES_PER_SLOT: u32 = 2;
const SPARE_LINES: u32 = 32;

/// Names of what the keeper holds besides sockets: what the daemon knows of slots, and the ends of the pipe of life.
const STATE: &str = "state";
const LIFE: [&str; 2] = ["life/read", "life/write"];

/// Why the daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DaemonFault {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another daemon listens there.
    #[error("a daemon runs already: it listens at {}", .0.display())]
    Running(PathBuf),
    /// The socket cannot be made.
    #[error("cannot listen at {}: {source}", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Metrics cannot be served.
    #[error("cannot serve metrics at {address}: {source}")]
    Metrics {
        /// Where.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// An address cannot be shared.
    #[error("cannot share {address}: {source}")]
    Address {
        /// The address.
        address: HostAddress,
        /// Why.
        source: rnic::Error,
    },
    /// The keeper cannot be started.
    #[error("the keeper of the sockets does not work: {0}")]
    Keeper(io::Error),
    /// Anything else.
    #[error("{what}: {source}")]
    Os {
        /// What was attempted.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// What is limited for each user, in all its programs together. Slots are counted where they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Limited {
    /// Connections of connection management.
    Connections,
    /// Ports of connection management.
    Ports,
    /// Connections of programs to the daemon.
    Lines,
}

/// What a user has.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    /// By [`Limited`].
    counts: [u32; 3],
    /// Whether the log says that there are too many lines: once, until the user has nothing any more.
    is_warned: bool,
}

/// What the tasks of all programs share.
pub(crate) struct Server {
    nics: RwLock<Vec<Arc<Nic>>>,
    rules: RwLock<(Admitted, Limits)>,
    ports: Mutex<Ports>,
    usage: DashMap<u32, Usage>,
    /// The pipe that ends with the daemon and its keeper.
    life: [OwnedFd; 2],
    keeping: Mutex<Keeping>,
    /// Why the daemon ends, once it does.
    pub(crate) end: watch::Sender<Option<String>>,
}

/// The keeper, and what it holds.
struct Keeping {
    store: Store,
    program: PathBuf,
    /// Memory with what the daemon knows of slots. It is never changed: the keeper has the latest, or the one before.
    state: Option<OwnedFd>,
    /// The number of sockets of each address that the keeper has.
    held: BTreeMap<IpAddr, usize>,
}

impl Server {
    /// Takes the addresses of the configuration, with what the keeper holds of an earlier daemon.
    fn open(config: &Config, socket: &Path, program: &Path) -> Result<Self, DaemonFault> {
        Self::with_store(config, program, || {
            Store::open(&keeper_socket(socket), program, config.systemd_store)
        })
    }

    /// The same with a store that is opened once the configuration is known to be right.
    pub(crate) fn with_store(
        config: &Config,
        program: &Path,
        open: impl FnOnce() -> io::Result<(Store, BTreeMap<String, OwnedFd>)>,
    ) -> Result<Self, DaemonFault> {
        let addresses = config.addresses()?;
        let device = config.device()?;
        let rules = RwLock::new((config.admitted()?, config.limits));
        let (store, mut earlier) = open().map_err(DaemonFault::Keeper)?;
        let mut kept = earlier.remove(STATE).map(std::fs::File::from).map(read_state).unwrap_or_default();
        let life = LIFE.map(|name| earlier.remove(name));
        let life = match life {
            [Some(read), Some(write)] => [read, write],
            _ => nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)
                .map(|(read, write)| [read, write])
                .map_err(|errno| DaemonFault::Os { what: "cannot make a pipe", source: errno.into() })?,
        };
        for interface in config.bare() {
            tracing::warn!(interface, "nothing is shared there until the interface has an address");
        }
        let mut nics = Vec::new();
        for Wanted { address, is_named } in addresses {
            let members = take_members(&mut earlier, address.ip);
            let slots =
                kept.remove(&address.ip).filter(|slots| !members.is_empty() && slots.len() <= members.len());
            let found = slots.map(|slots| (members, slots));
            if let Some((members, _)) = &found {
                tracing::info!(%address, slots = members.len(), "the address of an earlier daemon, with its programs");
            }
            match Nic::open(address, &device, config.device_text(), found) {
                Ok(nic) => {
                    tracing::info!(%address, "the address is shared");
                    nics.push(Arc::new(nic));
                }
                Err(source) if is_named => return Err(DaemonFault::Address { address, source }),
                // A new address of IPv6 is checked for duplicates first.
                Err(error) => tracing::warn!(%error, %address, "the address is not shared yet"),
            }
        }
        for name in earlier.into_keys() {
            tracing::info!(name, "an earlier daemon shared this; the configuration names it no more");
            store.drop_one(&name).map_err(DaemonFault::Keeper)?;
        }
        let state = memfd_create("rnic slots", MFdFlags::MFD_CLOEXEC)
            .map_err(|errno| DaemonFault::Os { what: "cannot make shared memory", source: errno.into() })?;
        let keeping =
            Keeping { store, program: program.to_owned(), state: state.into(), held: BTreeMap::new() };
        let server = Self {
            nics: RwLock::new(nics),
            rules,
            ports: Mutex::new(Ports::new(port_range(), rand::random())),
            usage: DashMap::new(),
            life,
            keeping: Mutex::new(keeping),
            end: watch::Sender::new(None),
        };
        server.hold_all().map_err(DaemonFault::Keeper)?;
        server.keep();
        Ok(server)
    }

    pub(crate) fn nics(&self) -> Vec<Arc<Nic>> {
        self.nics.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The shared address, or without one the first that has a free slot.
    pub(crate) fn nic(&self, address: Option<IpAddr>) -> Result<Arc<Nic>, Refusal> {
        let mut nics = self.nics().into_iter();
        let found = match address {
            Some(ip) => nics.find(|nic| nic.address.ip.to_canonical() == ip.to_canonical()),
            None => nics.next(),
        };
        found.ok_or(Refusal::Address(address.unwrap_or([0; 4].into())))
    }

    pub(crate) fn admits(&self, uid: u32, gids: &[u32]) -> bool {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).0.admits(uid, gids)
    }

    /// Whether a user sees the programs of all users.
    pub(crate) fn observes(&self, uid: u32) -> bool {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).0.observes(uid)
    }

    pub(crate) fn limits(&self) -> Limits {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).1
    }

    pub(crate) fn ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more for a user, unless it has as many as the limit allows.
    pub(crate) fn take(&self, uid: u32, what: Limited, limit: u32) -> bool {
        let mut usage = self.usage.entry(uid).or_default();
        let count = &mut usage.counts[what as usize];
        let fits = *count < limit;
        *count += u32::from(fits);
        fits
    }

    /// Counts one less.
    pub(crate) fn give_back(&self, uid: u32, what: Limited) {
        if let Some(mut usage) = self.usage.get_mut(&uid) {
            let count = &mut usage.counts[what as usize];
            *count = count.saturating_sub(1);
        }
        self.usage.remove_if(&uid, |_, usage| usage.counts == [0; 3]);
    }

    /// Whether no program has anything of what the daemon counts, and no way leads to a program.
    pub(crate) fn is_idle(&self) -> bool {
        let is_idle = |nic: &Arc<Nic>| nic.routes.is_empty() && nic.programs().running() == 0;
        self.usage.is_empty() && self.nics().iter().all(is_idle)
    }

    /// The end of the pipe that a program watches.
    pub(crate) fn life(&self) -> io::Result<OwnedFd> {
        self.life[0].try_clone()
    }

    /// Whether the daemon ends.
    pub(crate) fn ends(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// Writes down what the next daemon has to know, and gives new sockets to the keeper.
    pub(crate) fn keep(&self) {
        let nics = self.nics();
        let kept: Vec<(IpAddr, Vec<Kept>)> = nics.iter().map(|nic| (nic.address.ip, nic.kept())).collect();
        let mut keeping = self.keeping.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = hold_state(&mut keeping, &kept) {
            tracing::error!(%error, "what the next daemon has to know cannot be written down");
        }
        for nic in &nics {
            let from = keeping.held.get(&nic.address.ip).copied().unwrap_or(0);
            if from < nic.slots()
                && let Err(error) = hold_members(&mut keeping, nic, from)
            {
                tracing::error!(%error, "the keeper does not take a socket");
            }
        }
    }

    /// Gives everything to the keeper.
    fn hold_all(&self) -> io::Result<()> {
        let mut keeping = self.keeping.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, end) in LIFE.iter().zip(&self.life) {
            keeping.store.hold(name, end)?;
        }
        if let Some(state) = &keeping.state {
            keeping.store.hold(STATE, state)?;
        }
        self.nics().iter().try_for_each(|nic| hold_members(&mut keeping, nic, 0))
    }

    /// Starts another keeper if the old one is gone.
    fn check_keeper(&self) {
        let restarted = {
            let mut keeping = self.keeping.lock().unwrap_or_else(PoisonError::into_inner);
            if keeping.store.is_there() {
                return;
            }
            tracing::warn!("the keeper of the sockets is gone: another one is started");
            let Keeping { store, program, .. } = &mut *keeping;
            store.restart(program)
        };
        if let Err(error) = restarted.and_then(|()| self.hold_all()) {
            tracing::error!(%error, "there is no keeper: if the daemon ends, so do the devices of its programs");
        }
    }

    /// Shares the addresses that have come since the last time, and returns them.
    fn take_new_addresses(&self, config: &Config) -> Vec<Arc<Nic>> {
        let (Ok(wanted), Ok(device)) = (config.addresses(), config.device()) else { return Vec::new() };
        let known = self.nics();
        let is_new = |wanted: &Wanted| known.iter().all(|nic| nic.address.ip != wanted.address.ip);
        let mut new = Vec::new();
        for Wanted { address, .. } in wanted.into_iter().filter(is_new) {
            match Nic::open(address, &device, config.device_text(), None) {
                Ok(nic) => {
                    tracing::info!(%address, "a new address is shared");
                    new.push(Arc::new(nic));
                }
                Err(error) => tracing::debug!(%error, %address, "the address is not shared yet"),
            }
        }
        if !new.is_empty() {
            self.nics.write().unwrap_or_else(PoisonError::into_inner).extend(new.iter().cloned());
            self.keep();
        }
        new
    }

    /// Follows a changed configuration: users, groups and limits.
    fn reload(&self, config: &Config) -> Result<(), ConfigError> {
        let admitted = config.admitted()?;
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = (admitted, config.limits);
        Ok(())
    }
}

/// What the keeper calls the receiving socket of a slot.
fn member_name(ip: IpAddr, slot: usize) -> String {
    format!("{ip}/{slot}")
}

fn hold_members(keeping: &mut Keeping, nic: &Nic, from: usize) -> io::Result<()> {
    let ip = nic.address.ip;
    for (slot, member) in (from..).zip(nic.members(from)?) {
        keeping.store.hold(&member_name(ip, slot), &member)?;
        keeping.held.insert(ip, slot + 1);
    }
    Ok(())
}

/// Takes the sockets of an address out of what was held, in the order of their slots, up to the first that is missing.
fn take_members(held: &mut BTreeMap<String, OwnedFd>, ip: IpAddr) -> Vec<OwnedFd> {
    (0..).map_while(|slot: usize| held.remove(&member_name(ip, slot))).collect()
}

fn read_state(mut file: std::fs::File) -> BTreeMap<IpAddr, Vec<Kept>> {
    let mut bytes = Vec::new();
    let read = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    let state = read.ok().and_then(|_| postcard::from_bytes::<Vec<(IpAddr, Vec<Kept>)>>(&bytes).ok());
    state.unwrap_or_default().into_iter().collect()
}

fn hold_state(keeping: &mut Keeping, kept: &[(IpAddr, Vec<Kept>)]) -> io::Result<()> {
    let bytes = postcard::to_stdvec(kept).map_err(io::Error::other)?;
    let mut file = std::fs::File::from(memfd_create("rnic slots", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(&bytes)?;
    let state = keeping.state.insert(file.into());
    keeping.store.hold(STATE, state)
}

/// Runs the daemon until it is told to end. `read`: reads the configuration again. `program`: the executable of rnic, which
/// is also the keeper. `ready`: called once programs can connect.
///
/// # Errors
/// [`DaemonFault`].
pub fn run(
    config: &Config,
    read: impl Fn() -> Result<Config, ConfigError>,
    program: &Path,
    ready: impl FnOnce(&Path),
) -> Result<(), DaemonFault> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| DaemonFault::Os { what: "cannot start", source })?;
    runtime.block_on(serve(config, read, program, ready))
}

async fn serve(
    config: &Config,
    read: impl Fn() -> Result<Config, ConfigError>,
    program: &Path,
    ready: impl FnOnce(&Path),
) -> Result<(), DaemonFault> {
    let socket = config.socket()?;
    raise_descriptor_limit();
    make_room(&socket)?;
    let server = Arc::new(Server::open(config, &socket, program)?);
    if let Some(address) = config.metrics {
        let scrapes = metrics::serve(address, Arc::clone(&server)).await;
        tokio::spawn(scrapes.map_err(|source| DaemonFault::Metrics { address, source })?);
        tracing::info!(%address, "metrics are served");
    }
    // Last: whoever can connect is served at once.
    let listener = listen(config, &socket)?;
    for nic in server.nics() {
        tokio::spawn(watch_host(nic));
    }
    let mut config = config.clone();
    let os = |source| DaemonFault::Os { what: "cannot wait for signals", source };
    let mut terminate = signal(SignalKind::terminate()).map_err(os)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(os)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(os)?;
    let mut checks = tokio::time::interval(CHECKS);
    ready(&socket);
    // Without systemd nobody listens.
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => welcome(&server, stream),
                Err(error) => {
                    // Out of descriptors, for example: those who wait are served when there are some.
                    tracing::warn!(%error, "a program cannot connect");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            _ = checks.tick() => {
                server.check_keeper();
                server.nics().iter().for_each(|nic| nic.steer());
                for nic in server.take_new_addresses(&config) {
                    tokio::spawn(watch_host(nic));
                }
            }
            _ = hangup.recv() => match read().and_then(|new| server.reload(&new).map(|()| new)) {
                Ok(new) => {
                    config = new;
                    tracing::info!("the configuration was read again");
                }
                Err(error) => tracing::error!(%error, "the configuration stays as it was"),
            },
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    tracing::info!("the daemon ends, and with it the devices of its programs");
    server.end.send_replace(Some("the daemon was told to end".to_owned()));
    let _ = std::fs::remove_file(&socket);
    tokio::time::sleep(FAREWELL).await;
    let keeping = server.keeping.lock().unwrap_or_else(PoisonError::into_inner);
    // If it is gone already, so much the better.
    let _ = keeping.store.end();
    Ok(())
}

/// Each slot takes a descriptor, and each program two more: the usual limit of 1,024 is low.
fn raise_descriptor_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
}

/// Makes sure that the socket's folder exists, and that no daemon listens there.
fn make_room(path: &Path) -> Result<(), DaemonFault> {
    let fault = |source| DaemonFault::Listen { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(fault)?;
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(DaemonFault::Running(path.to_owned()));
    }
    // The socket of an earlier daemon is replaced, but nobody's file.
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            Err(fault(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is no socket")))
        }
        _ => Ok(()),
    }
}

/// Listens; the file's mode is 0660. It appears under its name with its rights, in place of what an earlier daemon left.
fn listen(config: &Config, path: &Path) -> Result<UnixListener, DaemonFault> {
    let fault = |source| DaemonFault::Listen { path: path.to_owned(), source };
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    // What a daemon left that was killed just here.
    let _ = std::fs::remove_file(&new);
    let listener = UnixListener::bind(&new).map_err(fault)?;
    if let Some(gid) = config.socket_group()? {
        std::os::unix::fs::chown(&new, None, Some(gid)).map_err(fault)?;
    }
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o660)).map_err(fault)?;
    std::fs::rename(&new, path).map_err(fault)?;
    Ok(listener)
}

/// A program has connected.
fn welcome(server: &Arc<Server>, stream: UnixStream) {
    let Ok(credentials) = getsockopt(&stream, sockopt::PeerCredentials) else { return };
    let peer =
        Peer { uid: credentials.uid(), gids: groups_of(&stream, credentials.gid()), pid: credentials.pid() };
    let most = if server.admits(peer.uid, &peer.gids) {
        SPARE_LINES + LINES_PER_SLOT * server.limits().slots
    } else {
        SPARE_LINES
    };
    if !server.take(peer.uid, Limited::Lines, most) {
        // A user who tries again and again does not fill the log.
        if server
            .usage
            .get_mut(&peer.uid)
            .is_some_and(|mut usage| !std::mem::replace(&mut usage.is_warned, true))
        {
            tracing::warn!(
                uid = peer.uid,
                pid = peer.pid,
                most,
                "a user has too many connections: more are closed"
            );
        }
        return;
    }
    tokio::spawn(Program::new(Arc::clone(server), stream, peer).run());
}

/// The groups of who is at the other end: its own, and the supplementary ones.
fn groups_of(stream: &UnixStream, own: u32) -> Vec<u32> {
    /// As many as a process may have (`NGROUPS_MAX` is 65,536; few have more than this).
    const MOST: usize = 1024;
    let mut groups = vec![0u32; MOST];
    let mut len = libc::socklen_t::try_from(MOST * size_of::<u32>()).unwrap_or(0);
    #[expect(unsafe_code, reason = "nix does not know SO_PEERGROUPS")]
    // SAFETY: the kernel writes at most `len` bytes to the array, which is that long.
    let rc = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    let count = if rc == 0 { len as usize / size_of::<u32>() } else { 0 };
    groups.truncate(count);
    groups.push(own);
    groups
}

/// Follows the links and addresses of the host.
async fn watch_host(nic: Arc<Nic>) {
    let Some(fd) = nic.watch_fd() else { return };
    #[expect(unsafe_code, reason = "the descriptor must stay open, and nothing else may take its number")]
    // SAFETY: it is owned, and `AsyncFd` never gives it away.
    let Ok(fd) = (unsafe { AsyncFd::register(fd) }) else { return };
    loop {
        let Ok(mut ready) = fd.readable().await else { return };
        if let Err(error) = nic.look_at_host() {
            tracing::error!(%error, "links and addresses cannot be watched any more");
            return;
        }
        ready.clear_ready();
    }
}
