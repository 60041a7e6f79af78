//! The boundary between C and Rust.
//!
//! What verbs promise of their arguments is what is relied on here: a pointer is NULL, or it points to what its type says
//! and stays so during the call; an object that verbs returned is passed on as it is until it is destroyed. NULL where
//! an object is needed is EINVAL.

use crate::errno::Errno;
use crate::explain::{self, type_name};
use std::ffi::{CStr, c_char, c_int};
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

/// Something that a function of the boundary takes.
pub(crate) trait Arg: Sized {
    /// As C passes it.
    type Raw: Copy;

    /// Makes it usable.
    ///
    /// # Safety
    /// `raw` is what the module documentation says.
    unsafe fn take(raw: Self::Raw) -> Result<Self, Errno>;

    /// What people call the object that it is, where it is one that they know.
    ///
    /// # Safety
    /// As [`take`](Self::take).
    unsafe fn subject(_raw: Self::Raw) -> Option<String> {
        None
    }
}

/// Something that a function of the boundary returns.
pub(crate) trait Reply: Sized {
    /// As C gets it.
    type Raw;

    /// Converts it.
    fn reply(result: Result<Self, Errno>) -> Self::Raw;
}

/// An object that programs hold through a pointer to a C structure inside it.
pub(crate) trait Object: Sized {
    /// The structure.
    type C;

    /// Where in the object it is.
    const OFFSET: usize = 0;

    /// What people call the object.
    fn name(&self) -> Option<String> {
        None
    }

    /// What programs hold.
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
    /// The pointer is NULL, or was [given](Self::give) to the program, which has not destroyed the object.
    unsafe fn of<'a>(raw: *mut Self::C) -> Option<&'a Self> {
        let object: *const Self = raw.wrapping_byte_sub(Self::OFFSET).cast();
        // SAFETY: as the caller says.
        if raw.is_null() { None } else { Some(unsafe { &*object }) }
    }
}

impl<T: Object> Arg for &T {
    type Raw = *mut T::C;

    unsafe fn take(raw: Self::Raw) -> Result<Self, Errno> {
        // SAFETY: as the caller says.
        unsafe { T::of(raw) }.ok_or_else(null::<T::C>)
    }

    unsafe fn subject(raw: Self::Raw) -> Option<String> {
        // SAFETY: as the caller says.
        unsafe { T::of(raw) }?.name()
    }
}

/// NULL was passed where a structure is needed.
fn null<T>() -> Errno {
    Errno::INVALID.because(format_args!("the pointer to {} is NULL", type_name::<T>()))
}

impl<T: Object> Arg for Option<&T> {
    type Raw = *mut T::C;

    unsafe fn take(raw: Self::Raw) -> Result<Self, Errno> {
        // SAFETY: as the caller says.
        Ok(unsafe { T::of(raw) })
    }
}

/// An object that the call may end.
pub(crate) struct Owned<T: Object>(NonNull<T>);

impl<T: Object> Owned<T> {
    /// Ends the object.
    pub(crate) fn free(self) {
        // SAFETY: it came from a box, and the program, which wants it destroyed, has no more use for it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<T: Object> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the object is there until it is freed.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Object> Arg for Owned<T> {
    type Raw = *mut T::C;

    unsafe fn take(raw: Self::Raw) -> Result<Self, Errno> {
        if raw.is_null() {
            return Err(null::<T::C>());
        }
        NonNull::new(raw.wrapping_byte_sub(T::OFFSET).cast()).map(Self).ok_or(Errno::INVALID)
    }

    unsafe fn subject(raw: Self::Raw) -> Option<String> {
        // SAFETY: as the caller says; a call that fails has not ended the object.
        unsafe { T::of(raw) }?.name()
    }
}

/// A structure of the program, to be read.
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

/// A structure of the program, to be read and written.
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

/// Room of the program for a result; it may hold nothing yet.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// Stores the result.
    pub(crate) fn put(&self, value: T) {
        // SAFETY: the program lends the room for the call.
        unsafe { self.0.write(value) };
    }

    /// The room so many bytes further on.
    pub(crate) fn offset(&self, bytes: usize) -> Self {
        // SAFETY: the program says that there is an array of them.
        Self(unsafe { self.0.byte_add(bytes) })
    }

    /// Stores as much of the result as the program has room for: programs may be older or newer than the structure. What
    /// they have beyond is 0.
    pub(crate) fn put_sized(&self, value: &T, room: usize) {
        let known = room.min(size_of::<T>());
        let bytes: *mut u8 = self.0.cast().as_ptr();
        // SAFETY: the program says that there is so much room.
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
        // SAFETY: it is a string of the program.
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

/// What a function returns that reports by an error number: 0, or the number. It is left in `errno` too.
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

/// What a function returns that reports by a pointer: NULL with `errno`, or the pointer.
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

/// What a function returns that reports by -1 with `errno`.
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

/// What a function returns that reports by a negative error number, or by how many there are.
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

/// What a function returns that cannot fail: the default if it is called with nothing.
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

/// Runs a verb. A panic in it is a bug of ours: it is reported, and ends here.
pub(crate) fn shield<R: Reply>(
    name: &'static str,
    subject: impl FnOnce() -> Option<String>,
    verb: impl FnOnce() -> Result<R, Errno>,
) -> R::Raw {
    explain::begin_call();
    let result = catch_unwind(AssertUnwindSafe(verb)).unwrap_or_else(|_| panicked(name));
    if let Err(errno) = &result {
        explain::failed(name, *errno, subject);
    }
    R::reply(result)
}

#[cold]
fn panicked<R>(name: &str) -> Result<R, Errno> {
    eprintln!("rnic: {name} failed because of a bug in rnic; its result is EIO");
    Err(Errno::IO)
}

/// Functions of the C interface. Their bodies get checked arguments, and return results.
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
            // A function of its own, behind which nothing unwinds: a cancelled thread ends outside of it.
            #[inline(never)]
            extern "C" fn inside(
                $($arg: <$ty as $crate::call::Arg>::Raw),*
            ) -> <$reply as $crate::call::Reply>::Raw {
                let subject = || {
                    // SAFETY: C passes what the module of the boundary relies on.
                    None$(.or_else(|| unsafe { <$ty as $crate::call::Arg>::subject($arg) }))*
                };
                $crate::call::shield(stringify!($name), subject, || {
                    $(
                        // SAFETY: C passes what the module of the boundary relies on.
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

/// The elements of an array of the program.
///
/// # Safety
/// There are so many, or the pointer is NULL, and they stay as they are during the call.
pub(crate) unsafe fn list<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if first.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts(first, count) }
}
