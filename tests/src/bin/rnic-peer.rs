//! A peer for tests: does what its standard input says, one JSON line a command.

fn main() -> std::process::ExitCode {
    match rnic_tests::serve::run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rnic-peer: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
