//! Table-driven layouts: each field is declared once, with its place, and reading, writing and listing derive from
//! that.

use super::codes::{CmTimeout, MtuCode};
use super::service::ServiceId;
use crate::ids::{Gid, PKey, Psn, QKey, Qpn};
use std::net::IpAddr;

/// The place of a field in a layout, as the tables of the specification give it.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Byte in which the field starts.
    byte: usize,
    /// Bit of that byte in which the field starts; 0 is the most significant one.
    bit: usize,
    /// Number of bits.
    width: usize,
}

impl Place {
    pub(super) const fn new(byte: usize, bit: usize, width: usize) -> Self {
        Self { byte, bit, width }
    }

    /// Byte in which the field starts.
    pub(super) const fn start(self) -> usize {
        self.byte
    }

    /// The same place in a layout that starts `bytes` bytes later.
    pub(super) const fn moved(self, bytes: usize) -> Self {
        Self { byte: self.byte + bytes, ..self }
    }

    /// The byte after the last one.
    const fn end(self) -> usize {
        self.byte + (self.bit + self.width).div_ceil(8)
    }

    /// Number of bits in the last byte after the field.
    const fn tail(self) -> usize {
        (self.end() - self.byte) * 8 - self.bit - self.width
    }

    /// A mask of `width` ones, at most 128.
    const fn mask(self) -> u128 {
        u128::MAX >> (128 - self.width)
    }

    /// The number at this place; 0 outside of `bytes`.
    pub(super) fn get(self, bytes: &[u8]) -> u128 {
        let window = bytes.get(self.byte..self.end()).unwrap_or(&[]);
        let number = window.iter().fold(0u128, |number, &byte| number << 8 | u128::from(byte));
        number >> self.tail() & self.mask()
    }

    /// Writes the number, truncated to the width of the place, which must hold zeros. Does nothing outside of
    /// `bytes`.
    pub(super) fn put(self, bytes: &mut [u8], number: u128) {
        let mut rest = (number & self.mask()) << self.tail();
        for byte in bytes.get_mut(self.byte..self.end()).unwrap_or(&mut []).iter_mut().rev() {
            *byte |= rest as u8;
            rest >>= 8;
        }
    }
}

/// A type that can be stored at a place.
pub(super) trait Field: Sized {
    fn get(bytes: &[u8], place: Place) -> Self;
    fn put(&self, bytes: &mut [u8], place: Place);
    fn show(&self) -> Value<'_>;
}

