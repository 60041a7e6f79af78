//! What is written for hosts: how much they slow down, and for how long (CACongestionSetting and CongestionControlTable).

use super::super::mad::{Field, Refusal};
use super::super::tables::{HostCongestion, ServiceLevel};
use std::collections::BTreeMap;

/// The Congestion Control Table is written in blocks of 64 entries. OpenSM writes two of them at most.
const ENTRIES: usize = 64;
pub(super) const BLOCKS: usize = 2;

/// Bytes of CACongestionSetting, of an entry in it, and of a block of the table with what is in front of it.
const SETTING_LEN: usize = 4 + 16 * ENTRY_LEN;
const ENTRY_LEN: usize = 8;
const BLOCK_LEN: usize = 4 + 2 * ENTRIES;

/// Fields of CACongestionSetting in front of its entries (A10.4.3.8). A bit of the map for each service level, the last for level 0,
/// says whose entry is written.
const BY_LEVEL: Field = Field(15, 1);
const CONTROL_MAP: Field = Field(16, 16);

/// Fields of CACongestionEntry (A10.4.3.8).
mod entry {
    use super::Field;

    pub(super) const TIMER: Field = Field(0, 16);
    pub(super) const INCREASE: Field = Field(16, 8);
    pub(super) const TRIGGER_THRESHOLD: Field = Field(24, 8);
    pub(super) const MIN: Field = Field(32, 8);
}

/// Fields of CongestionControlTable in front of its entries, and those of an entry (A10.4.3.9).
const LIMIT: Field = Field(0, 16);
const SHIFT: Field = Field(0, 2);
const MULTIPLIER: Field = Field(2, 14);

/// What congestion control knows of a host.
#[derive(Clone, Debug)]
pub(super) struct Host {
    /// Whether somebody has written anything.
    is_written: bool,
    setting: [u8; SETTING_LEN],
    limit: u16,
    table: [u8; BLOCKS * 2 * ENTRIES],
}

impl Default for Host {
    fn default() -> Self {
        Self { is_written: false, setting: [0; SETTING_LEN], limit: 0, table: [0; BLOCKS * 2 * ENTRIES] }
    }
}

impl Host {
    /// CACongestionSetting: the attribute, which may be written before.
    pub(super) fn setting(&mut self, written: Option<&[u8]>) -> &[u8] {
        if let Some(written) = written {
            self.is_written = true;
            self.setting[..4].copy_from_slice(&written[..4]);
            let own = self.setting[4..].chunks_exact_mut(ENTRY_LEN);
            for (level, (own, entry)) in own.zip(written[4..].chunks_exact(ENTRY_LEN)).enumerate() {
                if CONTROL_MAP.get(written) >> level & 1 == 1 {
                    own.copy_from_slice(entry);
                }
            }
        }
        &self.setting
    }

    /// A block of CongestionControlTable: the attribute, which may be written before.
    pub(super) fn table(&mut self, block: usize, written: Option<&[u8]>) -> Result<[u8; BLOCK_LEN], Refusal> {
        let block = self.table.chunks_exact_mut(2 * ENTRIES).nth(block).ok_or(Refusal::Field)?;
        if let Some(written) = written {
            let limit = LIMIT.get(written) as u16;
            if usize::from(limit) >= BLOCKS * ENTRIES {
                return Err(Refusal::Field);
            }
            self.is_written = true;
            self.limit = limit;
            block.copy_from_slice(&written[4..BLOCK_LEN]);
        }
        let mut attribute = [0; BLOCK_LEN];
        LIMIT.set(&mut attribute, self.limit.into());
        attribute[4..].copy_from_slice(block);
        Ok(attribute)
    }

    /// How the host reacts, if that was written: what was not is 0, as in an adapter that nobody has initialized.
    pub(super) fn reaction(&self) -> Option<HostCongestion> {
        let level = |of: &[u8]| ServiceLevel {
            ccti_timer: entry::TIMER.get(of) as u16,
            ccti_increase: entry::INCREASE.get(of) as u8,
            trigger_threshold: entry::TRIGGER_THRESHOLD.get(of) as u8,
            ccti_min: entry::MIN.get(of) as u8,
        };
        let levels = self.setting[4..].chunks_exact(ENTRY_LEN).map(level).enumerate();
        let sl: BTreeMap<String, ServiceLevel> = levels
            .filter(|(_, of)| *of != ServiceLevel::default())
            .map(|(number, of)| (number.to_string(), of))
            .collect();
        let entries = self.table.chunks_exact(2).take(usize::from(self.limit) + 1);
        let cct = entries.map(|of| format!("{}:{}", SHIFT.get(of), MULTIPLIER.get(of)));
        self.is_written.then(|| HostCongestion {
            by_level: BY_LEVEL.get(&self.setting) == 1,
            cct: cct.collect::<Vec<_>>().join(","),
            sl,
        })
    }
}
