//! Tests of names from debug files that this machine's compiler makes: inlined functions, source lines, files that
//! don't match the recording.

use std::fs;
use std::path::{Path, PathBuf};

use crate::shared::compiled::{BASE, Guest, SLIDE};
use kvmprof_recording::file::{
    Block, GeneratedCode, GeneratedCodeInfo, KernelInfo, Kind, Recording, Unobserved,
};
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::export::{Format, Source};
use kvmprof_report::profile::{Profile, Selection, SortBy, folded, functions, lines};
use kvmprof_report::symbolize::{CodeAddress, Resolver, Sources, SymbolError};

fn sources(vmlinux: Option<PathBuf>, sysroot: Option<PathBuf>) -> Sources {
    Sources {
        vmlinux,
        sysroot,
        ..Sources::default()
    }
}

fn profile(path: &Path, sources: &Sources) -> Result<Profile, SymbolError> {
    let recording = Recording::open(path).unwrap();
    let resolver = Resolver::new(&recording.contents().unwrap(), sources)?;
    Ok(Profile::read(&recording, Selection::default(), resolver, &Unobserved).unwrap())
}

fn source(path: &Path, sources: &Sources) -> Source {
    let recording = Recording::open(path).unwrap();
    let resolver = Resolver::new(&recording.contents().unwrap(), sources).unwrap();
    Source::read(recording, Selection::default(), resolver, None, &Unobserved).unwrap()
}

fn own_lines(profile: &Profile) -> Vec<(String, u32, u64)> {
    let rows = lines(profile, SortBy::Own).into_iter();
    rows.filter(|row| row.own > 0)
        .map(|row| {
            let file = row.key.file.rsplit('/').next().unwrap().to_owned();
            (file, row.key.line, row.own)
        })
        .collect()
}

/// An address within the inlined function: its multiplication is there.
fn inner_address(guest: &Guest) -> u64 {
    guest.address("outer") + 8
}

#[test]
fn a_program_in_the_sysroot_gives_inlined_functions_and_lines() {
    let guest = Guest::new();
    let user = [
        guest.mapped(inner_address(&guest)),
        guest.mapped(guest.address("main")),
    ];
    let binary = guest.info("0badc0de").to_block(&guest.program.functions);
    let blocks = [guest.mappings(Some(1)).to_block().unwrap(), binary.unwrap()];
    let path = guest.recording(&[(&[], &user)], &blocks);

    let without = profile(&path, &Sources::default()).unwrap();
    assert_eq!(
        folded(&without, &OutputBudget::new(u64::MAX)).unwrap(),
        ["pid-77;main;outer 1"]
    );
    assert!(lines(&without, SortBy::Own).is_empty());

    let with = profile(&path, &sources(None, Some(guest.root()))).unwrap();
    assert_eq!(
        folded(&with, &OutputBudget::new(u64::MAX)).unwrap(),
        ["pid-77;main;outer;inner_[i] 1"]
    );
    assert_eq!(own_lines(&with), [("work.c".to_owned(), 2, 1)]);
    assert!(with.resolver.take_notes().is_empty());
    let names: Vec<(String, String)> = functions(&with, SortBy::Total)
        .into_iter()
        .map(|function| (function.name, function.module))
        .collect();
    for name in ["inner", "outer", "main"] {
        assert!(
            names.contains(&(name.to_owned(), "work".to_owned())),
            "{names:?}"
        );
    }

    let source = source(&path, &sources(None, Some(guest.root())));
    let mut text = Vec::new();
    Format::PerfScript.write(&source, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains(" inner (inlined)\n"), "{text}");
    assert!(text.contains(" outer+0x8 (work)\n"), "{text}");
    for format in [Format::Callgrind, Format::Speedscope] {
        let mut text = Vec::new();
        format.write(&source, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("inner") && text.contains("work.c"),
            "{format:?}: {text}"
        );
    }
}

#[test]
fn another_build_of_a_program_is_not_used_with_one_warning() {
    let guest = Guest::new();
    let user = [guest.mapped(inner_address(&guest))];
    let other = [guest.mapped(guest.address("main"))];
    let binary = guest.info("ffffffff").to_block(&guest.program.functions);
    let blocks = [guest.mappings(Some(1)).to_block().unwrap(), binary.unwrap()];
    let path = guest.recording(&[(&[], &user), (&[], &other)], &blocks);
    let profile = profile(&path, &sources(None, Some(guest.root()))).unwrap();
    assert_eq!(
        folded(&profile, &OutputBudget::new(u64::MAX)).unwrap(),
        ["pid-77;main 1", "pid-77;outer 1"]
    );
    let notes = profile.resolver.take_notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].ends_with("its build id is 0badc0de, the recorded one ffffffff"),
        "{notes:?}"
    );
}

