//! Tests of the library and its headers with programs in C and C++ on a machine without `/dev/profil` and `/dev/pmc`. For machines with
//! these devices, see `tests/tests/linux/profil` and `linux/pmc` of the whole system's tests.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kvmprof_abi::pmc;
use kvmprof_abi::profil::{self, Call, Function};
use kvmprof_library::{SHARED, STATIC, folder, headers};
use tempfile::TempDir;

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];
const LANGUAGES: [&[&str]; 4] = [
    &["cc", "-x", "c", "-std=c99"],
    &["cc", "-x", "c", "-std=gnu17", "-O2"],
    &["c++", "-x", "c++", "-std=c++11"],
    &["c++", "-x", "c++", "-std=c++20"],
];

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// A compiled program, and its folder.
struct Program {
    _folder: TempDir,
    file: PathBuf,
}

fn compiler(language: &[&str], source: &str, options: &[&str]) -> (TempDir, Command) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(language[0]);
    command
        .args(&language[1..])
        .args(WARNINGS)
        .arg(here("tests/programs").join(source))
        .args(["-x", "none", "-I"])
        .arg(headers())
        .args(options)
        .arg("-o")
        .arg(folder.path().join("program"));
    (folder, command)
}

fn run(command: &mut Command) -> Output {
    let ran = command.output();
    ran.unwrap_or_else(|error| panic!("{command:?}: {error}; tests/run installs it"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Compiles a program; the library comes last in `options`, as linkers want it.
#[track_caller]
fn compile(language: &[&str], source: &str, options: &[&str]) -> Program {
    let (folder, mut command) = compiler(language, source, options);
    let ran = run(&mut command);
    assert!(ran.status.success(), "{command:?}: {}", text(&ran.stderr));
    Program {
        file: folder.path().join("program"),
        _folder: folder,
    }
}

impl Program {
    /// The program's output, with these variables in its environment.
    #[track_caller]
    fn prints(&self, environment: &[(&str, &str)]) -> String {
        let mut command = Command::new(&self.file);
        // Programs compiled with -pg write their counts into this folder.
        command.current_dir(self.file.parent().unwrap());
        let ran = run(command.envs(environment.iter().copied()));
        assert!(ran.status.success(), "{ran:?}");
        text(&ran.stdout)
    }
}

/// The variable with which the loader finds the shared library.
fn loads() -> [(&'static str, &'static str); 1] {
    [("LD_LIBRARY_PATH", folder().to_str().unwrap())]
}

fn from_folder() -> String {
    format!("-L{}", folder().display())
}

const EFAULT: i32 = 14;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;

fn solaris_says(lines: &[&str]) -> String {
    let all = [
        "profil leaves errno 0 99".to_owned(),
        format!("negative -1 {EINVAL}"),
        format!("most negative -1 {EINVAL}"),
        format!("on -1 {ENODEV}"),
        format!("off -1 {ENODEV}"),
        "rate 0 0\nrate again 1 0\nrate at last 0 0".to_owned(),
    ];
    let lines = lines.iter().map(|line| (*line).to_owned());
    all.into_iter().chain(lines).map(|it| it + "\n").collect()
}

#[test]
fn solaris_functions_are_used_from_c_and_cpp() {
    for language in LANGUAGES {
        for define in ["-DALONE", "-DBEFORE", "-DAFTER"] {
            let options = [define, &from_folder(), "-lkvmprof"];
            let shared = compile(language, "solaris.c", &options);
            assert_eq!(shared.prints(&loads()), solaris_says(&["pointer 0 0"]));
        }
        let linked = compile(language, "solaris.c", &["-static", STATIC]);
        assert_eq!(linked.prints(&[]), solaris_says(&["pointer 0 0"]));
    }
}

/// A program from the manual page gets profil from `<unistd.h>`, which has glibc's declaration.
#[test]
fn a_program_that_has_the_pages_include_only_gets_the_librarys_profil() {
    for language in [LANGUAGES[1], LANGUAGES[3]] {
        let options = ["-DPAGE_ONLY", &from_folder(), "-lkvmprof"];
        let shared = compile(language, "solaris.c", &options);
        assert_eq!(shared.prints(&loads()), solaris_says(&[]));
    }
    let options = ["-Wl,--trace-symbol=profil", STATIC];
    let linked = compile(LANGUAGES[1], "timer.c", &options);
    assert_eq!(linked.prints(&[]), "another profil\n");
}

#[test]
fn aix_profil_is_used_from_c_and_cpp() {
    let aix = format!("-I{}", headers().join("aix").display());
    for language in LANGUAGES {
        for library in [vec![STATIC], vec!["-static", STATIC], vec![SHARED]] {
            let options = [vec![aix.as_str()], library].concat();
            let program = compile(language, "aix.c", &options);
            let expected = format!(
                "one buffer -1 {ENODEV}\nranges -1 {ENODEV}\nno array -1 {ENODEV}\nsize 32\n"
            );
            assert_eq!(program.prints(&loads()), expected);
        }
    }
}

#[test]
fn pmc_is_used_from_c_and_cpp() {
    let expected = format!(
        "0 -1 -1\n{ENODEV} {ENODEV} 0 0 \n{ENODEV} {EFAULT}\n{ENODEV} {EFAULT}\n{ENODEV}\n\
        {ENODEV} {EFAULT} {ENODEV} {EFAULT} {ENODEV} {ENODEV} \n0\nvalue 5, errno 99, cfg 1\n0 1\n"
    );
    for language in LANGUAGES {
        for library in [vec![STATIC], vec!["-static", STATIC], vec![SHARED]] {
            for define in ["-DMACHINE", "-DALONE"] {
                let options = [vec![define], library.clone()].concat();
                let program = compile(language, "pmc.c", &options);
                assert_eq!(program.prints(&loads()), expected);
            }
        }
    }
}

/// The example is that of `docs/pmc.md`.
#[test]
fn the_example_of_the_page_is_a_program() {
    let page = include_str!("../../../docs/pmc.md");
    let (_, rest) = page.split_once("\n```c\n").unwrap();
    let (example, _) = rest.split_once("\n```\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("example.c");
    std::fs::write(&source, example).unwrap();
    for language in LANGUAGES {
        let program = compile(language, source.to_str().unwrap(), &[STATIC]);
        let ran = run(&mut Command::new(&program.file));
        assert_eq!(ran.status.code(), Some(ENODEV), "{ran:?}");
        assert_eq!(text(&ran.stdout), "No such device\n");
    }
}

#[test]
fn both_profil_headers_conflict() {
    let aix = format!("-I{}", headers().join("aix").display());
    for [first, second] in [["profil.h", "mon.h"], ["mon.h", "profil.h"]] {
        let options = [&aix, "-include", first, "-include", second, "-fsyntax-only"];
        let (_folder, mut command) = compiler(LANGUAGES[0], "call.c", &options);
        let said = text(&run(&mut command).stderr);
        assert!(said.contains("a source file can use one of them"), "{said}");
    }
}

#[test]
fn a_program_gets_the_librarys_profil_by_preload() {
    let program = compile(LANGUAGES[1], "timer.c", &[]);
    assert_eq!(program.prints(&[]), "glibc's profil\n");
    let preload = [("LD_PRELOAD", SHARED)];
    assert_eq!(program.prints(&preload), "another profil\n");
}

/// The start of a `cc -pg` program calls profil within glibc, where the library can't replace it. A static program can be linked with the
/// library's.
#[test]
fn programs_compiled_by_pg_have_to_be_static() {
    let shared = compile(LANGUAGES[1], "timer.c", &["-DPROFILED", "-pg"]);
    let preload = [("LD_PRELOAD", SHARED)];
    assert_eq!(shared.prints(&preload), "glibc's profil\n");
    let options = ["-DPROFILED", "-pg", "-static", "-Wl,-u,__profil", STATIC];
    let linked = compile(LANGUAGES[1], "timer.c", &options);
    assert_eq!(linked.prints(&[]), "another profil\n");
}

#[test]
fn the_library_exports_its_functions_and_needs_any_glibc() {
    let said = text(&run(Command::new("nm").args(["-D", SHARED])).stdout);
    let mut exported = Vec::new();
    for line in said.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, "T", name] => exported.push(name),
            // Weak symbols may be missing.
            [.., "U", name] => {
                let version = name.rsplit_once("@GLIBC_").map(|(_, version)| version);
                assert!(matches!(version, Some("2.2.5" | "2.3.2")), "{line}");
            }
            _ => assert!(words.contains(&"w"), "{line}"),
        }
    }
    // nm sorts names by this machine's locale.
    exported.sort_unstable();
    let expected = "PMC_ENABLED kvmprof_aix_profil kvmprof_profil kvmprof_profil_every_tick pcsample pmc_accumulate \
        pmc_alloc_kernel_counter pmc_configure_counter pmc_counter_isconfigured pmc_counter_isrunning \
        pmc_disable_counter pmc_enable_counter pmc_free_kernel_counter pmc_get_counter_type \
        pmc_get_counter_value pmc_get_num_counters pmc_lwp pmc_restore_context pmc_save_context \
        pmc_start_profiling pmc_stop_profiling profil";
    assert_eq!(exported.join(" "), expected);
    assert!(folder().join("libkvmprof.so").is_file());
}

#[test]
fn calls_have_the_layout_of_the_wire() {
    let call = Call {
        function: Function::Pcsample,
        flags: Call::EVERY_TICK,
        pid: -2,
        ranges: 3,
        buffer: 0x0102_0304_0506_0708,
        size: 0x1112_1314_1516_1718,
        offset: 0x2122_2324_2526_2728,
        scale: 0x3132_3334,
        time: 0x4142_4344_4546_4748,
        program: *b"0123456789abcdef",
    };
    let of_pmc = pmc::Call {
        flags: 1,
        parent: 0x0102_0304,
        event: 0x1112_1314,
        reset_value: 0x2122_2324_2526_2728,
        configuration_flags: 0x3132_3334,
        time: 0x4142_4344_4546_4748,
        value: 0x5152_5354_5556_5758,
        ..pmc::Call::new(pmc::Function::Enabled, -2, -3)
    };
    let source = format!("-I{}", here("source").display());
    let functions: String = (1..=4).map(|number| format!("{number} ")).collect();
    let functions_of_pmc = pmc::Function::ALL.map(|it| format!("{} ", it as u32));
    let (command, node) = (profil::PROFIL_CALL, profil::NODE);
    let (command_of_pmc, node_of_pmc) = (pmc::PMC_CALL, pmc::NODE);
    for (program, bytes, rest) in [
        (
            "call.c",
            call.encode().to_vec(),
            format!("{functions}{command:#x} {node}"),
        ),
        (
            "pmc_call.c",
            of_pmc.encode().to_vec(),
            format!(
                "{}{command_of_pmc:#x} {node_of_pmc} {}",
                functions_of_pmc.concat(),
                pmc::KERNEL
            ),
        ),
    ] {
        let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let said = compile(LANGUAGES[1], program, &[&source]).prints(&[]);
        assert_eq!(said, format!("{bytes}\n{rest}\n"), "{program}");
    }
}

#[test]
fn pages_are_kept_present_without_side_effects() {
    let source = format!("-I{}", here("source").display());
    let options = ["-D_GNU_SOURCE", &source, STATIC];
    let program = compile(LANGUAGES[1], "presence.c", &options);
    let said = program.prints(&[]);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() >= 13, "{said}");
    assert!(lines.iter().all(|line| line.ends_with(": ok")), "{said}");
}
