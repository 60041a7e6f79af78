//! Links the shared object beside the library that it belongs to.

use std::error::Error;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::{env, fs, io};

/// The name that `rnic run` looks for.
const NAME: &str = "librnic_shim.so";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    // The output folder is target/PROFILE/build/PACKAGE-HASH/out.
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let profile = out.ancestors().nth(3).ok_or("the output folder is not inside a target folder")?;
    let folder = profile.join("dropin");
    fs::create_dir_all(&folder)?;
    let (name, target) = (folder.join(NAME), PathBuf::from("..").join(NAME));
    if fs::read_link(&name).is_ok_and(|to| to == target) {
        return Ok(());
    }
    match fs::remove_file(&name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(symlink(target, name)?),
    }
}
