//! Which files of `--sysroot` are used: those that are proven to be the guest's, and the debug files that these name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shared::compiled::Guest;
use crate::shared::read::{profile_with, stacks};
use kvmprof_recording::elf;
use kvmprof_recording::file::BinaryInfo;
use kvmprof_report::profile::Profile;
use kvmprof_report::symbolize::{CodeAddress, Sources};
use object::{Object, ObjectSection};

const NO_ID: &str = "-Wl,--build-id=none";

/// Runs `program` in `folder`.
fn run(folder: &Path, program: &str, arguments: &[&str]) {
    let status = Command::new(program)
        .current_dir(folder)
        .args(arguments)
        .status();
    assert!(status.unwrap().success(), "{program} {arguments:?}");
}

/// The recording of one sample in the inlined function, with `info` of the program.
fn recording(guest: &Guest, info: &BinaryInfo) -> PathBuf {
    let user = [guest.address("outer") + 8, guest.address("main")];
    let user = user.map(|address| guest.mapped(address));
    let functions = ["outer", "main"].map(|name| guest.function(name).clone());
    let blocks = [
        guest.mappings(Some(1)).to_block().unwrap(),
        info.to_block(&functions).unwrap(),
    ];
    guest.recording(&[(&[], &user)], &blocks)
}

fn profile(path: &Path, root: PathBuf) -> Profile {
    let sources = Sources {
        sysroot: Some(root),
        ..Sources::default()
    };
    profile_with(path, &sources)
}

/// The sample's stack with the files of the sysroot, and the warnings.
fn stack(guest: &Guest, path: &Path) -> (String, Vec<String>) {
    let profile = profile(path, guest.root());
    let mut stacks = stacks(&profile);
    assert_eq!(stacks.len(), 1);
    (stacks.remove(0), profile.resolver.take_notes())
}

/// Asserts that the file isn't used, for this reason.
fn assert_unused(guest: &Guest, path: &Path, why: &str) {
    let (found, notes) = stack(guest, path);
    assert_eq!((found.as_str(), notes.len()), (RECORDED, 1));
    assert!(notes[0].contains(why), "{notes:?}");
}

const RECORDED: &str = "pid-77;main;outer 1";
const WITH_INLINED: &str = "pid-77;main;outer;inner_[i] 1";

#[test]
fn a_file_without_a_build_id_is_used_if_its_code_is_the_recorded_one() {
    let guest = Guest::built(&[NO_ID]);
    let info = guest.info("");
    let path = recording(&guest, &info);
    assert_eq!(stack(&guest, &path), (WITH_INLINED.to_owned(), vec![]));
    // Removing symbols leaves the code unchanged.
    let whole = fs::read(guest.program_file()).unwrap();
    run(&guest.root(), "strip", &["-g", "usr/bin/work"]);
    assert_eq!(stack(&guest, &path), (RECORDED.to_owned(), vec![]));
    // Earlier recordings have no checksum.
    fs::write(guest.program_file(), whole).unwrap();
    let earlier = BinaryInfo {
        code_crc32: None,
        ..info
    };
    let earlier = recording(&guest, &earlier);
    let why = "usr/bin/work is not used: nothing in the recording tells";
    assert_unused(&guest, &earlier, why);
    // Another build at the same path.
    let path = recording(&guest, &guest.info(""));
    let other = Guest::built(&[NO_ID, "-O0"]);
    fs::copy(other.program_file(), guest.program_file()).unwrap();
    assert_unused(
        &guest,
        &path,
        "not used: its code is not the recorded file's",
    );
    let profile = profile(&path, guest.root());
    let asked = CodeAddress {
        address: guest.mapped(guest.address("outer")),
        ..first_frame(&profile)
    };
    assert_eq!(profile.resolver.code(asked, 9), None);
}

/// The location of the first frame of the first stack.
fn first_frame(profile: &Profile) -> CodeAddress {
    profile.frames(&profile.stacks[0]).next().unwrap().asked()
}

