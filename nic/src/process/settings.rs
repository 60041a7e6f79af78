//! The variables, and what they come to.

use super::{EnvError, EnvFault, GidLayout, NamedDevice, ProcessConfig, node_guid};
use crate::DeviceConfig;
use crate::link::LinkConfigError;
use crate::link::faults::FaultRule;
use cc::Algorithm;
use qp::Mtu;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The most devices of a process. Each takes a thread and five sockets.
pub const MAX_DEVICES: usize = 16;

/// A variable of the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variable {
    /// `RNIC_CONFIG`: a configuration file.
    Config,
    /// `RNIC_ADDR`: addresses.
    Addr,
    /// `RNIC_DEVICES`: how many devices.
    Devices,
    /// `RNIC_MTU`: the largest path MTU.
    Mtu,
    /// `RNIC_LINK`: the link.
    Link,
    /// `RNIC_CC`: congestion control.
    Cc,
    /// `RNIC_FAULT`: fault rules.
    Fault,
    /// `RNIC_SEED`: what randomness follows from.
    Seed,
    /// `RNIC_CAPTURE`: a capture file.
    Capture,
    /// `RNIC_GID_TABLE`: how GID tables are laid out.
    GidTable,
    /// `RNIC_RUN_DIR`: a folder for what others may look at.
    RunDir,
}

impl Variable {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Config,
        Self::Addr,
        Self::Devices,
        Self::Mtu,
        Self::Link,
        Self::Cc,
        Self::Fault,
        Self::Seed,
        Self::Capture,
        Self::GidTable,
        Self::RunDir,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Config => "RNIC_CONFIG",
            Self::Addr => "RNIC_ADDR",
            Self::Devices => "RNIC_DEVICES",
            Self::Mtu => "RNIC_MTU",
            Self::Link => "RNIC_LINK",
            Self::Cc => "RNIC_CC",
            Self::Fault => "RNIC_FAULT",
            Self::Seed => "RNIC_SEED",
            Self::Capture => "RNIC_CAPTURE",
            Self::GidTable => "RNIC_GID_TABLE",
            Self::RunDir => "RNIC_RUN_DIR",
        }
    }
}

/// An address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostAddress {
    /// The address.
    pub ip: IpAddr,
    /// The number of the interface, for IPv6 link-local addresses; otherwise 0.
    pub scope_id: u32,
}

impl From<IpAddr> for HostAddress {
    fn from(ip: IpAddr) -> Self {
        Self { ip, scope_id: 0 }
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scope_id {
            0 => self.ip.fmt(f),
            scope => write!(f, "{}%{scope}", self.ip),
        }
    }
}

impl FromStr for HostAddress {
    type Err = EnvFault;

    fn from_str(text: &str) -> Result<Self, EnvFault> {
        let wrong = |wanted: &str| EnvFault::malformed(text, wanted);
        let Some((ip, interface)) = text.split_once('%') else {
            let ip = text.parse().map_err(|_| wrong("write an IPv4 or IPv6 address of this host"))?;
            return Ok(Self { ip, scope_id: 0 });
        };
        let ip: Ipv6Addr = ip.parse().map_err(|_| wrong("only IPv6 addresses take an interface"))?;
        let by_name = || nix::net::if_::if_nametoindex(interface).ok();
        let scope_id = interface.parse().ok().or_else(by_name);
        Ok(Self {
            ip: ip.into(),
            scope_id: scope_id.ok_or_else(|| wrong("no interface of this host has the name after `%`"))?,
        })
    }
}

/// What the variables say, each for itself. What is `None` or empty is not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// Addresses, for the devices in turn: with as many as devices each has one, and of more each has several, of which it
    /// takes the first that is free.
    pub addresses: Vec<HostAddress>,
    /// How many devices; `None` for one, or one for each address.
    pub devices: Option<usize>,
    /// The largest path MTU.
    pub mtu: Option<Mtu>,
    /// The link, in words.
    pub link: Option<String>,
    /// Congestion control, in words.
    pub cc: Option<String>,
    /// Fault rules.
    pub faults: Vec<String>,
    /// What randomness follows from.
    pub seed: Option<u64>,
    /// The capture file, with its `%` sequences.
    pub capture: Option<PathBuf>,
    /// How GID tables are laid out.
    pub gid_table: Option<GidLayout>,
    /// The folder for what others may look at.
    pub run_dir: Option<PathBuf>,
}

impl Settings {
    /// Reads the environment.
    ///
    /// # Errors
    /// Names the variable that cannot be read.
    pub fn from_env() -> Result<Self, EnvError> {
        Self::from_vars(|variable| std::env::var_os(variable.name()))
    }

