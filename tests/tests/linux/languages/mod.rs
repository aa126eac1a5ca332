//! Guests whose program is in a language, as Debian's packages execute it: its functions are in the stacks that run them, in shares that are
//! the program's own.

mod java;
mod javascript;
mod python;
mod web_server;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kvmprof_recording::{LanguageFrame, Sample, StackEnd};
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::profile::{Profile, folded};
use kvmprof_tests::linux::{
    Finished, Release, Scenario, debian, guest_builder, once, with_libraries,
};
use kvmprof_tests::share;

use java::{JAVA_17, JAVA_21, JAVA_25};
use javascript::{NODE_18, NODE_20};
use python::{PYTHON_3_9, PYTHON_3_11};

/// A program in a language, and what executes it.
#[derive(Clone, Copy)]
struct Program {
    /// What the program that executes it is called here, and by the guest.
    name: &'static str,
    executes: &'static str,
    /// Its files, and where the guest has them.
    files: fn() -> Vec<(PathBuf, String)>,
    /// The release of Debian that has its libraries, and those that only this program needs, with the package of each.
    release: Release,
    libraries: &'static [&'static [(&'static str, &'static str)]],
    /// The program's file, its text, and how it begins.
    file: &'static str,
    text: &'static str,
    begin: &'static str,
    /// The functions that use the time, each with its callers in files with the same ending, from the outermost one on.
    functions: [(&'static str, &'static [&'static str]); 5],
    /// The frame of machine code that executes functions, in files of Debian's.
    native: &'static str,
    /// Whether its functions have the names of their classes.
    has_qualified_names: bool,
    /// The number of lines of a function that come before those of its code.
    lines_before_code: u32,
}

/// A guest with a program, after its end.
struct Run {
    program: Program,
    finished: Finished,
}

/// Libraries of each program: the package of each.
const LIBRARIES: [(&str, &str); 6] = [
    ("libc6", "libc.so.6"),
    ("libc6", "libm.so.6"),
    ("libc6", "libdl.so.2"),
    ("libc6", "libpthread.so.0"),
    // Threads of Python 3.9 end by pthread_exit(3), which loads it.
    ("libgcc-s1", "libgcc_s.so.1"),
    ("zlib1g", "libz.so.1"),
];
/// Stands for callers that are missing.
const CUT_SHORT: &str = "[cut short]";
/// Percentage of the program's stacks that must be whole, once its files have been read.
const WHOLE: u64 = 98;
/// The distance of a function's share from the program's own count, beside four standard errors: see `LAB_BLUR`.
const BLUR: f64 = 0.02;

kvmprof_tests::in_each_kernel! {
    of {
        of_python_3_11(super::PYTHON_3_11)
        of_python_3_9(super::PYTHON_3_9)
        of_node_18(super::NODE_18)
        of_node_20(super::NODE_20)
        of_java_17(super::JAVA_17)
        of_java_21(super::JAVA_21)
        of_java_25(super::JAVA_25)
    }
    functions_have_the_shares_that_the_program_counts
    functions_have_their_callers_and_lines
    stacks_are_whole_once_the_files_have_been_read
    native_frames_come_back
}

/// The programs of each machine, which run one after the other, and the machine's memory in MiB: a JVM has all its modules in one file.
const OF_INTERPRETERS: (&str, &[Program], u64) = (
    "languages",
    &[PYTHON_3_11, PYTHON_3_9, NODE_18, NODE_20],
    2048,
);
const OF_JVMS: (&str, &[Program], u64) = ("jvms", &[JAVA_17, JAVA_21, JAVA_25], 4096);

fn run(program: Program) -> Run {
    let (machine, programs, memory) = match program.executes {
        "java" => OF_JVMS,
        _ => OF_INTERPRETERS,
    };
    let finished = once(machine, || {
        let scenario = Scenario::new().memory(memory);
        let mut scenario = scenario.unpacked_kernel("vmlinuz", &debian("6.12"));
        for each in programs {
            scenario = scenario.file(&format!("{}.cpio", each.name), each.guest());
        }
        scenario.run(include_str!("driver.sh"))
    });
    Run { program, finished }
}

impl Run {
    /// The name of one of the guest's files.
    fn file(&self, ending: &str) -> String {
        format!("{}.{ending}", self.program.name)
    }
}

impl Program {
    /// A guest's user space with it.
    fn guest(&self) -> Vec<u8> {
        self.guest_with(include_str!("init.sh"))
    }

    /// The same, whose first process does `init`.
    fn guest_with(&self, init: &str) -> Vec<u8> {
        let start = format!("#!/bin/sh\nexec {}\n", self.begin);
        let mut builder = guest_builder(init, &[])
            .contents(&format!("/{}", self.file), 0o644, self.text)
            .contents("/bin/loom", 0o755, start);
        for (file, place) in (self.files)() {
            builder = builder.add(file, &place);
        }
        let libraries = [&[&LIBRARIES[..]], self.libraries].concat().concat();
        with_libraries(builder, self.release, &libraries)
            .build()
            .unwrap()
    }

    /// The name that it gives a function with this qualified name.
    fn function_name<'n>(&self, qualified: &'n str) -> &'n str {
        match qualified.rsplit_once('.') {
            Some((_, name)) if !self.has_qualified_names => name,
            _ => qualified,
        }
    }

    /// The lines at which its functions begin, by their names: those with parameters and a block.
    fn begins(&self) -> BTreeMap<&'static str, u32> {
        let lines = (1..).zip(self.text.lines());
        let named = lines.filter_map(|(number, line)| {
            let (head, rest) = line.split_once('(')?;
            let has_block = rest.ends_with([':', '{']);
            let is_condition = ["if", "while"].contains(&head.split_whitespace().next()?);
            let name = head.split_whitespace().next_back()?;
            (has_block && !is_condition).then_some((name, number + self.lines_before_code))
        });
        named.collect()
    }

    /// How its file's name ends.
    fn ending(&self) -> &'static str {
        self.file.trim_start_matches(|letter| letter != '.')
    }

    /// The functions of the language in a stack: their names, their files with the same ending, and the lines at which they begin.
    fn functions<'s>(&self, stack: &'s [String]) -> Vec<(&'s str, &'s str, u32)> {
        let named = stack.iter().filter_map(|frame| {
            let (name, place) = frame.rsplit_once(" (")?;
            let (file, line) = place.strip_suffix(')')?.rsplit_once(':')?;
            file.ends_with(self.ending())
                .then(|| Some((name, file, line.parse().ok()?)))?
        });
        named.collect()
    }
}