#[test]
fn a_file_without_a_recorded_build_id_is_not_used() {
    let guest = Guest::new();
    let user = [guest.mapped(inner_address(&guest))];
    let generated = [0x7fff_0000_1010];
    let unknown = [0x7fff_0000_3000];
    fs::write(
        guest.root().join("tmp/perf-77.map"),
        "7fff00001000 20 JS:*fast a.js:3\n",
    )
    .unwrap();
    let blocks = [guest.mappings(None).to_block().unwrap()];
    let stacks: [(&[u64], &[u64]); 3] = [(&[], &user), (&[], &generated), (&[], &unknown)];
    let path = guest.recording(&stacks, &blocks);
    let without = profile(&path, &Sources::default()).unwrap();
    let byte = user[0] - BASE + (guest.program.segments[0].offset & !0xfff);
    assert_eq!(
        folded(&without, &OutputBudget::new(u64::MAX)).unwrap(),
        [
            "pid-77;0x7fff00001010 1".to_owned(),
            "pid-77;0x7fff00003000 1".to_owned(),
            format!("pid-77;work+{byte:#x} 1"),
        ]
    );
    let with = profile(&path, &sources(None, Some(guest.root()))).unwrap();
    assert_eq!(
        folded(&with, &OutputBudget::new(u64::MAX)).unwrap(),
        [
            "pid-77;0x7fff00003000 1".to_owned(),
            "pid-77;JS:*fast a.js:3_[j] 1".to_owned(),
            format!("pid-77;work+{byte:#x} 1"),
        ]
    );
    let notes = with.resolver.take_notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].ends_with(
            "root/usr/bin/work is not used: nothing in the recording tells whether it is the same build"
        ),
        "{notes:?}"
    );
    // A process of a container has it in its own root, and for unknown namespaces it isn't found.
    let own = "/proc/77/root/tmp/perf-7.map";
    for (perf_map, place, is_named) in [
        (own, own, true),
        (own, "/tmp/perf-7.map", false),
        ("", "/tmp/perf-77.map", false),
    ] {
        let mut mappings = guest.mappings(None);
        mappings.perf_map = perf_map.to_owned();
        let path = guest.recording(&[(&[], &generated)], &[mappings.to_block().unwrap()]);
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join(&place[1..]);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "7fff00001000 20 fast\n").unwrap();
        let profile = profile(&path, &sources(None, Some(root.path().to_owned()))).unwrap();
        let expected = if is_named {
            "pid-77;fast_[j] 1"
        } else {
            "pid-77;0x7fff00001010 1"
        };
        let stacks = folded(&profile, &OutputBudget::new(u64::MAX)).unwrap();
        assert_eq!(stacks, [expected], "{perf_map:?} {place}");
    }
    let missing = profile(&path, &sources(None, Some(guest.root().join("none"))));
    assert!(matches!(missing, Err(SymbolError::Sysroot { .. })));
}

