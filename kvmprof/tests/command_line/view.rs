//! `kvmprof view --firefox`, with the requests of the Firefox Profiler.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::compiled::{Guest, SOURCE};
use super::{Folder, kvmprof, run};

const PROFILER: &str = "https://profiler.firefox.com";

/// The command, which serves until it is dropped.
struct View {
    command: Child,
    /// The server's name and port, and the paths of the profile and of the symbol server.
    host: String,
    profile: String,
    symbols: String,
}

impl View {
    fn start(recording: &Path, options: &[&str]) -> Self {
        let mut command = kvmprof(["view", "--firefox", "--no-open"]);
        Self::of(command.args(options).arg(recording))
    }

    fn of(command: &mut Command) -> Self {
        let mut command = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(command.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("profile: ").unwrap();
        let address = address.strip_prefix(PROFILER).unwrap();
        let address = address.replace("%3A", ":").replace("%2F", "/");
        let (profile, symbols) = address.split_once("/?symbolServer=").unwrap();
        let profile = profile.strip_prefix("/from-url/http://").unwrap();
        let (host, profile) = profile.split_at(profile.find('/').unwrap());
        let symbols = symbols.strip_prefix("http://").unwrap();
        Self {
            command,
            symbols: symbols.strip_prefix(host).unwrap().to_owned(),
            host: host.to_owned(),
            profile: profile.to_owned(),
        }
    }

    /// The answer to these bytes: its head and body.
    fn exchange(&self, text: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // A server that refuses a body closes before it has arrived.
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn request(&self, method: &str, path: &str, body: &str) -> (String, String) {
        let host = &self.host;
        let length = body.len();
        self.exchange(&format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: {PROFILER}\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
    }

    /// The symbol server's answer.
    fn ask(&self, path: &str, body: &Value) -> Value {
        let path = format!("{}/{path}", self.symbols);
        let (head, body) = self.request("POST", &path, &body.to_string());
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let allowed = format!("Access-Control-Allow-Origin: {PROFILER}\r\n");
        assert!(head.contains(&allowed), "{head}");
        serde_json::from_str(&body).unwrap()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.command), Signal::INT);
        let _ = self.command.wait();
    }
}

#[test]
fn the_profiler_gets_names_lines_and_sources_on_demand() {
    let guest = Guest::new();
    let (recording, _) = guest.named_recording();
    let root = guest.root();
    let folder = guest.folder.path().to_str().unwrap();
    let options = ["--sysroot", root.to_str().unwrap(), "--sources", "/"];
    let mut view = View::start(&recording, &options);
    let (head, profile) = view.request("GET", &view.profile, "");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let profile: Value = serde_json::from_str(&profile).unwrap();
    assert_eq!(profile["meta"]["symbolicated"], false);
    let library = &profile["libs"][0];
    let addresses = profile["threads"][0]["frameTable"]["address"]
        .as_array()
        .unwrap();
    let stack: Vec<Value> = addresses
        .iter()
        .map(|address| json!([0, address]))
        .collect();
    let map = json!([[library["debugName"], library["breakpadId"]]]);
    let answer = view.ask(
        "symbolicate/v5",
        &json!({ "jobs": [{ "memoryMap": map, "stacks": [stack] }] }),
    );
    let frames = answer["results"][0]["stacks"][0].as_array().unwrap();
    assert_eq!(frames.len(), addresses.len());
    let inlined = frames
        .iter()
        .find(|frame| frame["inlines"].is_array())
        .unwrap();
    assert_eq!(inlined["function"], "outer");
    assert_eq!(inlined["inlines"][0]["function"], "inner");
    let file = format!("{folder}/work.c");
    assert_eq!(inlined["inlines"][0]["file"], file);
    let ask = |file: &str| {
        let body = json!({
            "debugName": library["debugName"],
            "debugId": library["breakpadId"],
            "moduleOffset": inlined["module_offset"],
            "file": file,
        });
        view.ask("source/v1", &body)
    };
    assert_eq!(ask(&file)["source"], SOURCE);
    assert!(ask("/etc/passwd")["error"].is_string());
    assert!(ask(recording.to_str().unwrap())["error"].is_string());
    let body = json!({
        "debugName": library["debugName"],
        "debugId": library["breakpadId"],
        "name": library["name"],
        "codeId": library["codeId"],
        "startAddress": format!("{:#x}", guest.address("outer")),
        "size": "0x1",
        "continueUntilFunctionEnd": true,
    });
    let assembly = view.ask("asm/v1", &body);
    let instructions = assembly["instructions"].as_array().unwrap();
    assert_eq!(instructions.last().unwrap()[1], "ret", "{assembly}");
    // Without the folder there is no source.
    let other = View::start(&recording, &options[..2]);
    let body = json!({
        "debugName": library["debugName"],
        "debugId": library["breakpadId"],
        "moduleOffset": inlined["module_offset"],
        "file": file,
    });
    assert!(other.ask("source/v1", &body)["error"].is_string());
    kill_process(Pid::from_child(&view.command), Signal::INT).unwrap();
    assert!(view.command.wait().unwrap().success());
}

#[test]
fn other_users_and_unbounded_requests_are_refused() {
    let guest = Guest::new();
    let (recording, _) = guest.named_recording();
    let view = View::start(&recording, &[]);
    let symbolicate = format!("{}/symbolicate/v5", view.symbols);
    let status = |method: &str, path: &str| {
        let (head, _) = view.request(method, path, "{}");
        head.split(' ').nth(1).unwrap().to_owned()
    };
    for path in [
        "/symbolicate/v5",
        "/0123456789abcdef0123456789abcdef/symbolicate/v5",
    ] {
        assert_eq!(status("POST", path), "404");
    }
    for path in [
        format!("{}/asm/v2", view.symbols),
        format!("{symbolicate}/"),
    ] {
        assert_eq!(status("POST", &path), "404");
    }
    assert_eq!(status("GET", &symbolicate), "405");
    assert_eq!(status("PUT", &symbolicate), "405");
    assert_eq!(status("POST", &view.profile), "405");
    assert_eq!(status("OPTIONS", &symbolicate), "204");
    let host = &view.host;
    for (head, status) in [
        (format!("Host: {host}\r\n"), "411"),
        (
            format!("Host: {host}\r\nContent-Length: 8388609\r\n"),
            "413",
        ),
        (
            format!("Host: {host}\r\nContent-Length: 99999999999999999999999\r\n"),
            "400",
        ),
        // A site whose name resolves to this host.
        (
            "Host: example.org\r\nContent-Length: 2\r\n".to_owned(),
            "403",
        ),
    ] {
        let (answer, _) = view.exchange(&format!("POST {symbolicate} HTTP/1.1\r\n{head}\r\n"));
        assert_eq!(answer.split(' ').nth(1).unwrap(), status, "{head}");
    }
    // It is there as before.
    let answer = view.ask("symbolicate/v5", &json!({ "jobs": [] }));
    assert_eq!(answer, json!({ "results": [] }));
}

/// Any user of the host can connect.
#[test]
fn connections_of_other_users_block_nobody() {
    let guest = Guest::new();
    let (recording, _) = guest.named_recording();
    let view = View::start(&recording, &[]);
    let strangers = (0..200).map(|_| TcpStream::connect(&view.host).unwrap());
    let mut strangers: Vec<TcpStream> = strangers.collect();
    for stranger in &mut strangers {
        // Some of these are closed already.
        let _ = stranger.write_all(b"GET /");
    }
    let silent = TcpStream::connect(&view.host).unwrap();
    let (head, _) = view.request("GET", &view.profile, "");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let answer = view.ask("symbolicate/v5", &json!({ "jobs": [] }));
    assert_eq!(answer, json!({ "results": [] }));
    // The first ones were closed; the last one closes because its request doesn't arrive in time.
    let (first, last) = (&strangers[0], &strangers[199]);
    let read = |mut stream: &TcpStream| {
        let mut answer = String::new();
        // The server may have closed it before the bytes arrived.
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    assert_eq!(read(first), "");
    assert!(read(last).starts_with("HTTP/1.1 400 "));
    assert_eq!(read(&silent), "");
}

#[test]
fn folders_of_sources_have_to_be_there() {
    let guest = Guest::new();
    let (recording, _) = guest.named_recording();
    let recording = recording.to_str().unwrap();
    let none = guest.folder.path().join("none");
    fs::create_dir(&none).unwrap();
    fs::remove_dir(&none).unwrap();
    let none = none.to_str().unwrap();
    for words in [
        &["view", recording, "--firefox"][..],
        &["view", recording],
        &["html", recording, "--output", "-"],
    ] {
        let ran = run(words.iter().chain(&["--sources", none]));
        ran.assert_refused(super::FAILURE, &["Cannot open the folder"]);
    }
}

/// A folder with a program as opener of pages, which is also the user's home.
struct Opener(TempDir);

impl Opener {
    fn new(script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("xdg-open");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `command`, which finds this opener first.
    fn first<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let others = std::env::var_os("PATH").unwrap_or_default();
        let folders = [self.0.path().to_owned()];
        let folders = folders.into_iter().chain(std::env::split_paths(&others));
        let path = std::env::join_paths(folders).unwrap();
        command.env("PATH", path).env("HOME", self.0.path())
    }
}

/// Records its arguments, and runs as long as its folder exists, like a browser without a desktop environment.
const LASTING: &str = r#"printf '%s\n' "$#" "$1" "$(stat -c %a "$1")" "$(cat "$1")" >"$0.said"
mv "$0.said" "$0.told"
while [ -e "$0" ]; do sleep 0.1; done"#;

/// Waits until the file is there, and returns its text.
fn text_of(path: &Path) -> String {
    while !path.exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    fs::read_to_string(path).unwrap()
}

#[test]
fn the_browser_gets_the_address_by_a_file_of_the_users_own() {
    let guest = Guest::new();
    let (recording, _) = guest.named_recording();
    let opener = Opener::new(LASTING);
    let mut command = kvmprof(["view", "--firefox"]);
    let mut view = View::of(opener.first(command.arg(&recording)));
    let asked = text_of(&opener.path("xdg-open.told"));
    let mut lines = asked.lines();
    assert_eq!(lines.next(), Some("1"), "{asked}");
    let page = PathBuf::from(lines.next().unwrap());
    assert_eq!(page.parent(), Some(opener.0.path()), "{asked}");
    assert!(page.extension().is_some_and(|end| end == "html"), "{asked}");
    assert_eq!(lines.next(), Some("600"), "{asked}");
    let profile = format!("http://{}{}", view.host, view.profile);
    let encoded = profile.replace(':', "%3A").replace('/', "%2F");
    let begin = format!("url={PROFILER}/from-url/{encoded}/?symbolServer=");
    assert!(lines.any(|line| line.contains(&begin)), "{asked}");
    // The opener still runs, and requests are answered.
    let answer = view.ask("symbolicate/v5", &json!({ "jobs": [] }));
    assert_eq!(answer, json!({ "results": [] }));
    kill_process(Pid::from_child(&view.command), Signal::INT).unwrap();
    assert!(view.command.wait().unwrap().success());
    assert!(!page.exists());
}

#[test]
fn a_failed_opener_is_reported_and_the_page_is_served() {
    let folder = Folder::new();
    let recording = folder.path("before");
    let none = tempfile::tempdir().unwrap();
    let opener = Opener::new("exit 3");
    for (path, said) in [
        (opener.0.path(), "xdg-open has found no browser"),
        (none.path(), "Cannot execute xdg-open"),
    ] {
        let mut command = kvmprof(["view"]);
        let command = command.arg(&recording).env("PATH", path);
        let command = command.env("HOME", none.path()).stdout(Stdio::null());
        let mut view = command.stderr(Stdio::piped()).spawn().unwrap();
        let messages = BufReader::new(view.stderr.take().unwrap());
        let mut messages = messages.lines().map(|line| line.unwrap());
        assert!(messages.any(|line| line.contains(said)), "{said}");
        assert_eq!(view.try_wait().unwrap(), None);
        kill_process(Pid::from_child(&view), Signal::INT).unwrap();
        assert!(view.wait().unwrap().success());
    }
}
