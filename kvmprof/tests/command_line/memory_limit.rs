//! Recordings in a group of processes that has little memory (cgroups(7)): the result, or an error of one line. No file of it is left.

use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Output;

use kvmprof_recording::Mode;
use kvmprof_recording::file::Kind;
use tempfile::TempDir;

use super::bombs::{deep_samples, many_addresses, recording, unpacks_to_much};
use super::cgroup::Cgroup;
use super::not_run::not_run;
use super::recordings::Written;
use super::{kvmprof, names};

/// What these recordings need, in bytes: small ones unpack to at most 8 MiB and 128 times their size, and what is kept of them is bounded by that.
const ENOUGH: u64 = 1 << 30;
/// What none of them can be read in.
const TOO_LITTLE: u64 = 6 << 20;
/// What was in the output's place before.
const BEFORE: &str = "a page of yesterday";

/// Lists of empty entries.
fn of_empty_mappings() -> (TempDir, PathBuf) {
    let entries = "{},".repeat(20 << 20);
    let mappings = ["{\"mappings\":[", &entries, "{}]}"].concat();
    recording(&[(Kind::Mappings, mappings.into_bytes())], 1 << 20)
}

/// An hour of a busy vCPU, in a good recording.
fn of_an_hour() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hour");
    let base = 0xffff_ffff_8100_0000;
    let mut written = Written::with_symbols("ffffffff81000000 T first\nffffffff81100000 T _end\n");
    for tick in 0..360_000_u64 {
        let pid = i32::try_from(tick % 300).unwrap();
        let frames = [base + tick % 5000 * 16, base + tick % 700 * 16, base + 16];
        written.samples(1, (pid, b"busy"), Mode::Kernel, (&frames, &[]));
        if tick % 10_000 == 9999 {
            written.end_block();
        }
    }
    written.write(&path);
    (folder, path)
}

/// What writes a recording, and returns its folder and its path.
type Writer = fn() -> (TempDir, PathBuf);

/// Recordings of hostile guests and a long one.
const RECORDINGS: [(&str, Writer); 5] = [
    ("unpacks to much", unpacks_to_much),
    ("empty mappings", of_empty_mappings),
    ("many addresses", many_addresses),
    ("deep stacks", || deep_samples(300_000, 1)),
    ("an hour", of_an_hour),
];

/// Runs a command in the group. The process joins it before it becomes kvmprof.
fn run(group: &Cgroup, words: &[&str], folder: &Path) -> Output {
    let mut command = kvmprof(words);
    command.current_dir(folder);
    let group = group.processes();
    // SAFETY: it only opens a file and writes to it, with a number on the stack.
    unsafe { command.pre_exec(move || fs::write(&group, "0")) };
    command.output().unwrap()
}

#[test]
fn a_recording_gives_its_result_or_one_error_within_a_limit_of_memory() {
    let Some(enough) = Cgroup::new(ENOUGH) else {
        return not_run("groups of processes can't be made here");
    };
    for (what, make) in RECORDINGS {
        let (folder, path) = make();
        let recording = path.file_name().unwrap().to_str().unwrap();
        for words in [
            vec!["report", recording],
            vec!["html", recording, "--output", "page"],
        ] {
            fs::write(folder.path().join("page"), BEFORE).unwrap();
            let ran = run(&enough, &words, folder.path());
            let said = String::from_utf8_lossy(&ran.stderr);
            println!("{what}, {}: {:?} {said}", words[0], ran.status);
            let page = fs::read_to_string(folder.path().join("page")).unwrap();
            match ran.status.code() {
                Some(0) if words[0] == "html" => assert!(page.ends_with("</html>\n"), "{what}"),
                Some(0) => assert!(!ran.stdout.is_empty(), "{what}"),
                Some(1) => {
                    assert_eq!(said.lines().count(), 1, "{what}: {said}");
                    assert_eq!(page, BEFORE, "{what}");
                }
                other => panic!("{what}: {other:?} {said}"),
            }
            assert_eq!(names(folder.path()), sorted([recording, "page"]));
        }
    }
}

fn sorted(names: [&str; 2]) -> Vec<String> {
    let mut names = names.map(str::to_owned);
    names.sort();
    names.to_vec()
}

/// The host's kernel ends a command for which there isn't enough memory, without a chance to clean up.
#[test]
fn a_command_that_the_kernel_ends_leaves_what_was_there() {
    let Some(group) = Cgroup::new(TOO_LITTLE) else {
        return not_run("groups of processes can't be made here");
    };
    let (folder, path) = of_an_hour();
    let recording = path.file_name().unwrap().to_str().unwrap();
    fs::write(folder.path().join("page"), BEFORE).unwrap();
    let words = ["html", recording, "--output", "page"];
    let ran = run(&group, &words, folder.path());
    assert_eq!(ran.status.signal(), Some(libc::SIGKILL), "{ran:?}");
    let page = fs::read_to_string(folder.path().join("page")).unwrap();
    assert_eq!(page, BEFORE);
    assert_eq!(names(folder.path()), sorted([recording, "page"]));
}
