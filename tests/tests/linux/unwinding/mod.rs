//! Stacks in a guest whose callers are hard to find: each is right, or is marked where it stops. Names of code that replaces other
//! code, or that programs make.

mod compiled;
mod go;
mod hooked;
mod lazy;
mod replaced;

use std::collections::BTreeMap;

use kvmprof_recording::StackEnd;
use kvmprof_report::profile::Symbols;
use kvmprof_tests::linux::{
    Finished, Program, Scenario, debian, guest_builder, guest_program, once, shared_library,
    shared_program,
};
use object::{Object, ObjectSymbol};

const ODD: u64 = 0x1000_0000;
const OWN: u64 = 0x2000_0000;
const HEADLESS: u64 = 0x3000_0000;
const GENERATES: u64 = 0x4000_0000;
/// Static programs have no PT_GNU_EH_FRAME otherwise.
const HEADLESS_OPTIONS: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-Wl,--eh-frame-hdr"];
/// The first functions of glibc's programs, outermost last.
const BEGIN: [&str; 4] = [
    "main",
    "__libc_start_call_main",
    "__libc_start_main",
    "_start",
];

/// Percentage of the stacks that must be complete if there is a rule for each step. The first ones are taken before kvmprof has read
/// the program.
const WITH_RULES: usize = 50;

/// The same for consecutive children in their parent's memory.
const WITH_SHARED_MEMORY: usize = 90;

/// A stack: the names of its frames, innermost first, and how each part ends.
struct NamedStack {
    comm: String,
    kernel: Vec<String>,
    user: Vec<String>,
    ends: [StackEnd; 2],
}

