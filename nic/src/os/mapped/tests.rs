use super::*;
use pcap_file::pcapng::{Block, PcapNgReader};
use rnic_core::link::capture::pcapng::{PacketBlock, Way, write_interface, write_section};
use std::path::PathBuf;
use time::Duration;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rnic-mapped-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("capture.pcapng")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn begin(path: &Path) -> MappedFile {
    let mut file = MappedFile::create(path).expect("a file");
    write_section(&mut file, "test").expect("a section");
    write_interface(&mut file, "test").expect("an interface");
    file.flush().expect("both");
    file
}

fn packet(file: &mut MappedFile, number: u8, len: usize) -> io::Result<()> {
    let bytes = vec![number; len];
    let block =
        PacketBlock { time: Duration::ZERO, headers: &[], packet: &bytes, way: Way::Inbound, comment: "" };
    block.write(file).map(drop)
}

/// The numbers of the packets that a strict reader finds.
fn read(path: &Path) -> Vec<u8> {
    let mut reader = PcapNgReader::new(File::open(path).expect("the file")).expect("a capture");
    let mut numbers = Vec::new();
    while let Some(block) = reader.next_block() {
        match block.expect("a whole block") {
            Block::EnhancedPacket(packet) => numbers.push(packet.data[0]),
            Block::InterfaceDescription(_) | Block::SectionHeader(_) | Block::Unknown(_) => {}
            other => panic!("{other:?}"),
        }
    }
    numbers
}

#[test]
fn the_file_is_whole_after_each_packet_and_before_each_flush() {
    let folder = Folder::new("whole");
    let mut file = begin(&folder.file());
    // Of all lengths, over several growths.
    for number in 0..=255u8 {
        let before: Vec<_> = (0..number).collect();
        packet(&mut file, number, usize::from(number) * 61 + 1).expect("a packet");
        assert_eq!(read(&folder.file()), before, "it is not visible yet");
        file.flush().expect("a packet");
    }
    assert!(file.window.end > GROWTH, "the file has grown");
    assert_eq!(read(&folder.file()), (0..=255).collect::<Vec<_>>());
    drop(file);
    assert_eq!(read(&folder.file()), (0..=255).collect::<Vec<_>>());
}

#[test]
fn the_file_is_whole_while_it_grows() {
    let folder = Folder::new("grows");
    let mut file = begin(&folder.file());
    packet(&mut file, 7, 100).expect("a packet");
    file.flush().expect("a packet");
    // The file left by a process that is killed between any two of the writes.
    for pages in 1..4 {
        let end = file.window.end + pages * PAGE as u64;
        extend(&file.file, end - PAGE as u64, end).expect("a page");
        assert_eq!(read(&folder.file()), [7]);
    }
}

#[test]
fn a_file_that_was_closed_has_nothing_behind_its_packets() {
    let folder = Folder::new("closed");
    let mut file = begin(&folder.file());
    packet(&mut file, 1, 10).expect("a packet");
    file.flush().expect("a packet");
    let visible = file.visible;
    assert_eq!(fs::metadata(folder.file()).expect("the file").len(), GROWTH);
    drop(file);
    assert_eq!(fs::metadata(folder.file()).expect("the file").len(), visible);
}

#[test]
fn a_file_that_is_cut_short_by_others_is_an_error() {
    let folder = Folder::new("cut");
    let mut file = begin(&folder.file());
    File::create(folder.file()).expect("the same file, empty");
    assert!(packet(&mut file, 1, 10_000).and_then(|()| file.flush()).is_err());
}

#[test]
fn two_captures_to_one_name_do_not_mix() {
    let folder = Folder::new("two");
    let mut first = begin(&folder.file());
    let mut second = begin(&folder.file());
    for number in 0..10 {
        packet(&mut first, 100 + number, 50).expect("a packet");
        packet(&mut second, number, 50).expect("a packet");
        first.flush().expect("a packet");
        second.flush().expect("a packet");
    }
    drop(first);
    assert_eq!(read(&folder.file()), (0..10).collect::<Vec<_>>());
}
