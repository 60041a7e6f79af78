//! `rnic show counters`: the counters that programs publish.

use super::Row;
use crate::programs::{Filter, Pattern, Places, Seen, any};
use rnic::Counters;
use rnic::process::{NetNamespace, Published};
use serde_json::{Value, json};
use std::error::Error;
use std::io::{self, Write};
use std::time::SystemTime;

/// Which counters to show. Each option narrows the choice; one with several values allows any of them.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "With counters")]
pub(super) struct Choice {
    /// Only counters whose name matches, such as `rcvd_*` or `*drop*`. Repeat for several.
    #[arg(long, value_name = "PATTERN")]
    counter: Vec<Pattern>,
    /// Only devices of running programs, not of those that have ended.
    #[arg(long)]
    running: bool,
    /// Devices in all network namespaces, not only in that of this command. Those at the daemon are always shown.
    #[arg(long)]
    all_namespaces: bool,
}

impl Choice {
    fn takes(&self, name: &str) -> bool {
        any(&self.counter, &[name])
    }

    /// The counters to show, each with what it counts, in the order of this version of rnic. A program of another version
    /// may publish other counters.
    fn of(&self, one: &Published) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        Counters::describe().filter(|(name, _)| self.takes(name)).filter_map(|(name, meaning)| {
            let (_, value) = one.counters.iter().find(|(counter, _)| counter == name)?;
            Some((name, meaning, *value))
        })
    }
}

/// The devices to show, those of running programs first. If none is left, prints the reason on standard error.
pub(super) fn read(filter: &Filter, choice: &Choice) -> Result<Vec<Seen>, Box<dyn Error>> {
    if !Counters::describe().any(|(name, _)| choice.takes(name)) {
        return Err("--counter: no counter has such a name; `rnic show counter-names` lists them".into());
    }
    let mut all = super::look()?;
    all.retain(|one| one.counters.is_some());
    let (total, own) = (all.len(), NetNamespace::current());
    let is_here = |one: &Seen| one.counters.as_ref().is_some_and(|of| of.namespace == own);
    all.retain(|one| choice.all_namespaces || one.slot.is_some() || is_here(one));
    let (hidden, left) = (total - all.len(), all.len());
    all.retain(|one| filter.takes(one) && (one.running || !choice.running));
    // Those that run keep their places while their counters change. The others are in the order in which they ended.
    let place = |one: &Seen| one.running.then(|| (one.pid, one.device.clone()));
    all.sort_by(|a, b| match (place(a), place(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => b.running.cmp(&a.running),
    });
    if all.is_empty() && left > 0 {
        eprintln!("the options match none of the {left} devices; `rnic show counters` lists them all");
    } else if all.is_empty() {
        eprintln!(
            "no program publishes counters in {}: start one with `rnic run`",
            Places::find().describe()
        );
    }
    if hidden > 0 {
        eprintln!("{hidden} more in other network namespaces (--all-namespaces shows them)");
    }
    Ok(all)
}

/// Whose a device is.
pub(super) fn owner(one: &Seen) -> Vec<(&'static str, Value)> {
    let mut pairs = vec![("pid", json!(one.pid)), ("comm", json!(one.comm)), ("user", json!(one.user))];
    pairs.extend(one.container.as_ref().map(|id| ("container", json!(id))));
    pairs.extend(one.slot.map(|slot| ("slot", json!(slot))));
    pairs
}

pub(super) fn row(one: &Seen, choice: &Choice) -> Row {
    let program = if one.running { "running" } else { "ended" };
    let mut pairs = owner(one);
    pairs.extend([("program", json!(program)), ("address", json!(one.address.to_string()))]);
    if let Some(published) = &one.counters {
        let changed = published.updated.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        pairs.extend([("netns", json!(published.namespace.inode)), ("changed", json!(changed))]);
        pairs.extend(choice.of(published).map(|(name, _, value)| (name, json!(value))));
    }
    let keys = vec![("ifname", json!(one.device)), ("port", json!(1))];
    Row { head: format!("link {}/1", one.device), keys, pairs }
}

/// Prints text: a block for each device, with a line for each counter that is not zero, or with `all` for each counter.
pub(super) fn write(all_seen: &[Seen], choice: &Choice, all: bool, to: &mut impl Write) -> io::Result<()> {
    for (index, one) in all_seen.iter().enumerate() {
        if index > 0 {
            writeln!(to)?;
        }
        let Some(published) = &one.counters else { continue };
        let program = if one.running { "running" } else { "ended" };
        let ago = SystemTime::now().duration_since(published.updated).unwrap_or_default().as_secs();
        let Seen { device, comm, pid, address, user, .. } = one;
        write!(to, "{device}/1 at {address}")?;
        if let Some(slot) = one.slot {
            write!(to, " (slot {slot})")?;
        }
        write!(to, ", of {comm} (pid {pid}, user {user}, ")?;
        if let Some(container) = &one.container {
            write!(to, "container {container}, ")?;
        }
        write!(to, "{program}; changed {ago} s ago)")?;
        if choice.all_namespaces {
            write!(to, " in network namespace {}", published.namespace.inode)?;
        }
        writeln!(to)?;
        let mut zero = 0;
        for (name, meaning, value) in choice.of(published) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_names_counters_by_patterns() {
        let published = Published {
            device: "rnic0".to_owned(),
            address: [127, 0, 0, 1].into(),
            namespace: NetNamespace::current(),
            pid: 7,
            comm: "rping".to_owned(),
            running: true,
            updated: SystemTime::UNIX_EPOCH,
            counters: vec![("sent_pkts".to_owned(), 1), ("rcvd_pkts".to_owned(), 0)],
        };
        let names = |choice: &Choice| choice.of(&published).map(|(name, ..)| name).collect::<Vec<_>>();
        assert_eq!(names(&Choice::default()), ["sent_pkts", "rcvd_pkts"]);
        assert_eq!(
            names(&Choice { counter: vec![Pattern::from("sent*")], ..Choice::default() }),
            ["sent_pkts"]
        );
    }
}
