//! A browser that a test drives: Chromium without a window, over the DevTools protocol.
//!
//! `--remote-debugging-pipe` speaks the protocol over two pipes, as JSON with a NUL behind each message. So there is nothing to
//! install but the browser: no driver, no WebSocket, no port that another test may have. When this process ends, however that
//! happens, the pipes close and the browser ends, too.

use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long something may take that must happen. No verdict depends on it, unless the browser hangs.
const PATIENCE: Duration = Duration::from_secs(180);

/// The names of the program: Debian's, Ubuntu's and Google's.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A browser with one tab.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: Option<String>,
    calls: u64,
    /// What the page complained of: exceptions, and errors and warnings in the console.
    pub(crate) complaints: Vec<String>,
    folder: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

/// A browser has a dozen processes, so the tests of a program take turns.
static TURN: Mutex<()> = Mutex::new(());

impl Browser {
    /// Starts a browser. If none is installed, prints a line that says so and returns `None`.
    pub(crate) fn start() -> Option<Self> {
        let is_there =
            |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|ran| ran.status.success());
        let Some(name) = NAMES.into_iter().find(is_there) else {
            println!("SKIPPED: chromium is not installed, so the page was not opened in a browser");
            return None;
        };
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        // Not in the target folder: the browser has a socket below it, and the path of a socket is short.
        let folder = std::env::temp_dir().join(format!("rnic-page-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for the browser");
        let mut command = Command::new("sh");
        // The browser reads from descriptor 3 and writes to descriptor 4.
        command.args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null", name]);
        command.args(["--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"]);
        // Containers have a /dev/shm of 64 MB, which is too small.
        command.args(["--disable-background-networking", "--disable-dev-shm-usage"]);
        command.arg(format!("--user-data-dir={}", folder.display())).env("HOME", &folder);
        // What it would leave there, because it is killed, is removed with the folder.
        command.env("TMPDIR", &folder);
        // Chromium refuses to run as root within its sandbox.
        if fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
            command.arg("--no-sandbox");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("sh");
        let to = child.stdin.take().expect("a pipe");
        let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, from) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while reader.read_until(0, &mut message).is_ok_and(|count| count > 0) {
                message.pop();
                let Ok(parsed) = serde_json::from_slice(&message) else { return };
                if sender.send(parsed).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let mut browser =
            Self { child, to, from, session: None, calls: 0, complaints: Vec::new(), folder, _turn: turn };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", &attach);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, &json!({}));
        }
        Some(browser)
    }

    /// Calls a method of the protocol, and waits for what it gives.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).expect("the browser reads");
        loop {
            let message = self
                .from
                .recv_timeout(PATIENCE)
                .unwrap_or_else(|_| panic!("{method}: the browser is silent"));
            if message["id"] == json!(self.calls) {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.note(&message);
        }
    }

    /// Keeps an event if the page complains.
    fn note(&mut self, event: &Value) {
        let of = &event["params"];
        let is_bad = |level: &Value| matches!(level.as_str(), Some("error" | "warning" | "assert"));
        let is_complaint = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => is_bad(&of["type"]),
            Some("Log.entryAdded") => is_bad(&of["entry"]["level"]),
            _ => false,
        };
        if is_complaint {
            self.complaints.push(of.to_string());
        }
    }

    /// What an expression gives in the page. A promise is waited for.
    #[track_caller]
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let call = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", &call);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// A number that an expression gives.
    #[track_caller]
    pub(crate) fn number(&mut self, expression: &str) -> f64 {
        let value = self.eval(expression);
        value.as_f64().unwrap_or_else(|| panic!("{expression} is no number: {value}"))
    }

    /// A text that an expression gives.
    #[track_caller]
    pub(crate) fn text(&mut self, expression: &str) -> String {
        let value = self.eval(expression);
        value.as_str().unwrap_or_else(|| panic!("{expression} is no text: {value}")).to_owned()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn wait(&mut self, expression: &str) {
        let begin = Instant::now();
        while self.eval(expression) != json!(true) {
            assert!(begin.elapsed() < PATIENCE, "this does not become true: {expression}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Lets the page draw so many times.
    #[track_caller]
    pub(crate) fn frames(&mut self, count: usize) {
        self.eval(&format!(
            "new Promise(done => {{ let left = {count}; const next = () => left-- ? requestAnimationFrame(next) : done(); next(); }})"
        ));
    }

    /// Opens a page of one's own, and waits until it is ready.
    #[track_caller]
    pub(crate) fn open(&mut self, url: &str) {
        // A page that differs only behind the # would not be loaded again.
        self.call("Page.navigate", &json!({ "url": "about:blank" }));
        self.wait("location.href === 'about:blank'");
        self.call("Page.navigate", &json!({ "url": url }));
        self.wait("document.readyState === 'complete' && document.body?.dataset.ready === '1'");
    }

    /// Clicks in the middle of an element.
    #[track_caller]
    pub(crate) fn click(&mut self, selector: &str) {
        let place = self.eval(&format!(
            "(() => {{ const e = document.querySelector({selector:?}); e.scrollIntoView({{block: 'center'}}); \
             const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; }})()"
        ));
        for kind in ["mousePressed", "mouseReleased"] {
            let event =
                json!({ "type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", &event);
        }
    }

    /// Presses a key of one letter.
    #[track_caller]
    pub(crate) fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", &json!({ "type": kind, "key": key, "text": key }));
        }
    }

    /// Moves a slider, or chooses something, as a person does.
    #[track_caller]
    pub(crate) fn set(&mut self, selector: &str, value: &str) {
        self.eval(&format!(
            "(() => {{ const e = document.querySelector({selector:?}); e.value = {value:?}; \
             if (e.value !== {value:?}) throw new Error(e.id + ' does not take ' + {value:?}); \
             for (const kind of ['input', 'change']) e.dispatchEvent(new Event(kind, {{bubbles: true}})); }})()"
        ));
    }

    /// Makes the window this wide: a phone's below 500 pixels.
    #[track_caller]
    pub(crate) fn resize(&mut self, width: u32) {
        let of = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.call("Emulation.setDeviceMetricsOverride", &of);
        self.frames(2);
    }

    /// Writes a picture of the whole page.
    #[track_caller]
    pub(crate) fn picture(&mut self, file: &Path) {
        let of = json!({ "format": "png", "captureBeyondViewport": true });
        let picture = self.call("Page.captureScreenshot", &of);
        fs::write(file, decoded(picture["data"].as_str().expect("a picture"))).expect("a picture is written");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Whatever it does now, it shall not outlive the test.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Its other processes end a little later, and may still write.
        for _ in 0..20 {
            if fs::remove_dir_all(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Bytes from base64 (RFC 4648, section 4).
fn decoded(text: &str) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for value in text.bytes().filter_map(|letter| LETTERS.iter().position(|known| *known == letter)) {
        (bits, count) = (bits << 6 | value as u32, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
