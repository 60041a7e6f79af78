//! `rnic lab site`: all labs as pages for a course, without a server and without anything from the network.

use pulldown_cmark::{Options, Parser, html};
use rnic_lab::definition::Definition;
use rnic_lab::experiment::{self, Ran};
use rnic_lab::sheet::{folder, parameters};
use rnic_lab::{Builtin, LABS, Lab};
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write all labs as pages for a course.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The folder to write into.
    #[arg(value_name = "FOLDER")]
    into: PathBuf,
    #[command(flatten)]
    course: Course,
}

/// What the pages are about.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Course {
    /// The student, from whom the parameters of the pages follow.
    #[arg(long, value_name = "ID", default_value = "student")]
    student: String,
    /// Write the instructors' pages, too: they have the answers.
    #[arg(long)]
    instructor: bool,
    /// The title of the course.
    #[arg(long, value_name = "TEXT", default_value = "RDMA labs")]
    title: String,
    /// The page with NICs in it. [default: where `nic/page/build` writes it]
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

/// The page with NICs in it: its name among the pages of a course, and that of its file.
pub(super) const PAGE: &str = "rnic.html";

/// How to get that page.
pub(super) const BUILD: &str =
    "the page with NICs in it is not built: `nic/page/build` in the sources of rnic makes it";

impl Course {
    /// The page with NICs in it, if there is one.
    pub(super) fn page(&self) -> Result<Option<Vec<u8>>, Box<dyn Error>> {
        if let Some(file) = &self.page {
            let page = fs::read(file).map_err(|why| format!("cannot read {}: {why}", file.display()))?;
            return Ok(Some(page));
        }
        // The program is in target/debug or target/release, and the page in target/page; or they lie side by side.
        let program = std::env::current_exe().ok();
        let beside = program.as_deref().and_then(Path::parent);
        let built = beside.and_then(Path::parent).map(|target| target.join("page"));
        let places =
            built.into_iter().chain(beside.map(Path::to_path_buf)).chain([PathBuf::from("target/page")]);
        Ok(places.filter_map(|place| fs::read(place.join(PAGE)).ok()).next())
    }
}

/// The line of the index that leads to it.
pub(super) fn link() -> String {
    format!("<p><a href=\"{PAGE}\">NICs to play with</a>: the engine itself, in the browser.</p>\n")
}

/// The style of all pages: readable on a phone and on paper, with colours that can be told apart.
const STYLE: &str = "body{font:17px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#222;\
    background:#fff}a{color:#0062a3}h1,h2{line-height:1.2;overflow-wrap:anywhere}h2{margin-top:2rem}pre{overflow-x:auto;background:#f5f5f5;\
    padding:.8rem;font-size:.8rem;line-height:1.35}code{background:#f5f5f5;overflow-wrap:anywhere}img{max-width:100%;height:auto}table{\
    border-collapse:collapse;display:block;overflow-x:auto}td,th{border:1px solid #bbb;padding:.3rem .6rem;text-align:left}\
    nav{margin-bottom:1.5rem}li{margin:.3rem 0}";