    /// Reads variables from wherever they are.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn from_vars(var: impl Fn(Variable) -> Option<OsString>) -> Result<Self, EnvError> {
        let mut settings = Self::default();
        for variable in Variable::ALL {
            if let Some(value) = var(variable) {
                settings.set(variable, &value)?;
            }
        }
        Ok(settings)
    }

    /// Sets what one variable says; an empty value leaves it as it is.
    ///
    /// # Errors
    /// The value is not of the variable's kind, or the link, congestion control or a fault rule was not understood.
    pub fn set(&mut self, variable: Variable, value: &OsStr) -> Result<(), EnvError> {
        self.read(variable, value).map_err(|fault| EnvError { variable, fault })
    }

    fn read(&mut self, variable: Variable, value: &OsStr) -> Result<(), EnvFault> {
        if value.is_empty() {
            return Ok(());
        }
        let path = || Some(PathBuf::from(value));
        match variable {
            Variable::Config => self.config = path(),
            Variable::Capture => self.capture = path(),
            Variable::RunDir => self.run_dir = path(),
            word => self.read_text(word, value.to_str().ok_or(EnvFault::NotUtf8)?.trim())?,
        }
        Ok(())
    }

    fn read_text(&mut self, variable: Variable, text: &str) -> Result<(), EnvFault> {
        // Blanks alone say as little as nothing at all.
        if text.is_empty() {
            return Ok(());
        }
        let wrong = |wanted: String| EnvFault::malformed(text, wanted);
        match variable {
            Variable::Addr => {
                let all = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                self.addresses = all.map(str::parse).collect::<Result<_, _>>()?;
            }
            Variable::Devices => {
                let count = text.parse().ok().filter(|count| (1..=MAX_DEVICES).contains(count));
                let wanted = || wrong(format!("write a number from 1 to {MAX_DEVICES}"));
                self.devices = Some(count.ok_or_else(wanted)?);
            }
            Variable::Mtu => {
                self.mtu = Some(text.parse().map_err(EnvFault::Mtu)?);
            }
            Variable::Link => {
                let link = DeviceConfig::default().link.apply(text);
                link.map_err(|error| EnvFault::Link(Box::new(error)))?;
                self.link = Some(text.to_owned());
            }
            Variable::Cc => {
                text.parse::<Algorithm>().map_err(|error| EnvFault::Cc(Box::new(error)))?;
                self.cc = Some(text.to_owned());
            }
            Variable::Fault => self.faults = rules(text)?,
            Variable::Seed => {
                let wanted = || wrong("write a whole number below 2^64".to_owned());
                self.seed = Some(text.parse().map_err(|_| wanted())?);
            }
            Variable::GidTable => {
                let layout = GidLayout::ALL.iter().find(|layout| layout.name() == text);
                let names: Vec<_> = GidLayout::ALL.iter().map(|layout| layout.name()).collect();
                let wanted = || wrong(cc::unknown(text, &names));
                self.gid_table = Some(*layout.ok_or_else(wanted)?);
            }
            // Paths need not be text.
            Variable::Config | Variable::Capture | Variable::RunDir => {}
        }
        Ok(())
    }

    /// What to set so that a process reads these settings: the names and values of those that are set. A program may
    /// change its folder before it reads them, so give paths from the root on.
    #[must_use]
    pub fn vars(&self) -> Vec<(Variable, OsString)> {
        fn text(value: Option<&(impl ToString + ?Sized)>) -> OsString {
            value.map(ToString::to_string).unwrap_or_default().into()
        }
        fn path(value: Option<&PathBuf>) -> OsString {
            value.map(|path| path.clone().into_os_string()).unwrap_or_default()
        }
        let value = |variable| match variable {
            Variable::Config => path(self.config.as_ref()),
            Variable::Addr => {
                self.addresses.iter().map(HostAddress::to_string).collect::<Vec<_>>().join(",").into()
            }
            Variable::Devices => text(self.devices.as_ref()),
            Variable::Mtu => text(self.mtu.map(Mtu::bytes).as_ref()),
            Variable::Link => text(self.link.as_ref()),
            Variable::Cc => text(self.cc.as_ref()),
            Variable::Fault => self.faults.join("; ").into(),
            Variable::Seed => text(self.seed.as_ref()),
            Variable::Capture => path(self.capture.as_ref()),
            Variable::GidTable => text(self.gid_table.as_ref()),
            Variable::RunDir => path(self.run_dir.as_ref()),
        };
        let all = Variable::ALL.into_iter().map(|variable| (variable, value(variable)));
        all.filter(|(_, value)| !value.is_empty()).collect()
    }

    /// What a process with these settings has: the configuration file is read, and the combination is validated.
    ///
    /// # Errors
    /// Names a variable that is at fault.
    pub fn process(&self) -> Result<ProcessConfig, EnvError> {
        let config = self.device()?;
        let addresses = match (&*self.addresses, config.address) {
            ([], Some(ip)) => vec![HostAddress { ip, scope_id: config.scope_id }],
            (given, _) => given.to_vec(),
        };
        let count = self.devices.unwrap_or(addresses.len().max(1));
        if !addresses.is_empty() && addresses.len() < count {
            let fault = EnvFault::Addresses { devices: count, addresses: addresses.len() };
            return Err(EnvError { variable: Variable::Devices, fault });
        }
        if count > MAX_DEVICES {
            let wanted = format!("list at most {MAX_DEVICES}, or set RNIC_DEVICES to fewer");
            let fault = EnvFault::malformed(&format!("{count} addresses"), wanted);
            return Err(EnvError { variable: Variable::Addr, fault });
        }
        let devices = (0..count).map(|number| {
            let own: Vec<_> = addresses.iter().skip(number).step_by(count).copied().collect();
            self.named(&config, number, count, own)
        });
        Ok(ProcessConfig {
            devices: devices.collect(),
            gid_table: self.gid_table.unwrap_or_default(),
            run_dir: self.run_dir.clone(),
        })
    }

    /// What all devices have in common.
    fn device(&self) -> Result<DeviceConfig, EnvError> {
        let mut config = match &self.config {
            Some(path) => DeviceConfig::load(path).map_err(|error| EnvError {
                variable: Variable::Config,
                fault: EnvFault::File(Box::new(error)),
            })?,
            None => DeviceConfig::default(),
        };
        config.mtu = self.mtu.or(config.mtu);
        let link = |error| EnvFault::Link(Box::new(error));
        if let Some(words) = &self.link {
            let applied = config.link.apply(words).map_err(link);
            applied.map_err(|fault| EnvError { variable: Variable::Link, fault })?;
        }
        if let Some(words) = &self.cc {
            config.cc = words
                .parse()
                .map_err(|error| EnvError { variable: Variable::Cc, fault: EnvFault::Cc(Box::new(error)) })?;
        }
        if !self.faults.is_empty() {
            config.faults.clone_from(&self.faults);
        }
        config.fault_seed = self.seed.unwrap_or(config.fault_seed);
        config.capture = self.capture.clone().or(config.capture);
        let together = config.link.at(&config.cc, config.mtu.unwrap_or(Mtu::B4096));
        together.map_err(|error| EnvError { variable: self.at_fault(&error), fault: link(error) })?;
        Ok(config)
    }

    /// One of `count` devices.
    fn named(
        &self,
        common: &DeviceConfig,
        number: usize,
        count: usize,
        addresses: Vec<HostAddress>,
    ) -> NamedDevice {
        let name = format!("rnic{number}");
        let first = addresses.first();
        let pid = std::process::id();
        let config = DeviceConfig {
            address: first.map(|address| address.ip),
            scope_id: first.map_or(0, |address| address.scope_id),
            capture: common.capture.as_deref().map(|path| capture(path, &name, count > 1, pid)),
            ..common.clone()
        };
        // With a choice of addresses it is the open that decides, and other processes may have the same choice.
        let own = if let [only] = &*addresses { Some(only.ip) } else { None };
        let guid = node_guid(own, pid, u8::try_from(number).unwrap_or(u8::MAX));
        NamedDevice { name, addresses, config, guid, run_dir: self.run_dir.clone() }
    }

    /// Which variable brought together what does not fit: the file was in order by itself.
    fn at_fault(&self, error: &LinkConfigError) -> Variable {
        match error {
            LinkConfigError::Cc(_) if self.cc.is_some() => Variable::Cc,
            _ if self.link.is_some() => Variable::Link,
            _ if self.cc.is_some() => Variable::Cc,
            _ => Variable::Mtu,
        }
    }
}

