//! The labs that come with rnic.

use crate::definition::Definition;
use crate::error::LabError;
use std::path::Path;

/// A lab: the texts of its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lab {
    /// Its name: parameters follow from it and from the student's ID.
    pub name: String,
    /// Where it is from: its name, or its folder.
    pub origin: String,
    /// The files, by their path in the folder: `lab.toml`, `sheet.md`, `instructor.md`, those of experiments, and what a student
    /// starts from in `start/`.
    pub files: Vec<(String, String)>,
}

impl Lab {
    /// The lab in a folder: for lecturers who write their own.
    ///
    /// # Errors
    /// A file cannot be read, or is no text.
    pub fn read(folder: &Path) -> Result<Self, LabError> {
        let mut files = Vec::new();
        read_into(folder, "", &mut files)?;
        // `.` has no name of its own.
        let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let name = whole.file_name().unwrap_or(whole.as_os_str()).to_string_lossy().into_owned();
        Ok(Self { name, origin: whole.to_string_lossy().into_owned(), files })
    }

    /// The text of a file.
    ///
    /// # Errors
    /// The lab has no such file.
    pub fn file(&self, path: &str) -> Result<&str, LabError> {
        let found = self.files.iter().find(|(name, _)| *name == path);
        found.map(|(_, text)| &**text).ok_or_else(|| LabError::file(path, "the lab has no such file"))
    }

    /// What its `lab.toml` says.
    ///
    /// # Errors
    /// Says what is wrong there.
    pub fn definition(&self) -> Result<Definition, LabError> {
        Definition::read(self.file("lab.toml")?)
    }
}

/// Reads the files of a folder, and of those in it.
fn read_into(folder: &Path, prefix: &str, files: &mut Vec<(String, String)>) -> Result<(), LabError> {
    let wrong = |path: &Path, why: std::io::Error| LabError::file(path.to_string_lossy(), why);
    let entries = std::fs::read_dir(folder).map_err(|why| wrong(folder, why))?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|why| wrong(folder, why))?;
    paths.sort();
    for path in paths {
        let name = format!("{prefix}{}", path.file_name().unwrap_or_default().to_string_lossy());
        if path.is_dir() {
            read_into(&path, &format!("{name}/"), files)?;
        } else {
            files.push((name, std::fs::read_to_string(&path).map_err(|why| wrong(&path, why))?));
        }
    }
    Ok(())
}

/// A lab that comes with rnic.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// Its name.
    pub name: &'static str,
    files: &'static [(&'static str, &'static str)],
}

impl Builtin {
    /// Its texts.
    #[must_use]
    pub fn lab(&self) -> Lab {
        let files = self.files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Lab { name: self.name.to_owned(), origin: self.name.to_owned(), files }
    }
}

/// The files of a lab's folder.
macro_rules! lab {
    ($name:literal: $($file:literal),* $(,)?) => {
        Builtin {
            name: $name,
            files: &[$(($file, include_str!(concat!("../../../examples/labs/", $name, "/", $file)))),*],
        }
    };
}

/// All labs, in the order of a course.
pub const LABS: &[Builtin] = &[
    lab!("first-write": "lab.toml", "sheet.md", "instructor.md", "start/c/first_write.c", "start/c/Makefile",
        "start/python/first_write.py", "start/rust/Cargo.toml", "start/rust/src/main.rs"),
    lab!("go-back-n": "lab.toml", "sheet.md", "instructor.md", "loss.toml", "tail.toml", "yours.toml"),
    lab!("retries": "lab.toml", "sheet.md", "instructor.md", "pause.toml", "gone.toml", "yours-pause.toml",
        "yours-outage.toml", "yours-gone.toml"),
    lab!("key-value": "lab.toml", "sheet.md", "instructor.md", "read.toml", "send.toml", "yours.toml"),
    lab!("credits": "lab.toml", "sheet.md", "instructor.md", "cable.toml", "lanes.toml", "yours.toml"),
    lab!("pause": "lab.toml", "sheet.md", "instructor.md", "victim.toml", "storm.toml", "ring.toml", "yours.toml"),
    lab!("dcqcn": "lab.toml", "sheet.md", "instructor.md", "fixed.toml", "late.toml", "yours.toml"),
    lab!("collectives": "lab.toml", "sheet.md", "instructor.md", "incast.toml", "large.toml", "small.toml", "yours-both.toml", "yours-large.toml", "yours-small.toml"),
    lab!("balance": "lab.toml", "sheet.md", "instructor.md", "collision.toml", "modes.toml", "yours.toml"),
    lab!("latency": "lab.toml", "sheet.md", "instructor.md", "infiniband.toml", "loaded-infiniband.toml", "loaded-roce.toml", "roce.toml", "tcp.toml", "yours-infiniband.toml", "yours-roce.toml", "yours-tcp.toml"),
];

/// The lab of this name, or of this number from 1.
///
/// # Errors
/// No lab has this name. The error suggests a similar one.
pub fn find(name: &str) -> Result<Lab, LabError> {
    let by_number = name.parse::<usize>().ok().and_then(|number| LABS.get(number.checked_sub(1)?));
    by_number.or_else(|| LABS.iter().find(|lab| lab.name == name)).map(Builtin::lab).ok_or_else(|| {
        let names: Vec<&str> = LABS.iter().map(|lab| lab.name).collect();
        LabError::Unknown { name: name.to_owned(), advice: cc::unknown(name, &names) }
    })
}