/// The value of a field, for display.
#[derive(Clone, Copy)]
pub enum Value<'v> {
    /// A quantity.
    Number(u64),
    /// An identifier.
    Hex {
        /// The number.
        value: u64,
        /// Number of hexadecimal digits.
        digits: usize,
    },
    /// A flag.
    Flag(bool),
    /// An enumerated code.
    Code {
        /// The number.
        code: u16,
        /// The name in lower case; `None` if the code is reserved.
        name: Option<&'static str>,
        /// The meaning in one sentence, if there is one.
        meaning: Option<&'static str>,
    },
    /// A path MTU.
    Mtu(MtuCode),
    /// A duration.
    Time(CmTimeout),
    /// A service ID.
    Service(ServiceId),
    /// A port address.
    Gid(Gid),
    /// An IP address.
    Ip(IpAddr),
    /// Bytes.
    Bytes(&'v [u8]),
    /// A list of quantities.
    Numbers(&'v [u16]),
    /// Nested fields.
    Group(&'v dyn Fields),
}

/// A type that consists of named fields.
pub trait Fields {
    /// Visits each field in wire order.
    fn each(&self, visit: &mut dyn FnMut(&'static str, Value<'_>));
}

/// Implements [`Field`] for a type: conversion from a number, to a number, and to a display value.
macro_rules! field {
    ($type:ty, $number:ident => $get:expr, $this:ident => $put:expr, $value:expr) => {
        impl $crate::wire::mad::fields::Field for $type {
            fn get(bytes: &[u8], place: $crate::wire::mad::fields::Place) -> Self {
                let $number = place.get(bytes);
                $get
            }

            fn put(&self, bytes: &mut [u8], place: $crate::wire::mad::fields::Place) {
                let $this = self;
                place.put(bytes, u128::from($put));
            }

            fn show(&self) -> $crate::wire::mad::fields::Value<'_> {
                let $this = self;
                $value
            }
        }
    };
}
pub(super) use field;

// A place is never wider than the type of its field, so `as` does not truncate.
field!(u8, n => n as Self, this => *this, Value::Number(u64::from(*this)));
field!(u16, n => n as Self, this => *this, Value::Hex { value: u64::from(*this), digits: 4 });
field!(u32, n => n as Self, this => *this, Value::Hex { value: u64::from(*this), digits: 8 });
field!(u64, n => n as Self, this => *this, Value::Hex { value: *this, digits: 16 });
field!(bool, n => n != 0, this => u8::from(*this), Value::Flag(*this));
field!(Qpn, n => Self::new(n as u32), this => this.value(), Value::Number(u64::from(this.value())));
field!(Psn, n => Self::new(n as u32), this => this.value(), Value::Number(u64::from(this.value())));
field!(PKey, n => Self(n as u16), this => this.0, Value::Number(u64::from(this.0)));
field!(QKey, n => Self(n as u32), this => this.0, Value::Hex { value: u64::from(this.0), digits: 8 });
field!(Gid, n => Self(n.to_be_bytes()), this => u128::from_be_bytes(this.0), Value::Gid(*this));

/// Defines a struct of fields at fixed places: `name: type = byte[first bit; bits]`.
macro_rules! group {
    (
        $(#[$doc:meta])*
        $name:ident {
            $(
                $(#[$field_doc:meta])*
                $field:ident: $type:ty = $byte:literal[$bit:literal; $width:literal],
            )*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        pub struct $name {
            $(
                $(#[$field_doc])*
                pub $field: $type,
            )*
        }

        impl Field for $name {
            fn get(bytes: &[u8], place: Place) -> Self {
                // The place of the whole struct; only its start is used.
                let start = place.start();
                Self { $( $field: Field::get(bytes, Place::new($byte, $bit, $width).moved(start)), )* }
            }

            fn put(&self, bytes: &mut [u8], place: Place) {
                let start = place.start();
                $( self.$field.put(bytes, Place::new($byte, $bit, $width).moved(start)); )*
            }

            fn show(&self) -> Value<'_> {
                Value::Group(self)
            }
        }

        impl Fields for $name {
            fn each(&self, visit: &mut dyn FnMut(&'static str, Value<'_>)) {
                $( visit(stringify!($field), self.$field.show()); )*
            }
        }
    };
}
pub(super) use group;

/// Defines a message: fields as in [`group`], optional additional information with a length, and private data from
/// a given byte to the end.
macro_rules! message {
    (
        $(#[$doc:meta])*
        $name:ident {
            $(
                $(#[$field_doc:meta])*
                $field:ident: $type:ty = $byte:literal[$bit:literal; $width:literal],
            )*
            $(
                @info
                $(#[$info_doc:meta])*
                $info:ident = $info_from:literal .. $info_to:literal,
                length $len_byte:literal[$len_bit:literal; $len_width:literal],
            )?
            @private $private:literal
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name<'a> {
            $(
                $(#[$field_doc])*
                pub $field: $type,
            )*
            $(
                $(#[$info_doc])*
                pub $info: &'a [u8],
            )?
            /// Data from one consumer to the other. A received message always has
            /// [`PRIVATE_DATA_LEN`](Self::PRIVATE_DATA_LEN) bytes, because it does not carry their length. A
            /// message to be sent may have fewer; it is padded with zeros.
            pub private_data: &'a [u8],
        }

        impl<'a> $name<'a> {
            /// Capacity for private data in bytes.
            pub const PRIVATE_DATA_LEN: usize = DATA_LEN - $private;

            fn read(data: &'a [u8; DATA_LEN]) -> Self {
                Self {
                    $( $field: Field::get(data, Place::new($byte, $bit, $width)), )*
                    $(
                        $info: {
                            let len = Place::new($len_byte, $len_bit, $len_width).get(data) as usize;
                            let all = part(data, $info_from, $info_to);
                            all.get(..len).unwrap_or(all)
                        },
                    )?
                    private_data: part(data, $private, DATA_LEN),
                }
            }

            fn write(&self, data: &mut [u8; DATA_LEN]) -> Result<(), EmitError> {
                $( self.$field.put(data, Place::new($byte, $bit, $width)); )*
                $(
                    fill(data, $info_from, $info_to, self.$info, stringify!($info))?;
                    Place::new($len_byte, $len_bit, $len_width).put(data, self.$info.len() as u128);
                )?
                fill(data, $private, DATA_LEN, self.private_data, "private_data")
            }
        }

        impl Fields for $name<'_> {
            fn each(&self, visit: &mut dyn FnMut(&'static str, Value<'_>)) {
                $( visit(stringify!($field), self.$field.show()); )*
                $( visit(stringify!($info), Value::Bytes(self.$info)); )?
                visit("private_data", Value::Bytes(self.private_data));
            }
        }
    };
}
pub(super) use message;
