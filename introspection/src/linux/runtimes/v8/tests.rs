//! Frames of Node.js on this host, which waits in a call of a known depth.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use super::super::ProcessRuntime;
use super::super::test_memory::Waiting;
use super::*;
use kvmprof_recording::LanguageFrame;

/// Calls of JavaScript through built-in functions and C++. Lines count from 1.
const SCRIPT: &str = r"const fs = require('fs');
class Weaver {
  weave(n) {
    const wait = (x) => {
      fs.writeSync(1, 'waiting\n');
      return fs.readSync(0, Buffer.alloc(8));
    };
    return [wait(n)];
  }
}
function middle(x) {
  return JSON.parse('[1]', () => new Weaver().weave(x));
}
const outer = function () {
  return [1, 2].sort(() => middle(1));
};
function* generate() {
  yield outer();
}
[...generate()];
";

/// The functions that wait in it, innermost first, and the lines at which they begin.
const WAITING: [(&str, u32); 8] = [
    ("wait", 4),
    ("weave", 3),
    ("(anonymous)", 12),
    ("middle", 11),
    ("(anonymous)", 15),
    ("outer", 14),
    ("generate", 17),
    ("(anonymous)", 1),
];
/// Bytes of the stack that are searched.
const STACK: u64 = 64 << 10;
/// The number of frames through which C++ calls JavaScript, as a small integer (`StackFrame::ENTRY`).
const ENTRY: u64 = 1 << 1;

/// The program of this host, and those in `KVMPROF_TEST_NODES`, `FILE:FILE`.
fn programs() -> Vec<PathBuf> {
    let more = std::env::var_os("KVMPROF_TEST_NODES").unwrap_or_default();
    let more: Vec<PathBuf> = std::env::split_paths(&more).collect();
    let found = [PathBuf::from("/usr/bin/node")].into_iter().chain(more);
    found.filter(|path| path.is_file()).collect()
}

/// What the frames on the stack from `sp` on execute, innermost first: those of code that calls C++, and of their callers, until C++ follows.
fn frames(process: &ProcessRuntime, sp: u64, memory: &mut Waiting) -> Vec<Executed> {
    let exits = [3, 22, 25].map(|kind| kind << 1);
    let mut found = BTreeMap::new();
    for first in (sp..sp + STACK).step_by(8) {
        let mut bp = first;
        if !memory
            .word(bp - 8)
            .is_some_and(|kind| exits.contains(&kind))
        {
            continue;
        }
        while !found.contains_key(&bp) {
            let frame = BareFrame {
                sp: bp - FUNCTION,
                bp,
                is_generated: false,
                ..BareFrame::default()
            };
            let executed = process.executed(frame, memory);
            if executed == Executed::Unknown {
                break;
            }
            found.insert(bp, executed);
            let is_last = memory.word(bp - 8) == Some(ENTRY);
            match memory.word(bp) {
                Some(caller) if caller > bp && !is_last => bp = caller,
                _ => break,
            }
        }
    }
    found.into_values().collect()
}

#[test]
fn functions_of_node_of_this_host_are_named() {
    for program in programs() {
        let mut waiting = Waiting::new(Command::new(&program).args(["-e", SCRIPT]));
        let Some((runtime, bias)) = waiting.runtime() else {
            println!("{} is of a version that isn't known", program.display());
            continue;
        };
        let process = ProcessRuntime::new(runtime, bias, 0x1000, 7);
        let sp = waiting.sp;
        let frames = frames(&process, sp, &mut waiting);
        let functions = process.read_new(&mut waiting);
        let named = frames.iter().filter_map(|executed| match executed {
            Executed::Function(word) => {
                let number = LanguageFrame::from_word(*word)?.function;
                functions.iter().find(|it| it.function == number)
            }
            _ => None,
        });
        let named: Vec<(&str, &str, u32)> =
            named.map(|it| (&*it.name, &*it.file, it.line)).collect();
        println!("{}: {named:?}", program.display());
        let own = named.iter().filter(|(_, file, _)| *file == "[eval]");
        let own: Vec<(&str, u32)> = own.map(|(name, _, line)| (*name, *line)).collect();
        assert_eq!(own, WAITING, "{}", program.display());
        // What is built in has no script.
        assert!(named.contains(&("sort", "", 0)));
        let main = "node:internal/main/eval_string";
        assert!(named.iter().any(|(_, file, _)| *file == main));
    }
}
