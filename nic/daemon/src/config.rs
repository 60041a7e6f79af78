//! The daemon's configuration: a TOML file, and what the command line changes.

use nix::unistd::{Group, User};
use rnic::DeviceConfig;
use rnic::daemon::{SYSTEM_SOCKET, user_socket};
use rnic::process::{EnvFault, HostAddress};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// A commented example of a configuration file, with all settings at their defaults.
pub const EXAMPLE: &str = include_str!("../example.toml");

/// The configuration.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where the daemon listens. By default `/run/rnic/daemon.sock` for root, and `rnic/daemon.sock` in
    /// `$XDG_RUNTIME_DIR` for others.
    pub socket: Option<PathBuf>,
    /// The group that may open the socket, besides the daemon's own user and group.
    pub group: Option<String>,
    /// The addresses to share, by number or by interface.
    pub addresses: Vec<String>,
    /// Users to serve, besides the daemon's own, by name or number.
    pub users: Vec<String>,
    /// Groups whose members are served.
    pub groups: Vec<String>,
    /// Users who see the programs of all users, by name or number. Root and the daemon's own user do.
    pub observers: Vec<String>,
    /// Where to serve metrics, such as `127.0.0.1:9791`. By default nowhere.
    pub metrics: Option<SocketAddr>,
    /// Limits of each user.
    pub limits: Limits,
    /// Whether systemd's store holds the sockets instead of a keeper. It does so by itself from systemd 254 on.
    pub systemd_store: bool,
    /// The settings of the devices, as in a configuration file of `rnic run`.
    pub device: toml::Table,
}

/// What a user may have at a time, in all its programs.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Slots: devices of programs.
    pub slots: u32,
    /// Connections of connection management.
    pub connections: u32,
    /// Ports of connection management.
    pub ports: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { slots: 64, connections: 16_384, ports: 4096 }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: None,
            group: None,
            addresses: Vec::new(),
            users: Vec::new(),
            groups: Vec::new(),
            observers: Vec::new(),
            metrics: None,
            limits: Limits::default(),
            systemd_store: false,
            device: toml::Table::new(),
        }
    }
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// It is not TOML, or a setting is unknown or of the wrong kind.
    #[error("{what}{}: {message}", line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Syntax {
        /// The file.
        what: String,
        /// The line, if it is known.
        line: Option<usize>,
        /// What is wrong.
        message: String,
    },
    /// The settings of the devices are wrong.
    #[error("[device]: {0}")]
    Device(rnic::ConfigError),
    /// No address is given.
    #[error("no address to share: give `--addr ADDRESS`, or `addresses = [\"eth0\"]` in the configuration")]
    NoAddress,
    /// Not an address or interface of this host.
    #[error("`addresses`: {0}")]
    Address(String),
    /// There is no such user.
    #[error("`{setting}`: there is no user `{name}` on this host")]
    User {
        /// The setting.
        setting: &'static str,
        /// The name.
        name: String,
    },
    /// There is no such group.
    #[error("`{setting}`: there is no group `{name}` on this host")]
    Group {
        /// The setting.
        setting: &'static str,
        /// The name.
        name: String,
    },
    /// There is nowhere to listen.
    #[error("no place for the socket: set $XDG_RUNTIME_DIR, or give `--socket PATH`")]
    NoSocket,
}

impl Config {
    /// Reads a configuration.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`].
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| ConfigError::Syntax {
            what: "configuration".to_owned(),
            line: error.span().map(|span| text[..span.start].matches('\n').count() + 1),
            message: error.message().to_owned(),
        })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::from_toml(&text).map_err(|error| match error {
            ConfigError::Syntax { line, message, .. } => {
                ConfigError::Syntax { what: path.display().to_string(), line, message }
            }
            other => other,
        })
    }

    /// Where the daemon listens.
    ///
    /// # Errors
    /// [`ConfigError::NoSocket`].
    pub fn socket(&self) -> Result<PathBuf, ConfigError> {
        if let Some(path) = &self.socket {
            return Ok(path.clone());
        }
        if nix::unistd::geteuid().is_root() {
            return Ok(PathBuf::from(SYSTEM_SOCKET));
        }
        user_socket().ok_or(ConfigError::NoSocket)
    }

    /// The addresses to share now: those of an interface come and go.
    ///
    /// # Errors
    /// [`ConfigError::NoAddress`], [`ConfigError::Address`].
    pub fn addresses(&self) -> Result<Vec<Wanted>, ConfigError> {
        let mut all: Vec<Wanted> = Vec::new();
        let mut seen = BTreeSet::new();
        let mut names = self.addresses.iter().flat_map(|text| text.split(',')).map(str::trim).peekable();
        if names.peek().is_none() {
            return Err(ConfigError::NoAddress);
        }
        for text in names {
            let is_named = text.contains('%') || text.parse::<IpAddr>().is_ok();
            let found = match HostAddress::all_of(text) {
                Ok(found) => found,
                // It may get one.
                Err(EnvFault::NoAddress { .. }) => Vec::new(),
                Err(error) => return Err(ConfigError::Address(error.to_string())),
            };
            let fresh = found.into_iter().filter(|address| seen.insert(address.ip));
            all.extend(fresh.map(|address| Wanted { address, is_named }));
        }
        Ok(all)
    }

    /// The interfaces among them that have no address now.
    pub fn bare(&self) -> impl Iterator<Item = &str> {
        let names = self.addresses.iter().flat_map(|text| text.split(',')).map(str::trim);
        names.filter(|name| matches!(HostAddress::all_of(name), Err(EnvFault::NoAddress { .. })))
    }

    /// The settings of the device at an address.
    ///
    /// # Errors
    /// [`ConfigError::Device`].
    pub fn device(&self) -> Result<DeviceConfig, ConfigError> {
        DeviceConfig::from_toml(&self.device_text()).map_err(ConfigError::Device)
    }

    /// The same as text, for programs.
    #[must_use]
    pub fn device_text(&self) -> String {
        self.device.to_string()
    }

    /// The users and groups that are served, by number.
    ///
    /// # Errors
    /// [`ConfigError::User`], [`ConfigError::Group`].
    pub fn admitted(&self) -> Result<Admitted, ConfigError> {
        let users = |setting, names: &[String]| -> Result<BTreeSet<u32>, _> {
            names.iter().map(|name| user(setting, name)).collect()
        };
        let own = nix::unistd::geteuid().as_raw();
        let mut uids = users("users", &self.users)?;
        uids.insert(own);
        let mut observers = users("observers", &self.observers)?;
        observers.extend([0, own]);
        let gids = self.groups.iter().map(|name| group("groups", name)).collect::<Result<_, _>>()?;
        Ok(Admitted { uids, gids, observers })
    }

    /// The group of the socket.
    ///
    /// # Errors
    /// [`ConfigError::Group`].
    pub fn socket_group(&self) -> Result<Option<u32>, ConfigError> {
        self.group.as_ref().map(|name| group("group", name)).transpose()
    }
}

