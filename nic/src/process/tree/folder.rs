//! The devices of all programs as real files, for programs whose paths `rnic run` cannot redirect.

use super::content::{self, Wanted};
use super::view::View;
use super::write;
use crate::DeviceConfig;
use crate::process::publish::of_port;
use crate::process::run_dir::make_locked;
use crate::process::{GidLayout, HostAddress, NamedDevice, Published, node_guid, published};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Marks a folder as ours. Its lock shows that a process keeps the files up to date.
const MARK: &str = ".rnic-sysfs";

/// A folder that stands in for `/sys`. Its `class/infiniband` contains the devices that programs have open at this
/// moment, with the same files and counters that the kernel would provide.
///
/// `rnic run` redirects a program's C library calls to such files. A program that makes its own system calls, as Go
/// programs do, has to be pointed to this folder instead: `prometheus-node-exporter --path.sysfs=FOLDER`. It can also
/// be mounted at `/sys/class/infiniband` of a container.
///
/// Devices of different programs may have the same name, so each device is named after its address too: `rnic0_127.0.0.1`.
/// Programs that share an address of the daemon share the device, whose counters are their sums. The name does not change while the device is open, because labels of a time series must not
/// change.
#[derive(Debug)]
pub struct SysFolder {
    root: PathBuf,
    run_dir: PathBuf,
    shown: BTreeSet<String>,
    _mark: File,
}

impl SysFolder {
    /// Takes over a folder that does not exist, is empty, or was used for this before, for the devices of programs that
    /// publish their counters in `run_dir`.
    ///
    /// # Errors
    /// The folder contains something else, another process maintains it, or it cannot be written.
    pub fn new(root: &Path, run_dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        let mark = root.join(MARK);
        if let Ok(file) = File::open(&mark) {
            file.try_lock().map_err(|_| {
                io::Error::new(ErrorKind::ResourceBusy, "another `rnic sysfs` keeps the files in it")
            })?;
            remove_class(root)?;
            fs::remove_file(&mark)?;
        }
        if fs::read_dir(root)?.next().is_some() {
            return Err(io::Error::new(ErrorKind::DirectoryNotEmpty, "it is not empty"));
        }
        let mark = make_locked(root, MARK)?;
        // Programs that do not find this folder assume that the host has no RDMA at all.
        fs::create_dir_all(root.join(DEVICES))?;
        fs::create_dir_all(root.join(ASIDE))?;
        let (root, run_dir) = (root.to_owned(), run_dir.to_owned());
        Ok(Self { root, run_dir, shown: BTreeSet::new(), _mark: mark })
    }

    /// Updates the files; returns the names of the devices.
    ///
    /// # Errors
    /// The run folder cannot be read, or a file cannot be written.
    pub fn update(&mut self) -> io::Result<&BTreeSet<String>> {
        let mut names = BTreeSet::new();
        let mut programs = published(&self.run_dir)?;
        programs.retain(|one| one.running);
        programs.sort_by_key(|one| one.pid);
        let port = |one: &Published| (one.device.clone(), one.address, one.namespace);
        for (number, one) in programs.iter().enumerate() {
            let shared = programs.iter().filter(|other| port(other) == port(one));
            // The first program at a port stands for all of them.
            if shared.clone().next().is_some_and(|first| !std::ptr::eq(first, one)) {
                continue;
            }
            let mut device = device(one, &self.run_dir);
            if names.contains(&device.name) {
                // Programs in different network namespaces can share a run folder and have the same address.
                device.name = format!("{}_{}", device.name, one.pid);
            }
            self.show(&device, of_port(shared).unwrap_or_default(), number)?;
            names.insert(device.name);
        }
        for gone in self.shown.difference(&names) {
            let aside = self.root.join(ASIDE).join(gone);
            fs::rename(self.root.join(DEVICES).join(gone), &aside)?;
            fs::remove_dir_all(aside)?;
        }
        self.shown = names;
        Ok(&self.shown)
    }

    /// Writes the files of a device: a new one's aside, because a program that looks at this moment must see all of them
    /// or none.
    fn show(&self, device: &NamedDevice, counters: Vec<(String, u64)>, number: usize) -> io::Result<()> {
        let (place, name) = (self.root.join(DEVICES).join(&device.name), &device.name);
        let is_new = !self.shown.contains(name);
        let folder = if is_new { self.root.join(ASIDE).join(name) } else { place.clone() };
        let view = View::elsewhere(device, GidLayout::default(), Box::new(|| counters));
        for (file, text) in content::files(&view, number, Wanted::All) {
            let below = Path::new(&file).strip_prefix("sys").and_then(|file| file.strip_prefix(DEVICES));
            if let Some(below) = below.ok().and_then(|file| file.strip_prefix(name).ok()) {
                write(&folder.join(below), &text)?;
            }
        }
        if is_new { fs::rename(folder, place) } else { Ok(()) }
    }

    /// Removes the files, and the folder if it contains nothing else.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove(self) -> io::Result<()> {
        remove_class(&self.root)?;
        fs::remove_file(self.root.join(MARK))?;
        match fs::remove_dir(&self.root) {
            Err(error) if error.kind() != ErrorKind::DirectoryNotEmpty => Err(error),
            _ => Ok(()),
        }
    }
}

/// The path of the devices.
const DEVICES: &str = "class/infiniband";

/// The path of devices that are not complete: they are being written or removed. No program looks there.
const ASIDE: &str = "class/.incomplete";

fn remove_class(root: &Path) -> io::Result<()> {
    match fs::remove_dir_all(root.join("class")) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A device that another program has open.
fn device(one: &Published, run_dir: &Path) -> NamedDevice {
    NamedDevice {
        name: format!("{}_{}", one.device, one.address),
        addresses: vec![HostAddress::from(one.address)],
        config: DeviceConfig::at(one.address),
        guid: node_guid(Some(one.address), one.pid, 0),
        run_dir: Some(run_dir.to_owned()),
    }
}
