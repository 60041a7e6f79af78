//! Names the shared object, gives it its version nodes, and links the names that the loader looks for beside it.

use std::error::Error;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The names that the loader looks for: that of programs which are linked to the library, and the one without a version, by
/// which some load it. They would get the library of the system by the latter, beside this one.
const NAMES: [&str; 2] = ["libibverbs.so.1", "libibverbs.so"];

fn main() -> Result<(), Box<dyn Error>> {
    let source = env::var("CARGO_MANIFEST_DIR")?;
    println!("cargo:rerun-if-changed=versions.map");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={source}/versions.map");
    // The library's threads, and the state that threads of the program keep in it, need it until the process ends.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The output folder is target/PROFILE/build/PACKAGE-HASH/out.
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let profile = out.ancestors().nth(3).ok_or("the output folder is not inside a target folder")?;
    let folder = profile.join("dropin");
    fs::create_dir_all(&folder)?;
    for name in NAMES {
        link(&folder.join(name))?;
    }
    Ok(())
}

/// Makes `name` a link to the object, unless it already is.
fn link(name: &Path) -> io::Result<()> {
    let target = Path::new("../librnic_dropin.so");
    if fs::read_link(name).is_ok_and(|to| to == target) {
        return Ok(());
    }
    match fs::remove_file(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => symlink(target, name),
    }
}
