//! Tests of names from debug files that this machine's compiler makes: inlined functions, source lines, files that
//! don't match the recording.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shared::compiled::{BASE, Guest, SLIDE};
use crate::shared::read::{profile_with, source_with, stacks};
use kvmprof_recording::file::{
    Block, GeneratedCode, GeneratedCodeInfo, KernelInfo, Kind, Recording,
};
use kvmprof_report::export::Format;
use kvmprof_report::profile::{Profile, SortBy, functions, lines};
use kvmprof_report::symbolize::{CodeAddress, Resolver, Sources, SymbolError};

fn sources(vmlinux: Option<PathBuf>, sysroot: Option<PathBuf>) -> Sources {
    Sources {
        vmlinux,
        sysroot,
        ..Sources::default()
    }
}

/// The profile with the names from the files of the guest.
fn in_root(guest: &Guest, path: &Path) -> Profile {
    profile_with(path, &sources(None, Some(guest.root())))
}

/// Why these sources aren't used for the recording.
fn refused(path: &Path, sources: &Sources) -> SymbolError {
    let contents = Recording::open(path).unwrap().contents().unwrap();
    Resolver::new(&contents, sources).unwrap_err()
}

/// Runs objcopy for the guest's program, whose output it returns.
fn objcopy(guest: &Guest, options: &[&str]) -> PathBuf {
    let output = guest.folder.path().join("copied");
    let files = [&guest.program_file(), &output];
    let made = Command::new("objcopy").args(options).args(files).status();
    assert!(made.unwrap().success());
    output
}

fn own_lines(profile: &Profile) -> Vec<(String, u32, u64)> {
    let rows = lines(profile, SortBy::Own).into_iter();
    let file = |path: &str| path.rsplit('/').next().unwrap().to_owned();
    let rows = rows.filter(|row| row.own > 0);
    rows.map(|row| (file(&row.key.file), row.key.line, row.own))
        .collect()
}

/// An address within the inlined function: its multiplication is there.
fn inner_address(guest: &Guest) -> u64 {
    guest.address("outer") + 8
}

#[test]
fn a_program_in_the_sysroot_gives_inlined_functions_and_lines() {
    let guest = Guest::new();
    let user = [inner_address(&guest), guest.address("main")].map(|address| guest.mapped(address));
    let path = guest.of_program("0badc0de", &[&user]);

    let without = profile_with(&path, &Sources::default());
    assert_eq!(stacks(&without), ["pid-77;main;outer 1"]);
    assert!(lines(&without, SortBy::Own).is_empty());

    let with = in_root(&guest, &path);
    assert_eq!(stacks(&with), ["pid-77;main;outer;inner_[i] 1"]);
    assert_eq!(own_lines(&with), [("work.c".to_owned(), 2, 1)]);
    assert!(with.resolver.take_notes().is_empty());
    let names = functions(&with, SortBy::Total).into_iter();
    let mut names: Vec<_> = names
        .map(|function| (function.name, function.module))
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["inner", "main", "outer"].map(|name| (name.to_owned(), "work".to_owned()))
    );

    let source = source_with(&path, &sources(None, Some(guest.root())));
    for (format, parts) in [
        (
            Format::PerfScript,
            [" inner (inlined)\n", " outer+0x8 (work)\n"],
        ),
        (Format::Callgrind, ["inner", "work.c"]),
        (Format::Speedscope, ["inner", "work.c"]),
    ] {
        let mut text = Vec::new();
        format.write(&source, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            parts.iter().all(|part| text.contains(part)),
            "{format:?}: {text}"
        );
    }
}

#[test]
fn another_build_of_a_program_is_not_used_with_one_warning() {
    let guest = Guest::new();
    let [inner, main] =
        [inner_address(&guest), guest.address("main")].map(|address| guest.mapped(address));
    let path = guest.of_program("ffffffff", &[&[inner], &[main]]);
    let profile = in_root(&guest, &path);
    assert_eq!(stacks(&profile), ["pid-77;main 1", "pid-77;outer 1"]);
    let notes = profile.resolver.take_notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    let why = "its build id is 0badc0de, the recorded one ffffffff";
    assert!(notes[0].ends_with(why), "{notes:?}");
}