/// The rules of a list, each of which must be one.
fn rules(text: &str) -> Result<Vec<String>, EnvFault> {
    let rules = text.split([';', '\n']).map(str::trim).filter(|rule| !rule.is_empty());
    let checked = rules.map(|rule| match rule.parse::<FaultRule>() {
        Ok(_) => Ok(rule.to_owned()),
        Err(error) => Err(EnvFault::Rule { rule: rule.to_owned(), error: Box::new(error) }),
    });
    checked.collect()
}

/// The capture file of one device. Where there are several and the name does not say which, the name of the device comes
/// before its extension.
fn capture(path: &Path, device: &str, several: bool, pid: u32) -> PathBuf {
    let Some(text) = path.to_str() else { return path.to_owned() };
    let (mut done, mut named, mut rest) = (String::new(), false, text);
    while let Some((before, after)) = rest.split_once('%') {
        done.push_str(before);
        rest = after.get(1..).unwrap_or("");
        match after.chars().next() {
            Some('p') => done.push_str(&pid.to_string()),
            Some('d') => {
                done.push_str(device);
                named = true;
            }
            Some('%') => done.push('%'),
            _ => {
                done.push('%');
                rest = after;
            }
        }
    }
    done.push_str(rest);
    let done = PathBuf::from(done);
    if named || !several {
        return done;
    }
    let extension = done.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default();
    let stem = done.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    done.with_file_name(format!("{stem}.{device}{extension}"))
}