fn programs() -> [(&'static str, Program); 3] {
    let mut headless = guest_program("calls.c", HEADLESS, &HEADLESS_OPTIONS);
    // The header's place, number and names of sections (System V ABI, chapter 4): 8, 2 and 2 bytes.
    for range in [0x28..0x30, 0x3c..0x40] {
        headless.file[range].fill(0);
    }
    [
        ("odd", guest_program("odd_stacks.c", ODD, &["-O2"])),
        (
            "own",
            guest_program("own_start.c", OWN, &["-O2", "-nostartfiles"]),
        ),
        ("headless", headless),
    ]
}

fn run() -> Finished {
    once("unwinding", || {
        let (kernel, older) = (debian("6.12"), debian("6.1"));
        let modules = guest_builder(
            include_str!("modules_init.sh"),
            &[("compiles", &compiled::program())],
        )
        .modules(&kernel, &replaced::MODULES)
        .build();
        Scenario::new()
            .unpacked_kernel("vmlinuz", &kernel)
            .unpacked_kernel("vmlinuz-6.1", &older)
            .file("guest.cpio", initrd())
            .file("older.cpio", hooked::initrd())
            .file("modules.cpio", modules.unwrap())
            .run(include_str!("driver.sh"))
    })
}

/// The initial RAM disk of this guest.
fn initrd() -> Vec<u8> {
    let programs = programs();
    let generates = guest_program("generates.c", GENERATES, &[]);
    let probed = hooked::program();
    let mut all = vec![("generates", &generates), ("own_generates", &generates)];
    all.push(("probed", &probed));
    all.extend(programs.iter().map(|(name, program)| (*name, program)));
    let lazy = shared_program("lazy.c", &[]);
    let options = ["-Wl,-z,lazy", "-Wl,--no-ld-generated-unwind-info"];
    let library = shared_library("lazy_library.c", &options);
    let mut builder = guest_builder(&hooked::with_hooks(include_str!("init.sh")), &all)
        .contents("/bin/goes", 0o755, go::program())
        .contents("/bin/lazy", 0o755, lazy.file)
        .contents("/lib/lazy.so", 0o755, library);
    for (place, library) in lazy.libraries {
        builder = builder.add(library, place);
    }
    builder.build().unwrap()
}

/// The functions of the guest's programs, by address: the end, and the name. Those of the program without section headers come from
/// the same program with them.
fn functions() -> BTreeMap<u64, (u64, String)> {
    let [odd, own, _] = programs();
    let complete = guest_program("calls.c", HEADLESS, &HEADLESS_OPTIONS);
    let mut functions = BTreeMap::new();
    for program in [odd.1, own.1, complete, hooked::program()] {
        let file = object::File::parse(&*program.file).unwrap();
        for symbol in file.symbols().filter(|symbol| symbol.size() > 0) {
            let end = symbol.address() + symbol.size();
            let name = symbol.name().unwrap().to_owned();
            // Of several names the first one in alphabetical order.
            let known: &mut (u64, String) = functions
                .entry(symbol.address())
                .or_insert_with(|| (end, name.clone()));
            if name < known.1 {
                *known = (end, name);
            }
        }
    }
    functions
}

fn seen() -> Vec<NamedStack> {
    stacks_of("guest.kvmprof")
}

fn stacks_of(recording: &str) -> Vec<NamedStack> {
    let (contents, samples) = run().recording(recording);
    let kernel = Symbols::parse(&contents.symbols);
    let functions = functions();
    let user = |address: &u64| {
        let found = functions.range(..=*address).next_back();
        found
            .filter(|(_, (end, _))| address < end)
            .map_or_else(|| format!("{address:#x}"), |(_, (_, name))| name.clone())
    };
    let name = |address: &u64| kernel.find(*address).unwrap_or("?").to_owned();
    let seen = samples.into_iter().map(|(sample, frames)| {
        let comm = sample.comm.split(|byte| *byte == 0).next().unwrap();
        let (inner, outer) = frames.split_at(usize::from(sample.stack.kernel));
        NamedStack {
            comm: String::from_utf8_lossy(comm).into_owned(),
            kernel: inner.iter().map(name).collect(),
            user: outer.iter().map(user).collect(),
            ends: [sample.stack.kernel_end, sample.stack.user_end],
        }
    });
    seen.collect()
}

/// Checks the user parts of all stacks of `comm` whose innermost function is `callers[0]`. All frames must be right, and the stack
/// must be complete or marked. `percent` must be complete, if there is a rule for each step.
fn check(seen: &[NamedStack], comm: &str, callers: &[&str], percent: usize) {
    let of_function: Vec<_> = seen
        .iter()
        .filter(|seen| seen.comm == comm && seen.user.first().is_some_and(|it| it == callers[0]))
        .collect();
    let mut whole = 0;
    for seen in &of_function {
        let is_whole = seen.user == callers;
        let message = format!("{comm} {:?} {:?}", seen.user, seen.ends);
        match seen.ends[1] {
            StackEnd::Complete => assert!(is_whole, "{message}"),
            _ => assert!(callers.starts_with(&as_words(&seen.user)), "{message}"),
        }
        whole += usize::from(seen.ends[1] == StackEnd::Complete);
    }
    let all = of_function.len();
    println!("{}: {whole} of {all} are whole", callers[0]);
    assert!(all >= 10, "{}: {all} samples", callers[0]);
    assert!(whole * 100 >= all * percent, "{}", callers[0]);
}

fn as_words(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// `callers` of a program with glibc's start.
fn from_main<'a>(callers: &[&'a str]) -> Vec<&'a str> {
    let mut all = callers.to_vec();
    all.extend(BEGIN);
    all
}

#[test]
fn realigned_stacks_and_rules_by_registers_and_memory_lead_to_main() {
    let seen = seen();
    for callers in [
        &["in_realigned", "realigned", "far_frame"][..],
        &["spins_realigned"],
        &["by_register", "with_rules"],
        &["by_memory", "with_rules"],
    ] {
        check(&seen, "odd", &from_main(callers), WITH_RULES);
    }
}

#[test]
fn code_without_tables_and_frame_pointers_hides_no_caller() {
    let callers = ["loose_leaf", "loose_middle", "loose_outer", "framed"];
    check(&seen(), "odd", &from_main(&callers), 0);
}

#[test]
fn stacks_of_contexts_and_custom_starts_are_complete() {
    let seen = seen();
    check(&seen, "odd", &["in_context", "context"], WITH_RULES);
    let own = ["own_leaf", "own_middle", "begin", "_start"];
    check(&seen, "own", &own, WITH_RULES);
}

#[test]
fn a_program_without_section_headers_has_whole_stacks() {
    let callers = from_main(&["inner", "middle", "outer"]);
    check(&seen(), "headless", &callers, WITH_RULES);
}

#[test]
fn vfork_leads_to_its_caller() {
    check(
        &seen(),
        "odd",
        &from_main(&["__libc_vfork", "spawns"]),
        WITH_SHARED_MEMORY,
    );
}
