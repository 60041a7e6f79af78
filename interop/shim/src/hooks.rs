//! Hooks for the calls of the C library that take a path.
//!
//! Each hook passes its arguments on unchanged, except for the path. A variadic call is declared with the argument that
//! may follow: reading an argument that was not passed gives a number that is never used.

use crate::channel;
use crate::next::{Missing, next};
use crate::path::{is_led, resolved, with_led};
use crate::reread::{opened, refresh};
use std::ffi::{c_char, c_int, c_long, c_void};

type Path = *const c_char;
type Ptr = *mut c_void;
/// `mode_t`, which is passed as an `unsigned int`.
type Mode = u32;

macro_rules! hooks {
    ($(
        $name:ident($($argument:ident: $type:ty),*), $path:ident -> $result:ty
            $(, $seen:ident $(, $flags:ident)?)?;
    )*) => { $(
        #[doc = concat!("`", stringify!($name), "` of the C library.")]
        ///
        /// # Safety
        /// As for the function of the C library.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            let next = next!($name: unsafe extern "C-unwind" fn($($type),*) -> $result, <$result>::MISSING);
            // SAFETY: the function of the C library requires a string as well.
            if unsafe { is_led($path) } {
                $($(
                    // SAFETY: as above.
                    if let Some(file) = unsafe { channel::opened($path, $flags) } {
                        return file;
                    }
                )?)?
                // SAFETY: the path is a string, and the other arguments are the caller's.
                let result = unsafe { with_led($path, |$path| next($($argument),*)) };
                $($seen(result);)?
                return result;
            }
            // SAFETY: the caller's arguments are passed on unchanged.
            unsafe { next($($argument),*) }
        }
    )* };
}

/// `read` and similar calls of the C library: a redirected file shows its current content, as the kernel's file does.
macro_rules! reads {
    ($($name:ident($file:ident: c_int $(, $argument:ident: $type:ty)*), $at:expr;)*) => { $(
        #[doc = concat!("`", stringify!($name), "` of the C library.")]
        ///
        /// # Safety
        /// As for the function of the C library.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($file: c_int $(, $argument: $type)*) -> c_long {
            let next = next!($name: unsafe extern "C-unwind" fn(c_int $(, $type)*) -> c_long, -1);
            refresh($file, $at);
            // SAFETY: the caller's arguments are passed on unchanged.
            unsafe { next($file $(, $argument)*) }
        }
    )* };
}

reads! {
    read(file: c_int, to: Ptr, room: usize), None;
    __read_chk(file: c_int, to: Ptr, room: usize, len: usize), None;
    pread(file: c_int, to: Ptr, room: usize, at: i64), Some(at);
    __pread_chk(file: c_int, to: Ptr, room: usize, at: i64, len: usize), Some(at);
    pread64(file: c_int, to: Ptr, room: usize, at: i64), Some(at);
    __pread64_chk(file: c_int, to: Ptr, room: usize, at: i64, len: usize), Some(at);
}