#[test]
fn a_file_without_a_recorded_build_id_is_not_used() {
    let guest = Guest::new();
    let user = [guest.mapped(inner_address(&guest))];
    let generated = [0x7fff_0000_1010];
    let unknown = [0x7fff_0000_3000];
    let map = guest.root().join("tmp/perf-77.map");
    fs::write(map, "7fff00001000 20 JS:*fast a.js:3\n").unwrap();
    let blocks = [guest.mappings(None).to_block().unwrap()];
    let samples = [&user, &generated, &unknown].map(|user| (&[][..], &user[..]));
    let path = guest.recording(&samples, &blocks);
    let byte = user[0] - BASE + (guest.program.segments[0].offset & !0xfff);
    let (of_file, of_nothing) = (
        format!("pid-77;work+{byte:#x} 1"),
        "pid-77;0x7fff00003000 1",
    );
    let without = stacks(&profile_with(&path, &Sources::default()));
    assert_eq!(without, ["pid-77;0x7fff00001010 1", of_nothing, &of_file]);
    let with = in_root(&guest, &path);
    let expected = [of_nothing, "pid-77;JS:*fast a.js:3_[j] 1", &of_file];
    assert_eq!(stacks(&with), expected);
    let notes = with.resolver.take_notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    let why = "root/usr/bin/work is not used: nothing in the recording tells whether it is the same build";
    assert!(notes[0].ends_with(why), "{notes:?}");
    // A process of a container has it in its own root, and for unknown namespaces it isn't found.
    let own = "/proc/77/root/tmp/perf-7.map";
    let nameless = "pid-77;0x7fff00001010 1";
    for (perf_map, place, expected) in [
        (own, own, "pid-77;fast_[j] 1"),
        (own, "/tmp/perf-7.map", nameless),
        ("", "/tmp/perf-77.map", nameless),
    ] {
        let mut mappings = guest.mappings(None);
        mappings.perf_map = perf_map.to_owned();
        let path = guest.recording(&[(&[], &generated)], &[mappings.to_block().unwrap()]);
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join(&place[1..]);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "7fff00001000 20 fast\n").unwrap();
        let profile = profile_with(&path, &sources(None, Some(root.path().to_owned())));
        assert_eq!(stacks(&profile), [expected], "{perf_map:?} {place}");
    }
    let missing = refused(&path, &sources(None, Some(guest.root().join("none"))));
    assert!(matches!(missing, SymbolError::Sysroot { .. }));
}

