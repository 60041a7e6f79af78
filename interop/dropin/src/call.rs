//! The boundary between C and Rust.
//!
//! This module relies on what verbs promise of their arguments. A pointer is NULL, or it points to a value of its type
//! and stays valid during the call. The program passes an object that verbs returned on unchanged until it destroys the
//! object. NULL where an object is needed is EINVAL.

use crate::errno::Errno;
use crate::explain::{self, type_name};
use rnic::Device;
use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

/// An argument of a function of the boundary.
pub(crate) trait Arg: Sized {
    /// The type that C passes.
    type Raw: Copy;

    /// Converts the argument to its Rust form.
    ///
    /// # Safety
    /// `raw` satisfies the contract in the module documentation.
    unsafe fn take(raw: Self::Raw) -> Result<Self, Errno>;

    /// The name under which users know the object, if it has one.
    ///
    /// # Safety
    /// As [`take`](Self::take).
    unsafe fn subject(_raw: Self::Raw) -> Option<String> {
        None
    }

    /// Whether the call may destroy the object.
    const MAY_GO: bool = false;

    /// The open device that the object belongs to.
    ///
    /// # Safety
    /// As [`take`](Self::take); the call has not destroyed the object.
    unsafe fn device(_raw: Self::Raw) -> Option<Device> {
        None
    }
}

/// A result of a function of the boundary.
pub(crate) trait Reply: Sized {
    /// The type that C receives.
    type Raw;

    /// Converts it.
    fn reply(result: Result<Self, Errno>) -> Self::Raw;
}

/// An object that programs hold through a pointer to a C structure inside it.
pub(crate) trait Object: Sized {
    /// The C structure.
    type C;

    /// The offset of the structure in the object.
    const OFFSET: usize = 0;

    /// The name under which users know the object.
    fn name(&self) -> Option<String> {
        None
    }

    /// The open device that it belongs to.
    fn device(&self) -> Option<Device>;

    /// The `handle` that the program got in the structure, and the one that is there now. A kernel destroys what the handle
    /// says.
    fn handles(&self) -> (u32, u32) {
        (0, 0)
    }

    /// The pointer that programs hold.
    fn as_c(&self) -> *mut Self::C {
        ptr::from_ref(self).cast_mut().wrapping_byte_add(Self::OFFSET).cast()
    }

    /// Hands the object to the program.
    fn give(self: Box<Self>) -> Handle<Self::C> {
        Handle(Box::into_raw(self).wrapping_byte_add(Self::OFFSET).cast())
    }

    /// The object that a program holds; `None` for NULL.
    ///
    /// # Safety
    /// The pointer is NULL, or it was [given](Self::give) to the program, and the program has not destroyed the object.
    unsafe fn of<'a>(raw: *mut Self::C) -> Option<&'a Self> {
        let object: *const Self = raw.wrapping_byte_sub(Self::OFFSET).cast();
        // SAFETY: guaranteed by the caller.
        if raw.is_null() { None } else { Some(unsafe { &*object }) }
    }
}

impl<T: Object> Arg for &T {
    type Raw = *mut T::C;

    unsafe fn take(raw: Self::Raw) -> Result<Self, Errno> {
        // SAFETY: guaranteed by the caller.
        unsafe { T::of(raw) }.ok_or_else(null::<T::C>)
    }

    unsafe fn subject(raw: Self::Raw) -> Option<String> {
        // SAFETY: guaranteed by the caller.
        unsafe { T::of(raw) }?.name()
    }

    unsafe fn device(raw: Self::Raw) -> Option<Device> {
        // SAFETY: guaranteed by the caller.
        unsafe { T::of(raw) }?.device()
    }
}

/// NULL was passed where a structure is needed.
fn null<T>() -> Errno {
    Errno::INVALID.because(format_args!("the pointer to {} is NULL", type_name::<T>()))
}

impl<T: Object> Arg for Option<&T> {
    type Raw = *mut T::C;

