//! Names the shared object, gives it its version nodes, and links the name that the loader looks for.

use std::error::Error;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The folder beside the drop-in libraries, and the name in it.
const NAME: &str = "dropin/fallback/librdmacm.so.1";

fn main() -> Result<(), Box<dyn Error>> {
    let source = env::var("CARGO_MANIFEST_DIR")?;
    println!("cargo:rerun-if-changed=versions.map");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,librdmacm.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={source}/versions.map");
    // Its function at the exit of the program needs it until then.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The output folder is target/PROFILE/build/PACKAGE-HASH/out.
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let profile = out.ancestors().nth(3).ok_or("the output folder is not inside a target folder")?;
    let name = profile.join(NAME);
    fs::create_dir_all(name.parent().ok_or("a folder")?)?;
    // An earlier version was found before the library of the system.
    remove(&profile.join("dropin/librdmacm.so.1"))?;
    let target = Path::new("../../librnic_rdmacm.so");
    if fs::read_link(&name).is_ok_and(|to| to == target) {
        return Ok(());
    }
    remove(&name)?;
    Ok(symlink(target, name)?)
}

fn remove(name: &Path) -> io::Result<()> {
    match fs::remove_file(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
