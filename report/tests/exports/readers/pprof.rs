//! Reads the export with Go's pprof.

use std::fs;
use std::path::Path;
use std::process::Command;

use kvmprof_recording::file::KernelInfo;
use kvmprof_report::export::Format;

use super::{ROUNDS, exported, run};
use crate::exports::{export, pprof_profile};
use crate::shared::compiled::{Guest, SLIDE};

/// Two columns of `go tool pprof -top`: name and flat.
fn pprof_rows(text: &str) -> Vec<(String, u64)> {
    let lines = text.lines().skip_while(|line| !line.contains("flat%"));
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[5..].join(" "), words[0].parse().unwrap())
    };
    lines.skip(1).map(row).collect()
}

#[test]
fn go_tool_pprof_reads_pprof() {
    let (_folder, file, expected) = exported(Format::Pprof);
    let pprof = |arguments: &[&str]| {
        let all = [&["tool", "pprof", "-sample_index=samples"], arguments].concat();
        run(Command::new("go").args(all).arg(&file))
    };
    let top = pprof_rows(&pprof(&["-top"]));
    assert_eq!(top[..5], expected);

    for (focus, function, ticks) in [
        ("comm=batch", "0x402080", 17),
        ("mode=interrupt", "update_process_times", 3),
    ] {
        let rows = pprof_rows(&pprof(&["-top", &format!("-tagfocus={focus}")]));
        assert_eq!(rows[0], (function.to_owned(), ticks * ROUNDS));
    }
    let tags = pprof(&["-tags"]);
    for tag in ["server worker", "swapper/1", "vcpu", "tid", "230"] {
        assert!(tags.contains(tag), "{tags}");
    }
    let peek = pprof(&["-peek=^copy_page_to_iter$"]);
    assert!(peek.contains("ksys_read"), "{peek}");
}

/// The function that pprof finds in the guest's program, in the current folder, for an address in `outer` in `recording`, whatever name kvmprof
/// has.
fn found(guest: &Guest, recording: &Path) -> String {
    let file = recording.with_extension("pb.gz");
    fs::write(&file, export(recording, &[], Format::Pprof)).unwrap();
    run(Command::new("go")
        .args(["tool", "pprof", "-symbolize=local:force", "-lines", "-top"])
        .arg(&file)
        .env("HOME", guest.folder.path())
        .current_dir(guest.program_file().parent().unwrap()))
}

/// The program is mapped at another address than its file says, and the recording has no names of its functions.
#[test]
fn pprof_finds_functions_in_the_guests_file() {
    let separate = &["-Wl,-z,noseparate-code"];
    for options in [&[][..], &["-no-pie"], &["-static"], separate] {
        let guest = Guest::built(options);
        let address = guest.mapped(guest.address("outer") + 1);
        // With the file's segments, and without.
        let unknown = guest.mappings(None).to_block().unwrap();
        let known = guest.blocks("", &[]);
        for blocks in [&known[..], &[unknown]] {
            let recording = guest.recording(&[(&[], &[address])], blocks);
            let text = found(&guest, &recording);
            let is_it = |line: &str| line.contains(" outer ") && line.contains("work.c:2");
            let is_found = text.lines().any(is_it);
            assert!(is_found, "{options:?}, {} blocks: {text}", blocks.len());
        }
    }
}

/// Each segment of a file is one mapping for all processes, with the file's addresses and build id; so is the kernel, with its link-time
/// addresses.
#[test]
fn mappings_are_those_of_files() {
    let guest = Guest::new();
    let (outer, main) = (guest.address("outer"), guest.address("main"));
    let stack = [guest.mapped(outer), guest.mapped(main)];
    let kernel = KernelInfo {
        build_id: "00c0ffee".to_owned(),
        slide: SLIDE,
        ..KernelInfo::default()
    };
    let [mappings, binary] = guest.blocks("0badc0de", &[]);
    let blocks = [
        guest.kallsyms(),
        kernel.to_block().unwrap(),
        mappings,
        binary,
    ];
    let in_kernel = [outer.wrapping_add(SLIDE)];
    let recording = guest.recording(&[(&in_kernel, &stack)], &blocks);
    let profile = pprof_profile(&export(&recording, &[], Format::Pprof));
    let text = |number: i64| profile.string_table[usize::try_from(number).unwrap()].as_str();
    let places = profile.sample[0].location_id.iter().map(|id| {
        let mut locations = profile.location.iter();
        let location = locations.find(|location| location.id == *id).unwrap();
        let mut mappings = profile.mapping.iter();
        let mapping = mappings.find(|mapping| mapping.id == location.mapping_id);
        let mapping = mapping.unwrap();
        assert!((mapping.memory_start..mapping.memory_limit).contains(&location.address));
        let (file, build_id) = (text(mapping.filename), text(mapping.build_id));
        let base = mapping.memory_start - mapping.file_offset;
        (location.address, file, build_id, base)
    });
    let segment = guest.program.segments[0];
    let base = segment.address - segment.offset;
    let kernel = (outer, " (guest kernel)", "00c0ffee", 0);
    let program = [outer, main].map(|address| (address, "work", "0badc0de", base));
    assert_eq!(
        places.collect::<Vec<_>>(),
        [&[kernel], &program[..]].concat()
    );
    assert_eq!(profile.mapping.len(), 2);
}
