//! Names the shared object, gives it its version nodes, and links the name that the loader looks for.

use std::error::Error;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The folder beside the drop-in libraries, and the names in it: some programs load the library without a version.
const FOLDER: &str = "dropin/fallback";
const NAMES: [&str; 2] = ["librdmacm.so.1", "librdmacm.so"];

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
    let folder = profile.join(FOLDER);
    fs::create_dir_all(&folder)?;
    // An earlier version was found before the library of the system.
    remove(&profile.join("dropin/librdmacm.so.1"))?;
    let target = Path::new("../../librnic_rdmacm.so");
    for name in NAMES.map(|name| folder.join(name)) {
        if !fs::read_link(&name).is_ok_and(|to| to == target) {
            remove(&name)?;
            symlink(target, name)?;
        }
    }
    Ok(())
}

fn remove(name: &Path) -> io::Result<()> {
    match fs::remove_file(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
