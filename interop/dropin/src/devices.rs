//! The list of devices.

use crate::abi::{IBV_NODE_CA, IBV_TRANSPORT_IB, VerbsDevice, ibv_device};
use crate::call::{Handle, Object, Out, Value, verbs};
use crate::errno::Errno;
use rnic::daemon::Desk;
use rnic::process::{GidLayout, NamedDevice, ProcessConfig, hold_forks};
use std::ffi::{c_char, c_int};
use std::path::PathBuf;
use std::ptr;
use std::sync::{Arc, OnceLock};

/// The configuration from the environment, read once: the devices of a process do not come and go.
static CONFIG: OnceLock<Option<ProcessConfig>> = OnceLock::new();

pub(crate) fn config() -> Option<&'static ProcessConfig> {
    if let Some(config) = CONFIG.get() {
        return config.as_ref();
    }
    let _whole = hold_forks();
    CONFIG
        .get_or_init(|| {
            let config =
                ProcessConfig::from_env().inspect_err(|error| eprintln!("rnic: no devices: {error}"));
            config.inspect(crate::explain::begin).ok()
        })
        .as_ref()
}

/// The desk at the daemon whose addresses the devices have, if one is found. Whether there is one is looked for once; a child
/// has a desk of its own.
pub(crate) fn desk() -> Option<Arc<Desk>> {
    static DAEMON: OnceLock<Option<PathBuf>> = OnceLock::new();
    let path = DAEMON.get().cloned().unwrap_or_else(|| {
        let _whole = hold_forks();
        // What is wrong with it is said when a device is opened.
        let find = || Desk::find().ok().flatten().map(|desk| desk.path().to_owned());
        DAEMON.get_or_init(find).clone()
    });
    path.map(|path| Desk::at(&path))
}

/// The device with this index.
pub(crate) fn named(index: usize) -> Option<&'static NamedDevice> {
    config()?.devices.get(index)
}

/// The layout of the GID tables.
pub(crate) fn layout() -> GidLayout {
    config().map_or_else(GidLayout::default, |config| config.gid_table)
}

/// The structures of the devices. They stay until the process ends: programs free the list while they have a device
/// open, and read the device's name afterwards.
struct Structures(Vec<VerbsDevice>);

// SAFETY: the structures never change, and the pointers in them are NULL.
unsafe impl Send for Structures {}
// SAFETY: as above.
unsafe impl Sync for Structures {}

static STRUCTURES: OnceLock<Structures> = OnceLock::new();

fn structures() -> &'static [VerbsDevice] {
    let made = || {
        let devices = config().map_or(&[][..], |config| &config.devices);
        Structures(devices.iter().enumerate().map(|(index, device)| structure(index, device)).collect())
    };
    let _whole = hold_forks();
    &STRUCTURES.get_or_init(made).0
}

fn structure(index: usize, device: &NamedDevice) -> VerbsDevice {
    // SAFETY: the structure consists of numbers and pointers, for which zero and NULL are valid.
    let mut verbs: VerbsDevice = unsafe { std::mem::zeroed() };
    verbs.device.node_type = IBV_NODE_CA;
    verbs.device.transport_type = IBV_TRANSPORT_IB;
    let name = &device.name;
    put(&mut verbs.device.name, name);
    put(&mut verbs.device.dev_name, &format!("uverbs{index}"));
    put(&mut verbs.device.dev_path, &format!("/sys/class/infiniband_verbs/uverbs{index}"));
    put(&mut verbs.device.ibdev_path, &format!("/sys/class/infiniband/{name}"));
    verbs.index = index;
    verbs
}

/// Stores a string, and always leaves room for the terminating NUL.
pub(crate) fn put(room: &mut [c_char], text: &str) {
    let Some(last) = room.len().checked_sub(1) else { return };
    room.fill(0);
    for (place, byte) in room.iter_mut().take(last).zip(text.bytes()) {
        *place = byte as c_char;
    }
}

impl Object for VerbsDevice {
    type C = ibv_device;

    fn device(&self) -> Option<rnic::Device> {
        None
    }
}

verbs! {
    fn ibv_get_device_list(count: Option<Out<c_int>>) -> Handle<*mut ibv_device> {
        let mut list: Vec<_> = structures().iter().map(Object::as_c).collect();
        if let Some(count) = count {
            count.put(c_int::try_from(list.len()).unwrap_or(c_int::MAX));
        }
        list.push(ptr::null_mut());
        // Some programs do more with the list than free it, so the list alone must show its length.
        let room = list.len() * size_of::<*mut ibv_device>();
        // SAFETY: `malloc` allocates the list, and `free` releases it.
        let copy: *mut *mut ibv_device = unsafe { libc::malloc(room) }.cast();
        if copy.is_null() {
            return Err(Errno::NO_MEMORY);
        }
        // SAFETY: the allocation has room for the list.
        unsafe { ptr::copy_nonoverlapping(list.as_ptr(), copy, list.len()) };
        Ok(Handle(copy))
    }

    fn ibv_free_device_list(list: *mut std::ffi::c_void) -> Value<()> {
        // SAFETY: the list was allocated above.
        unsafe { libc::free(list) };
        Ok(Value(()))
    }

    fn ibv_get_device_name(device: &VerbsDevice) -> Handle<c_char> {
        Ok(Handle(device.device.name.as_ptr().cast_mut()))
    }

    fn ibv_get_device_guid(device: &VerbsDevice) -> Value<u64> {
        Ok(Value(named(device.index).map_or(0, |named| u64::from_ne_bytes(named.guid))))
    }

    fn ibv_get_device_index(device: &VerbsDevice) -> Value<c_int> {
        Ok(Value(c_int::try_from(device.index).unwrap_or(-1)))
    }
}