pub(super) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    make(&args.into)?;
    let has_page = write_all(&args.into, &args.course)?;
    outln!("{}: {} labs", args.into.join("index.html").display(), LABS.len());
    if !has_page {
        outln!("{BUILD}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the folder for the pages.
pub(super) fn make(folder: &Path) -> Result<(), Box<dyn Error>> {
    Ok(fs::create_dir_all(folder).map_err(|why| format!("cannot make {}: {why}", folder.display()))?)
}

/// Writes all pages into a folder. Says whether the page with NICs in it is among them.
pub(super) fn write_all(into: &Path, course: &Course) -> Result<bool, Box<dyn Error>> {
    let write = |name: &str, text: &[u8]| {
        let path = into.join(name);
        fs::write(&path, text).map_err(|why| format!("cannot write {}: {why}", path.display()))
    };
    let nics = course.page()?;
    if let Some(nics) = &nics {
        write(PAGE, nics)?;
    }
    let mut list = String::new();
    for (number, lab) in (1..).zip(LABS.iter().map(Builtin::lab)) {
        let definition = lab.definition()?;
        write(
            &format!("{}.html", lab.name),
            page(into, course, nics.is_some(), &lab, &definition)?.as_bytes(),
        )?;
        let _ = writeln!(
            list,
            "<li><a href=\"{}.html\">{}</a>: {} <em>{} minutes</em></li>",
            lab.name,
            escaped(&format!("{number}. {}", definition.title)),
            escaped(&definition.about),
            definition.minutes
        );
        if course.instructor {
            let text = rnic_lab::sheet::instructor(&lab, &course.student)?;
            let title = format!("{}: for instructors", definition.title);
            write(
                &format!("{}-instructor.html", lab.name),
                framed(&title, &rendered(&text), course).as_bytes(),
            )?;
        } else {
            // One that an earlier call wrote for instructors must not stay among the pages for students.
            let _ = fs::remove_file(into.join(format!("{}-instructor.html", lab.name)));
        }
    }
    let body = format!(
        "<h1>{}</h1>\n<p>Each lab begins with <code>rnic lab start NAME --student ID</code>. The numbers on these pages are those of \
         {}; yours follow from your ID.</p>\n<ul>\n{list}</ul>\n{}",
        escaped(&course.title),
        escaped(&course.student),
        if nics.is_some() { link() } else { String::new() }
    );
    write("index.html", framed(&course.title, &body, course).as_bytes())?;
    Ok(nics.is_some())
}

/// The page of a lab: the sheet, and what its experiments show.
fn page(
    into: &Path,
    course: &Course,
    has_nics: bool,
    lab: &Lab,
    definition: &Definition,
) -> Result<String, Box<dyn Error>> {
    let files = folder(lab, &course.student)?;
    let sheet = files.iter().find(|(name, _)| name == "README.md").map_or("", |(_, text)| text);
    let id = rnic_lab::definition::student(&course.student)?;
    let mut values = parameters(lab, definition, &id)?;
    let mut results = String::new();
    // What the task's experiments show would give the answer away, or nothing.
    for config in definition.experiment.iter().filter(|config| !config.task) {
        let table = experiment::table(config, lab.file(&config.file)?, &values)?;
        let ran = experiment::run(config, &table)?;
        let _ = writeln!(results, "<h3>{}</h3>", escaped(&config.name));
        results += &picture(into, lab, &config.name, definition, &ran)?;
        if has_nics {
            let _ = writeln!(
                results,
                "<p>{}</p>",
                experiment_link(lab, &id, &config.name, "Change it and run it again")
            );
        }
        if !ran.text.is_empty() {
            let _ = writeln!(results, "<pre>{}</pre>", escaped(&ran.text));
        }
        values.join(&config.name, &ran.values);
    }
    let rows = definition.shown(&values);
    if !rows.is_empty() {
        let row = |(label, value): &(String, String)| {
            format!("<tr><td>{}</td><td>{}</td></tr>\n", escaped(label), escaped(value))
        };
        let _ = writeln!(results, "<table>\n{}</table>", rows.iter().map(row).collect::<String>());
    }
    let mut body = rendered(sheet);
    let tasks = definition.experiment.iter().filter(|config| has_nics && config.task);
    let tasks: Vec<String> =
        tasks.map(|config| experiment_link(lab, &id, &config.name, &config.name)).collect();
    if !tasks.is_empty() {
        let _ = writeln!(body, "<p>Your task, in the browser: {}.</p>", tasks.join(", "));
    }
    if !results.is_empty() {
        let _ = write!(
            body,
            "<h2>What the runs show</h2>\n<details><summary>Predict first.</summary>\n{results}</details>\n"
        );
    }
    Ok(framed(&definition.title, &body, course))
}

/// A link to an experiment in the page with NICs in it.
fn experiment_link(lab: &Lab, student: &str, experiment: &str, text: &str) -> String {
    let address = format!("{PAGE}#lab={}&experiment={experiment}&student={student}", lab.name);
    format!("<a href=\"{}\">{}</a>", escaped(&address), escaped(text))
}

/// Draws an experiment into a file beside the page.
#[cfg(feature = "plot")]
fn picture(
    into: &Path,
    lab: &Lab,
    name: &str,
    definition: &Definition,
    ran: &Ran,
) -> Result<String, Box<dyn Error>> {
    let file = format!("{}-{name}.svg", lab.name);
    let title = format!("{}: {name}", definition.title);
    if super::picture::draw(&title, ran, &into.join(&file))?.is_empty() {
        return Ok(String::new());
    }
    Ok(format!("<img src=\"{file}\" alt=\"{}\">\n", escaped(&title)))
}

#[cfg(not(feature = "plot"))]
fn picture(_: &Path, _: &Lab, _: &str, _: &Definition, _: &Ran) -> Result<String, Box<dyn Error>> {
    Ok(String::new())
}

/// Markdown as HTML.
fn rendered(markdown: &str) -> String {
    let mut out = String::new();
    html::push_html(&mut out, Parser::new_ext(markdown, Options::ENABLE_TABLES));
    out
}

fn framed(title: &str, body: &str, course: &Course) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\">\n<title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<nav><a \
         href=\"index.html\">{}</a></nav>\n<main>\n{body}</main>\n</body>\n</html>\n",
        escaped(title),
        escaped(&course.title)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_does_not_become_markup() {
        assert_eq!(escaped("a < b & \"c\""), "a &lt; b &amp; &quot;c&quot;");
        assert!(rendered("| a |\n|---|\n| b |\n").contains("<td>b</td>"));
    }

    #[test]
    fn a_page_names_its_title_twice() {
        let course = Course { student: "s".into(), instructor: false, title: "C <1>".into(), page: None };
        let page = framed("T & t", "<p>body</p>", &course);
        assert!(page.contains("<title>T &amp; t</title>") && page.contains("C &lt;1&gt;</a>"), "{page}");
    }
}
