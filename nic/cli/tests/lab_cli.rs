//! The command `rnic lab` as a program: a student's way through a lab, and mistakes at the command line.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// An empty folder of one test.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lab-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn lab(folder: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rnic")).arg("lab").args(words).current_dir(folder).output().unwrap()
}

/// What is printed, if the exit code is this.
fn text(folder: &Path, words: &[&str], code: i32) -> String {
    let output = lab(folder, words);
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
    text
}

/// The answers of alice in the file of solutions, as a file of answers.
fn answers(lab: &str) -> String {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/labs").join(lab).join("solutions.toml");
    let all: toml::Table = toml::from_str(&fs::read_to_string(source).unwrap()).unwrap();
    let mut alice = all["solution"][0].as_table().unwrap().clone();
    alice.insert("lab".to_owned(), lab.into());
    toml::to_string(&alice).unwrap()
}

#[test]
fn a_student_goes_through_a_lab() {
    let folder = folder("way");
    let list = text(&folder, &["list"], 0);
    assert!(list.contains("go-back-n") && list.contains("minutes"), "{list}");
    let started = text(&folder, &["start", "go-back-n", "--student", "Alice"], 0);
    assert!(started.contains("rnic lab plot; rnic lab check"), "{started}");
    let place = folder.join("lab-go-back-n");
    let sheet = fs::read_to_string(place.join("README.md")).unwrap();
    assert_eq!(text(&folder, &["show", "2", "--student", "alice"], 0), sheet);
    let ran = text(&place, &["run"], 0);
    for part in [
        "loss (loss.toml)",
        "x dropped by fault f1",
        "yours: it waits for lost_psn",
        "time of the transfer (loss)",
    ] {
        assert!(ran.contains(part), "{part}\n{ran}");
    }
    // What the student is to find in the ladder.
    for part in ["packets that were sent again", "NAKs (loss)"] {
        assert!(!ran.contains(part), "{part}\n{ran}");
    }
    let measured = text(&place, &["run", "--all"], 0);
    assert!(measured.contains("loss.completion_us") && measured.contains("loss.duplicates"), "{measured}");
    for name in [
        "loss.psns_sent_again",
        "loss.sent_again",
        "loss.packets",
        "loss.naks",
        "tail.psns_sent_again",
        "tail.sent_again",
        "tail.duplicates",
        "tail.packets",
        "tail.naks",
        "tail.timeouts",
    ] {
        assert!(!measured.contains(name), "{name} is to be found in the ladder\n{measured}");
    }
    let ladder: Vec<&str> = ran.lines().filter(|line| line.contains('|')).collect();
    assert!(
        ladder.len() > 20 && ladder.iter().all(|line| line.chars().count() <= 80),
        "a terminal's width: {ran}"
    );
    assert_eq!(ran, text(&folder, &["run", "lab-go-back-n"], 0), "the same numbers again");
    let checked = text(&place, &["check"], 1);
    assert!(checked.contains("Not yet: 0 of "), "{checked}");
    fs::write(place.join("answers.toml"), answers("go-back-n")).unwrap();
    assert!(text(&place, &["check"], 0).contains("Done: all "));
    let json: serde_json::Value = serde_json::from_str(&text(&place, &["check", "--json"], 0)).unwrap();
    assert_eq!((&json["passed"], &json["student"]), (&true.into(), &"alice".into()));
    assert!(
        text(&place, &["run", "--only", "yours", "--all"], 0).contains("yours.sent_again"),
        "the task runs"
    );
    let plotted = text(&place, &["plot"], 0);
    assert!(plotted.contains("loss.svg: PSNs") && place.join("yours.svg").is_file(), "{plotted}");
}

#[test]
fn files_of_experiments_may_be_changed_and_do_not_change_the_verdict() {
    let folder = folder("change");
    text(&folder, &["start", "go-back-n", "--student", "alice", "--into", "mine"], 0);
    let place = folder.join("mine");
    fs::write(place.join("answers.toml"), answers("go-back-n")).unwrap();
    let file = place.join("loss.toml");
    let whole = fs::read_to_string(&file).unwrap();
    let without = whole.split("[faults]").next().unwrap();
    fs::write(&file, without).unwrap();
    assert!(!text(&place, &["run", "--only", "loss"], 0).contains(" again"));
    text(&place, &["check"], 0);
    fs::write(&file, whole.replace("latency = ", "lateness = ")).unwrap();
    let error = text(&place, &["run"], 2);
    assert!(
        error.starts_with("rnic: loss.toml: ") && error.contains("lateness") && error.lines().count() == 1,
        "{error}"
    );
}

