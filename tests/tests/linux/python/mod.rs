//! A guest whose program is in Python, as an interpreter of Debian's executes it: its functions are in the stacks that run them, in
//! shares that are the program's own.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kvmprof_lab::{LabError, debian_11_package, debian_package};
use kvmprof_recording::{LanguageFrame, Sample, StackEnd};
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::profile::{Profile, folded};
use kvmprof_tests::linux::{Finished, Scenario, debian, guest_builder, once, with_libraries};
use kvmprof_tests::share;

const LOOM: &str = include_str!("loom.py");
/// An interpreter of one of Debian's releases.
#[derive(Clone, Copy)]
struct Interpreter {
    /// Its program's name.
    program: &'static str,
    /// The packages with the program and with its modules.
    packages: [&'static str; 2],
    package: fn(&'static str) -> Result<PathBuf, LabError>,
    /// Whether its functions have the names of their classes.
    has_qualified_names: bool,
}

const PYTHON_3_11: Interpreter = Interpreter {
    program: "python3.11",
    packages: ["python3.11-minimal", "libpython3.11-minimal"],
    package: debian_package,
    has_qualified_names: true,
};
/// Its frames are held in registers.
const PYTHON_3_9: Interpreter = Interpreter {
    program: "python3.9",
    packages: ["python3.9-minimal", "libpython3.9-minimal"],
    package: debian_11_package,
    has_qualified_names: false,
};

/// The guest with an interpreter, after its end.
struct Run {
    interpreter: Interpreter,
    finished: Finished,
}

/// The frame of C that executes functions of Python.
const INTERPRETER: &str = "_PyEval_EvalFrameDefault";
/// The functions that use the time.
const FUNCTIONS: [&str; 5] = ["card", "comb", "weave", "Dyer.dye", "press"];
/// The callers of each, from the outermost function of Python on; C functions are between them.
const CALLERS: [(&str, &[&str]); 5] = [
    ("card", &["<module>", "first_room", "sort_threads"]),
    (
        "comb",
        &[
            "Thread._bootstrap",
            "Thread._bootstrap_inner",
            "Thread.run",
            "second_room",
        ],
    ),
    ("weave", &["<module>", "first_room"]),
    (
        "Dyer.dye",
        &[
            "Thread._bootstrap",
            "Thread._bootstrap_inner",
            "Thread.run",
            "second_room",
        ],
    ),
    (
        "press",
        &[
            "Thread._bootstrap",
            "Thread._bootstrap_inner",
            "Thread.run",
            "second_room",
        ],
    ),
];
/// Stands for callers that are missing.
const CUT_SHORT: &str = "[cut short]";
/// Percentage of the program's stacks that must be whole, once its files have been read.
const WHOLE: u64 = 98;
/// The distance of a function's share from the program's own count, beside four standard errors: see `LAB_BLUR`.
const BLUR: f64 = 0.02;

kvmprof_tests::in_each_kernel! {
    of {
        of_3_11(super::PYTHON_3_11)
        of_3_9(super::PYTHON_3_9)
    }
    functions_have_the_shares_that_the_program_counts
    functions_have_their_callers_and_lines
    stacks_are_whole_once_the_files_have_been_read
    native_frames_come_back
}

fn run(interpreter: Interpreter) -> Run {
    let finished = once("python", || {
        let mut scenario = Scenario::new().unpacked_kernel("vmlinuz", &debian("6.12"));
        for each in [PYTHON_3_11, PYTHON_3_9] {
            let name = format!("{}.cpio", each.program);
            scenario = scenario.file(&name, each.guest());
        }
        scenario.run(include_str!("driver.sh"))
    });
    Run {
        interpreter,
        finished,
    }
}

impl Run {
    /// The name of one of the guest's files.
    fn file(&self, end: &str) -> String {
        format!("{}.{end}", self.interpreter.program)
    }
}

impl Interpreter {
    /// The name that it gives a function with this qualified name.
    fn name<'n>(&self, qualified: &'n str) -> &'n str {
        match qualified.rsplit_once('.') {
            Some((_, name)) if !self.has_qualified_names => name,
            _ => qualified,
        }
    }

    /// A guest's user space with it.
    fn guest(&self) -> Vec<u8> {
        let mut builder =
            guest_builder(include_str!("init.sh"), &[]).contents("/loom.py", 0o644, LOOM);
        let [minimal, modules] = self.packages.map(|name| (self.package)(name).unwrap());
        for (package, folder) in [(minimal, "bin"), (modules, "lib")] {
            let place = format!("usr/{folder}/{}", self.program);
            builder = builder.add(package.join(&place), &format!("/{place}"));
        }
        let libraries = [
            ("libc6", "libc.so.6"),
            ("libc6", "libm.so.6"),
            ("libc6", "libdl.so.2"),
            ("libc6", "libpthread.so.0"),
            ("libc6", "libutil.so.1"),
            // Threads of 3.9 end by pthread_exit(3), which loads it.
            ("libgcc-s1", "libgcc_s.so.1"),
            ("zlib1g", "libz.so.1"),
            ("libexpat1", "libexpat.so.1"),
        ];
        with_libraries(builder, &libraries).build().unwrap()
    }
}

