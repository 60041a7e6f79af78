//! Where the dynamic loader finds a shared library.

use super::Finding;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The list of libraries that ldconfig(8) makes, in which the loader looks them up.
const CACHE: &str = "/etc/ld.so.cache";

/// Folders in which the loader looks without the cache (ld.so(8)).
const FOLDERS: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// Where the dynamic loader finds a shared library for most programs: in `LD_LIBRARY_PATH`, in its cache, or in its
/// default folders. A program may have folders of its own in addition (RPATH and RUNPATH).
#[must_use]
pub fn find_library(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let listed = path.as_bytes().split(|byte| b":;".contains(byte)).filter(|folder| !folder.is_empty());
    let in_folders = listed.map(|folder| Path::new(OsStr::from_bytes(folder)).join(name));
    let cache = fs::read(CACHE).unwrap_or_default();
    let mut all =
        in_folders.chain(in_cache(&cache, name)).chain(FOLDERS.map(|folder| Path::new(folder).join(name)));
    all.find(|path| path.exists())
}

/// The paths of a library in the cache. All its formats keep paths as strings that end with NUL.
fn in_cache(cache: &[u8], name: &str) -> impl Iterator<Item = PathBuf> {
    let paths = cache.split(|byte| *byte == 0).filter(|text| text.first() == Some(&b'/'));
    let paths = paths.map(|text| Path::new(OsStr::from_bytes(text)));
    paths.filter(move |path| path.file_name() == Some(OsStr::new(name))).map(Path::to_owned)
}

/// The library of the connection manager, which `rnic run` serves.
pub(super) fn connection_manager(found: Option<&Path>) -> Finding {
    match found {
        Some(path) => Finding::ok(format!("programs connect by {}", path.display())),
        None => Finding::note(
            "there is no librdmacm.so.1: programs that connect by the RDMA connection manager fail",
            "install it (librdmacm1 of Debian, librdmacm of Fedora); rnic serves it as it is",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;

    #[test]
    fn a_library_is_found_in_the_cache_by_its_exact_name() {
        let cache =
            b"glibc-ld.so.cache1.1\0\x01\x02libx.so.1\0/lib/a/libx.so.1\0libx.so.12\0/lib/a/libx.so.12\0";
        let found: Vec<_> = in_cache(cache, "libx.so.1").collect();
        assert_eq!(found, [Path::new("/lib/a/libx.so.1")]);
        assert_eq!(in_cache(cache, "libx.so").count(), 0);
        assert_eq!(in_cache(b"", "libx.so.1").count(), 0);
    }

    #[test]
    fn this_hosts_c_library_is_found_and_a_made_up_one_is_not() {
        assert!(find_library("libc.so.6").is_some_and(|path| path.is_absolute()));
        assert_eq!(find_library("libno-such-library.so.1"), None);
    }

    #[test]
    fn a_missing_connection_manager_is_a_note_with_its_remedy() {
        let none = connection_manager(None);
        assert_eq!(none.severity, Severity::Note);
        assert!(none.remedy.is_some_and(|remedy| remedy.contains("librdmacm1")));
        assert_eq!(connection_manager(Some(Path::new("/lib/x"))).severity, Severity::Ok);
    }
}