/// The sample is at 2000.
#[test]
fn generated_code_has_the_names_that_its_process_had_written() {
    let guest = Guest::new();
    fs::write(
        guest.root().join("tmp/perf-77.map"),
        "7fff00001000 20 of_host\n",
    )
    .unwrap();
    let code = |pid, begins, (since, until), lines: &str| {
        let code = GeneratedCode {
            info: GeneratedCodeInfo {
                pid,
                begins,
                since,
                until,
            },
            lines: lines.to_owned(),
        };
        code.to_block().unwrap()
    };
    let (dye, weave) = ("7fff00001000 20 dye\n", "7fff00001000 40 weave\n");
    let first = code(77, true, (500, 1500), dye);
    for (blocks, on_host, expected) in [
        (vec![first.clone()], false, "dye_[j]"),
        (vec![first.clone()], true, "dye_[j]"),
        // The last one that had been written counts.
        (
            vec![first.clone(), code(77, false, (1500, 1700), weave)],
            false,
            "weave_[j]",
        ),
        // Either may have been there.
        (
            vec![first.clone(), code(77, false, (1500, 2000), weave)],
            false,
            "0x7fff00001010",
        ),
        (
            vec![first.clone(), code(77, false, (2100, 2200), weave)],
            false,
            "0x7fff00001010",
        ),
        (
            vec![
                first.clone(),
                code(77, false, (5_000_002_000, 5_000_002_001), weave),
            ],
            false,
            "dye_[j]",
        ),
        // Another process with the same id, and one with another id.
        (
            vec![first.clone(), code(77, true, (1900, 1900), "")],
            false,
            "0x7fff00001010",
        ),
        (
            vec![first, code(77, true, (1900, 1900), "")],
            true,
            "of_host_[j]",
        ),
        (
            vec![code(78, true, (500, 1500), dye)],
            false,
            "0x7fff00001010",
        ),
    ] {
        let blocks = [vec![guest.mappings(None).to_block().unwrap()], blocks].concat();
        let path = guest.recording(&[(&[], &[0x7fff_0000_1010])], &blocks);
        let sysroot = on_host.then(|| guest.root());
        let profile = profile(&path, &sources(None, sysroot)).unwrap();
        let stacks = folded(&profile, &OutputBudget::new(u64::MAX)).unwrap();
        assert_eq!(stacks, [format!("pid-77;{expected} 1")]);
    }
}

/// GCC writes no linkage names of static functions.
#[test]
fn static_functions_have_their_namespaces() {
    let text = "\
        volatile long total;\n\
        namespace geo {\n\
        namespace {\n\
        struct Box {\n\
        inline __attribute__((always_inline)) void fill(long x) { total += x * total; }\n\
        };\n\
        static inline __attribute__((always_inline)) void inner(long x) { Box().fill(x); }\n\
        }\n\
        static __attribute__((noipa)) void outer(long x) { inner(x); }\n\
        }\n\
        int main() { geo::outer(7); return 0; }\n";
    let guest = Guest::compiled("g++", "work.cc", text, &[]);
    let blocks = [
        guest.mappings(Some(1)).to_block().unwrap(),
        (guest.info("0badc0de"))
            .to_block(&guest.program.functions)
            .unwrap(),
    ];
    let mut functions = guest.program.functions.iter();
    let outer = functions.find(|function| function.name == "_ZN3geoL5outerEl");
    let outer = outer.unwrap();
    let stacks: Vec<Vec<u64>> = (outer.address..outer.address + outer.length)
        .map(|address| vec![guest.mapped(address)])
        .collect();
    let stacks: Vec<(&[u64], &[u64])> = stacks.iter().map(|user| (&[][..], &**user)).collect();
    let path = guest.recording(&stacks, &blocks);
    let profile = profile(&path, &sources(None, Some(guest.root()))).unwrap();
    let found = folded(&profile, &OutputBudget::new(u64::MAX)).unwrap();
    let inlined = "pid-77;geo::outer(long);geo::(anonymous namespace)::inner_[i];\
                   geo::(anonymous namespace)::Box::fill_[i] ";
    assert!(
        found.iter().any(|line| line.starts_with(inlined)),
        "{found:?}"
    );
    let is_outer = |line: &String| line.starts_with("pid-77;geo::outer(long)");
    assert!(found.iter().all(is_outer), "{found:?}");
}

#[test]
fn packed_debug_information_is_read() {
    let guest = Guest::built(&["-gz=zlib"]);
    let user = [guest.mapped(inner_address(&guest))];
    let blocks = [
        guest.mappings(Some(1)).to_block().unwrap(),
        guest.info("0badc0de").to_block(&[]).unwrap(),
    ];
    let path = guest.recording(&[(&[], &user)], &blocks);
    let profile = profile(&path, &sources(None, Some(guest.root()))).unwrap();
    assert_eq!(own_lines(&profile), [("work.c".to_owned(), 2, 1)]);
}

