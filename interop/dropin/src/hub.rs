//! The devices of this process.
//!
//! A port has one socket, so all contexts of a device share the open device. The device stays open until all of its
//! contexts, and all objects made in them, are gone.

use crate::devices;
use crate::errno::Errno;
use crate::events::{Listener, Tables};
use crate::xrc::Shared;
use rnic::process::{GidLayout, HostAddress, NamedDevice, hold_forks, is_usable, resolve};
use rnic::{AddressVector, Device, GidEntry};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Takes a lock, even a poisoned one: a thread that panicked while it held the lock left no state half done that
/// matters.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An open device.
pub(crate) struct Hub {
    pub(crate) device: Device,
    pub(crate) named: &'static NamedDevice,
    layout: GidLayout,
    /// The process that opened the device: a child cannot use it.
    pid: u32,
    /// The objects and contexts that receive events.
    pub(crate) tables: Mutex<Tables>,
    pub(crate) listener: Mutex<Option<Listener>>,
    pub(crate) news: AtomicBool,
    /// The XRC domains that belong to files.
    pub(crate) xrcds: Mutex<Vec<Shared>>,
}

/// The open devices, by index.
static OPEN: Mutex<Vec<(usize, Weak<Hub>)>> = Mutex::new(Vec::new());

impl Hub {
    /// The device with this index; opens it if it is not open.
    pub(crate) fn open(index: usize) -> Result<Arc<Self>, Errno> {
        Self::open_near(index, &[])
    }

    /// As [`open`](Self::open). If the device may choose its address, it takes the first of `preferred` that is free.
    pub(crate) fn open_near(index: usize, preferred: &[HostAddress]) -> Result<Arc<Self>, Errno> {
        let named = devices::named(index).ok_or(Errno(libc::ENODEV))?;
        let _whole = hold_forks();
        let mut open = locked(&OPEN);
        open.retain(|(_, hub)| hub.strong_count() > 0);
        let ours =
            |(of, hub): &(usize, Weak<Self>)| hub.upgrade().filter(|hub| *of == index && hub.is_ours());
        if let Some(hub) = open.iter().find_map(ours) {
            return Ok(hub);
        }
        let device = named
            .open_near(preferred)
            .inspect_err(|error| eprintln!("rnic: cannot open {}: {error}", named.name))?;
        let hub = Arc::new(Self {
            device,
            named,
            layout: devices::layout(),
            pid: std::process::id(),
            tables: Mutex::default(),
            listener: Mutex::new(None),
            news: AtomicBool::new(false),
            xrcds: Mutex::default(),
        });
        open.push((index, Arc::downgrade(&hub)));
        drop(open);
        hub.listen();
        Ok(hub)
    }

    /// Whether this process opened the device. In a child, locks of its parent's device may be held by threads that do
    /// not exist there.
    pub(crate) fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// The GID table that programs see.
    pub(crate) fn gids(&self) -> Vec<GidEntry> {
        self.device.gid_table().first().map_or_else(Vec::new, |own| self.layout.table(own))
    }

    /// The number of entries in the GID table.
    pub(crate) fn gid_entries(&self) -> u32 {
        GidLayout::ENTRIES
    }

    /// The index of the GID table entry that is the port's address.
    pub(crate) fn address_index(&self) -> u32 {
        self.layout.address_index()
    }

    /// Translates a program's address vector for the device: the device's own table has one entry, and aliases stand
    /// for addresses.
    pub(crate) fn way(&self, way: AddressVector) -> Result<AddressVector, Errno> {
        if way.is_global {
            let entry = self.gids().into_iter().find(|entry| entry.index == u32::from(way.sgid_index));
            if !entry.is_some_and(|entry| is_usable(&entry)) {
                let (index, own) = (way.sgid_index, self.address_index());
                return Err(Errno::INVALID.because(format_args!(
                    "no RoCE v2 GID is at sgid_index {index} of the GID table; the device's address is at {own}; `--gid-table` lays it out as other drivers do"
                )));
            }
        }
        Ok(AddressVector { sgid_index: 0, dgid: resolve(way.dgid), ..way })
    }
}
