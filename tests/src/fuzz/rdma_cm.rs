//! Commands to the device of the connection manager, as programs write them, and as they do not.
//!
//! Each command has the size and the fields that it has in the kernel's interface, filled from the input; some are then made
//! right: an identifier that exists, an address of this host, room for the answer. So sequences reach deep, and any part
//! of them may be wrong. Pointers are right, or point to where there is no memory.

#![expect(unsafe_code, reason = "the device, as rnic-shim reaches it")]

use super::c_calls::two_devices;
use super::{byte, bytes};
use arbitrary::Unstructured;
use nix::errno::Errno;
use std::ffi::{c_int, c_long, c_void};
use std::time::Duration;

// As in `interop/shim/src/channel.rs`.
unsafe extern "C-unwind" {
    fn rnic_cm_open(flags: c_int) -> c_int;
    fn rnic_cm_write(file: c_int, from: *const c_void, len: usize, result: *mut c_long) -> c_int;
    fn rnic_cm_find(file: c_int) -> u64;
    fn rnic_cm_closed(channel: u64, file: c_int);
}

/// Where the parts of a command are.
struct Layout {
    size: usize,
    /// The pointer to memory of the program.
    pointer: Option<usize>,
    id: Option<usize>,
    /// Addresses, with the places of their sizes.
    addresses: &'static [(usize, Option<usize>)],
}

const fn layout(size: usize, pointer: Option<usize>, id: Option<usize>) -> Layout {
    Layout { size, pointer, id, addresses: &[] }
}

/// The commands, by their numbers. The last two numbers are not commands.
const COMMANDS: [Layout; 27] = [
    layout(24, Some(8), None),
    layout(16, Some(0), Some(8)),
    Layout { addresses: &[(8, None)], ..layout(40, Some(0), Some(36)) },
    Layout { addresses: &[(0, None), (28, None)], ..layout(64, None, Some(56)) },
    layout(8, None, Some(0)),
    layout(16, Some(0), Some(8)),
    layout(288, None, Some(272)),
    layout(8, None, Some(0)),
    layout(296, None, Some(280)),
    layout(264, None, Some(0)),
    layout(4, None, Some(0)),
    layout(16, Some(0), Some(8)),
    layout(8, Some(0), None),
    layout(16, Some(0), Some(8)),
    layout(24, Some(0), Some(8)),
    layout(8, None, Some(0)),
    Layout { addresses: &[(16, None)], ..layout(48, Some(0), Some(44)) },
    layout(16, Some(0), Some(8)),
    layout(16, Some(0), Some(8)),
    layout(16, Some(0), Some(8)),
    Layout { addresses: &[(8, Some(4))], ..layout(136, None, Some(0)) },
    Layout { addresses: &[(16, Some(8)), (144, Some(10))], ..layout(272, None, Some(0)) },
    Layout { addresses: &[(24, Some(20))], ..layout(152, Some(0), Some(16)) },
    layout(16, Some(0), Some(8)),
    layout(24, None, Some(0)),
    layout(16, Some(0), Some(8)),
    layout(0, None, None),
];

const GET_EVENT: usize = 12;
const MIGRATE: usize = 18;

/// Commands of a program.
const CALLS: usize = 80;

/// What the device may answer. EIO, which means that there was a panic, is not among them.
const ERRORS: [Errno; 15] = [
    Errno::EINVAL,
    Errno::ENOENT,
    Errno::ENOSYS,
    Errno::ENOSPC,
    Errno::EFAULT,
    Errno::EAGAIN,
    Errno::EADDRINUSE,
    Errno::EADDRNOTAVAIL,
    Errno::EACCES,
    Errno::ENODEV,
    Errno::ENOMEM,
    Errno::EISCONN,
    Errno::EPROTONOSUPPORT,
    Errno::ENETUNREACH,
    Errno::UnknownErrno,
];

/// A program with two channels.
struct Program {
    channels: [c_int; 2],
    /// Identifiers that the device has named, and one that it has not.
    ids: Vec<u32>,
    answer: Box<[u8; 512]>,
}

impl Program {
    fn new() -> Self {
        // SAFETY: any flags may be passed.
        let open = || unsafe { rnic_cm_open(libc::O_NONBLOCK | libc::O_CLOEXEC) };
        let channels = [open(), open()];
        assert!(channels.iter().all(|fd| *fd >= 0), "no channel: {}", Errno::last());
        Self { channels, ids: vec![u32::MAX], answer: Box::new([0; 512]) }
    }