#[test]
fn a_damaged_debug_file_is_ignored() {
    let guest = Guest::new();
    let user = [guest.mapped(inner_address(&guest))];
    let binary = guest.info("0badc0de").to_block(&guest.program.functions);
    let blocks = [guest.mappings(Some(1)).to_block().unwrap(), binary.unwrap()];
    let path = guest.recording(&[(&[], &user)], &blocks);
    let whole = fs::read(guest.program_file()).unwrap();
    // Damages headers, tables and debug information at intervals.
    for step in [3, 7, 61, 199] {
        for begin in [0, 64, 0x400, whole.len() / 2, whole.len() - 0x800] {
            let mut damaged = whole.clone();
            for index in (begin..whole.len().min(begin + 0x2000)).step_by(step) {
                damaged[index] ^= 0x55;
            }
            fs::write(guest.program_file(), damaged).unwrap();
            let profile = profile(&path, &sources(None, Some(guest.root()))).unwrap();
            let stacks = folded(&profile, &OutputBudget::new(u64::MAX)).unwrap();
            assert_eq!(stacks.len(), 1);
        }
    }
}

#[test]
fn a_debug_file_is_found_by_its_build_id() {
    let guest = Guest::new();
    let folder = guest.root().join("usr/lib/debug/.build-id/0b");
    fs::create_dir_all(&folder).unwrap();
    fs::rename(guest.program_file(), folder.join("adc0de.debug")).unwrap();
    let user = [guest.mapped(inner_address(&guest))];
    let blocks = [
        guest.mappings(Some(1)).to_block().unwrap(),
        guest.info("0badc0de").to_block(&[]).unwrap(),
    ];
    let path = guest.recording(&[(&[], &user)], &blocks);
    let profile = profile(&path, &sources(None, Some(guest.root()))).unwrap();
    assert_eq!(
        folded(&profile, &OutputBudget::new(u64::MAX)).unwrap(),
        ["pid-77;outer;inner_[i] 1"]
    );
}

#[test]
fn the_kernel_s_debug_file_is_used_where_the_kernel_ran() {
    let guest = Guest::new();
    let kernel =
        [inner_address(&guest), guest.address("main")].map(|address| address.wrapping_add(SLIDE));
    let info = |build_id: &str| KernelInfo {
        release: "6.12.0".to_owned(),
        build_id: build_id.to_owned(),
        slide: SLIDE,
        ..KernelInfo::default()
    };
    let blocks = [guest.kallsyms(), info("0badc0de").to_block().unwrap()];
    let path = guest.recording(&[(&kernel, &[])], &blocks);
    let vmlinux = sources(Some(guest.program_file()), None);
    let found = profile(&path, &vmlinux).unwrap();
    assert_eq!(
        folded(&found, &OutputBudget::new(u64::MAX)).unwrap(),
        ["pid-77;main_[k];outer_[k];inner_[k] 1"]
    );
    assert_eq!(own_lines(&found), [("work.c".to_owned(), 2, 1)]);

    // Without symbols the slide is the recorded one.
    let path = guest.recording(&[(&kernel, &[])], &blocks[1..]);
    let found = profile(&path, &vmlinux).unwrap();
    assert_eq!(
        folded(&found, &OutputBudget::new(u64::MAX)).unwrap(),
        ["pid-77;main_[k];outer_[k];inner_[k] 1"]
    );
    let path = guest.recording(&[(&kernel, &[])], &[]);
    assert!(matches!(
        profile(&path, &vmlinux),
        Err(SymbolError::NoSlide(_))
    ));

    // A guest other than Linux runs at its link-time address, and so do its programs.
    let linked = [inner_address(&guest), guest.address("main")];
    let line = |name| format!("{:x} t {name}\n", guest.address(name));
    let text = line("outer") + &line("main");
    let symbols = Block::encode(Kind::Symbols, text.as_bytes()).unwrap();
    let path = guest.recording(&[(&linked[..1], &linked)], &[symbols]);
    let found = profile(&path, &vmlinux).unwrap();
    assert_eq!(
        folded(&found, &OutputBudget::new(u64::MAX)).unwrap(),
        ["pid-77;main;outer;inner_[i];outer_[k];inner_[k] 1"]
    );

    // With --pid-at there are no symbols. A file other than Linux's, which has _stext, gives the same.
    let path = guest.recording(&[(&linked[..1], &linked)], &[]);
    assert!(matches!(
        profile(&path, &vmlinux),
        Err(SymbolError::NoSlide(_))
    ));
    let image = guest.folder.path().join("image");
    let made = std::process::Command::new("objcopy")
        .args(["--strip-symbol", "_stext"])
        .args([&guest.program_file(), &image])
        .status();
    assert!(made.unwrap().success());
    let found = profile(&path, &sources(Some(image), None)).unwrap();
    assert_eq!(
        folded(&found, &OutputBudget::new(u64::MAX)).unwrap(),
        ["pid-77;main;outer;inner_[i];outer_[k];inner_[k] 1"]
    );

    let other = [guest.kallsyms(), info("12").to_block().unwrap()];
    let path = guest.recording(&[(&kernel, &[])], &other);
    let error = profile(&path, &vmlinux).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "is not the kernel of the recording: its build id is 0badc0de, the recorded one 12"
        ),
        "{error}"
    );
    let nothing = sources(Some(path.clone()), None);
    assert!(matches!(
        profile(&path, &nothing),
        Err(SymbolError::Vmlinux { .. })
    ));
}