/// The stacks of the program, outermost function first, without the process, with their numbers of samples.
fn stacks(run: &Run) -> Vec<(Vec<String>, u64)> {
    let profile = Profile::from_file(&run.finished.path(&run.file("kvmprof")), &[]).unwrap();
    let process = format!("{}-", run.interpreter.program);
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

/// The functions of Python in a stack: their names and the lines at which they begin, without the file.
fn functions(stack: &[String]) -> Vec<(&str, &str, u32)> {
    let named = stack.iter().filter_map(|frame| {
        let (name, place) = frame.split_once(" (")?;
        let (file, line) = place.strip_suffix(')')?.rsplit_once(':')?;
        file.ends_with(".py")
            .then(|| Some((name, file, line.parse().ok()?)))?
    });
    named.collect()
}

fn functions_have_the_shares_that_the_program_counts(run: &Run) {
    let functions_of_loom = FUNCTIONS.map(|name| (run.interpreter.name(name), name));
    let stacks = stacks(run);
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for (stack, count) in &stacks {
        let innermost = functions(stack).last().map(|(name, ..)| *name);
        let mut own = functions_of_loom.iter();
        if let Some((_, name)) = own.find(|(name, _)| innermost == Some(*name)) {
            *seen.entry(*name).or_default() += count;
        }
    }
    let console = run.finished.console(run.interpreter.program);
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
    assert_eq!(spent.len(), FUNCTIONS.len(), "{spent:?}");
    let (all, whole) = (seen.values().sum(), spent.values().sum());
    for name in FUNCTIONS {
        let (expected, found) = (share(spent[name], whole), share(seen[name], all));
        println!("{name}: {expected:.3} by its own count, {found:.3} of {all} samples");
        let tolerance = 4.0 * kvmprof_tests::standard_error(expected, all) + BLUR;
        assert!((expected - found).abs() < tolerance, "{name}");
    }
}

fn functions_have_their_callers_and_lines(run: &Run) {
    let begins: BTreeMap<&str, u32> = (1..)
        .zip(LOOM.lines())
        .filter_map(|(number, line)| {
            let name = line.trim_start().strip_prefix("def ")?.split('(').next()?;
            Some((name, number))
        })
        .collect();
    let mut checked: BTreeMap<&str, u64> = BTreeMap::new();
    for (stack, count) in stacks(run) {
        let functions = functions(&stack);
        for (name, file, line) in &functions {
            let own = name.rsplit('.').next().unwrap();
            if *file == "loom.py" && *name != "<module>" {
                assert_eq!(begins[own], *line, "{name}");
            }
        }
        if stack.iter().any(|frame| frame == CUT_SHORT) {
            continue;
        }
        let names: Vec<&str> = functions.iter().map(|(name, ..)| *name).collect();
        for (name, callers) in CALLERS {
            if names.last() == Some(&run.interpreter.name(name)) {
                let callers = callers.iter().map(|name| run.interpreter.name(name));
                assert!(
                    callers.eq(names[..names.len() - 1].iter().copied()),
                    "{names:?}"
                );
                *checked.entry(name).or_default() += count;
            }
        }
    }
    println!("{checked:?}");
    assert_eq!(checked.len(), CALLERS.len());
}

/// From the first stack with a function of Python on: before, the program's files are being read.
fn stacks_are_whole_once_the_files_have_been_read(run: &Run) {
    let (contents, samples) = run.finished.recording(&run.file("kvmprof"));
    let comm = format!("{}\0", run.interpreter.program);
    let is_python = |sample: &Sample| sample.comm.starts_with(comm.as_bytes());
    let has_functions = |frames: &[u64]| {
        frames
            .iter()
            .any(|frame| LanguageFrame::from_word(*frame).is_some())
    };
    let own = samples
        .iter()
        .filter(|(sample, _)| is_python(sample) && sample.stack.user > 0);
    let read = own.skip_while(|(_, frames)| !has_functions(frames));
    let (mut whole, mut all) = (0, 0);
    for (sample, frames) in read {
        all += 1;
        whole += u64::from(sample.stack.user_end == StackEnd::Complete && has_functions(frames));
        for frame in frames
            .iter()
            .filter_map(|frame| LanguageFrame::from_word(*frame))
        {
            let named = contents
                .functions
                .iter()
                .any(|it| it.function == frame.function);
            assert!(named, "{frame:?}");
        }
    }
    println!("{whole} of {all} stacks are whole");
    assert!(all > 1000 && whole * 100 >= all * WHOLE, "{whole} of {all}");
}

fn native_frames_come_back(run: &Run) {
    let [plain, native] = ["report", "native"].map(|end| run.finished.text(&run.file(end)));
    assert!(plain.contains("card (loom.py:14)"), "{plain}");
    assert!(
        native.contains("card (loom.py:14)") && native.contains(INTERPRETER),
        "{native}"
    );
}