hooks! {
    open(path: Path, flags: c_int, mode: Mode), path -> c_int, opened, flags;
    open64(path: Path, flags: c_int, mode: Mode), path -> c_int, opened, flags;
    openat(dir: c_int, path: Path, flags: c_int, mode: Mode), path -> c_int, opened, flags;
    openat64(dir: c_int, path: Path, flags: c_int, mode: Mode), path -> c_int, opened, flags;
    __open(path: Path, flags: c_int, mode: Mode), path -> c_int, opened, flags;
    __open64(path: Path, flags: c_int, mode: Mode), path -> c_int, opened, flags;
    __open_2(path: Path, flags: c_int), path -> c_int, opened, flags;
    __open64_2(path: Path, flags: c_int), path -> c_int, opened, flags;
    __openat_2(dir: c_int, path: Path, flags: c_int), path -> c_int, opened, flags;
    __openat64_2(dir: c_int, path: Path, flags: c_int), path -> c_int, opened, flags;
    fopen(path: Path, mode: Path), path -> Ptr;
    fopen64(path: Path, mode: Path), path -> Ptr;
    freopen(path: Path, mode: Path, stream: Ptr), path -> Ptr;
    freopen64(path: Path, mode: Path, stream: Ptr), path -> Ptr;
    opendir(path: Path), path -> Ptr;
    scandir(path: Path, list: Ptr, filter: Ptr, compare: Ptr), path -> c_int;
    scandir64(path: Path, list: Ptr, filter: Ptr, compare: Ptr), path -> c_int;
    scandirat(dir: c_int, path: Path, list: Ptr, filter: Ptr, compare: Ptr), path -> c_int;
    scandirat64(dir: c_int, path: Path, list: Ptr, filter: Ptr, compare: Ptr), path -> c_int;
    access(path: Path, mode: c_int), path -> c_int;
    eaccess(path: Path, mode: c_int), path -> c_int;
    euidaccess(path: Path, mode: c_int), path -> c_int;
    faccessat(dir: c_int, path: Path, mode: c_int, flags: c_int), path -> c_int;
    stat(path: Path, status: Ptr), path -> c_int;
    stat64(path: Path, status: Ptr), path -> c_int;
    lstat(path: Path, status: Ptr), path -> c_int;
    lstat64(path: Path, status: Ptr), path -> c_int;
    fstatat(dir: c_int, path: Path, status: Ptr, flags: c_int), path -> c_int;
    fstatat64(dir: c_int, path: Path, status: Ptr, flags: c_int), path -> c_int;
    __xstat(version: c_int, path: Path, status: Ptr), path -> c_int;
    __xstat64(version: c_int, path: Path, status: Ptr), path -> c_int;
    __lxstat(version: c_int, path: Path, status: Ptr), path -> c_int;
    __lxstat64(version: c_int, path: Path, status: Ptr), path -> c_int;
    __fxstatat(version: c_int, dir: c_int, path: Path, status: Ptr, flags: c_int), path -> c_int;
    __fxstatat64(version: c_int, dir: c_int, path: Path, status: Ptr, flags: c_int), path -> c_int;
    statx(dir: c_int, path: Path, flags: c_int, mask: u32, status: Ptr), path -> c_int;
    readlink(path: Path, to: Ptr, room: usize), path -> c_long;
    readlinkat(dir: c_int, path: Path, to: Ptr, room: usize), path -> c_long;
    __readlink_chk(path: Path, to: Ptr, len: usize, room: usize), path -> c_long;
    __readlinkat_chk(dir: c_int, path: Path, to: Ptr, len: usize, room: usize), path -> c_long;
    realpath(path: Path, to: Ptr), path -> Ptr, resolved;
    __realpath_chk(path: Path, to: Ptr, room: usize), path -> Ptr, resolved;
    canonicalize_file_name(path: Path), path -> Ptr, resolved;
    chdir(path: Path), path -> c_int;
    getxattr(path: Path, name: Path, value: Ptr, room: usize), path -> c_long;
    lgetxattr(path: Path, name: Path, value: Ptr, room: usize), path -> c_long;
    listxattr(path: Path, list: Ptr, room: usize), path -> c_long;
    llistxattr(path: Path, list: Ptr, room: usize), path -> c_long;
    statfs(path: Path, status: Ptr), path -> c_int;
    statfs64(path: Path, status: Ptr), path -> c_int;
    statvfs(path: Path, status: Ptr), path -> c_int;
    statvfs64(path: Path, status: Ptr), path -> c_int;
    ftw(path: Path, visit: Ptr, descriptors: c_int), path -> c_int;
    ftw64(path: Path, visit: Ptr, descriptors: c_int), path -> c_int;
    nftw(path: Path, visit: Ptr, descriptors: c_int, flags: c_int), path -> c_int;
    nftw64(path: Path, visit: Ptr, descriptors: c_int, flags: c_int), path -> c_int;
}
