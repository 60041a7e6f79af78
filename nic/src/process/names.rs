//! The names of devices.

use super::EnvFault;

/// The longest name, in bytes: `IBV_SYSFS_NAME_MAX` without the zero at its end.
const LONGEST: usize = 63;

/// The placeholder for the number of the device.
const NUMBER: &str = "%d";

/// Parses a list of names.
pub(super) fn read(text: &str) -> Result<Vec<String>, EnvFault> {
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    let checked = names.map(|name| {
        // The largest number is 15, so no name gets longer than this.
        if is_name(&name.replacen(NUMBER, "15", 1)) { Ok(name.to_owned()) } else { Err(wrong(name)) }
    });
    checked.collect()
}

fn wrong(name: &str) -> EnvFault {
    let wanted = format!(
        "write up to {LONGEST} letters, digits, `_`, `-` and `.`; `{NUMBER}` stands for the number of the device"
    );
    EnvFault::malformed(name, wanted)
}

/// Whether programs can name a device this way: as a directory in `/sys`, before a colon and a port, and in lists.
fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    !name.is_empty() && name.len() <= LONGEST && !name.starts_with(['.', '-']) && name.bytes().all(is_part)
}

/// The names of `count` devices.
pub(super) fn of_devices(names: &[String], count: usize) -> Result<Vec<String>, EnvFault> {
    let pattern = match names {
        [] => Some("rnic%d"),
        [one] if one.contains(NUMBER) => Some(&**one),
        _ => None,
    };
    if let Some(pattern) = pattern {
        return Ok((0..count).map(|number| pattern.replacen(NUMBER, &number.to_string(), 1)).collect());
    }
    let own: Vec<_> =
        names.iter().enumerate().map(|(at, name)| name.replacen(NUMBER, &at.to_string(), 1)).collect();
    let twice = own.iter().enumerate().any(|(at, name)| own[..at].contains(name));
    if own.len() != count || twice {
        let wanted =
            format!("write a different name for each of the {count} devices, or one with `{NUMBER}` for all");
        return Err(EnvFault::malformed(&names.join(","), wanted));
    }
    Ok(own)
}