#[test]
fn mistakes_are_told_in_one_line() {
    let folder = folder("mistakes");
    for (words, part) in [
        (&["show", "go-back-m"][..], "did you mean `go-back-n`?"),
        (&["start", "11"], "there is no lab `11`"),
        (&["start", "go-back-n", "--student", "../x"], "is not a valid student ID"),
        (&["run"], "is no lab's folder"),
        (&["check", "nowhere"], "is no lab's folder"),
    ] {
        let error = text(&folder, words, 2);
        assert!(error.contains(part) && error.lines().count() == 1, "{words:?}: {error}");
    }
    text(&folder, &["start", "go-back-n", "--into", "mine"], 0);
    assert!(text(&folder, &["start", "go-back-n", "--into", "mine"], 2).contains("exists already"));
    assert!(text(&folder, &["check", "mine", "--student", "bob"], 2).contains("that of student, not of bob"));
    assert!(text(&folder, &["run", "mine", "--only", "los"], 2).contains("did you mean `loss`?"));
    let answers = folder.join("mine/answers.toml");
    let whole = fs::read_to_string(&answers).unwrap();
    fs::write(&answers, whole.replace("[after]", "[afterwards]")).unwrap();
    assert!(text(&folder, &["check", "mine"], 2).contains("answers.toml: "));
    fs::write(&answers, whole.replace("[task]", "[task]\nlost_psm = 3")).unwrap();
    assert!(
        text(&folder, &["check", "mine"], 1)
            .contains("the lab does not ask for this: did you mean `lost_psn`?")
    );
}

/// The answers were judged by other numbers than those on the sheet, and nothing said so.
#[test]
fn a_copied_folder_is_noticed() {
    let folder = folder("copied");
    text(&folder, &["start", "go-back-n", "--student", "alice", "--into", "mine"], 0);
    let place = folder.join("mine");
    for words in [&["run"][..], &["check"]] {
        let code = i32::from(words == ["check"]);
        assert!(!text(&place, words, code).contains("numbers of"), "{words:?}");
    }
    let answers = place.join("answers.toml");
    let whole = fs::read_to_string(&answers).unwrap();
    fs::write(&answers, whole.replace("student = \"alice\"", "student = \"bob\"")).unwrap();
    for (words, code) in [(&["run"][..], 0), (&["check"], 1), (&["plot"], 0)] {
        let output = lab(&place, words);
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("have the numbers of alice, but answers.toml names bob"), "{words:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{words:?}: {said}");
    }
}

/// Who measured in a file that was changed, as the sheet invites to, was only told that the answers were wrong.
#[test]
fn a_check_that_fails_names_the_files_that_were_changed() {
    let folder = folder("changed");
    for (student, place) in [("alice", "mine"), ("bob", "other")] {
        text(&folder, &["start", "credits", "--student", student, "--into", place], 0);
    }
    assert!(!text(&folder, &["check", "mine"], 1).contains("differ"));
    // Another student's experiment.
    fs::copy(folder.join("other/cable.toml"), folder.join("mine/cable.toml")).unwrap();
    let told = text(&folder, &["check", "mine"], 1);
    assert!(
        told.ends_with("These files differ from the lab's own, which the check runs: cable.toml.\n"),
        "{told}"
    );
    fs::write(folder.join("mine/answers.toml"), answers("credits")).unwrap();
    assert!(!text(&folder, &["check", "mine"], 0).contains("differ"));
}

/// The message had lines that were empty, and did not name the file.
#[test]
fn an_empty_experiment_is_named_in_one_line() {
    let folder = folder("empty");
    text(&folder, &["start", "credits", "--into", "mine"], 0);
    fs::write(folder.join("mine/cable.toml"), "").unwrap();
    assert_eq!(text(&folder, &["run", "mine"], 2), "rnic: cable.toml: missing field `name`\n");
}