    unsafe fn take(raw: Self::Raw) -> Result<Self, Errno> {
        // SAFETY: guaranteed by the caller.
        Ok(unsafe { T::of(raw) })
    }
}

/// An object that the call may destroy.
pub(crate) struct Owned<T: Object>(NonNull<T>);

impl<T: Object> Owned<T> {
    /// Destroys the object.
    pub(crate) fn free(self) {
        // SAFETY: the pointer came from a box, and the program destroys the object, so it has no more use for it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<T: Object> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the object exists until it is freed.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Object> Arg for Owned<T> {
    type Raw = *mut T::C;

    unsafe fn take(raw: Self::Raw) -> Result<Self, Errno> {
        if raw.is_null() {
            return Err(null::<T::C>());
        }
        let object = NonNull::new(raw.wrapping_byte_sub(T::OFFSET).cast::<T>()).ok_or(Errno::INVALID)?;
        // SAFETY: guaranteed by the caller.
        match unsafe { object.as_ref() }.handles() {
            (given, found) if given != found => Err(Errno::NOT_FOUND.because(format_args!(
                "the handle in {} is {found}, and the object has {given}",
                type_name::<T::C>()
            ))),
            _ => Ok(Self(object)),
        }
    }

    unsafe fn subject(raw: Self::Raw) -> Option<String> {
        // SAFETY: guaranteed by the caller; a call that fails has not destroyed the object.
        unsafe { T::of(raw) }?.name()
    }

    const MAY_GO: bool = true;

    unsafe fn device(raw: Self::Raw) -> Option<Device> {
        // SAFETY: guaranteed by the caller.
        unsafe { T::of(raw) }?.device()
    }
}

/// A structure of the program that the call reads.
pub(crate) struct In<'a, T>(&'a T);

impl<T> Deref for In<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

impl<T> Arg for Option<In<'_, T>> {
    type Raw = *const T;

    unsafe fn take(raw: Self::Raw) -> Result<Self, Errno> {
        // SAFETY: it points to a structure of the program, which lends it for the call.
        Ok(unsafe { raw.as_ref() }.map(In))
    }
}

/// A structure of the program that the call reads and writes.
pub(crate) struct InOut<'a, T>(&'a mut T);

impl<T> Deref for InOut<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

impl<T> DerefMut for InOut<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0
    }
}

impl<T> Arg for Option<InOut<'_, T>> {
    type Raw = *mut T;

    unsafe fn take(raw: Self::Raw) -> Result<Self, Errno> {
        // SAFETY: it points to a structure of the program, which lends it for the call.
        Ok(unsafe { raw.as_mut() }.map(InOut))
    }
}

impl<T> Arg for InOut<'_, T> {
    type Raw = *mut T;

    unsafe fn take(raw: Self::Raw) -> Result<Self, Errno> {
        // SAFETY: it points to a structure of the program, which lends it for the call.
        unsafe { raw.as_mut() }.map(Self).ok_or_else(null::<T>)
    }
}

/// Space that the program provides for a result; it may be uninitialized.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// Stores the result.
    pub(crate) fn put(&self, value: T) {
        // SAFETY: the program lends the space for the call.
        unsafe { self.0.write(value) };
    }

    /// The space `bytes` further on.
    pub(crate) fn offset(&self, bytes: usize) -> Self {
        // SAFETY: the program guarantees that the space is an array.
        Self(unsafe { self.0.byte_add(bytes) })
    }

    /// Stores as much of the result as the program has room for: the program may be older or newer than the structure.
    /// Any space beyond the structure is set to 0.
    pub(crate) fn put_sized(&self, value: &T, room: usize) {
        let known = room.min(size_of::<T>());
        let bytes: *mut u8 = self.0.cast().as_ptr();
        // SAFETY: the program guarantees `room` bytes.
        unsafe {
            ptr::write_bytes(bytes, 0, room);
            ptr::copy_nonoverlapping(ptr::from_ref(value).cast(), bytes, known);
        }
    }
}

