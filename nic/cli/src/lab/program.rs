//! Labs whose task is a program: it runs for real, over sockets, and its packets are judged.

use super::folder::Folder;
use nix::sys::memfd::{MFdFlags, memfd_create};
use rnic::capture::{DecodedPacket, Decoder};
use rnic::ladder::{Ladder, Style};
use rnic_lab::Value;
use rnic_lab::definition::{Language, Program};
use rnic_lab::expression::evaluate;
use rnic_lab::judge::{State, Verdict};
use rnic_lab::program::{BEGINS, Seen, Write, begins};
use rnic_lab::template::fill;
use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The key of the task that names the language.
const LANGUAGE: &str = "language";

/// How long a program may run, and how long its build may take: a first build compiles rnic.
const PATIENCE: Duration = Duration::from_secs(30);
const BUILD_PATIENCE: Duration = Duration::from_secs(1800);

/// What a run of the program left, or its build if that failed.
struct Ran {
    output: Output,
    capture: PathBuf,
    is_built: bool,
    /// What failed, if anything did.
    end: Result<(), String>,
}

/// The student's language, and the folder of the program.
fn language<'a>(
    folder: &Folder,
    program: &'a Program,
) -> Result<Option<(PathBuf, &'a Language)>, Box<dyn Error>> {
    let chosen = folder.chosen();
    let Some(Value::Text(name)) = chosen.get(LANGUAGE) else { return Ok(None) };
    let Some(language) = program.language.get(name) else { return Ok(None) };
    let path = folder.path.join(name);
    if !path.is_dir() {
        return Err(format!("{} is missing: `rnic lab start` makes it", path.display()).into());
    }
    Ok(Some((path.canonicalize()?, language)))
}

