//! The table of partition keys.

use qp::PKey;
use thiserror::Error;

/// Largest number of entries, as in mlx5.
pub const MAX_PKEYS: usize = 128;

/// The partition keys of a port. Each queue pair uses one of them, selected by index (`pkey_index`).
///
/// The table may contain both memberships of a partition, as two entries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PKeyTable(Box<[PKey]>);

/// Why a list of partition keys is not a valid table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PKeyTableError {
    /// The list is empty.
    #[error(
        "the P_Key table is empty: a port is in one partition at least, PKey::DEFAULT if there are no others"
    )]
    Empty,
    /// The list is too long.
    #[error("the P_Key table has {given} entries; this device takes {MAX_PKEYS} at most")]
    TooLong {
        /// Number of keys.
        given: usize,
    },
    /// The low 15 bits are 0, which is not a valid partition (IBTA 10.9.1.1).
    #[error("entry {index} of the P_Key table is {key:#06x}: no partition has the number 0")]
    Invalid {
        /// Index of the key.
        index: usize,
        /// Value of the key.
        key: u16,
    },
    /// Two entries are equal.
    #[error("entries {first} and {second} of the P_Key table are both {key:#06x}")]
    Duplicate {
        /// Index of the first.
        first: usize,
        /// Index of the second.
        second: usize,
        /// Value of both.
        key: u16,
    },
}

impl PKeyTable {
    /// Creates a table of these keys, in this order.
    ///
    /// # Errors
    /// [`PKeyTableError`]: the list is empty or too long, or contains an invalid key or the same key twice.
    pub fn new(keys: &[PKey]) -> Result<Self, PKeyTableError> {
        if keys.is_empty() {
            return Err(PKeyTableError::Empty);
        }
        if keys.len() > MAX_PKEYS {
            return Err(PKeyTableError::TooLong { given: keys.len() });
        }
        for (index, key) in keys.iter().enumerate() {
            if key.0 & 0x7fff == 0 {
                return Err(PKeyTableError::Invalid { index, key: key.0 });
            }
            if let Some(first) = keys[..index].iter().position(|other| other == key) {
                return Err(PKeyTableError::Duplicate { first, second: index, key: key.0 });
            }
        }
        Ok(Self(keys.into()))
    }

    /// The keys, by index.
    #[must_use]
    pub fn as_slice(&self) -> &[PKey] {
        &self.0
    }

    /// The key at an index.
    #[must_use]
    pub fn get(&self, index: u16) -> Option<PKey> {
        self.0.get(usize::from(index)).copied()
    }

    /// Number of keys.
    #[must_use]
    pub fn entries(&self) -> u16 {
        u16::try_from(self.0.len()).unwrap_or(u16::MAX)
    }

    /// The index of the first key that matches a packet with this key.
    #[must_use]
    pub fn find(&self, key: PKey) -> Option<u16> {
        self.0.iter().position(|own| key.matches(*own)).and_then(|index| u16::try_from(index).ok())
    }
}

/// The default partition only, as in most RoCE devices.
impl Default for PKeyTable {
    fn default() -> Self {
        Self(Box::new([PKey::DEFAULT]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(keys: &[u16]) -> Result<PKeyTable, PKeyTableError> {
        PKeyTable::new(&keys.iter().map(|key| PKey(*key)).collect::<Vec<_>>())
    }

    #[test]
    fn tables_that_are_none_are_refused() {
        assert_eq!(table(&[]), Err(PKeyTableError::Empty));
        for key in [0, 0x8000] {
            assert_eq!(table(&[0xffff, key]), Err(PKeyTableError::Invalid { index: 1, key }));
        }
        let duplicate = PKeyTableError::Duplicate { first: 1, second: 3, key: 0x8001 };
        assert_eq!(table(&[0xffff, 0x8001, 0x8002, 0x8001]), Err(duplicate));
        assert_eq!(
            duplicate.to_string(),
            "entries 1 and 3 of the P_Key table are both 0x8001",
            "errors count as indices do"
        );
        let most: Vec<u16> = (1..=MAX_PKEYS as u16).collect();
        assert!(table(&most).is_ok(), "the bound");
        let more: Vec<u16> = (1..=MAX_PKEYS as u16 + 1).collect();
        assert_eq!(table(&more), Err(PKeyTableError::TooLong { given: MAX_PKEYS + 1 }));
    }

    #[test]
    fn both_memberships_of_a_partition_may_be_in_it() {
        let table = table(&[0x8001, 0x0001]).expect("a table");
        assert_eq!((table.get(1), table.get(2), table.entries()), (Some(PKey(1)), None, 2));
    }

    /// C9-42: the general services interface accepts packets of every partition of the port.
    #[test]
    fn a_packet_is_of_the_first_entry_that_it_matches() {
        let table = table(&[0x8001, 0x0002]).expect("a table");
        for (key, index) in [
            (0x8001, Some(0)),
            (0x0001, Some(0)),
            (0x8002, Some(1)),
            (0x0002, None), // two limited members
            (0xffff, None),
        ] {
            assert_eq!(table.find(PKey(key)), index, "{key:#06x}");
        }
        assert_eq!(PKeyTable::default().find(PKey(0x7fff)), Some(0));
    }
}