/// The stacks of the program, outermost function first, without the process, with their numbers of samples.
fn stacks(run: &Run) -> Vec<(Vec<String>, u64)> {
    stacks_of(
        &run.finished.path(&run.file("kvmprof")),
        run.program.executes,
    )
}

/// The same of the processes with this name in a recording.
fn stacks_of(recording: &Path, process: &str) -> Vec<(Vec<String>, u64)> {
    let profile = Profile::from_file(recording, &[]).unwrap();
    let process = format!("{process}-");
    let folded = folded(&profile, &OutputBudget::new(u64::MAX)).unwrap();
    let stacks = folded.iter().filter_map(|line| {
        let (stack, count) = line.rsplit_once(' ')?;
        let frames: Vec<String> = stack.split(';').map(str::to_owned).collect();
        let is_programs = frames
            .first()
            .is_some_and(|first| first.starts_with(&process));
        is_programs.then(|| (frames[1..].to_vec(), count.parse().unwrap()))
    });
    stacks.collect()
}

fn functions_have_the_shares_that_the_program_counts(run: &Run) {
    let program = run.program;
    let functions_of_loom = program.functions;
    let functions_of_loom = functions_of_loom.map(|(name, _)| (program.function_name(name), name));
    let stacks = stacks(run);
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for (stack, count) in &stacks {
        let innermost = program.functions(stack).last().map(|(name, ..)| *name);
        let mut own = functions_of_loom.iter();
        if let Some((_, name)) = own.find(|(name, _)| innermost == Some(*name)) {
            *seen.entry(*name).or_default() += count;
        }
    }
    let console = run.finished.console(program.name);
    let text = console.text();
    let spent: BTreeMap<&str, u64> = text
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let ["spent", name, time] = words[..] else {
                return None;
            };
            Some((name, time.parse().ok()?))
        })
        .collect();
    assert_eq!(spent.len(), program.functions.len(), "{spent:?}");
    let (all, whole) = (seen.values().sum(), spent.values().sum());
    for (name, _) in program.functions {
        let (expected, found) = (share(spent[name], whole), share(seen[name], all));
        println!("{name}: {expected:.3} by its own count, {found:.3} of {all} samples");
        let tolerance = 4.0 * kvmprof_tests::standard_error(expected, all) + BLUR;
        assert!((expected - found).abs() < tolerance, "{name}");
    }
}

