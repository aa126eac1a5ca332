//! Reads the export with Go's pprof.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Command;

use flate2::read::GzDecoder;
use kvmprof_recording::file::KernelInfo;
use kvmprof_report::export::{Format, pprof_message};
use prost::Message;

use super::{ROUNDS, exported, run};
use crate::exports::export;
use crate::shared::compiled::{Guest, SLIDE};

/// Two columns of `go tool pprof -top`: name and flat.
fn pprof_rows(text: &str) -> Vec<(String, u64)> {
    let mut lines = text.lines();
    lines
        .by_ref()
        .find(|line| line.contains("flat%"))
        .unwrap_or_else(|| panic!("{text}"));
    lines
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (words[5..].join(" "), words[0].parse().unwrap())
        })
        .collect()
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

    let of_batch = pprof_rows(&pprof(&["-top", "-tagfocus=comm=batch"]));
    assert_eq!(of_batch[0], ("0x402080".to_owned(), 17 * ROUNDS));
    let of_interrupts = pprof_rows(&pprof(&["-top", "-tagfocus=mode=interrupt"]));
    assert_eq!(
        of_interrupts[0],
        ("update_process_times".to_owned(), 3 * ROUNDS)
    );
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
    for options in [
        &[][..],
        &["-no-pie"],
        &["-static"],
        &["-Wl,-z,noseparate-code"],
    ] {
        let guest = Guest::built(options);
        let address = guest.mapped(guest.address("outer") + 1);
        // With the file's segments, and without.
        let known = guest.info("").to_block(&[]).unwrap();
        let unknown = guest.mappings(None).to_block().unwrap();
        let known = [guest.mappings(Some(1)).to_block().unwrap(), known];
        for blocks in [&known[..], &[unknown]] {
            let recording = guest.recording(&[(&[], &[address])], blocks);
            let text = found(&guest, &recording);
            let is_found = text
                .lines()
                .any(|line| line.contains(" outer ") && line.contains("work.c:2"));
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
    let blocks = [
        guest.kallsyms(),
        kernel.to_block().unwrap(),
        guest.mappings(Some(1)).to_block().unwrap(),
        guest.info("0badc0de").to_block(&[]).unwrap(),
    ];
    let in_kernel = [outer.wrapping_add(SLIDE)];
    let recording = guest.recording(&[(&in_kernel, &stack)], &blocks);
    let packed = export(&recording, &[], Format::Pprof);
    let mut bytes = Vec::new();
    GzDecoder::new(packed.as_slice())
        .read_to_end(&mut bytes)
        .unwrap();
    let profile = pprof_message::Profile::decode(bytes.as_slice()).unwrap();
    let text = |number: i64| profile.string_table[usize::try_from(number).unwrap()].as_str();
    let places = profile.sample[0].location_id.iter().map(|id| {
        let location = profile
            .location
            .iter()
            .find(|location| location.id == *id)
            .unwrap();
        let mapping = profile
            .mapping
            .iter()
            .find(|mapping| mapping.id == location.mapping_id)
            .unwrap();
        assert!((mapping.memory_start..mapping.memory_limit).contains(&location.address));
        (
            location.address,
            text(mapping.filename),
            text(mapping.build_id),
            mapping.memory_start - mapping.file_offset,
        )
    });
    let segment = guest.program.segments[0];
    let base = segment.address - segment.offset;
    assert_eq!(
        places.collect::<Vec<_>>(),
        [
            (outer, " (guest kernel)", "00c0ffee", 0),
            (outer, "work", "0badc0de", base),
            (main, "work", "0badc0de", base),
        ]
    );
    assert_eq!(profile.mapping.len(), 2);
}
