//! A disk over iSER: Debian's tgtd serves it, and libiscsi's programs and QEMU's tools use it.

use crate::lab::{self, Ended, Folder, LIMIT, Running, has};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const TARGET: &str = "iqn.2026-01.rnic.test:disk";
const INITIATOR: &str = "iqn.2026-01.rnic.test:initiator";
const PORT: u16 = 3260;

/// The size of the disk.
const SIZE: u64 = 32 << 20;

/// tgtd, and the folder with its disk and its control socket.
struct Server<'a> {
    folder: &'a Folder,
    address: &'a str,
    tgtd: Running,
}

impl<'a> Server<'a> {
    /// Starts tgtd with one disk, the file `disk`.
    fn start(folder: &'a Folder, address: &'a str) -> Self {
        let mut command = lab::run(folder, &["--addr", address, "--explain"], "tgtd");
        // It listens for TCP too: at an address of its own, not at all of them. Its pool is 1 GiB if nothing is said.
        command.args(["-f", "--iser"]).arg(format!("port={PORT},pool_sz_mb=64"));
        command.arg("--iscsi").arg(format!("portal={address}:{}", lab::free_port()));
        command.env("TGT_IPC_SOCKET", folder.path().join("socket"));
        let mut tgtd = Running::start(folder, &mut command);
        let begin = Instant::now();
        while !folder.path().join("socket.0").exists() {
            assert!(!tgtd.has_ended() && begin.elapsed() < LIMIT, "tgtd does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        let server = Self { folder, address, tgtd };
        let disk = server.disk();
        std::fs::File::create(&disk).and_then(|file| file.set_len(SIZE)).expect("a disk");
        server.admin(&["target", "--op", "new", "--tid", "1", "-T", TARGET]);
        server.admin(&["logicalunit", "--op", "new", "--tid", "1", "--lun", "1", "-b", &disk]);
        // Over iSER an initiator must be named by its address and by its name.
        server.admin(&["target", "--op", "bind", "--tid", "1", "-I", "ALL"]);
        server.admin(&["target", "--op", "bind", "--tid", "1", "-Q", INITIATOR]);
        server
    }

    fn disk(&self) -> String {
        self.folder.path().join("disk").to_string_lossy().into_owned()
    }

    fn tgtadm(&self, mode: &[&str]) -> Output {
        let mut command = Command::new("tgtadm");
        command.env("TGT_IPC_SOCKET", self.folder.path().join("socket"));
        command.args(["--lld", "iser", "--mode"]).args(mode).output().expect("tgtadm")
    }

    /// A command of tgtadm that must succeed.
    fn admin(&self, mode: &[&str]) {
        let output = self.tgtadm(mode);
        assert!(output.status.success(), "tgtadm --mode {}: {output:?}", mode.join(" "));
    }

    /// Ends it as an administrator does: once the last session is over, which is when TIMEWAIT is.
    fn end(self) -> Ended {
        let begin = Instant::now();
        loop {
            let output = self.tgtadm(&["target", "--op", "delete", "--tid", "1"]);
            if output.status.success() {
                break;
            }
            assert!(begin.elapsed() < LIMIT, "the target stays in use: {output:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        // It may end before it answers.
        self.tgtadm(&["system", "--op", "delete"]);
        self.tgtd.wait(LIMIT)
    }

    /// Runs an initiator at another address.
    fn client(&self, address: &str, program: &str, arguments: &[&str]) -> String {
        let mut command = lab::run(self.folder, &["--addr", address, "--explain"], program);
        let ended = Running::start(self.folder, command.args(arguments)).wait(LIMIT);
        assert_eq!(ended.fault(), None, "{program} {arguments:?}: {}", ended.text);
        ended.text
    }

    fn url(&self) -> String {
        format!("iser://{}:{PORT}/{TARGET}/1", self.address)
    }

    /// The disk, for QEMU's tools. libiscsi takes no command of 512 KiB or more over iSER, and tgtd announces no limit.
    fn options(&self) -> String {
        let Self { address, .. } = self;
        let image = format!(
            "driver=iscsi,transport=iser,portal={address}:{PORT},target={TARGET},lun=1,initiator-name={INITIATOR}"
        );
        let image = image.replace(',', ",file.image.");
        format!("driver=raw,file.driver=blkdebug,file.max-transfer=131072,file.image.{image}")
    }
}

/// Whether all of these are installed.
fn have(programs: &[&str]) -> bool {
    programs.iter().all(|program| has(program))
}

#[test]
fn libiscsi_looks_at_a_disk_of_tgtd() {
    if !have(&["tgtd", "tgtadm", "iscsi-inq", "iscsi-readcapacity16"]) {
        return;
    }
    let folder = Folder::new();
    let _alone = lab::alone();
    let mut server = Server::start(&folder, "127.91.252.1");
    let disk = ["-i", INITIATOR, &server.url()];
    let text = server.client("127.91.252.2", "iscsi-inq", &disk);
    assert!(text.contains("VIRTUAL-DISK"), "{text}");
    let text = server.client("127.91.252.2", "iscsi-readcapacity16", &disk);
    assert!(text.contains(&format!("Total size:{SIZE}")), "{text}");
    assert!(!server.tgtd.has_ended());
    server.tgtd.kill();
}

/// A file system of `SIZE` bytes, with files in it.
fn file_system(image: &Path, files: &Path) {
    std::fs::create_dir_all(files.join("deep")).expect("a folder");
    let bytes =
        |count: u32| (0..count).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect::<Vec<_>>();
    for (name, count) in [("empty", 0), ("small", 700), ("deep/large", 5_000_000)] {
        std::fs::write(files.join(name), bytes(count)).expect("a file");
    }
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-t", "ext4", "-d"]).arg(files).arg(image).arg(format!("{}k", SIZE >> 10));
    let output = command.output().expect("mke2fs");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_file_system_is_written_to_a_disk_of_tgtd_and_read_back() {
    if !have(&["tgtd", "tgtadm", "qemu-img", "mke2fs"]) {
        return;
    }
    let module = Command::new("qemu-img").arg("--help").output().expect("qemu-img");
    if !String::from_utf8_lossy(&module.stdout).contains("iscsi") {
        println!("SKIPPED: this QEMU has no driver for iSCSI (qemu-block-extra), so none was run on rnic");
        return;
    }
    let folder = Folder::new();
    let at = |name: &str| folder.path().join(name);
    let text = |name: &str| at(name).to_string_lossy().into_owned();
    file_system(&at("from"), &at("files"));
    let _alone = lab::alone();
    let server = Server::start(&folder, "127.91.253.1");
    let convert = |arguments: &[&str]| {
        server.client("127.91.253.2", "qemu-img", &[&["convert"], arguments].concat());
    };
    convert(&["-n", "-f", "raw", &text("from"), "--target-image-opts", &server.options()]);
    convert(&["--image-opts", &server.options(), "-O", "raw", &text("back")]);
    let ended = server.end();
    assert_eq!(ended.fault(), None, "{}", ended.text);
    let [from, disk, back] = ["from", "disk", "back"].map(|name| std::fs::read(at(name)).expect(name));
    assert_eq!(from.len() as u64, SIZE);
    assert!(from == disk, "the disk differs from what was written");
    assert!(from == back, "what was read back differs");
    let (sent, programs) = lab::counted(&folder, "tx_bytes");
    assert!(programs == 3 && sent > 10_000_000, "{sent} bytes of {programs} programs");
}