fn user(setting: &'static str, name: &str) -> Result<u32, ConfigError> {
    let by_name = || User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
    name.parse().ok().or_else(by_name).ok_or_else(|| ConfigError::User { setting, name: name.to_owned() })
}

fn group(setting: &'static str, name: &str) -> Result<u32, ConfigError> {
    let by_name = || Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw());
    name.parse().ok().or_else(by_name).ok_or_else(|| ConfigError::Group { setting, name: name.to_owned() })
}

/// An address to share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The address.
    pub address: HostAddress,
    /// Whether the configuration names it, not only its interface.
    pub is_named: bool,
}

/// The users and groups that the daemon serves, and those who see everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admitted {
    uids: BTreeSet<u32>,
    gids: BTreeSet<u32>,
    observers: BTreeSet<u32>,
}

impl Admitted {
    /// Whether a user with these groups is served.
    #[must_use]
    pub fn admits(&self, uid: u32, gids: &[u32]) -> bool {
        self.uids.contains(&uid) || gids.iter().any(|gid| self.gids.contains(gid))
    }

    /// Whether a user sees the programs of all users.
    #[must_use]
    pub fn observes(&self, uid: u32) -> bool {
        self.observers.contains(&uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_the_default() {
        let example = Config::from_toml(EXAMPLE).expect("a configuration");
        assert_eq!(example, Config::default());
        // What is commented out is a setting too.
        let uncommented = EXAMPLE
            .replace("\n# [device", "\n[device")
            .replace("\n# rate", "\nrate")
            .replace("\n# algorithm", "\nalgorithm");
        let config = Config::from_toml(&uncommented).expect("a configuration");
        assert!(config.device().is_ok(), "{:?}", config.device());
        assert_eq!(config.device().expect("settings").link.rate, Some(rnic::cc::Rate::from_gbps(10)));
    }

    #[test]
    fn mistakes_are_named() {
        let wrong = |text: &str| Config::from_toml(text).expect_err("wrong").to_string();
        assert!(wrong("adresses = []").contains("adresses"), "{}", wrong("adresses = []"));
        assert!(wrong("users = []\nlimits = 3").contains("line 2"), "{}", wrong("users = []\nlimits = 3"));
        let config = |text: &str| Config::from_toml(text).expect("TOML");
        assert!(matches!(config("").addresses(), Err(ConfigError::NoAddress)));
        assert!(matches!(config("addresses = ['nowhere']").addresses(), Err(ConfigError::Address(_))));
        assert!(matches!(config("users = ['no such user']").admitted(), Err(ConfigError::User { .. })));
        assert!(matches!(config("groups = ['no such group']").admitted(), Err(ConfigError::Group { .. })));
        assert!(matches!(config("[device]\nmtu = 77").device(), Err(ConfigError::Device(_))));
    }

    #[test]
    fn an_interface_stands_for_its_addresses_and_each_is_shared_once() {
        let config = Config { addresses: vec!["127.0.0.1, lo".to_owned()], ..Config::default() };
        let wanted = config.addresses().expect("addresses");
        let first = Wanted { address: HostAddress::from(IpAddr::from([127, 0, 0, 1])), is_named: true };
        assert_eq!(wanted[0], first);
        let again = wanted.iter().filter(|of| of.address == first.address).count();
        assert!(again == 1 && wanted[1..].iter().all(|of| !of.is_named), "{wanted:?}");
    }

    #[test]
    fn the_own_user_is_served_and_others_as_configured() {
        let own = nix::unistd::geteuid().as_raw();
        let admitted = Config::default().admitted().expect("users");
        assert!(admitted.admits(own, &[]) && !admitted.admits(own + 1, &[own]));
        let config = Config::from_toml("users = ['64001']\ngroups = ['64002']").expect("TOML");
        let admitted = config.admitted().expect("users");
        assert!(admitted.admits(64_001, &[]) && admitted.admits(64_003, &[1, 64_002]));
        assert!(!admitted.admits(64_002, &[64_001]));
        assert!(admitted.observes(own) && admitted.observes(0) && !admitted.observes(64_001));
        let config = Config::from_toml("observers = ['64001']").expect("TOML");
        let admitted = config.admitted().expect("users");
        assert!(admitted.observes(64_001) && !admitted.admits(64_001, &[]));
    }
}
