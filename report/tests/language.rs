//! Functions of a language take the place of the frames that execute them, unless the interpreter's frames are asked for.

use std::path::Path;

use kvmprof_recording::file::{HEADER, LanguageFunction, LanguageFunctions};
use kvmprof_recording::{Language, LanguageFrame, Mode};
use kvmprof_report::profile::Profile;
use kvmprof_report::symbolize::Sources;

use crate::shared::read::{profile_with, stacks};
use crate::shared::recordings::Written;

const KERNEL: &str = "ffffffff81000000 T read_file\nffffffff81001000 t [end]\n";
const READ: u64 = 0xffff_ffff_8100_0010;
/// Code of the interpreter, and of what it calls.
const INTERPRETER: u64 = 0x40_1000;
const SORT: u64 = 0x40_2000;
const START: u64 = 0x40_3000;

fn frame(function: u64, offset: u32) -> u64 {
    LanguageFrame::new(Language::Python, function, Some(offset)).to_word()
}

fn function(function: u64, name: &str, file: &str) -> LanguageFunction {
    LanguageFunction {
        function,
        name: name.to_owned(),
        file: file.to_owned(),
        line: 7,
        lines: vec![(0, 8), (4, 9)],
    }
}

/// A recording of a function of Python that sorts by another one, which reads a file, of one that has no name, and of one of JavaScript that
/// is in no file.
fn write(path: &Path) {
    let mut written = Written::with_symbols(KERNEL);
    let process = (5, &b"loom"[..]);
    let [key, sorts, nameless] = [frame(1, 5), frame(2, 0), frame(3, 0)];
    let user = [INTERPRETER, key, SORT, INTERPRETER, nameless, sorts, START];
    written.samples(3, process, Mode::Kernel, (&[READ], &user));
    written.samples(2, process, Mode::User, (&[], &user[3..]));
    let built_in = LanguageFrame::new(Language::JavaScript, 4, None).to_word();
    let user = [INTERPRETER, built_in, START];
    written.samples(1, process, Mode::User, (&[], &user));
    written.write(path);
    let functions = vec![
        function(1, "Cloth.key", "/srv/loom.py"),
        function(2, "sorts", "<frozen loom>"),
        // The first one counts.
        function(2, "other", "other.py"),
        LanguageFunction {
            line: 0,
            ..function(4, "sort", "")
        },
    ];
    let block = LanguageFunctions { functions }.to_block().unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    bytes.splice(HEADER..HEADER, block);
    std::fs::write(path, bytes).unwrap();
}

fn profile(native: bool) -> Profile {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.kvmprof");
    write(&path);
    let sources = Sources {
        native,
        ..Sources::default()
    };
    profile_with(&path, &sources)
}

/// The interpreter's own frames are called by what they execute, where they are asked for.
#[test]
fn functions_take_the_place_of_the_interpreter() {
    for (native, interpreter) in [(false, ""), (true, ";0x401000")] {
        let outer = format!("loom-5;0x403000;sorts (<frozen loom>:7);python:0x3{interpreter}");
        let inner = format!("0x402000;Cloth.key (loom.py:7){interpreter};read_file_[k]");
        let expected = [
            format!("loom-5;0x403000;sort ([javascript]){interpreter} 1"),
            format!("{outer} 2"),
            format!("{outer};{inner} 3"),
        ];
        assert_eq!(stacks(&profile(native)), expected);
    }
}

#[test]
fn frames_have_the_line_that_was_executed() {
    let profile = profile(false);
    let mut lines = Vec::new();
    for stack in profile.stacks() {
        let frames = profile.frames(stack).filter_map(|frame| frame.source);
        lines.extend(frames.map(|(file, line)| format!("{file}:{line}")));
    }
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines, ["/srv/loom.py:9", "<frozen loom>:8"]);
}