    /// Writes a command.
    fn command(&mut self, input: &mut Unstructured<'_>) {
        let [selection, right, which] = [byte(input), byte(input), byte(input)];
        let number = usize::from(selection & 0x3f) % COMMANDS.len();
        let layout = &COMMANDS[number];
        let channel = self.channels[usize::from(selection >> 7)];
        let mut payload = vec![0; layout.size];
        let len = usize::from(byte(input)) % 64;
        let given = bytes(input, len);
        let at = usize::from(which >> 2) * layout.size / 64;
        payload.iter_mut().skip(at).zip(given).for_each(|(to, from)| *to = *from);
        let mut put = |at: usize, bytes: &[u8]| {
            payload.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
        };
        if let Some(at) = layout.pointer {
            let nowhere = [0, 8, u64::MAX - 4096];
            let wrong = nowhere[usize::from(which) % nowhere.len()];
            let answer = if right & 1 == 0 { self.answer.as_mut_ptr() as u64 } else { wrong };
            put(at, &answer.to_ne_bytes());
        }
        if let (Some(at), false) = (layout.id, right & 2 != 0) {
            put(at, &self.ids[usize::from(which) % self.ids.len()].to_ne_bytes());
        }
        for (index, (at, size)) in layout.addresses.iter().enumerate() {
            if right & 4 << index == 0 {
                let (port, host) = (7471 + u16::from(which & 1), which >> 1 & 3);
                let family = u16::try_from(libc::AF_INET).expect("a small number").to_ne_bytes();
                let [high, low] = port.to_be_bytes();
                put(*at, &[family[0], family[1], high, low, 127 * u8::from(host > 0), 0, 0, host.min(1)]);
                size.iter().for_each(|at| put(*at, &16u16.to_ne_bytes()));
            }
        }
        // A connection's parameters count only if they are marked as valid.
        if matches!(number, 6 | 8) && right & 16 == 0 {
            // The byte before the identifier.
            put(layout.id.map_or(0, |at| at - 1), &[1]);
        }
        if number == MIGRATE {
            let other = self.channels[usize::from(which & 1)];
            put(12, &other.to_ne_bytes());
        }
        let room = if right & 32 == 0 { 512 } else { u16::from(which) };
        let cut = if right & 64 == 0 { 0 } else { usize::from(which) % (payload.len() + 9) };
        self.write(channel, number, &payload, room, cut);
    }

    /// Writes a command whose last `cut` bytes are missing.
    fn write(&mut self, channel: c_int, number: usize, payload: &[u8], room: u16, cut: usize) {
        let mut text = u32::try_from(number).expect("small").to_ne_bytes().to_vec();
        text.extend(u16::try_from(payload.len()).expect("small").to_ne_bytes());
        text.extend(room.to_ne_bytes());
        text.extend(payload);
        text.truncate(text.len() - cut.min(text.len()));
        let mut result = 0;
        self.answer.fill(0);
        // SAFETY: the command is ours, and what it points to is room for any answer, or no memory.
        let taken = unsafe { rnic_cm_write(channel, text.as_ptr().cast(), text.len(), &raw mut result) };
        assert_eq!(taken, 1, "the descriptor is that of a channel");
        if result < 0 {
            let errno = Errno::last();
            assert!(ERRORS.contains(&errno), "command {number}: {errno}");
            return;
        }
        assert_eq!(usize::try_from(result), Ok(text.len()));
        let word = |at: usize| u32::from_ne_bytes(self.answer[at..at + 4].try_into().expect("four bytes"));
        match number {
            0 | 16 | 22 => self.ids.push(word(0)),
            GET_EVENT => {
                assert!(word(12) <= 19, "event {}", word(12));
                self.ids.push(word(8));
            }
            _ => {}
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        for fd in self.channels {
            // SAFETY: the descriptor is ours, and not used any more.
            unsafe {
                let channel = rnic_cm_find(fd);
                libc::close(fd);
                rnic_cm_closed(channel, fd);
                assert!(channel != 0 && rnic_cm_find(fd) != channel);
            }
        }
    }
}

/// Writes any commands to two channels, and closes them.
///
/// # Panics
///
/// Panics if the device answers with an error that the kernel's does not have, among them EIO, which would indicate a
/// panic inside the library.
pub fn rdma_cm(data: &[u8]) {
    two_devices();
    let mut input = Unstructured::new(data);
    let mut program = Program::new();
    for _ in 0..CALLS {
        if input.is_empty() {
            break;
        }
        match byte(&mut input) {
            // Time for what the other side has to hear.
            255 => std::thread::sleep(Duration::from_millis(1)),
            _ => program.command(&mut input),
        }
    }
}
