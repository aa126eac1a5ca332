//! Outputs that are closed, full or a pipe: no command panics, and a closed reader is no error.

use std::fs::File;
use std::io::{self, Write};
use std::process::Stdio;

use super::{FAILURE, Folder, ProgramResult, SUCCESS, USAGE, kvmprof, read};

/// Commands that print to standard output, with their statuses, in a [`Folder`].
const PRINTING: [(&[&str], i32); 12] = [
    (&["report", "before"], SUCCESS),
    (&["report", "before", "--json"], SUCCESS),
    (&["diff", "before", "after"], SUCCESS),
    (&["diff", "before", "after", "-o", "-"], SUCCESS),
    (&["export", "--format", "folded", "before"], SUCCESS),
    (
        &["export", "--format", "firefox", "before", "-o", "-"],
        SUCCESS,
    ),
    (&["html", "before", "-o", "-"], SUCCESS),
    (&["flamegraph", "before", "-o", "-"], SUCCESS),
    (&["html", "before", "-o", "/dev/stdout"], SUCCESS),
    (&["completions", "bash"], SUCCESS),
    (&["list"], SUCCESS),
    (&["list", "--json"], SUCCESS),
];

/// Commands that print to standard error.
const FAILING: [(&[&str], i32); 4] = [
    (&["report", "nothing"], FAILURE),
    (&["sing"], USAGE),
    (&["status"], USAGE),
    (&["status", "-s", "/nonexistent"], FAILURE),
];

/// A pipe without a reader.
fn closed() -> Stdio {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn full() -> Stdio {
    File::create("/dev/full").unwrap().into()
}

#[test]
fn a_closed_output_pipe_is_not_an_error() {
    let folder = Folder::new();
    for (words, status) in PRINTING {
        let mut command = folder.command(words);
        let ran = ProgramResult::from(command.stdout(closed()).output().unwrap());
        assert_eq!((ran.status, ran.stderr.as_str()), (status, ""), "{words:?}");
        // Nor is one of both.
        let ended = folder
            .command(words)
            .stdout(closed())
            .stderr(closed())
            .status();
        assert_eq!(ended.unwrap().code(), Some(status), "{words:?}");
    }
    for help in [&["--help"][..], &["run", "--help"]] {
        let ended = folder.command(help).stdout(closed()).status();
        assert_eq!(ended.unwrap().code(), Some(SUCCESS));
    }
    assert_eq!(folder.names(), ["after", "before"]);
}

#[test]
fn a_full_disk_is_an_error_with_a_message() {
    let folder = Folder::new();
    for (words, _) in PRINTING {
        // Opened again, it is written to as a file.
        let word = if words.contains(&"/dev/stdout") {
            "/dev/stdout"
        } else {
            "standard output"
        };
        let mut command = folder.command(words);
        let ran = ProgramResult::from(command.stdout(full()).output().unwrap());
        let word = if words[0] == "completions" {
            "No space left"
        } else {
            word
        };
        ran.assert_refused(FAILURE, &["Cannot write", word, "No space left"]);
    }
}

#[test]
fn a_closed_standard_error_changes_nothing() {
    let folder = Folder::new();
    for (words, status) in FAILING {
        for stderr in [closed(), full()] {
            let ended = folder.command(words).stderr(stderr).status().unwrap();
            assert_eq!(ended.code(), Some(status), "{words:?}");
        }
    }
    let ended = folder
        .command(&["report", "before"])
        .stdout(full())
        .stderr(full())
        .status();
    assert_eq!(ended.unwrap().code(), Some(FAILURE));
}

#[test]
fn a_recording_is_read_from_a_pipe_compressed_or_not() {
    let folder = Folder::new();
    let expected = folder.run(&["report", "before", "--json"]).stdout;
    assert!(expected.contains("copy_page"));
    let bytes = read(folder.path("before"));
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packer.write_all(&bytes).unwrap();
    let packed = packer.finish().unwrap();
    for bytes in [&bytes, &packed] {
        let mut command = kvmprof(["report", "-", "--json"]);
        let command = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(bytes).unwrap();
        let ran = ProgramResult::from(child.wait_with_output().unwrap());
        ran.assert_success();
        assert_eq!(ran.stdout, expected);
    }
    std::fs::write(folder.path("packed.gz"), packed).unwrap();
    assert_eq!(
        folder.run(&["report", "packed.gz", "--json"]).stdout,
        expected
    );
    let ran = super::run(["report", "-"]);
    ran.assert_refused(FAILURE, &["standard input is no recording"]);
}

#[test]
fn results_go_to_standard_output_as_to_a_file() {
    let folder = Folder::new();
    for words in [
        &["html", "before"][..],
        &["flamegraph", "before"],
        &["diff", "before", "after"],
        &["export", "--format", "speedscope", "before"],
    ] {
        let printed = folder.run(&[words, &["-o", "-"]].concat());
        printed.assert_success();
        folder
            .run(&[words, &["-o", "file"]].concat())
            .assert_success();
        assert_eq!(
            read(folder.path("file")),
            printed.stdout.as_bytes(),
            "{words:?}"
        );
        folder
            .run(&[words, &["-o", "file.gz"]].concat())
            .assert_success();
        let mut unpacked = String::new();
        let file = File::open(folder.path("file.gz")).unwrap();
        io::Read::read_to_string(&mut flate2::read::GzDecoder::new(file), &mut unpacked).unwrap();
        assert_eq!(unpacked, printed.stdout, "{words:?}");
    }
    // One format compresses itself, and isn't compressed twice.
    let pprof = ["export", "--format", "pprof", "before", "-o"];
    folder
        .run(&[&pprof[..], &["one"]].concat())
        .assert_success();
    folder
        .run(&[&pprof[..], &["two.gz"]].concat())
        .assert_success();
    assert_eq!(read(folder.path("one")), read(folder.path("two.gz")));
}
