//! `rnic lab serve`: the pages of a course for browsers of this machine.
//!
//! All pages are in memory before the first request: a request names one of them or nothing, and reaches no file.

use super::site::{BUILD, Course, PAGE, link, make, write_all};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::error::Error;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

/// Connections at a time. A browser opens six to a server.
const CONNECTIONS: usize = 64;

/// How long a connection may take to send the head of a request, also the next one: browsers keep theirs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Show the pages of a course, and the page with NICs in it, to browsers of this machine.
///
/// Ctrl-C ends it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  rnic lab serve\n  rnic lab serve site --addr 127.0.0.1:9000")]
pub(super) struct Args {
    /// The folder that `rnic lab site` wrote. [default: the pages are made first, and kept in memory]
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// The address and port to listen at; port 0 takes one that is free.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    addr: SocketAddr,
    #[command(flatten)]
    course: Course,
}

/// Pages by name.
type Pages = BTreeMap<String, Bytes>;

/// A folder for pages until they are in memory.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // Experiments that still run may write a page meanwhile: then there is something to remove once more.
        let _ = fs::remove_dir_all(&self.0).or_else(|_| fs::remove_dir_all(&self.0));
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(serve(args));
    // Experiments that still run would be waited for.
    runtime.shutdown_background();
    outcome.map(|()| ExitCode::SUCCESS)
}

async fn serve(args: &Args) -> Result<(), Box<dyn Error>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut ended = std::pin::pin!(async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    });
    // Before the pages are made, which takes a while: the address may be in use.
    let listener = TcpListener::bind(args.addr)
        .await
        .map_err(|why| format!("cannot listen at {}: {why}; --addr takes another one", args.addr))?;
    let page = args.course.page()?;
    let scratch = Scratch(std::env::temp_dir().join(format!("rnic-lab-{}", std::process::id())));
    // Here, and not where the pages are written: they shall not make it again once it is removed.
    make(&scratch.0)?;
    let (folder, into, course) = (args.folder.clone(), scratch.0.clone(), args.course.clone());
    let made = tokio::task::spawn_blocking(move || {
        site(folder.as_deref(), &into, &course).map_err(|why| why.to_string())
    });
    let mut pages = tokio::select! {
        pages = made => pages??,
        () = &mut ended => return Ok(()),
    };
    drop(scratch);
    match page {
        Some(page) => add(&mut pages, Bytes::from(page)),
        None if pages.contains_key(PAGE) => {}
        None => outln!("{BUILD}"),
    }
    let count = pages.keys().filter(|name| name.ends_with(".html")).count();
    outln!("http://{}/ shows {count} pages; Ctrl-C ends this", listener.local_addr()?);
    tokio::select! {
        () = accept(listener, Arc::new(pages)) => {}
        () = ended => {}
    }
    Ok(())
}

/// The pages of the folder, or new ones, which are written into another on the way.
fn site(folder: Option<&Path>, into: &Path, course: &Course) -> Result<Pages, Box<dyn Error>> {
    let Some(folder) = folder else {
        outln!("The labs' experiments run, for their pages.");
        write_all(into, course)?;
        return read(into);
    };
    let pages = read(folder)?;
    if !pages.contains_key("index.html") {
        let advice = "has no index.html: `rnic lab site FOLDER` makes such a folder";
        return Err(format!("{} {advice}", folder.display()).into());
    }
    Ok(pages)
}

/// Adds the page with NICs in it, with a link to it.
fn add(pages: &mut Pages, page: Bytes) {
    if let Some(index) = pages.get_mut("index.html") {
        let text = String::from_utf8_lossy(index);
        // Its folder may have the page already.
        if !text.contains(&link()) {
            *index = Bytes::from(text.replace("</main>", &format!("{}</main>", link())));
        }
    }
    pages.insert(PAGE.to_owned(), page);
}

/// The files of a folder.
fn read(folder: &Path) -> Result<Pages, Box<dyn Error>> {
    let cannot = |path: &Path, why: std::io::Error| format!("cannot read {}: {why}", path.display());
    let mut pages = Pages::new();
    for entry in fs::read_dir(folder).map_err(|why| cannot(folder, why))? {
        let path = entry.map_err(|why| cannot(folder, why))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if path.is_file() && kind(name).is_some() {
            let text = fs::read(&path).map_err(|why| cannot(&path, why))?;
            pages.insert(name.to_owned(), Bytes::from(text));
        }
    }
    Ok(pages)
}

/// The content type of a page.
fn kind(name: &str) -> Option<&'static str> {
    match Path::new(name).extension()?.to_str()? {
        "html" => Some("text/html; charset=utf-8"),
        "svg" => Some("image/svg+xml"),
        "png" => Some("image/png"),
        _ => None,
    }
}

/// Serves whoever connects.
async fn accept(listener: TcpListener, pages: Arc<Pages>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // There are too few descriptors, for example. That may pass.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let pages = Arc::clone(&pages);
        let answer = move |request: Request<Incoming>| {
            let response = answer(&pages, request.method(), request.uri().path());
            async move { Ok::<_, Infallible>(response) }
        };
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
        tokio::spawn(async move {
            // A browser that goes away is no error.
            let _ = http.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
            drop(permit);
        });
    }
}

fn answer(pages: &Pages, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let name = path.strip_prefix('/').filter(|name| !name.is_empty()).unwrap_or("index.html");
    let (status, kind, text) = match pages.get(name) {
        _ if !matches!(*method, Method::GET | Method::HEAD) => {
            (StatusCode::METHOD_NOT_ALLOWED, "text/plain", Bytes::from("use GET\n"))
        }
        Some(page) => (StatusCode::OK, kind(name).unwrap_or("text/plain"), page.clone()),
        None if name == PAGE => (StatusCode::NOT_FOUND, "text/plain", Bytes::from(format!("{BUILD}\n"))),
        None => (StatusCode::NOT_FOUND, "text/plain", Bytes::from("there is no such page\n")),
    };
    let mut response = Response::new(Full::new(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
