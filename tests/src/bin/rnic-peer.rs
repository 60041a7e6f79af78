//! A peer for tests: runs the commands from its standard input, one JSON line each.

fn main() -> std::process::ExitCode {
    match rnic_tests::serve::run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rnic-peer: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