fn functions_have_their_callers_and_lines(run: &Run) {
    let program = run.program;
    let begins = program.begins();
    let mut checked: BTreeMap<&str, u64> = BTreeMap::new();
    for (stack, count) in stacks(run) {
        let functions = program.functions(&stack);
        for (name, file, line) in &functions {
            let own = name.rsplit('.').next().unwrap();
            if *file == program.file && begins.contains_key(own) {
                assert_eq!(begins[own], *line, "{name}");
            }
        }
        if stack.iter().any(|frame| frame == CUT_SHORT) {
            continue;
        }
        let names: Vec<&str> = functions.iter().map(|(name, ..)| *name).collect();
        for (name, callers) in program.functions {
            if names.last() == Some(&program.function_name(name)) {
                let callers = callers.iter().map(|name| program.function_name(name));
                assert!(
                    callers.eq(names[..names.len() - 1].iter().copied()),
                    "{names:?}"
                );
                *checked.entry(name).or_default() += count;
            }
        }
    }
    println!("{checked:?}");
    assert_eq!(checked.len(), program.functions.len());
}

/// Of the threads with functions of the language: other threads have none.
fn stacks_are_whole_once_the_files_have_been_read(run: &Run) {
    let (contents, samples) = run.finished.recording(&run.file("kvmprof"));
    let comm = format!("{}\0", run.program.executes);
    let is_programs = |sample: &Sample| sample.comm.starts_with(comm.as_bytes());
    let of_language = |frames: &[u64]| -> Vec<LanguageFrame> {
        let words = frames.iter().copied();
        words.filter_map(LanguageFrame::from_word).collect()
    };
    let own = samples
        .iter()
        .filter(|(sample, _)| is_programs(sample) && sample.stack.user > 0);
    let mut threads = BTreeSet::new();
    let (mut whole, mut all) = (0, 0);
    for (sample, frames) in own {
        let frames = of_language(frames);
        if !frames.is_empty() {
            threads.insert(sample.tid);
        }
        if !threads.contains(&sample.tid) {
            continue;
        }
        all += 1;
        let is_whole = sample.stack.user_end == StackEnd::Complete;
        whole += u64::from(is_whole && !frames.is_empty());
        for frame in frames {
            let mut functions = contents.functions.iter();
            let is_named = functions.any(|it| it.function == frame.function);
            assert!(is_named, "{frame:?}");
        }
    }
    // The host's kernel takes no samples of it, even where it was to.
    let status = run.finished.status_document(&run.file("json"));
    assert_eq!(status.clock.source, "thread");
    println!(
        "{whole} of {all} stacks of {} threads are whole",
        threads.len()
    );
    assert_eq!(threads.len(), 2);
    assert!(all > 1000 && whole * 100 >= all * WHOLE, "{whole} of {all}");
}

fn native_frames_come_back(run: &Run) {
    let [plain, native] = ["report", "native"].map(|ending| run.finished.text(&run.file(ending)));
    let begin = run.program.begins()["card"];
    let card = format!("card ({}:{begin})", run.program.file);
    assert!(plain.contains(&card), "{plain}");
    let has_native = native.contains(run.program.native);
    assert!(native.contains(&card) && has_native, "{native}");
}
