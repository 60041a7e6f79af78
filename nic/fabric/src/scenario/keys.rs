//! Keys of a scenario's table, before it is read.

use toml::{Table, Value};

/// Sets a key: names of tables, and numbers of entries of lists, with dots between them. Tables that are missing are made.
///
/// # Errors
/// Names the part of the key that does not exist. The text is meant to follow the key.
pub fn set_key(table: &mut Table, key: &str, value: Value) -> Result<(), String> {
    let new = || Value::Table(Table::new());
    let mut parts = key.split('.');
    let Some(first) = parts.next() else { return Ok(()) };
    let mut place = table.entry(first).or_insert_with(new);
    for part in parts {
        place = match place {
            Value::Table(table) => table.entry(part).or_insert_with(new),
            Value::Array(list) => {
                let count = list.len();
                let entry = part.parse::<usize>().ok().and_then(|index| list.get_mut(index));
                entry.ok_or_else(|| no_entry(part, count))?
            }
            other => {
                return Err(format!(
                    "`{part}` is not inside a table: what has it is of the type {}",
                    other.type_str()
                ));
            }
        };
    }
    *place = value;
    Ok(())
}

/// Why a list has no such entry.
fn no_entry(part: &str, count: usize) -> String {
    match count {
        0 => format!("there is no entry `{part}`: the list is empty"),
        _ => format!("there is no entry `{part}`: write a number from 0 to {}", count - 1),
    }
}
