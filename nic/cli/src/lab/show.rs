//! `rnic lab list`, `show` and `start`.

use super::folder::{Folder, find};
use rnic_lab::{Builtin, LABS, sheet};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The ID of a student who gives none.
const NOBODY: &str = "student";

/// Print the sheet of a lab, or the instructor's page.
#[derive(Debug, clap::Args)]
pub(super) struct ShowArgs {
    /// The name or the number of a lab, or a folder: that of a lab of your own, or one that `rnic lab start` made.
    #[arg(value_name = "LAB")]
    lab: String,
    /// The student, from whom the parameters follow. [default: the one of the folder, or `student`]
    #[arg(long, value_name = "ID")]
    student: Option<String>,
    /// Print the page for instructors: the answers, typical mistakes, and how long it takes.
    #[arg(long)]
    instructor: bool,
}

/// Make a folder with the sheet, the experiments and the file of answers.
#[derive(Debug, clap::Args)]
pub(super) struct StartArgs {
    /// The name or the number of a lab, or the folder of your own.
    #[arg(value_name = "LAB")]
    lab: String,
    /// The student, from whom the parameters follow: letters, digits and . _ - @.
    #[arg(long, value_name = "ID", default_value = NOBODY)]
    student: String,
    /// The folder to make. [default: lab-NAME]
    #[arg(long, value_name = "FOLDER")]
    into: Option<PathBuf>,
}

/// What stands for the folder of the library in a manifest.
const NIC: &str = "../../nic";

/// The folder of the library in the clone in which this program was built, if it runs there.
fn source() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    program.ancestors().map(|folder| folder.join("nic")).find(|nic| nic.join("Cargo.toml").is_file())
}

pub(super) fn list() -> Result<ExitCode, Box<dyn Error>> {
    for (number, lab) in (1..).zip(LABS.iter().map(Builtin::lab)) {
        let definition = lab.definition()?;
        outln!("{number:>2}  {:<12} {} ({} minutes)", lab.name, definition.title, definition.minutes);
        outln!("    {}", definition.about);
    }
    outln!("\nBegin one with: rnic lab start NAME");
    Ok(ExitCode::SUCCESS)
}

pub(super) fn show(args: &ShowArgs) -> Result<ExitCode, Box<dyn Error>> {
    let (lab, owner) = match Path::new(&args.lab) {
        path if Folder::is_at(path) => {
            let folder = Folder::open(path)?;
            (folder.lab, folder.answers.student)
        }
        _ => (find(&args.lab)?, NOBODY.to_owned()),
    };
    let student = args.student.as_ref().unwrap_or(&owner);
    if args.instructor {
        out!("{}", sheet::instructor(&lab, student)?);
        return Ok(ExitCode::SUCCESS);
    }
    let files = sheet::folder(&lab, student)?;
    let text = files.iter().find(|(name, _)| name == "README.md").map(|(_, text)| text.as_str());
    out!("{}", text.unwrap_or_default());
    Ok(ExitCode::SUCCESS)
}

pub(super) fn start(args: &StartArgs) -> Result<ExitCode, Box<dyn Error>> {
    let lab = find(&args.lab)?;
    let files = sheet::folder(&lab, &args.student)?;
    let folder = args.into.clone().unwrap_or_else(|| format!("lab-{}", lab.name).into());
    if folder.exists() && fs::read_dir(&folder).map_or(true, |mut entries| entries.next().is_some()) {
        return Err(format!("{} exists already: name another folder with --into", folder.display()).into());
    }
    for (name, text) in &files {
        let path = folder.join(name);
        let failed = |path: &Path, why: std::io::Error| format!("cannot write {}: {why}", path.display());
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|why| failed(parent, why))?;
        }
        let text = match source() {
            Some(source) if name.ends_with("Cargo.toml") => text.replace(NIC, &source.display().to_string()),
            _ => text.clone(),
        };
        fs::write(&path, text).map_err(|why| failed(&path, why))?;
    }
    let definition = lab.definition()?;
    outln!("{}: {}", folder.display(), definition.title);
    if args.student == NOBODY {
        outln!("  For nobody in particular: a course wants --student ID, from which the numbers follow.");
    }
    outln!("  README.md      the sheet: begin there");
    outln!("  answers.toml   your predictions, your answers, and what you choose");
    let plot = if cfg!(feature = "plot") && definition.has_pictures() { "rnic lab plot; " } else { "" };
    outln!("Then: cd {}; rnic lab run; {plot}rnic lab check", folder.display());
    Ok(ExitCode::SUCCESS)
}