/// Runs a command with a limit, and keeps what it prints. Says whether it ended in time.
fn limited(command: &mut Command, patience: Duration) -> Result<(Output, bool), Box<dyn Error>> {
    let name = command.get_program().to_string_lossy().into_owned();
    // Files in memory: a program that prints much waits for no reader, and one that leaves a process behind, which goes on
    // printing, is not waited for.
    let (mut stdout, mut stderr) = (memory()?, memory()?);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?)
        .spawn()
        .map_err(|why| format!("cannot run {name}: {why}"))?;
    let end = Instant::now() + patience;
    let (status, is_in_time) = loop {
        match child.try_wait()? {
            Some(status) => break (status, true),
            None if Instant::now() > end => {
                let _ = child.kill();
                break (child.wait()?, false);
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    Ok((Output { status, stdout: read(&mut stdout)?, stderr: read(&mut stderr)? }, is_in_time))
}

/// A file that only this process and its children have.
fn memory() -> io::Result<File> {
    Ok(memfd_create(c"rnic-lab", MFdFlags::MFD_CLOEXEC)?.into())
}

/// What is in a file by now. Its writers have the same position in it, so it is read without moving that.
fn read(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Builds and runs the program, under `rnic run` if it uses libibverbs.
fn ran(path: &Path, language: &Language) -> Result<Ran, Box<dyn Error>> {
    let own = std::env::current_exe()?;
    if language.verbs {
        crate::run::library_folder(&own).map_err(|why| {
            format!("the program needs rnic's own libibverbs: {why}, in the source of rnic")
        })?;
    }
    let capture = path.join("packets.pcapng");
    let _ = fs::remove_file(&capture);
    if let [program, arguments @ ..] = &*language.build {
        let (output, is_in_time) =
            limited(Command::new(program).args(arguments).current_dir(path), BUILD_PATIENCE)?;
        let build = language.build.join(" ");
        if !is_in_time {
            return Err(format!("`{build}` did not end within {} s", BUILD_PATIENCE.as_secs()).into());
        }
        if !output.status.success() {
            let end = Err(format!("your program does not build: `{build}` ended with {}", output.status));
            return Ok(Ran { output, capture, is_built: false, end });
        }
    }
    let mut command = match &*language.run {
        [program, arguments @ ..] if !language.verbs => {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        }
        words => {
            let mut command = Command::new(own);
            command
                .arg("run")
                .arg("--daemon")
                .arg("off")
                .arg("--capture")
                .arg(&capture)
                .arg("--")
                .args(words);
            command
        }
    };
    command.current_dir(path).env("RNIC_CAPTURE", &capture);
    let (output, is_in_time) = limited(&mut command, PATIENCE)?;
    if language.verbs && output.status.code().is_some_and(|code| crate::run::OWN.contains(&code)) {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(
            format!("the program was not run: {}", text.trim_end().trim_start_matches("rnic: ")).into()
        );
    }
    let end = match is_in_time {
        _ if !is_in_time => Err(format!(
            "your program did not end within {} s: does it poll for a completion that does not come?",
            PATIENCE.as_secs()
        )),
        _ if output.status.success() => Ok(()),
        _ => Err(format!("your program is to end with exit code 0, and it ended with {}", output.status)),
    };
    Ok(Ran { output, capture, is_built: true, end })
}

/// Runs the program, and shows what it prints and its packets. Returns what failed, if the program did.
pub(super) fn show(folder: &Folder) -> Result<Result<(), String>, Box<dyn Error>> {
    let Some(program) = &folder.definition.program else { return Ok(Ok(())) };
    let Some((path, language)) = language(folder, program)? else {
        outln!("Write your language into answers.toml: {}.", words(program));
        return Ok(Ok(()));
    };
    let Ran { output, capture, is_built, end } = ran(&path, language)?;
    let who = if is_built { "program" } else { "build" };
    // One after the other: nobody can tell in which order they were written.
    for (what, bytes) in [("prints", &output.stdout), ("prints as errors", &output.stderr)] {
        if !bytes.is_empty() {
            outln!("What the {who} {what}:\n");
            String::from_utf8_lossy(bytes).lines().for_each(|line| outln!("  {line}"));
            outln!();
        }
    }
    if !is_built {
        return Ok(end);
    }
    if end.is_ok() {
        outln!("The program ended with exit code 0.");
    }
    let packets = packets(&capture)?;
    if packets.is_empty() {
        outln!("The program has sent no packets.");
        return Ok(end);
    }
    outln!("Its packets, in {}:\n", capture.display());
    for ladder in Ladder::of_capture(&packets) {
        outln!("{}", ladder.render(&Style::narrow()));
    }
    Ok(end)
}

fn words(program: &Program) -> String {
    program.language.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Runs the program, and judges its packets and what it prints.
pub(super) fn judge(folder: &Folder, verdict: &mut Verdict) -> Result<(), Box<dyn Error>> {
    let Some(program) = &folder.definition.program else { return Ok(()) };
    let Some((path, language)) = language(folder, program)? else {
        verdict.say("goal", "program", State::Missing, "it is judged when you have chosen a language");
        return Ok(());
    };
    let payload = fill(&program.payload, &folder.values)?;
    let Ran { output, capture, is_built, end } = ran(&path, language)?;
    if let (false, Err(why)) = (is_built, &end) {
        verdict.say("goal", "builds", State::Wrong, format!("{why}; `rnic lab run` shows what it prints"));
        return Ok(());
    }
    let seen = Seen::of(&packets(&capture)?);
    let bytes = fs::read(&capture).unwrap_or_default();
    let text = String::from_utf8_lossy(&output.stdout).to_lowercase();
    let mut goal = |key: &str, is_met: bool, missing: &str| {
        let state = if is_met { State::Right } else { State::Wrong };
        verdict.say("goal", key, state, if is_met { String::new() } else { missing.to_owned() });
    };
    goal("ends", end.is_ok(), end.as_ref().err().map_or("", String::as_str));
    let length = payload.len();
    let is_there = bytes.windows(length.max(1)).any(|window| window == payload.as_bytes());
    let missing = match seen.writes.first() {
        Some(write) if is_there => format!("your text has {length} bytes, and your WRITE {}", write.length),
        _ => format!("no RDMA WRITE carries the {length} bytes of your text"),
    };
    let carries = |write: &Write| write.carries(payload.as_bytes(), &bytes);
    goal("write", seen.writes.iter().any(carries), &missing);
    let offset = evaluate(&program.offset, &folder.values)?;
    let (is_placed, missing) = match (begins(&text), seen.writes.first()) {
        (None, _) => (false, format!("the program is to print `{BEGINS}...`, as its start does")),
        (_, None) => (false, "nothing was written".to_owned()),
        (Some(base), Some(Write { va, .. })) => (
            // The first one: that with a wrong key may be right otherwise.
            va.wrapping_sub(base) as f64 == offset,
            match va.checked_sub(base) {
                Some(other) => {
                    format!("the text is to go to offset {offset} of the remote region, and goes to {other}")
                }
                None => "the text goes to an address in front of the remote region".to_owned(),
            },
        ),
    };
    goal("place", is_placed, &missing);
    goal("acknowledged", seen.acknowledged > 0, "no WRITE was acknowledged");
    let (is_refused, missing) = match seen.refused().next() {
        None => {
            (false, "no WRITE with a wrong key was refused: there is no NAK for a remote access error".to_owned())
        }
        Some(write) if carries(write) => (
            false,
            "the WRITE that was refused carries the text of the first one, so nothing shows which of them arrived".to_owned(),
        ),
        Some(write) => (
            write.length as usize == length,
            format!("the other text is to have {length} bytes, too, and the WRITE that was refused has {}", write.length),
        ),
    };
    goal("refused", is_refused, &missing);
    goal(
        "completions",
        text.contains("success") && (text.contains("remote access error") || text.contains("rem_access_err")),
        "the program is to print the status of both completions, in the words of libibverbs or of rnic",
    );
    let printed = text.matches(&payload.to_lowercase()).count();
    let times = ["not at all", "once"].get(printed).copied().unwrap_or_default();
    goal(
        "text",
        printed >= 2,
        &format!(
            "the program is to print the text in the remote region after each completion: your text is printed {times}"
        ),
    );
    Ok(())
}

/// The packets of a capture. A device that sends to itself sees each packet leave and come, and the capture has both: one counts.
fn packets(capture: &Path) -> Result<Vec<DecodedPacket>, Box<dyn Error>> {
    // A program that opened no device left none.
    let Ok(file) = File::open(capture) else { return Ok(Vec::new()) };
    let mut packets = Decoder::new(file)?.collect::<Result<Vec<_>, _>>()?;
    let mut has_left: Vec<(IpAddr, u32)> = Vec::new();
    packets.retain(|packet| {
        let icrc = packet.icrc.as_ref().map_or(0, |icrc| icrc.found);
        let key = (packet.src, icrc);
        let has_come = packet.src == packet.dst
            && has_left.iter().position(|other| *other == key).is_some_and(|at| {
                has_left.swap_remove(at);
                true
            });
        if !has_come {
            has_left.push(key);
        }
        !has_come
    });
    Ok(packets)
}
