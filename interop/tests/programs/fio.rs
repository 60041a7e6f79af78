//! fio's rdma engine, and what its memory contains afterwards.

use crate::lab::{Folder, faults, has, installed_library};
use crate::rdma_cm::{Case, LIBRARY, run};
use std::fs;

/// What fio moves at a time, in all, and how many blocks each side has room for.
const BLOCK: usize = 64 << 10;
const SIZE: u64 = 20 << 20;
const SERVER_BLOCKS: u64 = 32;
/// The receives of a server of SENDs: one for each message. fio asks for no retry after RNR NAKs, on any device, so a server
/// that is slower than its client would end the connection.
const RECEIVES: u64 = SIZE / BLOCK as u64;
const CLIENT_BLOCKS: u64 = 4;

/// The words of the server's blocks before fio starts, and of the client's.
const OF_SERVER: u64 = 0xabcd << 32;
const OF_CLIENT: u64 = 0x1234 << 32;

/// The options of both sides: their buffers are files, which show what RDMA left in them.
macro_rules! fio {
    ($name:literal, $($more:tt)+) => {
        concat!(
            "fio --thread --verify_state_save=0 --ioengine=rdma --port=7475 --bs=64k --size=20m --name=",
            $name,
            " --mem=mmapshared:FOLDER/",
            $name,
            " ",
            $($more)+
        )
    };
}

/// A server that does not look at what comes, and one that does.
const SERVER: &str = fio!("server", "--rw=read --iodepth=32");
const VERIFYING: &str = fio!("server", "--rw=read --iodepth=320 --verify=pattern --verify_pattern=%o");

/// A client. Each word of a block that it writes is the block's offset.
macro_rules! client {
    ($verb:literal) => {
        fio!(
            "client",
            "--hostname=@ --rw=write --iodepth=4 --verify=pattern --verify_pattern=%o --do_verify=0 --verb=",
            $verb
        )
    };
}

/// Writes a file of blocks, of which each word is `first` plus the number of the block.
fn prepare(folder: &Folder, name: &str, first: u64, blocks: u64) {
    // One more than fio needs, in case it aligns its buffers.
    let words = (first..=first + blocks).flat_map(|word| vec![word.to_le_bytes(); BLOCK / 8]);
    fs::write(folder.path().join(name), words.flatten().collect::<Vec<_>>()).expect("a file");
}

/// The word of each block. Panics if a block is a mixture of two.
fn blocks(folder: &Folder, name: &str, blocks: u64) -> Vec<u64> {
    let bytes = fs::read(folder.path().join(name)).expect("a file");
    let word = |block: &[u8]| {
        let (words, []) = block.as_chunks::<8>() else { panic!("half a word") };
        assert!(words.iter().all(|word| word == &words[0]), "{name}: a block is a mixture");
        u64::from_le_bytes(words[0])
    };
    bytes.chunks_exact(BLOCK).take(blocks as usize).map(word).collect()
}

/// Runs both sides, of which the server has this many blocks. Returns the words of the server's blocks, and of the client's;
/// `None` if fio is not installed.
fn exchange(server: &'static str, client: &'static str, server_blocks: u64) -> Option<[Vec<u64>; 2]> {
    if !installed_library(LIBRARY) || !has("fio") {
        return None;
    }
    let folder = Folder::new();
    prepare(&folder, "server", OF_SERVER, server_blocks);
    prepare(&folder, "client", OF_CLIENT, CLIENT_BLOCKS);
    let ends = run(&folder, &Case::of(server, client));
    let check = |end: usize, text: &str| {
        (end == 1 && !text.contains("io=20.0MiB")).then(|| "does not move all of it".to_owned())
    };
    assert_eq!(faults(&ends, check), None);
    Some([blocks(&folder, "server", server_blocks), blocks(&folder, "client", CLIENT_BLOCKS)])
}

/// Whether a word is that of a block of the client.
fn is_offset(word: u64) -> bool {
    word < SIZE && word.is_multiple_of(BLOCK as u64)
}

/// The block that the client wrote last.
const LAST: u64 = SIZE - BLOCK as u64;

#[test]
fn what_fio_writes_is_in_the_memory_of_its_server() {
    let Some([server, _]) = exchange(SERVER, client!("write"), SERVER_BLOCKS) else { return };
    // It writes to blocks of the server at random, so a few may remain as they were.
    let written = server.iter().filter(|word| is_offset(**word)).count() as u64;
    let untouched = server.iter().filter(|word| **word >= OF_SERVER).count() as u64;
    assert!(written > SERVER_BLOCKS / 2 && written + untouched == SERVER_BLOCKS, "{server:x?}");
    assert!(server.contains(&LAST), "{server:x?}");
}

#[test]
fn what_fio_reads_is_from_the_memory_of_its_server() {
    let Some([server, client]) = exchange(SERVER, client!("read"), SERVER_BLOCKS) else { return };
    let as_before: Vec<_> = (OF_SERVER..OF_SERVER + SERVER_BLOCKS).collect();
    assert_eq!(server, as_before);
    assert!(client.iter().all(|word| as_before.contains(word)), "{client:x?}");
}

#[test]
fn what_fio_sends_is_what_its_server_expects() {
    let Some([server, _]) = exchange(VERIFYING, client!("send"), RECEIVES) else { return };
    // fio posts its receives from the last block to the first; each takes the message that is its turn.
    let offsets: Vec<_> = (0..RECEIVES).rev().map(|block| block * BLOCK as u64).collect();
    assert_eq!(server, offsets);
}
