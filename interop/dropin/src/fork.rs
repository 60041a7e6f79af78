//! Support for programs that fork.
//!
//! Memory is not pinned, so a child that writes to it does not disturb the parent. There is nothing to prepare and
//! nothing to request. A child cannot use its parent's objects; it opens devices of its own.

use crate::abi::IBV_FORK_UNNEEDED;
use crate::call::{Value, verbs};
use std::ffi::{c_int, c_uint, c_void};

verbs! {
    fn ibv_fork_init() -> () {
        Ok(())
    }

    fn ibv_is_fork_initialized() -> Value<c_uint> {
        Ok(Value(IBV_FORK_UNNEEDED))
    }

    fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> Value<c_int> {
        Ok(Value(0))
    }

    fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> Value<c_int> {
        Ok(Value(0))
    }
}
