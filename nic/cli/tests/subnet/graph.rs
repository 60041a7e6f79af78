//! What ibnetdiscover prints and what a subnet manager has written, as a graph; and walks in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A port of a node, by name.
pub(crate) type End = (String, u8);

/// A subnet as it was discovered.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Graph {
    /// Each end of each cable, and the other one.
    pub(crate) cables: BTreeMap<End, End>,
    /// The LIDs of all nodes.
    pub(crate) lids: BTreeMap<String, u16>,
    /// The GUIDs of all nodes.
    pub(crate) guids: BTreeMap<String, u64>,
    pub(crate) switches: BTreeSet<String>,
}

/// The text between the first quotation marks, and what follows.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let (_, rest) = text.split_once('"')?;
    rest.split_once('"')
}

/// The number in the first square brackets.
fn bracketed(text: &str) -> Option<u8> {
    text.split_once('[')?.1.split_once(']')?.0.parse().ok()
}

/// The number after a word.
fn after(text: &str, word: &str) -> Option<u16> {
    text.split_once(word)?.1.split_whitespace().next()?.parse().ok()
}

/// The name of a node, without that of its device.
fn name(description: &str) -> String {
    description.split_whitespace().next().unwrap_or_default().to_owned()
}

impl Graph {
    /// Reads what ibnetdiscover prints, with names from descriptions.
    pub(crate) fn read(text: &str) -> Self {
        let mut graph = Self::default();
        // By what stands in quotation marks, which is a GUID in ibnetdiscover and a name in `rnic fabric topo --ibnet`.
        let mut names = BTreeMap::new();
        let mut links = Vec::new();
        let (mut guid, mut here) = (0, String::new());
        for line in text.lines() {
            if let Some(number) =
                line.strip_prefix("switchguid=0x").or_else(|| line.strip_prefix("caguid=0x"))
            {
                guid = u64::from_str_radix(number.split('(').next().unwrap().trim(), 16).unwrap();
            } else if line.starts_with("Switch") || line.starts_with("Ca") {
                let (id, comment) = quoted(line).unwrap();
                let (description, rest) = quoted(comment).unwrap();
                here = name(description);
                names.insert(id.to_owned(), here.clone());
                graph.guids.insert(here.clone(), guid);
                if line.starts_with("Switch") {
                    graph.switches.insert(here.clone());
                    graph.lids.insert(here.clone(), after(rest, "lid ").unwrap());
                }
            } else if line.starts_with('[') {
                let port = bracketed(line).unwrap();
                let (far, rest) = quoted(line).unwrap();
                links.push(((here.clone(), port), (far.to_owned(), bracketed(rest).unwrap())));
                // A host says its own LID in front of the name of its neighbour.
                if let Some(lid) =
                    rest.split_once('#').and_then(|(_, comment)| comment.trim().strip_prefix("lid "))
                {
                    graph.lids.insert(here.clone(), lid.split_whitespace().next().unwrap().parse().unwrap());
                }
            }
        }
        graph.cables =
            links.into_iter().map(|(near, (far, port))| (near, (names[&far].clone(), port))).collect();
        graph
    }

    pub(crate) fn hosts(&self) -> Vec<String> {
        self.guids.keys().filter(|name| !self.switches.contains(*name)).cloned().collect()
    }

    /// The walk of a packet from a host to a LID by forwarding tables: the cables by the ends at which it enters them. None if
    /// it does not end at the host of this name.
    pub(crate) fn walk(&self, tables: &Tables, from: &str, to: &str) -> Option<Vec<End>> {
        let lid = usize::from(self.lids[to]);
        let mut way = vec![(from.to_owned(), 1)];
        loop {
            let (at, _) = self.cables.get(way.last()?)?;
            if at == to {
                return Some(way);
            }
            let port = *tables.0.get(at)?.get(lid)?;
            way.push((at.clone(), u8::try_from(port).ok()?));
            if way.len() > 2 * self.guids.len() {
                return None;
            }
        }
    }

    /// Whether buffers wait for one another in a circle, if every host sends to every other: a cable between switches waits for
    /// the next one of a way, and whoever waits for nobody is taken away until nobody is left, or a circle.
    pub(crate) fn has_circle(&self, tables: &Tables) -> bool {
        let mut waits = BTreeMap::<End, BTreeSet<End>>::new();
        for from in self.hosts() {
            for to in self.hosts().into_iter().filter(|to| *to != from) {
                let way = self.walk(tables, &from, &to).unwrap();
                for pair in way.windows(2) {
                    waits.entry(pair[0].clone()).or_default().insert(pair[1].clone());
                    waits.entry(pair[1].clone()).or_default();
                }
            }
        }
        loop {
            let before = waits.len();
            let free: BTreeSet<End> =
                waits.iter().filter(|(_, next)| next.is_empty()).map(|(end, _)| end.clone()).collect();
            waits.retain(|end, _| !free.contains(end));
            waits.values_mut().for_each(|next| next.retain(|end| !free.contains(end)));
            if waits.len() == before {
                return before > 0;
            }
        }
    }
}

/// By switch: the port of each LID.
#[derive(Debug)]
pub(crate) struct Tables(BTreeMap<String, Vec<i64>>);

impl Tables {
    /// Reads a file of `rnic fabric serve --save`. None while it is being written.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let table: toml::Table = toml::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
        let mut tables = BTreeMap::new();
        for (name, switch) in table.get("switch")?.as_table()? {
            let entries = switch.get("lft")?.as_array()?.iter().map(toml::Value::as_integer);
            tables.insert(name.clone(), entries.collect::<Option<Vec<i64>>>()?);
        }
        Some(Self(tables))
    }
}
