//! Transfer engines of machine learning: Mooncake's, which moves the caches of language models, and DLSlime.

use crate::lab::{self, Folder, LIMIT, Running};
use std::time::Duration;

#[test]
fn transfer_engines_move_data() {
    let packages = lab::installed().join("engines");
    if !packages.join("complete").exists() {
        println!(
            "SKIPPED: interop/engines/install did not fetch Mooncake and DLSlime, so they were not run on rnic"
        );
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/py/engines.py");
    for engine in ["mooncake", "dlslime"] {
        let folder = Folder::new();
        let start = |role: &str, address: &str| {
            let mut command = lab::run(&folder, &["--addr", address, "--explain"], "python3");
            command.arg(script).args([engine, role, address]).arg(folder.path());
            Running::start(&folder, command.env("PYTHONPATH", &packages))
        };
        let _alone = lab::alone();
        let (server, client) = (start("server", "127.90.6.1"), start("client", "127.90.6.2"));
        let client = client.wait(LIMIT);
        let patience = server.elapsed() + Duration::from_secs(20);
        for (role, end) in [("client", client), ("server", server.wait(patience))] {
            assert_eq!(end.fault(), None, "{}", end.text);
            assert!(end.text.contains(&format!("{engine} {role}: the data are right")), "{}", end.text);
        }
    }
}
