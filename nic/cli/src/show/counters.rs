//! `rnic show counters`: the counters that programs publish.

use super::Row;
use rnic::Counters;
use rnic::process::{NetNamespace, Published, Variable, default_run_dir, published};
use serde_json::json;
use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::SystemTime;

/// Which devices and counters to show. Each option narrows the choice; one with several values allows any of them.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "With counters")]
pub(super) struct Filter {
    /// Only devices of this process. Repeat for several.
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// Only devices of programs whose name matches, such as `ib_write_bw` or `ib_*`. Repeat for several.
    #[arg(long, value_name = "PATTERN")]
    program: Vec<Pattern>,
    /// Only devices whose name or address matches, such as `rnic0` or `127.0.0.*`. Repeat for several.
    #[arg(long, value_name = "PATTERN")]
    device: Vec<Pattern>,
    /// Only counters whose name matches, such as `rcvd_*` or `*drop*`. Repeat for several.
    #[arg(long, value_name = "PATTERN")]
    counter: Vec<Pattern>,
    /// Only devices of running programs, not of those that have ended.
    #[arg(long)]
    running: bool,
    /// Devices in all network namespaces, not only in that of this command.
    #[arg(long)]
    all_namespaces: bool,
}

/// A name in which `*` stands for any text and `?` for any character.
#[derive(Clone, Debug)]
struct Pattern(Vec<char>);

impl From<&str> for Pattern {
    fn from(text: &str) -> Self {
        Self(text.chars().collect())
    }
}

impl Pattern {
    fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (&self.0, name.chars().collect::<Vec<_>>());
        let (mut at, mut done) = (0, 0);
        // The latest `*`, and how much of the name the text before `at` consumes. On a mismatch the `*` consumes one
        // more character.
        let mut star = None;
        while done < name.len() {
            match pattern.get(at) {
                Some('*') => {
                    star = Some((at, done));
                    at += 1;
                }
                Some(wanted) if *wanted == '?' || *wanted == name[done] => (at, done) = (at + 1, done + 1),
                _ => {
                    let Some((place, taken)) = star else { return false };
                    star = Some((place, taken + 1));
                    (at, done) = (place + 1, taken + 1);
                }
            }
        }
        pattern[at..].iter().all(|rest| *rest == '*')
    }
}

/// Whether one of the patterns matches one of the names, or there is no pattern.
fn any(patterns: &[Pattern], names: &[&str]) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| names.iter().any(|name| pattern.matches(name)))
}

impl Filter {
    /// Whether to show a device.
    fn takes(&self, one: &Published) -> bool {
        (self.pid.is_empty() || self.pid.contains(&one.pid))
            && (one.running || !self.running)
            && any(&self.program, &[&one.comm])
            && any(&self.device, &[&one.device, &one.address.to_string()])
    }

    /// The counters to show, each with what it counts, in the order of this version of rnic. A program of another version
    /// may publish other counters.
    fn counters(&self, one: &Published) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        Counters::describe().filter(|(name, _)| any(&self.counter, &[name])).filter_map(|(name, meaning)| {
            let (_, value) = one.counters.iter().find(|(counter, _)| counter == name)?;
            Some((name, meaning, *value))
        })
    }
}

/// The folder in which programs publish counters and queue pairs.
pub(crate) fn run_dir() -> PathBuf {
    let set = std::env::var_os(Variable::RunDir.name()).filter(|dir| !dir.is_empty());
    set.map_or_else(default_run_dir, PathBuf::from)
}

/// The devices to show, those of running programs first. If none is left, prints the reason on standard error.
pub(super) fn read(filter: &Filter) -> Result<Vec<Published>, Box<dyn Error>> {
    if !filter.counter.is_empty() && !Counters::describe().any(|(name, _)| any(&filter.counter, &[name])) {
        return Err("--counter: no counter has such a name; `rnic show counter-names` lists them".into());
    }
    let run_dir = run_dir();
    let unreadable = |error| format!("cannot read {}: {error}", run_dir.display());
    let all = published(&run_dir).map_err(unreadable)?;
    let (total, own) = (all.len(), NetNamespace::current());
    let here = |one: &Published| filter.all_namespaces || one.namespace == own;
    let mut reachable: Vec<_> = all.into_iter().filter(here).collect();
    let (hidden, left) = (total - reachable.len(), reachable.len());
    reachable.retain(|one| filter.takes(one));
    reachable.sort_by_key(|one| !one.running);
    if reachable.is_empty() && left > 0 {
        eprintln!("the options match none of the {left} devices; `rnic show counters` lists them all");
    } else if reachable.is_empty() {
        eprintln!("no program publishes counters in {}: start one with `rnic run`", run_dir.display());
    }
    if hidden > 0 {
        eprintln!("{hidden} more in other network namespaces (--all-namespaces shows them)");
    }
    Ok(reachable)
}

