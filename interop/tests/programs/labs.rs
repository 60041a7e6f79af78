//! The lab whose task is a program: its solution passes in each language, and its start, and that of another student, do not.

use crate::lab::{self, Ended, Folder, LIMIT, Running, has};
use std::fs;
use std::path::{Path, PathBuf};

/// The answers to everything but the task.
const ANSWERS: &[(&str, &str)] = &[
    ("receive = \"\"", "receive = \"no\""),
    ("wrong_key = \"\"", "wrong_key = \"refused\""),
    ("who = \"\"", "who = \"requester\""),
    ("status = \"\"", "status = \"REM_ACCESS_ERR\""),
    ("state = \"\"", "state = \"ERR\""),
];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/labs/first-write")
}

/// Starts the lab for a student, with the answers to the questions.
fn start(folder: &Folder, student: &str, language: &str) -> PathBuf {
    let place = folder.path().join(student);
    let mut command = lab::rnic(folder);
    command.args(["lab", "start", "first-write", "--student", student, "--into"]).arg(&place);
    let ended = Running::start(folder, &mut command).wait(LIMIT);
    assert!(ended.status.is_some_and(|status| status.success()), "{}", ended.text);
    let file = place.join("answers.toml");
    let mut text = fs::read_to_string(&file).expect("answers");
    let number = |name: &str| -> u64 {
        let c = fs::read_to_string(place.join("c/first_write.c")).expect("a start in C");
        let line =
            c.lines().find_map(|line| line.strip_prefix(&format!("#define {name} "))).expect("a number");
        line.parse().expect("a number")
    };
    for (from, to) in ANSWERS {
        text = text.replace(from, to);
    }
    text = text
        .replace("most_bytes = \"\"", &format!("most_bytes = {}", number("REGION") - number("OFFSET")))
        .replace("wire = \"\"", &format!("wire = {}", 32 + number("OFFSET")))
        .replace("language = \"\"", &format!("language = \"{language}\""));
    fs::write(&file, text).expect("answers");
    place
}

/// Puts a file of the solution in the place of the start, with the student's text and numbers.
fn solve(place: &Path, file: &str) {
    let start = fs::read_to_string(source().join("start").join(file)).expect("a start");
    let mine = fs::read_to_string(place.join(file)).expect("a start of the student");
    let mut solution = fs::read_to_string(source().join("solution").join(file)).expect("a solution");
    // The same lines have the same places to fill in.
    for (template, filled) in start.lines().zip(mine.lines()).filter(|(template, filled)| template != filled)
    {
        solution = solution.replace(template, filled);
    }
    assert!(!solution.contains("$("), "{solution}");
    fs::write(place.join(file), solution).expect("a solution of the student");
}

/// What `rnic lab check` says.
fn check(folder: &Folder, place: &Path, path: &str, python: &Path) -> (Option<i32>, String) {
    let mut command = lab::rnic(folder);
    command.args(["lab", "check"]).arg(place).env("PATH", path).env("PYTHONPATH", python);
    let ended = Running::start(folder, &mut command).wait(LIMIT);
    (ended.status.and_then(|status| status.code()), ended.text)
}

/// A `cargo` for the start in Rust, which uses the library that is built already: a real one would build it once more.
fn cargo(folder: &Folder) -> Option<PathBuf> {
    let deps = lab::built().join("deps");
    let libraries = fs::read_dir(&deps).ok()?.flatten().map(|entry| entry.path());
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("librnic-") && name.ends_with(".rlib")
    };
    let newest =
        libraries.filter(is_ours).max_by_key(|path| fs::metadata(path).and_then(|of| of.modified()).ok())?;
    let bin = folder.path().join("bin");
    fs::create_dir_all(&bin).expect("a folder");
    let script = format!(
        "#!/bin/sh\nmkdir -p target/debug\nexec rustc --edition 2024 -L dependency={} --extern rnic={} -o target/debug/first-write src/main.rs\n",
        deps.display(),
        newest.display()
    );
    let file = bin.join("cargo");
    fs::write(&file, script).expect("a script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&file, mode).expect("a mode");
    Some(bin)
}

#[test]
fn the_first_write_is_judged_in_each_language() {
    let folder = Folder::new();
    lab::built();
    let own = std::env::var("PATH").unwrap_or_default();
    let python = lab::installed().join("pyverbs/package/usr/lib/python3/dist-packages");
    let rust = cargo(&folder).expect("the library is built");
    let path = format!("{}:{own}", rust.display());
    for (language, file, is_there) in [
        ("c", "c/first_write.c", has("cc") && Path::new("/usr/include/infiniband/verbs.h").exists()),
        ("python", "python/first_write.py", python.is_dir() && has("python3")),
        ("rust", "rust/src/main.rs", has("rustc")),
    ] {
        if !is_there {
            println!(
                "SKIPPED: what programs in {language} need is not installed, so the lab was not done in it"
            );
            continue;
        }
        let place = start(&folder, &format!("alice-{language}"), language);
        let (code, text) = check(&folder, &place, &path, &python);
        assert_eq!(code, Some(1), "the start in {language}: {text}");
        assert!(text.contains("no RDMA WRITE carries"), "{text}");
        solve(&place, file);
        let (code, text) = check(&folder, &place, &path, &python);
        assert_eq!(code, Some(0), "the solution in {language}: {text}");
        // Another student's program WRITEs another text.
        let other = start(&folder, &format!("bob-{language}"), language);
        fs::copy(place.join(file), other.join(file)).expect("a copy");
        let (code, text) = check(&folder, &other, &path, &python);
        assert_eq!(code, Some(1), "a copy in {language}: {text}");
    }
}