/// A student who named another lab in `answers.toml` passed that one.
#[test]
fn a_grader_names_the_lab() {
    let folder = folder("grader");
    text(&folder, &["start", "go-back-n", "--student", "alice", "--into", "mine"], 0);
    fs::write(folder.join("mine/answers.toml"), answers("go-back-n")).unwrap();
    for name in ["go-back-n", "2"] {
        text(&folder, &["check", "mine", "--lab", name], 0);
    }
    let told = text(&folder, &["check", "mine", "--lab", "latency"], 2);
    assert_eq!(told, "rnic: the folder is that of the lab go-back-n, not of latency\n");
}

#[test]
fn a_students_folder_is_shown_as_it_was_made() {
    let folder = folder("shown");
    text(&folder, &["start", "go-back-n", "--student", "alice", "--into", "mine"], 0);
    let sheet = fs::read_to_string(folder.join("mine/README.md")).unwrap();
    assert_eq!(text(&folder, &["show", "mine"], 0), sheet);
    assert!(text(&folder, &["show", "mine", "--instructor"], 0).contains("those of alice"));
    assert!(text(&folder, &["show", "mine", "--student", "bob"], 0).contains("For bob."));
}

/// It was an error of the experiment that named a type of Rust.
#[test]
fn what_cannot_be_chosen_is_named_by_its_key() {
    let folder = folder("choice");
    text(&folder, &["start", "go-back-n", "--student", "alice", "--into", "mine"], 0);
    let place = folder.join("mine");
    let file = place.join("answers.toml");
    let whole = answers("go-back-n");
    for (value, says) in [
        ("-3", "task.lost_psn = -3: it is at least 0"),
        ("2.5", "task.lost_psn = 2.5: write a whole number"),
        ("true", "task.lost_psn = true: write a number, or a text in quotation marks"),
        ("\"two\"", "task.lost_psn = two: write a number, without its unit"),
    ] {
        fs::write(&file, whole.replace("lost_psn = 11", &format!("lost_psn = {value}"))).unwrap();
        let error = text(&place, &["run", "--only", "yours"], 2);
        assert!(error.contains(says) && error.lines().count() == 1, "{value}: {error}");
    }
    fs::write(&file, whole.replace("lost_psn = 11", "lost_psn = \"11\"")).unwrap();
    text(&place, &["check"], 0);
}

#[test]
fn words_are_chosen_in_capital_letters_or_small_ones() {
    let folder = folder("case");
    text(&folder, &["start", "latency", "--student", "alice", "--into", "mine"], 0);
    let place = folder.join("mine");
    let whole = answers("latency");
    for word in ["infiniband", "INFINIBAND", " InfiniBand "] {
        let text_of = whole.replace("technology = \"InfiniBand\"", &format!("technology = \"{word}\""));
        assert!(text_of.contains(&format!("\"{word}\"")), "{text_of}");
        fs::write(place.join("answers.toml"), text_of).unwrap();
        assert!(text(&place, &["run"], 0).contains("task: time of 64 bytes (us)"), "{word}");
        text(&place, &["check"], 0);
    }
}

/// It ended with exit code 0, and a check took it for a mistake of the student.
#[test]
fn a_program_without_the_library_that_it_needs_is_not_judged() {
    let folder = folder("library");
    fs::create_dir_all(folder.join("bin")).unwrap();
    let alone = folder.join("bin/rnic");
    fs::hard_link(env!("CARGO_BIN_EXE_rnic"), &alone).unwrap();
    text(&folder, &["start", "first-write", "--into", "mine"], 0);
    let file = folder.join("mine/answers.toml");
    let whole = fs::read_to_string(&file).unwrap();
    fs::write(&file, whole.replace("language = \"\"", "language = \"C\"")).unwrap();
    for word in ["run", "check"] {
        let output = Command::new(&alone).args(["lab", word, "mine"]).current_dir(&folder).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("libibverbs.so.1") && said.contains("`cargo build --release` makes it"),
            "{said}"
        );
    }
}

