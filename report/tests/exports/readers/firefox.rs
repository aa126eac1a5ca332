//! Reads the export with the Firefox Profiler's command line.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use kvmprof_report::export::Format;
use serde_json::Value;

use super::{ROUNDS, exported, first, run};
use crate::shared::used::{node, npm_readers};

/// The name of the reader's background process.
const NAME: &str = "kvmprof";

/// A profile that the reader's background process has open.
struct Session<'a> {
    home: &'a Path,
    process: Child,
}

impl<'a> Session<'a> {
    /// Starts the background process itself: the reader's command `load` waits half a second for it, which is too short on a busy host.
    fn open(home: &'a Path, file: &Path) -> Self {
        let process = reader(home)
            .arg("--daemon")
            .arg(file)
            .args(["--session", NAME])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut session = Self { home, process };
        // Commands before it listens remove its socket.
        let log = home.join(format!(".profiler-cli/{NAME}.log"));
        let mut said = String::new();
        while !said.contains("loaded successfully") {
            let end = session.process.try_wait().unwrap();
            assert!(
                end.is_none() && !said.contains("[ERROR]"),
                "{end:?}: {said}"
            );
            thread::sleep(Duration::from_millis(10));
            // It doesn't exist at first.
            said = fs::read_to_string(&log).unwrap_or_default();
        }
        session
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = reader(self.home);
        command.args(arguments).args(["--session", NAME]);
        command
    }

    fn ask(&self, arguments: &[&str]) -> String {
        run(&mut self.command(arguments))
    }

    fn ask_json(&self, arguments: &[&str]) -> Value {
        let text = self.ask(&[arguments, &["--json"]].concat());
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The reader's program, which keeps its files in `home`.
fn reader(home: &Path) -> Command {
    let program = "node_modules/@firefox-devtools/profiler-cli/dist/profiler-cli.js";
    let mut command = node();
    command.arg(npm_readers().join(program)).env("HOME", home);
    command
}

/// The samples of each function, and of each thread its name, its process's, pid and tid.
fn counted(session: &Session<'_>) -> (HashMap<String, u64>, Vec<[String; 4]>) {
    let threads = session.ask_json(&["thread", "list"]);
    let mut own: HashMap<String, u64> = HashMap::new();
    let mut names = Vec::new();
    for thread in threads["threads"].as_array().unwrap() {
        // Those of other formats are numbers, or missing.
        let text = |key| match &thread[key] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        names.push([text("name"), text("processName"), text("pid"), text("tid")]);
        let handle = text("threadHandle");
        let all = ["thread", "functions", "--include-idle", "--thread", &handle];
        let functions = session.ask_json(&[all.as_slice(), &["--limit", "0"]].concat());
        for function in functions["functions"].as_array().unwrap() {
            let name = function["name"].as_str().unwrap().to_owned();
            *own.entry(name).or_default() += function["selfSamples"].as_u64().unwrap();
        }
    }
    (own, names)
}

/// It counts lines, so that it knows a halted vCPU's ticks as one.
#[test]
fn the_firefox_profiler_reads_perf_script() {
    let (folder, file, expected) = exported(Format::PerfScript);
    let session = Session::open(folder.path(), &file);
    let (own, names) = counted(&session);
    // It shows the object of functions that are in no library of its own kind.
    let own = own.into_iter();
    let own = own.map(|(name, samples)| (name.split(" (in ").next().unwrap().to_owned(), samples));
    let mut own: HashMap<String, u64> = own.collect();
    own.insert("[halted]".to_owned(), 12 * ROUNDS);
    assert_eq!(first(own), expected);
    for (name, tid) in [
        ("server", "101"),
        ("server worker", "102"),
        ("swapper/1", "0"),
        ("[unknown]", "4294967295"),
    ] {
        let is_it = |thread: &[String; 4]| thread[0] == name && thread[3] == tid;
        assert!(names.iter().any(is_it), "{names:?}");
    }
}

#[test]
fn the_firefox_profiler_reads_its_format() {
    let (folder, file, expected) = exported(Format::Firefox);
    let session = Session::open(folder.path(), &file);
    let (own, names) = counted(&session);
    assert_eq!(first(own), expected);
    let about = session.ask_json(&["profile", "info"]);
    assert_eq!(about["platform"], "Linux 6.1.0-test x86_64");

    for name in [
        ["server", "server", "101", "101"],
        ["server worker", "server", "101", "102"],
        ["batch", "batch", "230", "230"],
        ["swapper/1", "swapper/1", "0", "0"],
    ] {
        assert!(names.contains(&name.map(str::to_owned)), "{names:?}");
    }
    let document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let libraries = document["libs"].as_array().unwrap().iter();
    let mut libraries: Vec<&str> = libraries
        .map(|library| library["name"].as_str().unwrap())
        .collect();
    libraries.sort_unstable();
    assert_eq!(libraries, ["[kernel]", "[virtio_net]", "server"]);
    let samples = session.ask(&["thread", "samples", "--thread", "t-4"]);
    assert!(samples.contains("Interrupt"), "{samples}");
    let markers = session.ask(&["thread", "markers", "--thread", "t-2"]);
    let stays = format!("{} markers", 2 * ROUNDS);
    assert!(markers.contains(&stays), "{markers}");
}