#[test]
fn the_debug_file_that_a_program_names_is_used_if_its_checksum_is_right() {
    let guest = Guest::built(&[NO_ID]);
    let bin = guest.root().join("usr/bin");
    run(&bin, "objcopy", &["--only-keep-debug", "work", "work.dbg"]);
    run(&bin, "strip", &["-g", "work"]);
    run(&bin, "objcopy", &["--add-gnu-debuglink=work.dbg", "work"]);
    let path = recording(&guest, &guest.info(""));
    let debug = fs::read(bin.join("work.dbg")).unwrap();
    fs::remove_file(bin.join("work.dbg")).unwrap();
    assert_eq!(stack(&guest, &path), (RECORDED.to_owned(), vec![]));
    for place in ["usr/bin", "usr/bin/.debug", "usr/lib/debug/usr/bin"] {
        let folder = guest.root().join(place);
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("work.dbg");
        fs::write(&file, &debug).unwrap();
        let (found, notes) = stack(&guest, &path);
        assert_eq!((found.as_str(), notes.len()), (WITH_INLINED, 0), "{place}");
        fs::write(&file, [&debug[..], b"\0"].concat()).unwrap();
        assert_unused(&guest, &path, "is not the debug file that");
        fs::remove_file(file).unwrap();
    }
    // A path alone proves nothing.
    let beside = guest.root().join("usr/lib/debug/usr/bin/work.debug");
    fs::write(beside, &debug).unwrap();
    assert_eq!(stack(&guest, &path), (RECORDED.to_owned(), vec![]));
}

const POINTS: &str = "\
namespace geo {
struct Point { double x, y; double norm() const { return __builtin_sqrt(x * x + y * y); } };
inline __attribute__((always_inline)) double sum_norms(const Point *points, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) sum += points[i].norm();
    return sum;
}
}
extern \"C\" __attribute__((noinline)) double outer_total(const geo::Point *points, int count) {
    return geo::sum_norms(points, count);
}
int main(int count, char **) {
    geo::Point points[9] = {};
    return outer_total(points, count) > 1;
}
";

/// A guest whose program names `/src/points.dwo` as its debug information.
fn split(version: &str) -> Guest {
    let guest = Guest::built(&[]);
    let source = guest.root().join("src");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("points.cc"), POINTS).unwrap();
    let map = format!("-ffile-prefix-map={}=", guest.root().display());
    let options = ["-O2", "-ffast-math", "-gsplit-dwarf", version, &map];
    let options = [&options[..], &["-c", "points.cc"]].concat();
    run(&source, "g++", &options);
    let link = "-Wl,--build-id=0x0badc0de -o ../usr/bin/work points.o";
    run(&source, "g++", &link.split(' ').collect::<Vec<_>>());
    let program = elf::parse(&fs::read(guest.program_file()).unwrap()).unwrap();
    Guest { program, ..guest }
}

/// The functions of each of `outer_total`'s instructions, outermost first, and the warnings.
fn frames(guest: &Guest) -> (Vec<String>, Vec<String>) {
    let function = guest.function("outer_total");
    let pc = guest.mapped(function.address);
    let path = guest.of_program("0badc0de", &[&[pc]]);
    let profile = profile(&path, guest.root());
    let first = first_frame(&profile);
    let stacks = (0..function.length).map(|distance| {
        let resolved = profile.resolver.resolve(CodeAddress {
            address: pc + distance,
            ..first
        });
        let names = resolved
            .frames
            .iter()
            .rev()
            .map(|frame| frame.function.as_ref());
        names.collect::<Vec<&str>>().join(";")
    });
    let stacks: BTreeSet<String> = stacks.collect();
    (stacks.into_iter().collect(), profile.resolver.take_notes())
}

const INLINED: &str = "outer_total;geo::sum_norms(geo::Point const*, int);geo::Point::norm() const";

fn assert_inlined(guest: &Guest) {
    let (stacks, notes) = frames(guest);
    assert!(stacks.iter().any(|stack| stack == INLINED), "{stacks:?}");
    assert_eq!(notes, [""; 0]);
}

/// Nothing inlined, and one warning.
fn assert_without(guest: &Guest) {
    let (stacks, notes) = frames(guest);
    assert_eq!(stacks, ["outer_total"]);
    assert_eq!(notes.len(), 1, "{notes:?}");
    let why = "usr/bin/work: its debug information points.dwo is missing";
    assert!(notes[0].contains(why), "{notes:?}");
}