/// A run whose program failed ended with exit code 0, and one whose program did not build was no mistake of the student.
#[test]
fn a_run_fails_if_the_program_of_the_student_does() {
    let folder = folder("fails");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/labs/first-write");
    let own = folder.join("own");
    assert!(Command::new("cp").arg("-r").args([&source, &own]).status().unwrap().success());
    let file = own.join("lab.toml");
    let whole = fs::read_to_string(&file).unwrap();
    let rust = "build = [\"cargo\", \"build\", \"--quiet\"]\nrun = [\"target/debug/first-write\"]";
    assert!(whole.contains(rust), "{whole}");
    let ended = "rnic: your program is to end with exit code 0, and it ended with";
    let says = |what: &str| format!("build = [\"sh\", \"-c\", \"{what}\"]\n");
    // It has what the program prints to until this test ends, and is not waited for.
    let stop = folder.join("stop");
    let leaves =
        format!("for i in $(seq 3000); do [ -e {} ] && exit; sleep 0.1; done & exit 0", stop.display());
    for (build, end, code, said) in [
        ("", "exit 3", 1, format!("{ended} exit status: 3\n")),
        ("", "kill -ABRT $$", 1, format!("{ended} signal: 6 (SIGABRT)")),
        ("", "exit 0", 0, "The program ended with exit code 0.".to_owned()),
        ("", &leaves, 0, "The program ended with exit code 0.".to_owned()),
        (
            &*says("echo line 7 >&2; exit 4"),
            "exit 0",
            1,
            "rnic: your program does not build: `sh -c echo line 7 >&2; exit 4` ended with exit status: 4\n"
                .to_owned(),
        ),
        ("build = [\"no-such-compiler\"]\n", "exit 0", 2, "rnic: cannot run no-such-compiler: ".to_owned()),
    ] {
        let with = format!("{build}run = [\"sh\", \"-c\", \"{end}\"]");
        fs::write(&file, whole.replace(rust, &with)).unwrap();
        let _ = fs::remove_dir_all(folder.join("mine"));
        text(&folder, &["start", "./own", "--into", "mine"], 0);
        assert!(text(&folder, &["run", "mine"], 0).contains("Write your language into answers.toml"));
        let answers = folder.join("mine/answers.toml");
        let empty = fs::read_to_string(&answers).unwrap();
        fs::write(&answers, empty.replace("language = \"\"", "language = \"rust\"")).unwrap();
        for words in [&["run", "mine"][..], &["run", "mine", "--all"]] {
            let told = text(&folder, words, code);
            assert!(told.contains(&said), "{build}{end}: {told}");
            // The last line says what failed.
            let last = told.split_inclusive('\n').next_back().unwrap_or_default();
            assert!(code == 0 || last.starts_with(said.trim_end()), "{build}{end}: {told}");
        }
        let told = text(&folder, &["check", "mine"], code.max(1));
        let is_built = !build.contains("exit 4");
        assert!(is_built || told.contains("wrong   builds") && !told.contains("acknowledged"), "{told}");
    }
    fs::write(stop, "").unwrap();
}

#[test]
fn a_lab_of_ones_own_is_a_folder() {
    let folder = folder("own");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/labs/retries");
    let own = folder.join("patience");
    fs::create_dir_all(&own).unwrap();
    for entry in fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, own.join(path.file_name().unwrap())).unwrap();
    }
    text(&folder, &["start", "./patience", "--student", "alice"], 0);
    let place = folder.join("lab-patience");
    assert!(text(&place, &["run"], 0).contains("gone: it ended after"));
    assert!(text(&place, &["check"], 1).contains("Not yet"));
}

#[test]
fn every_lab_is_started_run_and_drawn() {
    let folder = folder("all");
    let list = text(&folder, &["list"], 0);
    let names =
        list.lines().filter(|line| line.starts_with(|first: char| first == ' ' || first.is_ascii_digit()));
    let names: Vec<&str> = names
        .filter(|line| line.contains("minutes"))
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    assert!(names.len() >= 10, "{list}");
    for name in names {
        text(&folder, &["start", name, "--student", "carol"], 0);
        let place = folder.join(format!("lab-{name}"));
        assert!(!text(&place, &["run"], 0).is_empty(), "{name}");
        text(&place, &["plot"], 0);
        text(&place, &["check"], 1);
        assert!(
            text(&folder, &["show", name, "--instructor", "--student", "carol"], 0).contains("## Solution")
        );
    }
}