pub(super) fn row(one: &Published, filter: &Filter) -> Row {
    let program = if one.running { "running" } else { "ended" };
    let changed = one.updated.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut pairs = vec![
        ("pid", json!(one.pid)),
        ("comm", json!(one.comm)),
        ("program", json!(program)),
        ("address", json!(one.address.to_string())),
        ("netns", json!(one.namespace.inode)),
        ("changed", json!(changed)),
    ];
    pairs.extend(filter.counters(one).map(|(name, _, value)| (name, json!(value))));
    let keys = vec![("ifname", json!(one.device)), ("port", json!(1))];
    Row { head: format!("link {}/1", one.device), keys, pairs }
}

/// Prints text: a block for each device, with a line for each counter that is not zero, or with `all` for each counter.
pub(super) fn write(
    published: &[Published],
    filter: &Filter,
    all: bool,
    to: &mut impl Write,
) -> io::Result<()> {
    for (index, one) in published.iter().enumerate() {
        if index > 0 {
            writeln!(to)?;
        }
        let program = if one.running { "running" } else { "ended" };
        let ago = SystemTime::now().duration_since(one.updated).unwrap_or_default().as_secs();
        let Published { device, comm, pid, address, .. } = one;
        write!(to, "{device}/1 at {address}, of {comm} (pid {pid}, {program}; changed {ago} s ago)")?;
        if filter.all_namespaces {
            write!(to, " in network namespace {}", one.namespace.inode)?;
        }
        writeln!(to)?;
        let mut zero = 0;
        for (name, meaning, value) in filter.counters(one) {
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
    fn patterns_match_whole_names() {
        for (pattern, name, matches) in [
            ("rcvd_*", "rcvd_pkts", true),
            ("rcvd_*", "sent_pkts", false),
            ("*drop*", "link_rx_dropped", true),
            ("*pkts", "rcvd_pkts_total", false),
            ("ib_?rite_bw", "ib_write_bw", true),
            ("sent", "sent_pkts", false),
            ("*a*b*c", "xxaybzbwc", true),
            ("*a*b*c", "xxaybzbw", false),
            ("*", "", true),
            ("?", "", false),
            ("é*", "éa", true),
        ] {
            assert_eq!(Pattern::from(pattern).matches(name), matches, "{pattern} {name}");
        }
    }

    fn device(comm: &str, pid: u32, address: &str, running: bool) -> Published {
        Published {
            device: "rnic0".to_owned(),
            address: address.parse().expect("an address"),
            namespace: NetNamespace::current(),
            pid,
            comm: comm.to_owned(),
            running,
            updated: SystemTime::UNIX_EPOCH,
            counters: vec![("sent_pkts".to_owned(), 1), ("rcvd_pkts".to_owned(), 0)],
        }
    }

    #[test]
    fn filters_choose_devices_by_process_program_and_device() {
        let all = [
            device("ib_write_bw", 7, "127.0.0.1", true),
            device("ib_write_bw", 8, "127.0.0.2", true),
            device("ucx_perftest", 9, "10.0.0.1", false),
        ];
        let taken = |filter: Filter| -> Vec<u32> {
            all.iter().filter(|one| filter.takes(one)).map(|one| one.pid).collect()
        };
        let patterns = |texts: &[&str]| texts.iter().copied().map(Pattern::from).collect::<Vec<_>>();
        assert_eq!(taken(Filter::default()), [7, 8, 9]);
        assert_eq!(taken(Filter { pid: vec![8, 9], ..Filter::default() }), [8, 9]);
        assert_eq!(taken(Filter { program: patterns(&["ib_*"]), ..Filter::default() }), [7, 8]);
        assert_eq!(taken(Filter { device: patterns(&["127.0.0.2", "10.*"]), ..Filter::default() }), [8, 9]);
        assert!(taken(Filter { device: patterns(&["rnic1"]), ..Filter::default() }).is_empty());
        assert_eq!(taken(Filter { running: true, ..Filter::default() }), [7, 8]);
        let both = Filter { program: patterns(&["ib_*"]), pid: vec![8], ..Filter::default() };
        assert_eq!(taken(both), [8], "options narrow the choice together");
        let sent = Filter { counter: patterns(&["sent*"]), ..Filter::default() };
        let names: Vec<_> = sent.counters(&all[0]).map(|(name, ..)| name).collect();
        assert_eq!(names, ["sent_pkts"]);
    }
}
