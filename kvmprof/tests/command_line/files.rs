//! No command replaces a recording that the user didn't name for that.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use super::not_run::not_run;
use super::{FAILURE, Folder, ProgramResult, USAGE, read};

/// The commands that write a result, without its file.
const WRITING: [&[&str]; 5] = [
    &["html", "before"],
    &["flamegraph", "before"],
    &["export", "--format", "folded", "before"],
    &["export", "--format", "perf-data", "before"],
    &["diff", "before", "after"],
];

#[test]
fn the_input_recording_is_never_replaced() {
    let folder = Folder::new();
    let before = read(folder.path("before"));
    symlink("before", folder.path("link")).unwrap();
    fs::hard_link(folder.path("before"), folder.path("hard")).unwrap();
    for words in WRITING {
        for output in ["before", "./before", "link", "hard"] {
            for force in [&[][..], &["--force"]] {
                let ran = folder.run(&[words, &["-o", output], force].concat());
                ran.assert_refused(FAILURE, &["is the recording that is read", "--output"]);
            }
        }
    }
    let ran = folder.run(&["diff", "before", "after", "-o", "after"]);
    ran.assert_refused(FAILURE, &["after is the recording that is read"]);
    assert_eq!(read(folder.path("before")), before);
    assert_eq!(folder.names(), ["after", "before", "hard", "link"]);
}

#[test]
fn another_recording_is_replaced_by_force_only() {
    let folder = Folder::new();
    let after = read(folder.path("after"));
    for words in WRITING {
        fs::write(folder.path("third"), &after).unwrap();
        let ran = folder.run(&[words, &["-o", "third"]].concat());
        ran.assert_refused(FAILURE, &["third is a recording", "--force"]);
        assert_eq!(read(folder.path("third")), after, "{words:?}");
        let ran = folder.run(&[words, &["-o", "third", "--force"]].concat());
        ran.assert_success();
        assert_ne!(read(folder.path("third")), after, "{words:?}");
        // Other files are replaced as before.
        let ran = folder.run(&[words, &["-o", "third"]].concat());
        ran.assert_success();
    }
}

/// Results of a command that a user has called through sudo are that user's.
#[test]
fn results_belong_to_the_user_behind_sudo() {
    if !rustix::process::geteuid().is_root() {
        return not_run("only root can give files away");
    }
    let folder = Folder::new();
    let owner_of = |name: &str, variables: &[(&str, &str)]| {
        let mut command = folder.command(&["flamegraph", "before", "-o", name]);
        command.envs(variables.iter().copied());
        ProgramResult::from(command.output().unwrap()).assert_success();
        let found = fs::metadata(folder.path(name)).unwrap();
        (found.uid(), found.gid(), found.mode() & 0o777)
    };
    let behind = [("SUDO_UID", "1234"), ("SUDO_GID", "4321")];
    assert_eq!(owner_of("theirs", &behind), (1234, 4321, 0o600));
    // The next result replaces it.
    assert_eq!(owner_of("theirs", &behind), (1234, 4321, 0o600));
    for wrong in [
        [("SUDO_UID", "4294967295"), ("SUDO_GID", "1")],
        [("SUDO_UID", "x"), ("SUDO_GID", "1")],
        [("SUDO_UID", "1"), ("SUDO_GID", "")],
    ] {
        assert_eq!(owner_of("roots", &wrong).0, 0, "{wrong:?}");
    }
}

/// Without names a command reads what record has written, and writes beside it.
#[test]
fn the_default_files_are_those_of_record() {
    let folder = Folder::new();
    folder
        .run(&["report"])
        .assert_refused(FAILURE, &["out.kvmprof"]);
    fs::rename(folder.path("before"), folder.path("out.kvmprof")).unwrap();
    for words in [
        &["report"][..],
        &["report", "--tree"],
        &["export", "--format", "folded"],
    ] {
        let ran = folder.run(words);
        ran.assert_success();
    }
    for (command, file) in [("flamegraph", "out.svg"), ("html", "out.html")] {
        let ran = folder.run(&[command]);
        let said = format!("kvmprof: {file} is written\n");
        assert_eq!((ran.status, ran.stderr), (0, said), "{command}");
        assert!(!read(folder.path(file)).is_empty());
    }
}

/// The messages suggest only what the command can do.
#[test]
fn refusals_name_the_option_that_names_the_file() {
    let folder = Folder::new();
    let diff = ["diff", "before", "after", "--html"];
    let ran = folder.run(&[&diff[..], &["before"]].concat());
    ran.assert_refused(FAILURE, &["is read: name another file with --html"]);
    fs::copy(folder.path("before"), folder.path("third")).unwrap();
    let ran = folder.run(&[&diff[..], &["third"]].concat());
    ran.assert_refused(FAILURE, &["another file with --html, or give --force"]);
    // Neither has --force.
    for (words, instead) in [
        (
            &["record", "--html", "third"][..],
            "name another file with --html",
        ),
        (
            &["demo", "--flamegraph", "third"],
            "name another file with --flamegraph",
        ),
    ] {
        let ran = folder.run(words);
        ran.assert_refused(FAILURE, &["third is a recording", instead]);
        assert!(!ran.stderr.contains("--force"), "{ran:?}");
    }
}

#[test]
fn a_failed_result_keeps_the_older_file() {
    let folder = Folder::new();
    fs::write(folder.path("out"), "older").unwrap();
    for words in [
        &["html", "before", "--pid", "9999"][..],
        &["flamegraph", "nothing"],
        &[
            "export",
            "--format",
            "folded",
            "before",
            "--vmlinux",
            "before",
        ],
    ] {
        let ran = folder.run(&[words, &["-o", "out"]].concat());
        assert_eq!(ran.status, FAILURE, "{ran:?}");
        assert_eq!(read(folder.path("out")), b"older", "{words:?}");
    }
    let ran = folder.run(&["html", "before", "-o", "none/such"]);
    ran.assert_refused(FAILURE, &["Cannot write none/such"]);
    let perf = ["export", "--format", "perf-data", "before"];
    let ran = folder.run(&[&perf[..], &["-o", "out.gz"]].concat());
    ran.assert_refused(USAGE, &["without .gz"]);
    folder.run(&perf).assert_refused(FAILURE, &["--output"]);
}

#[test]
fn record_and_run_keep_older_files_if_they_cannot_start() {
    let folder = Folder::new();
    let before = read(folder.path("before"));
    fs::write(folder.path("log"), "older").unwrap();
    let record = ["record", "-s", "/nonexistent", "-o", "before"];
    folder.run(&record).assert_refused(FAILURE, &["No socket"]);
    let run = [
        "run",
        "--kernel",
        "/nonexistent",
        "--console",
        "file:log",
        "--record",
        "before",
    ];
    // Without a KVM it ends earlier, with another status.
    let ran = folder.run(&run);
    assert_ne!(ran.status, 0, "{ran:?}");
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    assert_eq!(read(folder.path("before")), before);
    assert_eq!(read(folder.path("log")), b"older");
    assert_eq!(folder.names(), ["after", "before", "log"]);
}
