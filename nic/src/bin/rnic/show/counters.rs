//! `rnic show counters`: what programs have counted, as they publish it.

use super::Row;
use rnic::Counters;
use rnic::process::{Published, Variable, default_run_dir, published};
use serde_json::json;
use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::SystemTime;

/// The folder in which programs publish counters and queue pairs.
pub(crate) fn run_dir() -> PathBuf {
    let set = std::env::var_os(Variable::RunDir.name()).filter(|dir| !dir.is_empty());
    set.map_or_else(default_run_dir, PathBuf::from)
}

/// The counters that programs publish, those of running programs first. Says so if there are none.
pub(super) fn read() -> Result<Vec<Published>, Box<dyn Error>> {
    let run_dir = run_dir();
    let unreadable = |error| format!("{} cannot be read: {error}", run_dir.display());
    let mut all = published(&run_dir).map_err(unreadable)?;
    all.sort_by_key(|one| !one.running);
    if all.is_empty() {
        eprintln!("no program publishes counters in {}: `rnic run` has programs do so", run_dir.display());
    }
    Ok(all)
}

/// What a program counted, with what that counts, in the order of this version; another version's program may have other
/// counters.
fn known(one: &Published) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
    Counters::describe().filter_map(|(name, meaning)| {
        let (_, value) = one.counters.iter().find(|(counter, _)| counter == name)?;
        Some((name, meaning, *value))
    })
}

pub(super) fn row(one: Published) -> Row {
    let program = if one.running { "running" } else { "ended" };
    let changed = one.updated.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut pairs = vec![
        ("pid", json!(one.pid)),
        ("comm", json!(one.comm)),
        ("program", json!(program)),
        ("address", json!(one.address.to_string())),
        ("changed", json!(changed)),
    ];
    pairs.extend(known(&one).map(|(name, _, value)| (name, json!(value))));
    let keys = vec![("ifname", json!(one.device)), ("port", json!(1))];
    Row { head: format!("link {}/1", one.device), keys, pairs }
}

/// For people: a block for each device, with a line for each counter that moved, or for `all`.
pub(super) fn write(published: &[Published], all: bool, to: &mut impl Write) -> io::Result<()> {
    for (index, one) in published.iter().enumerate() {
        if index > 0 {
            writeln!(to)?;
        }
        let program = if one.running { "running" } else { "ended" };
        let ago = SystemTime::now().duration_since(one.updated).unwrap_or_default().as_secs();
        let Published { device, comm, pid, address, .. } = one;
        writeln!(to, "{device}/1 at {address}, of {comm} (pid {pid}, {program}; changed {ago} s ago)")?;
        let mut zero = 0;
        for (name, meaning, value) in known(one) {
            if value == 0 && !all {
                zero += 1;
            } else {
                writeln!(to, "  {name:<26} {value:>14}  {meaning}")?;
            }
        }
        if zero > 0 {
            writeln!(to, "  {zero} more are zero (--all shows them)")?;
        }
    }
    Ok(())
}
