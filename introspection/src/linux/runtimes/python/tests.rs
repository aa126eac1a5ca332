//! Walks of interpreters of this host, which wait in a call of a known depth, and of memory made by hand.

use std::path::PathBuf;
use std::process::Command;

use super::super::ProcessRuntime;
use super::super::test_memory::Waiting;
use super::*;
use crate::unwind::LanguageFrames;
use kvmprof_recording::LanguageFrame;

/// Calls of Python through C, in two threads of which the second one waits. Lines count from 1.
const SCRIPT: &str = "import sys, threading

class Weaver:
    def weave(self, thread):
        def wait(x):
            print(threading.get_ident(), flush=True)
            sys.stdin.read()
            return x
        return [wait(thread) for _ in range(1)]

def middle(x):
    return list(map(Weaver().weave, [x]))

def outer():
    return sorted([1], key=middle)

def generate():
    yield outer()

thread = threading.Thread(target=lambda: list(generate()))
thread.start()
thread.join()
";

/// The functions that wait in it, innermost first, and their lines. List comprehensions have a frame of their own until 3.11.
const WAITING: [(&str, u32, u32); 6] = [
    ("Weaver.weave.<locals>.wait", 5, 7),
    ("Weaver.weave", 4, 9),
    ("middle", 11, 12),
    ("outer", 14, 15),
    ("generate", 17, 18),
    ("<lambda>", 20, 20),
];

/// A runtime and its frames: the runs of numbers of functions, and whether they were cut.
struct Walked {
    process: ProcessRuntime,
    frames: LanguageFrames,
}

fn walk(
    runtime: Arc<dyn Runtime>,
    bias: u64,
    thread: u64,
    memory: &mut dyn ProcessMemory,
) -> Walked {
    let process = ProcessRuntime::new(runtime, bias, 0x1000, 7);
    let mut frames = LanguageFrames::default();
    process.walk_in(thread, memory, &mut frames);
    Walked { process, frames }
}

/// The interpreters of this host, and those in `KVMPROF_TEST_PYTHONS`, `FILE:FILE`.
fn interpreters() -> Vec<PathBuf> {
    let more = std::env::var_os("KVMPROF_TEST_PYTHONS").unwrap_or_default();
    let more: Vec<PathBuf> = std::env::split_paths(&more).collect();
    let found = ["/usr/bin/python3", "/usr/local/bin/python3"];
    let found = found.into_iter().map(PathBuf::from);
    found.chain(more).filter(|path| path.is_file()).collect()
}

#[test]
fn functions_of_interpreters_of_this_host_are_named() {
    for interpreter in interpreters() {
        let mut waiting = Waiting::new(Command::new(&interpreter).args(["-S", "-c", SCRIPT]));
        let thread = waiting.line.trim().parse().unwrap();
        let Some((runtime, bias)) = waiting.runtime() else {
            println!("{} is of a version that isn't known", interpreter.display());
            continue;
        };
        let walked = walk(runtime, bias, thread, &mut waiting);
        assert!(!walked.frames.is_cut(), "{}", interpreter.display());
        let functions = walked.process.read_new(&mut waiting);
        let runs = walked.frames.runs();
        let named = |word: &u64| {
            let frame = LanguageFrame::from_word(*word).unwrap();
            let function = functions.iter().find(|it| it.function == frame.function);
            let function = function.unwrap();
            let line = frame.offset.and_then(|offset| function.line_at(offset));
            let line = line.unwrap_or(0);
            (&*function.file, &*function.name, function.line, line)
        };
        let names: Vec<Vec<_>> = runs
            .iter()
            .map(|(_, words)| words.iter().map(named).collect())
            .collect();
        println!("{}: {names:?}", interpreter.display());
        let own = names
            .iter()
            .flatten()
            .filter(|(file, name, ..)| *file == "<string>" && !name.ends_with("<listcomp>"));
        let own: Vec<(&str, u32, u32)> = own
            .map(|(_, name, first, line)| (*name, *first, *line))
            .collect();
        // Until 3.10 functions have no qualified name.
        let has_class = own.iter().any(|(name, ..)| name.contains('.'));
        let expected = WAITING.map(|(name, first, line)| match name.rsplit_once('.') {
            Some((_, name)) if !has_class => (name, first, line),
            _ => (name, first, line),
        });
        assert_eq!(own, expected, "{}", interpreter.display());
        let others = names
            .iter()
            .flatten()
            .filter(|(file, ..)| *file != "<string>");
        assert!(
            others
                .map(|(file, ..)| file)
                .all(|file| file.ends_with("threading.py"))
        );
        // map, sorted and list are C, and so is what has started the thread.
        let places: Vec<usize> = names.iter().map(Vec::len).collect();
        assert!(places.len() >= 4, "{places:?}");
        let mut anchors: Vec<u64> = runs.iter().map(|(anchor, _)| *anchor).collect();
        // If they are addresses, outer calls are further up the stack.
        assert!(!walked.frames.holder().is_empty() || anchors.is_sorted());
        anchors.dedup();
        assert_eq!(anchors.len(), runs.len());
    }
}