#[test]
fn the_pages_of_a_course_need_nothing_from_elsewhere() {
    let folder = folder("site");
    let told = text(&folder, &["site", "pages", "--title", "Networks <2>"], 0);
    assert!(told.contains("index.html"), "{told}");
    let pages = folder.join("pages");
    let index = fs::read_to_string(pages.join("index.html")).unwrap();
    assert!(index.contains("Networks &lt;2&gt;") && index.matches("<li>").count() >= 10, "{index}");
    let mut pictures = 0;
    for entry in fs::read_dir(&pages).unwrap() {
        let path = entry.unwrap().path();
        // The page with NICs in it has a test of its own. It is here if it has been built.
        if path.ends_with("rnic.html") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        pictures += usize::from(path.extension().is_some_and(|end| end == "svg"));
        for word in ["src=\"http", "href=\"http", "<script", "@import", "$("] {
            assert!(!text.contains(word), "{}: {word}", path.display());
        }
        for link in text.split("src=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(pages.join(link).is_file(), "{}: {link}", path.display());
        }
        assert!(!path.to_string_lossy().contains("instructor"));
    }
    assert!(pictures >= 8, "{pictures}");
    text(&folder, &["site", "pages", "--instructor"], 0);
    assert!(pages.join("go-back-n-instructor.html").is_file());
    text(&folder, &["site", "pages"], 0);
    assert!(!pages.join("go-back-n-instructor.html").exists(), "no answers stay among pages for students");
}

#[test]
fn each_experiment_has_a_link_to_itself_in_the_page() {
    let folder = folder("links");
    fs::write(folder.join("page"), "<p>NICs</p>").unwrap();
    text(&folder, &["site", "pages", "--student", "Alice", "--page", "page"], 0);
    let page = |name: &str| fs::read_to_string(folder.join("pages").join(name)).unwrap();
    assert_eq!(page("rnic.html"), "<p>NICs</p>");
    assert!(page("index.html").contains("href=\"rnic.html\""));
    let mut links = 0;
    for lab in rnic_lab::LABS.iter().map(rnic_lab::Builtin::lab) {
        for config in lab.definition().unwrap().experiment {
            let link = format!(
                "href=\"rnic.html#lab={}&amp;experiment={}&amp;student=alice\"",
                lab.name, config.name
            );
            assert!(page(&format!("{}.html", lab.name)).contains(&link), "{link}");
            links += 1;
        }
    }
    assert!(links > 25, "{links}");
}

/// It once named a command that draws nothing there.
#[test]
fn a_start_names_what_the_lab_has() {
    let folder = folder("start");
    for (lab, has_pictures) in [("first-write", false), ("key-value", false), ("dcqcn", true)] {
        let started = text(&folder, &["start", lab], 0);
        assert_eq!(started.contains("rnic lab plot"), has_pictures, "{started}");
    }
}

#[test]
fn a_reader_that_goes_away_ends_nothing() {
    let folder = folder("pipe");
    text(&folder, &["start", "go-back-n", "--into", "mine"], 0);
    for words in ["list", "show go-back-n", "run mine", "check mine"] {
        let script = format!("{} lab {words} 2>errors | true", env!("CARGO_BIN_EXE_rnic"));
        Command::new("sh").args(["-c", &script]).current_dir(&folder).status().unwrap();
        assert_eq!(fs::read_to_string(folder.join("errors")).unwrap(), "", "{words}");
    }
}

#[test]
fn the_rust_program_of_the_first_lab_finds_the_library_in_the_clone() {
    let folder = folder("rust");
    text(&folder, &["start", "first-write"], 0);
    let manifest = fs::read_to_string(folder.join("lab-first-write/rust/Cargo.toml")).unwrap();
    let path = manifest.split('"').find(|word| word.ends_with("/nic")).unwrap();
    let library = fs::read_to_string(Path::new(path).join("Cargo.toml")).unwrap();
    assert!(library.contains("name = \"rnic\""), "{path}");
}