impl<T> Arg for Out<T> {
    type Raw = *mut T;

    unsafe fn take(raw: Self::Raw) -> Result<Self, Errno> {
        NonNull::new(raw).map(Self).ok_or_else(null::<T>)
    }
}

impl<T> Arg for Option<Out<T>> {
    type Raw = *mut T;

    unsafe fn take(raw: Self::Raw) -> Result<Self, Errno> {
        Ok(NonNull::new(raw).map(Out))
    }
}

impl Arg for &CStr {
    type Raw = *const c_char;

    unsafe fn take(raw: Self::Raw) -> Result<Self, Errno> {
        if raw.is_null() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the program passes a string.
        Ok(unsafe { CStr::from_ptr(raw) })
    }
}

macro_rules! plain {
    ($($ty:ty),*) => {$(
        impl Arg for $ty {
            type Raw = Self;

            unsafe fn take(raw: Self) -> Result<Self, Errno> {
                Ok(raw)
            }
        }
    )*};
}

plain!(u8, u16, u32, i32, u64, usize);

impl<T> Arg for *mut T {
    type Raw = Self;

    unsafe fn take(raw: Self) -> Result<Self, Errno> {
        Ok(raw)
    }
}

impl<T> Arg for *const T {
    type Raw = Self;

    unsafe fn take(raw: Self) -> Result<Self, Errno> {
        Ok(raw)
    }
}

/// The result of a function that reports by an error number: 0, or the number, which is stored in `errno` too.
impl Reply for () {
    type Raw = c_int;

    fn reply(result: Result<Self, Errno>) -> c_int {
        result.map_or_else(
            |errno| {
                errno.set();
                errno.0
            },
            |()| 0,
        )
    }
}

/// The result of a function that reports by a pointer: the pointer, or NULL with `errno` set.
pub(crate) struct Handle<T>(pub(crate) *mut T);

impl<T> Reply for Handle<T> {
    type Raw = *mut T;

    fn reply(result: Result<Self, Errno>) -> *mut T {
        result.map_or_else(
            |errno| {
                errno.set();
                ptr::null_mut()
            },
            |handle| handle.0,
        )
    }
}

/// The result of a function that reports by -1 with `errno` set.
pub(crate) struct Status(pub(crate) c_int);

impl Status {
    pub(crate) const OK: Self = Self(0);
}

impl Reply for Status {
    type Raw = c_int;

    fn reply(result: Result<Self, Errno>) -> c_int {
        result.map_or_else(
            |errno| {
                errno.set();
                -1
            },
            |status| status.0,
        )
    }
}

/// The result of a function that reports by a count, or by a negative error number.
pub(crate) struct Count(pub(crate) isize);

impl Reply for Count {
    type Raw = isize;

    fn reply(result: Result<Self, Errno>) -> isize {
        result.map_or_else(
            |errno| {
                errno.set();
                -(errno.0 as isize)
            },
            |count| count.0,
        )
    }
}

/// The result of a function that cannot fail: the default value if a required object is NULL.
pub(crate) struct Value<T>(pub(crate) T);

impl<T: Default> Reply for Value<T> {
    type Raw = T;

    fn reply(result: Result<Self, Errno>) -> T {
        result.map_or_else(
            |errno| {
                errno.set();
                T::default()
            },
            |value| value.0,
        )
    }
}

/// Runs a verb. A panic in the verb is a bug of rnic: it does not unwind further, and the device that the call belongs
/// to fails, because the panic may have left it half changed. `may_go`: whether the verb may destroy the object by which
/// `device` finds the device.
pub(crate) fn shield<R: Reply>(
    name: &'static str,
    subject: impl FnOnce() -> Option<String>,
    device: impl Fn() -> Option<Device>,
    may_go: bool,
    verb: impl FnOnce() -> Result<R, Errno>,
) -> R::Raw {
    explain::begin_call();
    let before = if may_go { device() } else { None };
    let Ok(result) = catch_unwind(AssertUnwindSafe(verb)) else {
        let device = if may_go { before } else { device() };
        return R::reply(Err(panicked(name, device)));
    };
    if let Err(errno) = &result {
        explain::failed(name, *errno, subject);
    }
    R::reply(result)
}

