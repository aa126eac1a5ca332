//! Opens documents in headless Chromium by its DevTools protocol (chromedevtools.github.io), and records their actions other than display.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write, pipe};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::chromium::{PROGRAM, options};

/// A browser with one window, which is used for all documents.
pub struct DevTools {
    browser: Child,
    commands: PipeWriter,
    answers: BufReader<PipeReader>,
    /// Events that arrived before an answer.
    events: VecDeque<Value>,
    last: u64,
    session: Option<String>,
}

impl DevTools {
    /// A browser with an empty profile in `folder`.
    pub fn new(folder: &Path) -> Self {
        let (from_us, commands) = pipe().unwrap();
        let (answers, to_us) = pipe().unwrap();
        let path = |end: OwnedFd| {
            let path = format!("/proc/{}/fd/{}", std::process::id(), end.as_raw_fd());
            (end, path)
        };
        let (_from_us, read) = path(from_us.into());
        let (_to_us, write) = path(to_us.into());
        // The browser's ends are its descriptors 3 and 4.
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                "read=$1 write=$2; shift 2; exec \"$@\" 3<\"$read\" 4>\"$write\"",
                "sh",
            ])
            .args([
                read.as_str(),
                write.as_str(),
                PROGRAM,
                "--remote-debugging-pipe",
            ])
            .args(options(folder))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut browser = Self {
            browser: command.spawn().unwrap(),
            commands,
            answers: BufReader::new(answers),
            events: VecDeque::new(),
            last: 0,
            session: None,
        };
        let target = browser.ask("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.ask("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Network", "Runtime", "Log"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        // Windows that documents open are windows of the browser.
        let session = browser.session.take();
        browser.ask("Target.setDiscoverTargets", json!({ "discover": true }));
        browser.session = session;
        browser.events.clear();
        browser
    }

    fn send(&mut self, method: &str, parameters: Value) -> u64 {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let sent = write!(self.commands, "{message}\0");
        sent.unwrap_or_else(|error| panic!("{PROGRAM}: {error}: tests/run installs it"));
        self.last
    }

    fn receive(&mut self) -> Value {
        let mut message = Vec::new();
        self.answers.read_until(0, &mut message).unwrap();
        assert_eq!(
            message.pop(),
            Some(0),
            "{PROGRAM} has ended: tests/run installs it"
        );
        serde_json::from_slice(&message).unwrap()
    }

    /// The answer to a command. Answers to dialogs are sent at once: a document waits for them.
    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        let id = self.send(method, parameters);
        loop {
            let mut message = self.receive();
            if message["id"] == id {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].take();
            }
            if message["method"] == "Page.javascriptDialogOpening" {
                self.send("Page.handleJavaScriptDialog", json!({ "accept": false }));
            }
            self.events.push_back(message);
        }
    }

    /// Opens the document at `url`, lets the expression `script` use it, and returns its actions other than display: each navigation, request,
    /// dialog, window, message on the console and error, as the event of the protocol.
    pub fn deeds(&mut self, url: &str, script: &str) -> Vec<Value> {
        self.events.clear();
        let opened = self.ask("Page.navigate", json!({ "url": url }));
        assert!(opened.get("errorText").is_none(), "{url}: {opened}");
        // Two frames after loading, its scripts have run.
        let settled = format!(
            "new Promise(done => {{ const go = () => {{ {{ {script} }} requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 100))) }};
               document.readyState === 'complete' ? go() : addEventListener('load', go) }})"
        );
        let wait = json!({ "expression": settled, "awaitPromise": true });
        let id = self.send("Runtime.evaluate", wait);
        let mut is_ended = false;
        while !is_ended {
            let message = self.receive();
            if message["method"] == "Page.javascriptDialogOpening" {
                self.send("Page.handleJavaScriptDialog", json!({ "accept": false }));
            }
            // Leaving a document drops the promise.
            is_ended = message["id"] == id;
            assert!(
                !is_ended || message["result"].get("exceptionDetails").is_none(),
                "{message}"
            );
            self.events.push_back(message);
        }
        self.deeds_of(url)
    }

    /// Opens the document at `url`, and waits until its scripts have run.
    pub fn open(&mut self, url: &str) {
        self.events.clear();
        let has_focus = json!({ "enabled": true });
        self.ask("Emulation.setFocusEmulationEnabled", has_focus);
        let opened = self.ask("Page.navigate", json!({ "url": url }));
        assert!(opened.get("errorText").is_none(), "{url}: {opened}");
        self.until("document.readyState === 'complete'");
    }

    /// Waits until the expression `condition` is true in the document.
    pub fn until(&mut self, condition: &str) {
        self.value(&format!(
            "new Promise(done => {{ const look = () => {condition} ? done() : setTimeout(look, 20); look() }})"
        ));
    }

    /// The value of the expression `script` in the document, or what it promises.
    pub fn value(&mut self, script: &str) -> Value {
        let parameters =
            json!({ "expression": script, "awaitPromise": true, "returnByValue": true });
        let answer = self.ask("Runtime.evaluate", parameters);
        assert!(
            answer.get("exceptionDetails").is_none(),
            "{script}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Presses the button of the details that has this text.
    pub fn press_button(&mut self, text: &str) {
        self.value(&format!(
            "[...document.querySelectorAll('#details button')].find(button => button.textContent === '{text}').click()"
        ));
    }

    /// Drags from one place of the window to another, each as `[x, y]`, in pixels.
    pub fn drag(&mut self, from: &Value, to: &Value) {
        for (kind, at) in [
            ("mouseMoved", from),
            ("mousePressed", from),
            ("mouseMoved", to),
            ("mouseReleased", to),
        ] {
            let event = json!({ "type": kind, "x": at[0], "y": at[1], "button": "left", "buttons": 1, "clickCount": 1 });
            self.ask("Input.dispatchMouseEvent", event);
        }
    }

    /// Allows documents what `parameters` of the command Browser.grantPermissions say.
    pub fn allow(&mut self, parameters: Value) {
        self.ask("Browser.grantPermissions", parameters);
    }

    /// What the document at `url` has done since it was opened, as of [`Self::deeds`].
    pub fn deeds_of(&mut self, url: &str) -> Vec<Value> {
        let events = std::mem::take(&mut self.events).into_iter();
        events.filter(|event| is_deed(event, url)).collect()
    }
}

/// Whether the document at `url` isn't expected to do this.
fn is_deed(event: &Value, url: &str) -> bool {
    let parameters = &event["params"];
    match event["method"].as_str().unwrap_or_default() {
        "Network.requestWillBeSent" => parameters["request"]["url"] != url,
        "Page.frameNavigated" => parameters["frame"]["url"] != url,
        // The browser makes other targets for itself.
        "Target.targetCreated" => parameters["targetInfo"]["type"] == "page",
        "Page.frameAttached"
        | "Page.frameRequestedNavigation"
        | "Page.javascriptDialogOpening"
        | "Page.windowOpen"
        | "Runtime.consoleAPICalled"
        | "Runtime.exceptionThrown"
        | "Log.entryAdded" => true,
        _ => false,
    }
}

impl Drop for DevTools {
    fn drop(&mut self) {
        let _ = self.browser.kill();
        let _ = self.browser.wait();
    }
}
