//! The environment variables, and the configuration that follows from them.

use super::names;
use super::{EnvError, EnvFault, GidLayout, HostAddress, NamedDevice, ProcessConfig, node_guid};
use crate::DeviceConfig;
use crate::daemon::{Daemon, Desk};
use cc::Algorithm;
use qp::Mtu;
use rnic_core::link::LinkConfigError;
use rnic_core::link::faults::FaultRule;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The most devices of a process. Each takes a thread and five sockets.
pub const MAX_DEVICES: usize = 16;

/// A variable of the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variable {
    /// `RNIC_CONFIG`: a configuration file.
    Config,
    /// `RNIC_ADDR`: addresses.
    Addr,
    /// `RNIC_DEVICES`: the number of devices.
    Devices,
    /// `RNIC_DEVICE_NAME`: the names of the devices.
    DeviceName,
    /// `RNIC_MTU`: the largest path MTU.
    Mtu,
    /// `RNIC_LINK`: the link.
    Link,
    /// `RNIC_CC`: congestion control.
    Cc,
    /// `RNIC_FAULT`: fault rules.
    Fault,
    /// `RNIC_SEED`: the seed of the fault rules.
    Seed,
    /// `RNIC_CAPTURE`: a capture file.
    Capture,
    /// `RNIC_GID_TABLE`: the layout of GID tables.
    GidTable,
    /// `RNIC_EXPLAIN`: whether failures are explained.
    Explain,
    /// `RNIC_RUN_DIR`: a directory for data that other processes may read.
    RunDir,
    /// `RNIC_GSO`: whether packets may leave in segmentation-offloaded trains.
    Gso,
    /// `RNIC_SELECTIVE_REPEAT`: whether lost packets are repeated alone.
    SelectiveRepeat,
    /// `RNIC_DAEMON`: the daemon, or `off`.
    Daemon,
}

impl Variable {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Config,
        Self::Addr,
        Self::Devices,
        Self::DeviceName,
        Self::Mtu,
        Self::Link,
        Self::Cc,
        Self::Fault,
        Self::Seed,
        Self::Capture,
        Self::GidTable,
        Self::Explain,
        Self::RunDir,
        Self::Gso,
        Self::SelectiveRepeat,
        Self::Daemon,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Config => "RNIC_CONFIG",
            Self::Addr => "RNIC_ADDR",
            Self::Devices => "RNIC_DEVICES",
            Self::DeviceName => "RNIC_DEVICE_NAME",
            Self::Mtu => "RNIC_MTU",
            Self::Link => "RNIC_LINK",
            Self::Cc => "RNIC_CC",
            Self::Fault => "RNIC_FAULT",
            Self::Seed => "RNIC_SEED",
            Self::Capture => "RNIC_CAPTURE",
            Self::GidTable => "RNIC_GID_TABLE",
            Self::Explain => "RNIC_EXPLAIN",
            Self::RunDir => "RNIC_RUN_DIR",
            Self::Gso => "RNIC_GSO",
            Self::SelectiveRepeat => "RNIC_SELECTIVE_REPEAT",
            Self::Daemon => crate::daemon::VARIABLE,
        }
    }
}

/// The values of the variables, each on its own. `None` or an empty list means not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// Addresses, assigned to the devices in turn. With more addresses than devices, a device has several and takes the
    /// first that is free.
    pub addresses: Vec<HostAddress>,
    /// The number of devices. `None` means one per address, or one.
    pub devices: Option<usize>,
    /// The names of the devices: one for each, or one in which `%d` becomes the number of the device; empty for
    /// `rnic%d`.
    pub device_names: Vec<String>,
    /// The largest path MTU.
    pub mtu: Option<Mtu>,
    /// The link, as text.
    pub link: Option<String>,
    /// Congestion control, as text.
    pub cc: Option<String>,
    /// Fault rules.
    pub faults: Vec<String>,
    /// The seed of the fault rules.
    pub seed: Option<u64>,
    /// The capture file, with its `%` sequences.
    pub capture: Option<PathBuf>,
    /// The layout of GID tables.
    pub gid_table: Option<GidLayout>,
    /// Whether failures are explained.
    pub explain: Option<bool>,
    /// The directory for data that other processes may read.
    pub run_dir: Option<PathBuf>,
    /// Whether packets may leave in segmentation-offloaded trains: see [`DeviceConfig::gso`].
    pub gso: Option<bool>,
    /// Whether lost packets are repeated alone: see [`DeviceConfig::selective_repeat`].
    pub selective_repeat: Option<bool>,
    /// The socket of the daemon whose addresses the devices share, or `off`. `None` looks for one: see
    /// [`Daemon::find`](crate::daemon::Daemon::find).
    pub daemon: Option<PathBuf>,
}

