//! The functions that a page calls. Texts go in and out as bytes in the module's memory.

use super::{Bench, FabricBench, lab_file, lab_run, labs, words};
use std::cell::RefCell;

thread_local! {
    static BENCH: RefCell<Option<Bench>> = const { RefCell::new(None) };
    static FABRIC: RefCell<Option<FabricBench>> = const { RefCell::new(None) };
    /// The text that goes in, and the one that goes out.
    static INPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static OUTPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Keeps a text for the page, behind its length in 32 bits; returns where.
fn give(text: &str) -> *const u8 {
    OUTPUT.with_borrow_mut(|output| {
        output.clear();
        output.extend_from_slice(&(text.len() as u32).to_le_bytes());
        output.extend_from_slice(text.as_bytes());
        output.as_ptr()
    })
}

fn input() -> String {
    INPUT.with_borrow(|input| String::from_utf8_lossy(input).into_owned())
}

/// What a call gives: the text, or an error as `{"error": ...}`.
fn answer(result: Result<String, String>) -> *const u8 {
    match result {
        Ok(text) => give(&text),
        Err(why) => give(&serde_json::json!({ "error": why }).to_string()),
    }
}

fn with(act: impl FnOnce(&mut Bench) -> Result<(), String>) -> *const u8 {
    answer(BENCH.with_borrow_mut(|bench| {
        let bench = bench.as_mut().ok_or("nothing is set up")?;
        act(bench)?;
        serde_json::to_string(&bench.tell()).map_err(|why| why.to_string())
    }))
}

/// Room for a text of this length, which the page fills before it calls a function that takes one.
#[expect(unsafe_code, reason = "a name for the page")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn input_room(len: usize) -> *mut u8 {
    INPUT.with_borrow_mut(|input| {
        input.clear();
        input.resize(len, 0);
        input.as_mut_ptr()
    })
}

/// Sets up what the text says.
#[expect(unsafe_code, reason = "a name for the page")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn set_up() -> *const u8 {
    match Bench::new(&input()) {
        Ok(bench) => {
            BENCH.set(Some(bench));
            with(|_| Ok(()))
        }
        Err(why) => answer(Err(why)),
    }
}

/// Goes on to this time in microseconds.
#[expect(unsafe_code, reason = "a name for the page")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn run(until: f64) -> *const u8 {
    with(|bench| bench.run(until))
}

/// Goes on to the next packet.
#[expect(unsafe_code, reason = "a name for the page")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn step(most: f64) -> *const u8 {
    with(|bench| bench.step(most))
}

/// Does what the text says.
#[expect(unsafe_code, reason = "a name for the page")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn act() -> *const u8 {
    let text = input();
    with(|bench| bench.act(&text).map(|_| ()))
}

/// The log of what the text sets up, to this time.
#[expect(unsafe_code, reason = "a name for the page")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn log(until: f64) -> *const u8 {
    answer(Bench::log(&input(), until))
}

fn with_fabric(act: impl FnOnce(&mut FabricBench) -> Result<(), String>) -> *const u8 {
    answer(FABRIC.with_borrow_mut(|fabric| {
        let fabric = fabric.as_mut().ok_or("nothing is set up")?;
        act(fabric)?;
        serde_json::to_string(&fabric.tell()).map_err(|why| why.to_string())
    }))
}

/// Builds the fabric that the set-up describes, and returns the names of its parts.
#[expect(unsafe_code, reason = "a name for the page")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fabric_set_up() -> *const u8 {
    answer(FabricBench::new(&input()).and_then(|fabric| {
        let parts = serde_json::to_string(fabric.parts()).map_err(|why| why.to_string());
        FABRIC.set(Some(fabric));
        parts
    }))
}

/// Goes on to this time in microseconds.
#[expect(unsafe_code, reason = "a name for the page")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fabric_run(until: f64) -> *const u8 {
    with_fabric(|fabric| fabric.run(until))
}

/// Goes on to the next packet that reaches a host.
#[expect(unsafe_code, reason = "a name for the page")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fabric_step() -> *const u8 {
    with_fabric(FabricBench::step)
}

/// The log of the fabric that the text sets up, to this time.
#[expect(unsafe_code, reason = "a name for the page")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn fabric_log(until: f64) -> *const u8 {
    answer(FabricBench::log(&input(), until))
}

/// A result as JSON.
fn told<T: serde::Serialize>(result: Result<T, String>) -> *const u8 {
    answer(result.and_then(|value| serde_json::to_string(&value).map_err(words)))
}

/// The labs and their experiments.
#[expect(unsafe_code, reason = "a name for the page")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn lab_list() -> *const u8 {
    told(labs())
}

/// The file of the experiment that the text names.
#[expect(unsafe_code, reason = "a name for the page")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn lab_text() -> *const u8 {
    told(lab_file(&input()))
}

/// Runs the experiment that the text names.
#[expect(unsafe_code, reason = "a name for the page")]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn lab_show() -> *const u8 {
    told(lab_run(&input()))
}
