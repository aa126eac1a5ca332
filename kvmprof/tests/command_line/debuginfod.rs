//! Names and lines from a real debuginfod server on the loopback interface.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::compiled::Guest;
use super::{ProgramResult, SUCCESS, USAGE, kvmprof};

const BUILD_ID: &str = "0badc0de";
const RECORDED: &str = "pid-77;main;outer 1";
const WITH_INLINED: &str = "pid-77;main;outer;inner_[i] 1";

/// A server of the files in a folder.
struct Server {
    program: Child,
    url: String,
}

impl Server {
    /// It has read the folder when this returns.
    fn start(folder: &Path) -> Self {
        let port = free_port();
        let program = Command::new("debuginfod")
            .args(["--database=:memory:", "--rescan-time=0", "--scan-file-dir"])
            .args(["--port", &port.to_string()])
            .arg(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let url = format!("http://127.0.0.1:{port}");
        let mut server = Self { program, url };
        while !answers(port).is_some_and(|answer| answer.starts_with("HTTP/1.1 200")) {
            assert_eq!(server.program.try_wait().unwrap(), None, "debuginfod ended");
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// A port that nobody listens on.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// The server's answer for the program's debug file.
fn answers(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let request = format!(
        "GET /buildid/{BUILD_ID}/debuginfo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}

/// A guest whose program has functions in its recording, and its debug file in a folder of its own.
fn guest_with_server() -> (Guest, Server) {
    let guest = Guest::new();
    let served = guest.folder.path().join("served");
    fs::create_dir(&served).unwrap();
    let extracted = Command::new("objcopy")
        .arg("--only-keep-debug")
        .args([guest.program_file(), served.join("work.debug")])
        .status();
    assert!(extracted.unwrap().success());
    let server = Server::start(&served);
    (guest, server)
}

/// The stacks of a recording of an inlined function, with these further arguments. The client's cache is `cache`.
fn stacks(guest: &Guest, cache: &str, arguments: &[&str], urls: Option<&str>) -> ProgramResult {
    guest.named_recording();
    export(guest, cache, arguments, urls)
}

fn export(guest: &Guest, cache: &str, arguments: &[&str], urls: Option<&str>) -> ProgramResult {
    let recording = guest.folder.path().join("recording");
    let mut command = kvmprof(["export", "--format", "folded"]);
    command.arg(recording).args(arguments);
    command.env("DEBUGINFOD_CACHE_PATH", guest.folder.path().join(cache));
    match urls {
        Some(urls) => command.env("DEBUGINFOD_URLS", urls),
        None => command.env_remove("DEBUGINFOD_URLS"),
    };
    command.output().unwrap().into()
}

impl ProgramResult {
    #[track_caller]
    fn assert_stack(&self, stack: &str) {
        assert_eq!(self.status, SUCCESS, "{self:?}");
        assert!(self.stdout.lines().any(|line| line == stack), "{self:?}");
    }

    /// Checks that it has the recorded stack, and one line on standard error with `said` in it.
    #[track_caller]
    fn assert_recorded(&self, said: &str) {
        self.assert_stack(RECORDED);
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        assert!(self.stderr.contains(said), "{self:?}");
    }
}

#[test]
fn a_server_has_names_and_lines() {
    let (guest, server) = guest_with_server();
    let without = stacks(&guest, "cache", &[], None);
    without.assert_success();
    without.assert_stack(RECORDED);
    for (cache, option, urls) in [
        ("cache", Some(&server.url), None),
        ("of_variable", None, Some(server.url.as_str())),
    ] {
        let option: Vec<&str> = option.map_or(vec![], |url| vec!["--debuginfod", url]);
        let with = stacks(&guest, cache, &option, urls);
        with.assert_success();
        with.assert_stack(WITH_INLINED);
    }
    let url = server.url.clone();
    drop(server);
    // elfutils' cache has it.
    let kept = stacks(&guest, "cache", &["--debuginfod", &url], None);
    kept.assert_success();
    kept.assert_stack(WITH_INLINED);
}

#[test]
fn a_server_that_fails_is_one_line() {
    let guest = Guest::new();
    let url = format!("http://127.0.0.1:{}", free_port());
    let refused = stacks(&guest, "cache", &["--debuginfod", &url], None);
    refused.assert_recorded(&format!("Debug files of {url} are missing: "));
    assert!(refused.stderr.contains("Connection refused"), "{refused:?}");
}

#[test]
fn a_file_that_no_server_has_is_no_error() {
    let (_, server) = guest_with_server();
    let guest = Guest::new();
    let unknown = "0badc0df";
    let mappings = guest.mappings(Some(1)).to_block().unwrap();
    let info = guest.info(unknown).to_block(&guest.program.functions);
    let stack = [guest.mapped(guest.address("outer") + 8)];
    guest.recording(&[(&[], &stack)], &[mappings, info.unwrap()]);
    let missing = export(&guest, "cache", &["--debuginfod", &server.url], None);
    missing.assert_success();
    missing.assert_stack("pid-77;outer 1");
}

#[test]
fn a_file_of_another_build_or_a_damaged_one_is_not_used() {
    let guest = Guest::new();
    let url = format!("http://127.0.0.1:{}", free_port());
    let kept = guest.folder.path().join("cache").join(BUILD_ID);
    fs::create_dir_all(&kept).unwrap();
    let other = Guest::built(&["-Wl,--build-id=0x0badc0df"]);
    fs::copy(other.program_file(), kept.join("debuginfo")).unwrap();
    let wrong = stacks(&guest, "cache", &["--debuginfod", &url], None);
    wrong.assert_recorded("debuginfo is not the file of the recording, and not used");
    let whole = fs::read(guest.program_file()).unwrap();
    fs::write(kept.join("debuginfo"), &whole[..whole.len() / 2]).unwrap();
    let damaged = stacks(&guest, "cache", &["--debuginfod", &url], None);
    damaged.assert_recorded("debuginfo is not used: ");
}

#[test]
fn a_client_that_is_not_installed_is_named() {
    let guest = Guest::new();
    let (recording, _) = guest.named_recording();
    let mut command = kvmprof(["export", "--format", "folded"]);
    command
        .arg(recording)
        .args(["--debuginfod", "http://127.0.0.1:1"])
        .env("PATH", guest.root());
    let without = ProgramResult::from(command.output().unwrap());
    without.assert_stack(RECORDED);
    let said = "debuginfod-find isn't installed, which is in the package debuginfod or elfutils";
    assert!(without.stderr.contains(said), "{without:?}");
}

#[test]
fn what_is_no_url_is_refused() {
    for wrong in ["debuginfod.debian.net", "https://a https://b", "-"] {
        let ran = super::run(["report", "--debuginfod", wrong, "recording"]);
        assert_eq!(ran.status, USAGE, "{ran:?}");
        let said = "give one URL that begins with http://, https:// or file://";
        assert!(ran.stderr.contains(said), "{ran:?}");
    }
}