#[test]
fn pprof_claims_lines_only_if_there_are_some() {
    let guest = Guest::new();
    let (path, _) = guest.named_recording();
    let claimed = |root: Option<PathBuf>| {
        let file = guest.folder.path().join("out.pb.gz");
        let source = source(&path, &sources(None, root));
        Format::Pprof.write_file(&source, &file).unwrap();
        let raw = std::process::Command::new("go")
            .args(["tool", "pprof", "-raw"])
            .arg(&file)
            .output()
            .unwrap();
        let raw = String::from_utf8(raw.stdout).unwrap();
        let (_, mappings) = raw.split_once("Mappings").unwrap();
        let mapping = mappings.lines().find(|line| line.contains("work"));
        let mapping = mapping.unwrap_or_else(|| panic!("{raw}")).to_owned();
        // What pprof prints of has_functions, has_filenames, has_line_numbers and has_inline_frames.
        ["[FN]", "[FL]", "[LN]", "[IN]"].map(|flag| mapping.contains(flag))
    };
    assert_eq!(claimed(None), [true, false, false, false]);
    assert_eq!(claimed(Some(guest.root())), [true; 4]);
}

#[test]
fn code_is_that_of_the_files_with_the_recorded_build_id() {
    let guest = Guest::new();
    let begin = guest.address("outer");
    let asked = |address: u64, is_kernel: bool, profile: &Profile| CodeAddress {
        address,
        is_kernel,
        ..profile.frames(&profile.stacks[0]).next().unwrap().asked()
    };
    let code = |profile: &Profile, address: u64, is_kernel: bool| {
        let asked = asked(address, is_kernel, profile);
        profile.resolver.code(asked, 9)
    };
    let file = fs::read(guest.program_file()).unwrap();
    let segment = guest.program.segments[0];
    let offset = usize::try_from(begin - segment.address + segment.offset).unwrap();
    let expected = Some(file[offset..offset + 9].to_vec());
    // A kernel that runs at another address than its link-time address.
    let slid = begin.wrapping_add(SLIDE);
    let path = guest.recording(&[(&[slid], &[])], &[guest.kallsyms()]);
    let kernel = profile(&path, &sources(Some(guest.program_file()), None)).unwrap();
    assert_eq!(code(&kernel, slid, true), expected);
    assert_eq!(code(&kernel, 0xffff_ffff_ffff_f000, true), None);
    assert_eq!(
        code(&profile(&path, &Sources::default()).unwrap(), slid, true),
        None
    );
    // A program, and one of another build.
    for (id, expected) in [("0badc0de", expected.as_ref()), ("12", None)] {
        let binary = guest.info(id).to_block(&guest.program.functions);
        let blocks = [guest.mappings(Some(1)).to_block().unwrap(), binary.unwrap()];
        let path = guest.recording(&[(&[], &[guest.mapped(begin)])], &blocks);
        let program = profile(&path, &sources(None, Some(guest.root()))).unwrap();
        assert_eq!(
            code(&program, guest.mapped(begin), false).as_ref(),
            expected
        );
    }
    // A file with debug information alone has none.
    let debug = guest.folder.path().join("work.debug");
    let made = std::process::Command::new("objcopy")
        .arg("--only-keep-debug")
        .args([&guest.program_file(), &debug])
        .status();
    assert!(made.unwrap().success());
    let path = guest.recording(&[(&[slid], &[])], &[guest.kallsyms()]);
    let kernel = profile(&path, &sources(Some(debug), None)).unwrap();
    assert_eq!(code(&kernel, slid, true), None);
}
