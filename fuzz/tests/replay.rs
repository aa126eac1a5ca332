//! Runs each target with its corpus, and with a fixed number of mutations of it, the same at every run.
//!
//! `KVMPROF_FUZZ_TIMES` is by how much that number is multiplied, `KVMPROF_FUZZ_SEED` another seed, `KVMPROF_BLESS=1` writes the
//! seeds into the corpus.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::panic::{self, AssertUnwindSafe};
use std::{env, fs};

use kvmprof_fuzz::mutator::Mutator;
use kvmprof_fuzz::{TARGETS, Target, corpus, for_each_target};
use kvmprof_introspection::GuestKnowledge;

/// The number in an environment variable.
fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is no number")),
    )
}

/// Writes the seeds of `target` into the corpus on request, and checks that the corpus has them unchanged.
fn check_seeds(target: &Target) {
    let folder = corpus::inputs_folder(target.name);
    for (name, made) in (target.seeds)() {
        let path = folder.join(name);
        if env::var_os("KVMPROF_BLESS").is_some() {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&path, &made).unwrap();
        }
        let is_kept = fs::read(&path).is_ok_and(|kept| kept == made);
        let path = path.display();
        assert!(
            is_kept,
            "{path} isn't what the target's seeds() makes: KVMPROF_BLESS=1 writes it anew"
        );
    }
}

/// Runs `target` with `input`. An input that fails is kept.
fn run(target: &Target, name: &str, input: &[u8]) {
    if let Err(reason) = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        let path = corpus::keep(target.name, name, input).unwrap();
        eprintln!("the input is kept in {}", path.display());
        panic::resume_unwind(reason);
    }
}

fn replay(target: &Target) {
    check_seeds(target);
    let kept = corpus::inputs(target.name).unwrap();
    assert!(!kept.is_empty(), "{} has no corpus", target.name);
    for (path, input) in &kept {
        println!("{}", path.display());
        (target.run)(input);
    }
    let inputs: Vec<&[u8]> = kept.iter().map(|(_, input)| input.as_slice()).collect();
    let mut mutator = Mutator::new(number("KVMPROF_FUZZ_SEED").unwrap_or(1));
    let cases = u64::from(target.cases) * number("KVMPROF_FUZZ_TIMES").unwrap_or(1);
    for case in 0..cases {
        run(target, &format!("case-{case}"), &mutator.mutate(&inputs));
    }
}

macro_rules! tests {
    ($($name:ident $cases:literal,)*) => {
        $(
            #[test]
            fn $name() {
                let name = stringify!($name);
                replay(TARGETS.iter().find(|target| target.name == name).unwrap());
            }
        )*
    };
}
for_each_target!(tests);

/// A part of a real kernel suffices: symbols, types and banner match.
#[test]
fn parts_of_real_kernels_parse() {
    for name in ["debian-6.1", "debian-6.12"] {
        let input = fs::read(corpus::inputs_folder("kernel_image").join(name)).unwrap();
        // The first byte selects the file.
        let knowledge = GuestKnowledge::from_image(&input[1..]).unwrap();
        let symbols = knowledge.linux().unwrap().symbols();
        assert!(symbols.functions().count() > 100, "{name}");
        let release = name.replace("debian", "Linux").replace('-', " ");
        let described = knowledge.describe();
        assert!(described.contains(&release), "{name}: {described}");
    }
}

/// The bytes of an entry of a dictionary: https://llvm.org/docs/LibFuzzer.html#dictionaries.
fn entry(line: &str) -> Option<Vec<u8>> {
    let mut rest = line.strip_prefix('"')?.strip_suffix('"')?;
    let mut bytes = Vec::new();
    while let Some(first) = rest.chars().next() {
        if let Some(digits) = rest.strip_prefix("\\x") {
            bytes.push(u8::from_str_radix(digits.get(..2)?, 16).ok()?);
            rest = digits.get(2..)?;
        } else {
            let is_plain =
                first == ' ' || first.is_ascii_graphic() && !['"', '\\'].contains(&first);
            bytes.push(u8::try_from(first).ok().filter(|_| is_plain)?);
            rest = &rest[1..];
        }
    }
    (!bytes.is_empty()).then_some(bytes)
}

/// libFuzzer ends at one that it can't parse.
#[test]
fn each_target_has_a_dictionary() {
    for target in TARGETS {
        let path = corpus::dictionary(target.name);
        let text = fs::read_to_string(&path).unwrap();
        let mut entries = 0;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(entry(line).is_some(), "{}: {line}", path.display());
            entries += 1;
        }
        assert!(entries > 10, "{}", path.display());
    }
}