/// The sample is at 2000.
#[test]
fn generated_code_has_the_names_that_its_process_had_written() {
    let guest = Guest::new();
    let map = guest.root().join("tmp/perf-77.map");
    fs::write(map, "7fff00001000 20 of_host\n").unwrap();
    let code = |pid, begins, (since, until), lines: &str| {
        let info = GeneratedCodeInfo {
            pid,
            begins,
            since,
            until,
        };
        let lines = lines.to_owned();
        GeneratedCode { info, lines }.to_block().unwrap()
    };
    let dye = |pid| code(pid, true, (500, 1500), "7fff00001000 20 dye\n");
    let weave = |times| code(77, false, times, "7fff00001000 40 weave\n");
    let another = code(77, true, (1900, 1900), "");
    let none = "0x7fff00001010";
    for (blocks, on_host, expected) in [
        (vec![dye(77)], false, "dye_[j]"),
        (vec![dye(77)], true, "dye_[j]"),
        // The last one that had been written counts.
        (vec![dye(77), weave((1500, 1700))], false, "weave_[j]"),
        // Either may have been there.
        (vec![dye(77), weave((1500, 2000))], false, none),
        (vec![dye(77), weave((2100, 2200))], false, none),
        (
            vec![dye(77), weave((5_000_002_000, 5_000_002_001))],
            false,
            "dye_[j]",
        ),
        // Another process with the same id, and one with another id.
        (vec![dye(77), another.clone()], false, none),
        (vec![dye(77), another], true, "of_host_[j]"),
        (vec![dye(78)], false, none),
    ] {
        let blocks = [vec![guest.mappings(None).to_block().unwrap()], blocks].concat();
        let path = guest.recording(&[(&[], &[0x7fff_0000_1010])], &blocks);
        let sysroot = on_host.then(|| guest.root());
        let profile = profile_with(&path, &sources(None, sysroot));
        assert_eq!(stacks(&profile), [format!("pid-77;{expected} 1")]);
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
    let outer = guest.function("_ZN3geoL5outerEl");
    let samples: Vec<[u64; 1]> = (outer.address..outer.address + outer.length)
        .map(|address| [guest.mapped(address)])
        .collect();
    let samples: Vec<&[u64]> = samples.iter().map(|user| &user[..]).collect();
    let path = guest.of_program("0badc0de", &samples);
    let found = stacks(&in_root(&guest, &path));
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
    let profile = in_root(&guest, &guest.of_program("0badc0de", &[&user]));
    assert_eq!(own_lines(&profile), [("work.c".to_owned(), 2, 1)]);
}

#[test]
fn a_damaged_debug_file_is_ignored() {
    let guest = Guest::new();
    let path = guest.of_program("0badc0de", &[&[guest.mapped(inner_address(&guest))]]);
    let whole = fs::read(guest.program_file()).unwrap();
    // Damages headers, tables and debug information at intervals.
    for step in [3, 7, 61, 199] {
        for begin in [0, 64, 0x400, whole.len() / 2, whole.len() - 0x800] {
            let mut damaged = whole.clone();
            for index in (begin..whole.len().min(begin + 0x2000)).step_by(step) {
                damaged[index] ^= 0x55;
            }
            fs::write(guest.program_file(), damaged).unwrap();
            assert_eq!(stacks(&in_root(&guest, &path)).len(), 1);
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
    let path = guest.recording(&[(&[], &user)], &guest.blocks("0badc0de", &[]));
    assert_eq!(
        stacks(&in_root(&guest, &path)),
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
    let vmlinux = sources(Some(guest.program_file()), None);
    let named = info("0badc0de").to_block().unwrap();
    // Without symbols the slide is the recorded one.
    for blocks in [&[guest.kallsyms(), named.clone()][..], &[named]] {
        let path = guest.recording(&[(&kernel, &[])], blocks);
        let found = profile_with(&path, &vmlinux);
        assert_eq!(stacks(&found), ["pid-77;main_[k];outer_[k];inner_[k] 1"]);
        assert_eq!(own_lines(&found), [("work.c".to_owned(), 2, 1)]);
    }
    let path = guest.recording(&[(&kernel, &[])], &[]);
    assert!(matches!(refused(&path, &vmlinux), SymbolError::NoSlide(_)));

    // A guest other than Linux runs at its link-time address, and so do its programs.
    let linked = [inner_address(&guest), guest.address("main")];
    let line = |name| format!("{:x} t {name}\n", guest.address(name));
    let text = line("outer") + &line("main");
    let symbols = Block::encode(Kind::Symbols, text.as_bytes()).unwrap();
    let path = guest.recording(&[(&linked[..1], &linked)], &[symbols]);
    let both = ["pid-77;main;outer;inner_[i];outer_[k];inner_[k] 1"];
    assert_eq!(stacks(&profile_with(&path, &vmlinux)), both);

    // With --pid-at there are no symbols. A file other than Linux's, which has _stext, gives the same.
    let path = guest.recording(&[(&linked[..1], &linked)], &[]);
    assert!(matches!(refused(&path, &vmlinux), SymbolError::NoSlide(_)));
    let image = objcopy(&guest, &["--strip-symbol", "_stext"]);
    assert_eq!(
        stacks(&profile_with(&path, &sources(Some(image), None))),
        both
    );

    let other = [guest.kallsyms(), info("12").to_block().unwrap()];
    let path = guest.recording(&[(&kernel, &[])], &other);
    let error = refused(&path, &vmlinux).to_string();
    let why = "is not the kernel of the recording: its build id is 0badc0de, the recorded one 12";
    assert!(error.ends_with(why), "{error}");
    let nothing = sources(Some(path.clone()), None);
    assert!(matches!(
        refused(&path, &nothing),
        SymbolError::Vmlinux { .. }
    ));
}

#[test]
fn pprof_claims_lines_only_if_there_are_some() {
    let guest = Guest::new();
    let (path, _) = guest.named_recording();
    let claimed = |root: Option<PathBuf>| {
        let file = guest.folder.path().join("out.pb.gz");
        let source = source_with(&path, &sources(None, root));
        Format::Pprof.write_file(&source, &file).unwrap();
        let raw = Command::new("go")
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
    let kernel = profile_with(&path, &sources(Some(guest.program_file()), None));
    assert_eq!(code(&kernel, slid, true), expected);
    assert_eq!(code(&kernel, 0xffff_ffff_ffff_f000, true), None);
    let without = profile_with(&path, &Sources::default());
    assert_eq!(code(&without, slid, true), None);
    // A program, and one of another build.
    for (id, expected) in [("0badc0de", expected), ("12", None)] {
        let mapped = guest.mapped(begin);
        let program = in_root(&guest, &guest.of_program(id, &[&[mapped]]));
        assert_eq!(code(&program, mapped, false), expected);
    }
    // A file with debug information alone has none.
    let debug = objcopy(&guest, &["--only-keep-debug"]);
    let path = guest.recording(&[(&[slid], &[])], &[guest.kallsyms()]);
    let kernel = profile_with(&path, &sources(Some(debug), None));
    assert_eq!(code(&kernel, slid, true), None);
}