#[cold]
fn panicked(name: &str, device: Option<Device>) -> Errno {
    match device {
        Some(device) => {
            eprintln!(
                "rnic: {name} hit a bug in rnic: {} has failed, and its calls return EIO from now on",
                device.name()
            );
            // A second panic changes nothing: the device has failed before it.
            let _ = catch_unwind(AssertUnwindSafe(|| device.fail_after_panic()));
        }
        None => eprintln!("rnic: {name} failed because of a bug in rnic; its result is EIO"),
    }
    Errno::IO
}

/// Defines functions of the C interface. Their bodies receive checked arguments and return results.
macro_rules! verbs {
    ($(
        $(#[$meta:meta])*
        fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $reply:ty $body:block
    )*) => {$(
        $(#[$meta])*
        pub(crate) unsafe extern "C-unwind" fn $name(
            $($arg: <$ty as $crate::call::Arg>::Raw),*
        ) -> <$reply as $crate::call::Reply>::Raw {
            fn body($($arg: $ty),*) -> Result<$reply, $crate::errno::Errno> $body
            // A separate function that nothing unwinds through: a cancelled thread ends outside of it.
            #[inline(never)]
            extern "C" fn inside(
                $($arg: <$ty as $crate::call::Arg>::Raw),*
            ) -> <$reply as $crate::call::Reply>::Raw {
                let subject = || {
                    // SAFETY: C callers keep the contract of the boundary module.
                    None$(.or_else(|| unsafe { <$ty as $crate::call::Arg>::subject($arg) }))*
                };
                let device = || {
                    // SAFETY: as above.
                    None$(.or_else(|| unsafe { <$ty as $crate::call::Arg>::device($arg) }))*
                };
                let may_go = false $(|| <$ty as $crate::call::Arg>::MAY_GO)*;
                $crate::call::shield(stringify!($name), subject, device, may_go, || {
                    $(
                        // SAFETY: C callers keep the contract of the boundary module.
                        let $arg = unsafe { <$ty as $crate::call::Arg>::take($arg) }?;
                    )*
                    body($($arg),*)
                })
            }
            let before = $crate::cancel::disable();
            let result = inside($($arg),*);
            $crate::cancel::restore(before);
            result
        }
    )*};
}
pub(crate) use verbs;

/// An array of the program. Its elements are read one by one, wherever they lie: programs keep them in packed structures
/// (libiscsi does), and on most processors nobody notices.
pub(crate) struct List<'a, T> {
    first: *const T,
    count: usize,
    _program: PhantomData<&'a T>,
}

impl<T> Clone for List<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for List<'_, T> {}

impl<'a, T: Copy + 'a> List<'a, T> {
    pub(crate) const fn len(self) -> usize {
        self.count
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = T> + Clone + 'a {
        // SAFETY: whoever made the list guarantees its elements.
        (0..self.count).map(move |at| unsafe { self.first.add(at).read_unaligned() })
    }
}

/// The elements of an array of the program.
///
/// # Safety
/// The pointer is NULL, or the array has `count` elements, which stay unchanged during the call.
pub(crate) const unsafe fn list<'a, T>(first: *const T, count: usize) -> List<'a, T> {
    List { first, count: if first.is_null() { 0 } else { count }, _program: PhantomData }
}

/// Bytes of the program.
///
/// # Safety
/// As for [`list`].
pub(crate) const unsafe fn bytes<'a>(first: *const u8, length: usize) -> &'a [u8] {
    if first.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts(first, length) }
}