/// Builds the unit in `/src` again, by another command: its id differs.
fn rebuild_unit(guest: &Guest, version: &str) {
    let options = ["-O1", "-gsplit-dwarf", version, "-c", "points.cc"];
    run(&guest.root().join("src"), "g++", &options);
}

#[test]
fn split_debug_information_is_read_from_files() {
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let guest = split(version);
        let unit = guest.root().join("src/points.dwo");
        assert_inlined(&guest);
        // Beside the program.
        let beside = guest.root().join("usr/bin/points.dwo");
        fs::rename(&unit, &beside).unwrap();
        assert_inlined(&guest);
        fs::remove_file(&beside).unwrap();
        assert_without(&guest);
        rebuild_unit(&guest, version);
        assert_without(&guest);
    }
}

/// Sections of a unit that a package's index has, by their numbers there (DWARF 5, 7.3.5.3).
const INDEXED: [(u32, &str); 6] = [
    (1, ".debug_info.dwo"),
    (3, ".debug_abbrev.dwo"),
    (4, ".debug_line.dwo"),
    (5, ".debug_loclists.dwo"),
    (6, ".debug_str_offsets.dwo"),
    (8, ".debug_rnglists.dwo"),
];

/// The index of a package of version 5 with only `unit`, the file of a unit.
fn index_of(unit: &[u8]) -> Vec<u8> {
    let file = object::File::parse(unit).unwrap();
    let section = |name| Some(file.section_by_name(name)?.data().unwrap());
    let present = INDEXED.iter().filter_map(|(number, name)| {
        let length = section(name)?.len();
        Some((*number, u32::try_from(length).unwrap()))
    });
    let present: Vec<(u32, u32)> = present.collect();
    // The unit's id follows its length, version, kind, and the place of its abbreviations.
    let id = &section(".debug_info.dwo").unwrap()[12..20];
    let count = u32::try_from(present.len()).unwrap();
    let mut index = Vec::new();
    // The version, the numbers of columns, units and slots.
    let mut words = |words: &[u32]| {
        index.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    };
    words(&[5, count, 1, 2]);
    // A unit is in the slot that the low bits of its id say: its id, and its row.
    let [low, high] = [0, 4].map(|at| u32::from_le_bytes(id[at..at + 4].try_into().unwrap()));
    match low % 2 {
        0 => words(&[low, high, 0, 0, 1, 0]),
        _ => words(&[0, 0, low, high, 0, 1]),
    }
    for (number, _) in &present {
        words(&[*number]);
    }
    words(&vec![0; present.len()]);
    for (_, length) in &present {
        words(&[*length]);
    }
    index
}

/// Makes a package beside the program of the unit in `/src`, and removes the unit. GNU's dwp makes packages of version 4 alone; for one of version
/// 5 the unit's own sections get an index.
fn pack(guest: &Guest, version: &str) {
    let bin = guest.root().join("usr/bin");
    let unit = guest.root().join("src/points.dwo");
    if version == "-gdwarf-4" {
        run(&bin, "dwp", &["../../src/points.dwo", "-o", "work.dwp"]);
    } else {
        fs::write(bin.join("index"), index_of(&fs::read(&unit).unwrap())).unwrap();
        let option = "--add-section=.debug_cu_index=index";
        let files = ["../../src/points.dwo", "work.dwp"];
        run(&bin, "objcopy", &[&[option], &files[..]].concat());
    }
    fs::remove_file(unit).unwrap();
}

#[test]
fn split_debug_information_is_read_from_packages() {
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        packages_of(version);
    }
}

fn packages_of(version: &str) {
    let guest = split(version);
    let bin = guest.root().join("usr/bin");
    pack(&guest, version);
    assert_inlined(&guest);
    let package = fs::read(bin.join("work.dwp")).unwrap();
    // A package of another build.
    rebuild_unit(&guest, version);
    pack(&guest, version);
    assert_without(&guest);
    // Damage causes no panic.
    for (begin, step) in [(0, 1), (64, 7), (64, 61), (package.len() / 2, 199)] {
        let mut damaged = package.clone();
        for index in (begin..damaged.len()).step_by(step) {
            damaged[index] ^= 0x55;
        }
        fs::write(bin.join("work.dwp"), damaged).unwrap();
        assert!(!frames(&guest).0.is_empty());
    }
}