impl Settings {
    /// Reads the environment.
    ///
    /// # Errors
    /// Names the variable that cannot be read.
    pub fn from_env() -> Result<Self, EnvError> {
        Self::from_vars(|variable| std::env::var_os(variable.name()))
    }

    /// Reads the variables through a function.
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

    /// Sets the value of one variable. An empty value changes nothing.
    ///
    /// # Errors
    /// The value is not valid for the variable.
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
            Variable::Daemon => self.daemon = path(),
            word => self.read_text(word, value.to_str().ok_or(EnvFault::NotUtf8)?.trim())?,
        }
        Ok(())
    }

    fn read_text(&mut self, variable: Variable, text: &str) -> Result<(), EnvFault> {
        // Whitespace counts as empty.
        if text.is_empty() {
            return Ok(());
        }
        let wrong = |wanted: String| EnvFault::malformed(text, wanted);
        match variable {
            Variable::Addr => self.addresses = addresses(text, str::parse)?,
            Variable::Devices => {
                let count = text.parse().ok().filter(|count| (1..=MAX_DEVICES).contains(count));
                let wanted = || wrong(format!("write a number from 1 to {MAX_DEVICES}"));
                self.devices = Some(count.ok_or_else(wanted)?);
            }
            Variable::DeviceName => self.device_names = names::read(text)?,
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
            Variable::Explain => {
                self.explain = Some(match text {
                    "1" => true,
                    "0" => false,
                    _ => return Err(wrong("write 1 or 0".to_owned())),
                });
            }
            Variable::Gso | Variable::SelectiveRepeat => {
                let on = match text {
                    "0" | "off" => false,
                    "1" | "on" => true,
                    _ => return Err(wrong("write `1` or `on`, `0` or `off`".to_owned())),
                };
                let setting = match variable {
                    Variable::Gso => &mut self.gso,
                    _ => &mut self.selective_repeat,
                };
                *setting = Some(on);
            }
            // Paths need not be UTF-8, and are read by `read`.
            Variable::Config | Variable::Capture | Variable::RunDir | Variable::Daemon => {}
        }
        Ok(())
    }

    /// Sets the addresses of the devices from a comma-separated list, which may also contain host names
    /// ([`HostAddress::look_up`]). An empty list leaves them unchanged. The variable takes no host names, so that no
    /// program waits for a name server when it lists its devices.
    ///
    /// # Errors
    /// Names the entry that is not an address of this host.
    pub fn look_up_addresses(&mut self, list: &OsStr) -> Result<(), EnvError> {
        let found = match list.to_str() {
            Some(text) => addresses(text, HostAddress::look_up),
            None => Err(EnvFault::NotUtf8),
        };
        let found = found.map_err(|fault| EnvError { variable: Variable::Addr, fault })?;
        if !found.is_empty() {
            self.addresses = found;
        }
        Ok(())
    }

    /// The variables, with their values, that give a process these settings. Paths should be absolute, because a
    /// program may change its working directory before it reads them.
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
            Variable::DeviceName => self.device_names.join(",").into(),
            Variable::Mtu => text(self.mtu.map(Mtu::bytes).as_ref()),
            Variable::Link => text(self.link.as_ref()),
            Variable::Cc => text(self.cc.as_ref()),
            Variable::Fault => self.faults.join("; ").into(),
            Variable::Seed => text(self.seed.as_ref()),
            Variable::Capture => path(self.capture.as_ref()),
            Variable::GidTable => text(self.gid_table.as_ref()),
            Variable::Explain => text(self.explain.map(u8::from).as_ref()),
            Variable::RunDir => path(self.run_dir.as_ref()),
            Variable::Gso => text(self.gso.map(u8::from).as_ref()),
            Variable::SelectiveRepeat => text(self.selective_repeat.map(u8::from).as_ref()),
            Variable::Daemon => path(self.daemon.as_ref()),
        };
        let all = Variable::ALL.into_iter().map(|variable| (variable, value(variable)));
        all.filter(|(_, value)| !value.is_empty()).collect()
    }

    /// The same, with the addresses of the daemon, if the settings name no address and no number of devices and a daemon is
    /// found.
    #[must_use]
    pub fn with_daemon(mut self) -> Self {
        let daemon = Daemon::named(self.daemon.as_deref().map(Path::as_os_str));
        let has_choice = self.addresses.is_empty() && self.devices.is_none();
        let names_address = || {
            self.config
                .as_ref()
                .is_some_and(|path| DeviceConfig::load(path).is_ok_and(|config| config.address.is_some()))
        };
        // What is wrong with a daemon is said when a device is opened.
        if has_choice
            && !names_address()
            && let Ok(Some(desk)) = Desk::of(&daemon)
            && let Ok(addresses) = desk.addresses()
        {
            let shared = addresses.into_iter().take(MAX_DEVICES);
            self.addresses = shared.map(|of| HostAddress { ip: of.ip, scope_id: of.scope_id }).collect();
        }
        self
    }

    /// The configuration of a process with these settings. Reads the configuration file, and validates the combination.
    ///
    /// # Errors
    /// Names the variable that is at fault.
    pub fn process(&self) -> Result<ProcessConfig, EnvError> {
        let config = self.device()?;
        let addresses = match (&*self.addresses, config.address) {
            ([], Some(only)) => vec![only],
            (given, _) => given.to_vec(),
        };
        let count = self.devices.unwrap_or(addresses.len().max(self.device_names.len()).max(1));
        if !addresses.is_empty() && addresses.len() < count {
            let fault = EnvFault::Addresses { devices: count, addresses: addresses.len() };
            return Err(EnvError { variable: Variable::Devices, fault });
        }
        if count > MAX_DEVICES {
            let wanted = format!("list at most {MAX_DEVICES}, or set RNIC_DEVICES to fewer");
            let fault = EnvFault::malformed(&format!("{count} addresses"), wanted);
            return Err(EnvError { variable: Variable::Addr, fault });
        }
        let names = names::of_devices(&self.device_names, count)
            .map_err(|fault| EnvError { variable: Variable::DeviceName, fault })?;
        let devices = names.into_iter().enumerate().map(|(number, name)| {
            let own: Vec<_> = addresses.iter().skip(number).step_by(count).copied().collect();
            self.named(&config, name, (number, count), own)
        });
        Ok(ProcessConfig {
            devices: devices.collect(),
            gid_table: self.gid_table.unwrap_or_default(),
            explain: self.explain.unwrap_or_default(),
            run_dir: self.run_dir.clone(),
        })
    }

    /// The configuration that all devices share.
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
        config.gso = self.gso.or(config.gso);
        config.selective_repeat = self.selective_repeat.unwrap_or(config.selective_repeat);
        let together = config.link.at(&config.cc, config.mtu.unwrap_or(Mtu::B4096));
        together.map_err(|error| EnvError { variable: self.at_fault(&error), fault: link(error) })?;
        Ok(config)
    }

    /// Device `number` of `count`.
    fn named(
        &self,
        common: &DeviceConfig,
        name: String,
        (number, count): (usize, usize),
        addresses: Vec<HostAddress>,
    ) -> NamedDevice {
        let pid = std::process::id();
        let config = DeviceConfig {
            address: addresses.first().copied(),
            capture: common.capture.as_deref().map(|path| capture(path, &name, count > 1, pid)),
            ..common.clone()
        };
        // With several addresses, opening the device decides, and other processes may have the same list.
        let own = if let [only] = &*addresses { Some(only.ip) } else { None };
        let guid = node_guid(own, pid, u8::try_from(number).unwrap_or(u8::MAX));
        NamedDevice { name, addresses, config, guid, run_dir: self.run_dir.clone() }
    }

    /// The variable that contradicts the rest. The file alone was valid.
    fn at_fault(&self, error: &LinkConfigError) -> Variable {
        match error {
            LinkConfigError::Cc(_) if self.cc.is_some() => Variable::Cc,
            _ if self.link.is_some() => Variable::Link,
            _ if self.cc.is_some() => Variable::Cc,
            _ => Variable::Mtu,
        }
    }
}

/// Parses a comma-separated list of addresses.
fn addresses(
    text: &str,
    read: impl Fn(&str) -> Result<HostAddress, EnvFault>,
) -> Result<Vec<HostAddress>, EnvFault> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(read).collect()
}

/// Splits a list of rules, and checks each.
fn rules(text: &str) -> Result<Vec<String>, EnvFault> {
    let rules = text.split([';', '\n']).map(str::trim).filter(|rule| !rule.is_empty());
    let checked = rules.map(|rule| match rule.parse::<FaultRule>() {
        Ok(_) => Ok(rule.to_owned()),
        Err(error) => Err(EnvFault::Rule { rule: rule.to_owned(), error: Box::new(error) }),
    });
    checked.collect()
}

/// The capture file of one device. If there are several devices and the name does not contain `%d`, the name of the device
/// is inserted before the extension.
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
