//! Open MPI, MPICH and OpenSHMEM: four ranks of a program that checks its reductions, its exchanges, and its reads and writes
//! of each other's memory. All of them use UCX, or libfabric, and each rank has its own device: at an address of its own, or all of them at
//! one that a daemon shares.

use crate::daemon::Daemon;
use crate::hosts::{self, Network};
use crate::lab::{self, Ended, Folder, LIMIT, Running, has};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An MPI implementation, or what is like one: its compiler, its launcher with options, and the program that it runs.
struct Mpi {
    compiler: &'static str,
    launcher: &'static str,
    options: &'static [&'static str],
    source: &'static str,
}

const OPEN_MPI: Mpi = Mpi {
    compiler: "mpicc.openmpi",
    launcher: "mpirun.openmpi",
    // Open MPI refuses to run as root, or with more ranks than processors, and may silently use other transports than
    // UCX.
    options: &["--allow-run-as-root", "--oversubscribe", "--mca", "pml", "ucx", "--mca", "osc", "ucx"],
    source: "ranks.c",
};

const MPICH: Mpi = Mpi { compiler: "mpicc.mpich", launcher: "mpirun.mpich", options: &[], source: "ranks.c" };

/// The one that comes with Open MPI, whose own end it does not survive, over any transport, unless UCX does all of it.
const OPEN_SHMEM: Mpi = Mpi {
    compiler: "oshcc",
    launcher: "oshrun",
    options: &[
        "--allow-run-as-root",
        "--oversubscribe",
        "--mca",
        "spml",
        "ucx",
        "--mca",
        "pml",
        "ucx",
        "--mca",
        "osc",
        "ucx",
    ],
    source: "processing_elements.c",
};

const RANKS: usize = 4;

/// The minimum payload that the ranks exchange in one round. With MPI, each sends half of its longest message to the others
/// in an allreduce and three quarters in an alltoall, and puts and gets the whole message; with OpenSHMEM, each puts 4 MiB.
const LEAST: u64 = RANKS as u64 * 3 * (1 << 20);

impl Mpi {
    fn is_installed(&self) -> bool {
        has(self.compiler) && has(self.launcher)
    }

    /// Builds the program. Where it is.
    fn build(&self, folder: &Folder) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/c").join(self.source);
        let program = folder.path().join("ranks");
        let mut compile = Command::new(self.compiler);
        compile.args(["-Wall", "-Werror", "-O1", "-o"]).arg(&program).arg(source);
        let built = compile.output().expect("a compiler");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        program
    }
}

/// Asserts that all ranks ended, and agree.
fn assert_agreement(transport: &str, ended: &Ended) {
    let says = format!("{RANKS} ranks, 0 failures");
    let agree = ended.text.lines().any(|line| line == says);
    assert!(ended.fault().is_none() && agree, "{transport}: {:?}\n{}", ended.fault(), ended.text);
}

/// Runs the ranks over each of UCX's verbs transports.
fn ranks_agree(mpi: &Mpi) {
    if !mpi.is_installed() {
        return;
    }
    let folder = Folder::new();
    let program = mpi.build(&folder);
    let _alone = lab::alone();
    let daemon = Daemon::start();
    let runs = ["rc_v,self", "ud_v,self"].map(|transports| [(transports, false), (transports, true)]);
    for (transports, shares) in runs.into_iter().flatten() {
        let folder = Folder::new();
        let mut command = lab::run(&folder, &[], mpi.launcher);
        if shares {
            command.env("RNIC_DAEMON", daemon.socket());
        }
        // Within one host UCX would use shared memory.
        command.env("UCX_TLS", transports).env("UCX_NET_DEVICES", "rnic0:1");
        command.args(mpi.options).args(["-n", &RANKS.to_string()]).arg(&program);
        assert_agreement(transports, &Running::start(&folder, &mut command).wait(LIMIT));
        let (sent, devices) = lab::counted(&folder, "tx_bytes");
        assert!(sent > LEAST && devices >= RANKS, "{transports}: {devices} devices sent {sent} bytes");
        let addresses = lab::addresses(&folder);
        assert_eq!(addresses.len(), if shares { 1 } else { RANKS }, "{addresses:?}");
        println!("{} over {transports}: {devices} devices at {addresses:?} sent {sent} bytes", mpi.launcher);
    }
    assert_eq!(daemon.counted("dropped_misrouted"), 0);
}

#[test]
fn four_ranks_of_open_mpi_agree() {
    ranks_agree(&OPEN_MPI);
}

#[test]
fn four_ranks_of_mpich_agree() {
    ranks_agree(&MPICH);
}

#[test]
fn four_processing_elements_of_open_shmem_agree() {
    ranks_agree(&OPEN_SHMEM);
}

/// libfabric passes over addresses of loopback, so this takes a host with an interface. Its provider for verbs connects queue
/// pairs by librdmacm, and `ofi_rxm` makes of them what MPI needs.
#[test]
fn four_ranks_of_open_mpi_agree_over_libfabric() {
    if !OPEN_MPI.is_installed() || !hosts::possible() {
        return;
    }
    let folder = Folder::new();
    let program = OPEN_MPI.build(&folder);
    let _alone = lab::alone();
    let network = Network::start(1500);
    let options = "--allow-run-as-root --oversubscribe --mca pml cm --mca mtl ofi";
    let provider = "--mca mtl_ofi_provider_include verbs;ofi_rxm";
    let line = format!("{} {options} {provider} -n {RANKS} {}", OPEN_MPI.launcher, program.display());
    assert_agreement("libfabric", &network.begin(0, &line).wait(LIMIT));
    let (sent, devices) = network.counted(0, "tx_bytes");
    // Puts and gets go through the memory that the ranks share.
    assert!(sent > LEAST / 3 && devices >= RANKS, "{devices} devices sent {sent} bytes");
}