#[test]
fn typical_mistakes_in_the_first_write_are_named() {
    if !has("cc") || !Path::new("/usr/include/infiniband/verbs.h").exists() {
        println!("SKIPPED: libibverbs-dev is not installed, so mistakes in the first WRITE were not judged");
        return;
    }
    let folder = Folder::new();
    lab::built();
    let path = std::env::var("PATH").unwrap_or_default();
    let place = start(&folder, "carol", "c");
    solve(&place, "c/first_write.c");
    let file = place.join("c/first_write.c");
    let right = fs::read_to_string(&file).expect("a solution");
    for (from, to, says) in [
        // The local region's key in place of the remote one's.
        ("remote->rkey)));", "remote->rkey + 7)));", "no WRITE was acknowledged"),
        ("remote->rkey + 1", "remote->rkey", "no WRITE with a wrong key was refused"),
        // The completion is not looked at.
        (
            "ibv_wc_status_str(write_to(left, cq, local, (uintptr_t)target + OFFSET, remote->rkey + 1))",
            "(write_to(left, cq, local, (uintptr_t)target + OFFSET, remote->rkey + 1), \"done\")",
            "print the status of both completions",
        ),
        ("    memset(source, '-', strlen(TEXT));\n", "", "carries the text of the first one"),
        (
            "remote->rkey + 1)));\n    printf(\"%s\\n\", target + OFFSET);\n",
            "remote->rkey + 1)));\n    printf(\"%s\\n\", source);\n",
            "your text is printed once",
        ),
        ("    return 0;\n", "    return 3;\n", "exit code 0"),
        (
            "(uintptr_t)target + OFFSET, remote->rkey)",
            "(uintptr_t)target + OFFSET + 8, remote->rkey)",
            "is to go to offset",
        ),
        (".length = strlen(TEXT)", ".length = sizeof TEXT", "and your WRITE"),
        ("the remote region begins", "the region begins", "is to print `the remote region begins"),
    ] {
        assert!(right.contains(from), "{from}");
        fs::write(&file, right.replacen(from, to, 1)).expect("a mistake");
        let (code, text) = check(&folder, &place, &path, Path::new("."));
        assert!(code == Some(1) && text.contains(says), "{from}: {says}\n{text}");
    }
}

/// The commands in the sheet of a lab that begin with these words.
fn commands(folder: &Folder, lab: &str, beginning: &str) -> Vec<Vec<String>> {
    let ended = Running::start(folder, lab::rnic(folder).args(["lab", "show", lab])).wait(LIMIT);
    assert!(ended.fault().is_none(), "{}", ended.text);
    // What stands between two backquotes is every second part.
    let quoted = ended.text.split('`').skip(1).step_by(2);
    let found = quoted.filter(|text| text.starts_with(beginning));
    found.map(|text| text.split_whitespace().map(str::to_owned).collect()).collect()
}

/// Runs the two commands of a sheet, each in a terminal of its own, as they are printed there, but for some words: other tests have
/// the usual addresses and ports, and nobody waits for half a minute.
fn meet(
    folder: &Folder,
    [server, client]: [&[String]; 2],
    instead: &[(&str, &str)],
    port: [&str; 2],
) -> Ended {
    let _alone = lab::alone();
    let command = |words: &[String]| {
        let mut command = lab::rnic(folder);
        for word in &words[1..] {
            command.arg(instead.iter().find(|(own, _)| own == word).map_or(&**word, |(_, other)| other));
        }
        command.args(port);
        command
    };
    let mut server = Running::start(folder, &mut command(server));
    lab::await_listener(port[1].parse().expect("a port"), &mut server);
    Running::start(folder, &mut command(client)).wait(LIMIT)
}

#[test]
fn what_the_sheets_print_for_two_terminals_works() {
    let folder = Folder::new();
    let port = lab::free_port().to_string();
    let [server, client] =
        ["rnic perf server", "rnic perf client"].map(|words| commands(&folder, "latency", words));
    assert_eq!((server.len(), client.len()), (1, 1), "{server:?} {client:?}");
    // The address is what the server prints.
    let server: Vec<String> = [&server[0][..], &["--bind".to_owned(), "127.6.7.3".to_owned()]].concat();
    let instead = [("ADDRESS", "127.6.7.3")];
    let ended = meet(&folder, [&server, &client[0]], &instead, ["--control-port", &port]);
    assert!(ended.fault().is_none() && ended.text.contains("t_typical[usec]"), "{}", ended.text);
    if !has("ib_write_bw") {
        return;
    }
    let both = commands(&folder, "retries", "rnic run");
    let [server, client] = &both[..] else { panic!("two commands: {both:?}") };
    let port = lab::free_port().to_string();
    let instead = [("127.0.0.2", "127.6.7.2"), ("30", "1")];
    let ended = meet(&folder, [server, client], &instead, ["-p", &port]);
    assert!(ended.fault().is_none() && ended.text.contains("BW average"), "{}", ended.text);
}

#[test]
fn scenarios_that_the_sheets_name_are_there() {
    let folder = Folder::new();
    let list = Running::start(&folder, lab::rnic(&folder).args(["fabric", "list"])).wait(LIMIT).text;
    let mut count = 0;
    for lab in 1..=10 {
        for words in commands(&folder, &lab.to_string(), "rnic fabric run") {
            let name = &words[3];
            assert!(list.split_whitespace().any(|word| word == name), "lab {lab}: {name}");
            count += 1;
        }
    }
    assert!(count >= 8, "{count}");
}
