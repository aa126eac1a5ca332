//! A guest of QEMU with OVMF, UEFI's firmware, sampled from its start: the firmware's code has the names of its images, and Linux's its own.

use std::fs;
use std::ops::Range;

use kvmprof_lab::debian_package;
use kvmprof_recording::Mode;
use kvmprof_tests::linux::{Scenario, debian, guest_init, once};
use kvmprof_tests::run;

use super::COMMON;

/// Where the kernel's addresses begin.
const KERNEL: u64 = 1 << 63;

/// Code that had a name for a time, in ns of CLOCK_MONOTONIC.
#[derive(Debug)]
struct Named {
    code: Range<u64>,
    time: Range<u64>,
    name: String,
}

/// The names of the firmware's code in the symbols of a recording.
fn named(symbols: &str) -> Vec<Named> {
    let mut all: Vec<Named> = Vec::new();
    let mut time = 0;
    let address = |text: &str| u64::from_str_radix(text, 16).unwrap();
    for line in symbols.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["since", since, _] => time = since.parse().unwrap(),
            ["gone", begin, _] => {
                let code = address(begin);
                let mut known = all.iter_mut().filter(|it| it.code.start == code);
                if let Some(known) = known.next_back() {
                    known.time.end = time;
                }
            }
            [begin, "t", name, "[firmware]"] => all.push(Named {
                code: address(begin)..0,
                time: time..u64::MAX,
                name: name.to_owned(),
            }),
            [end, "?", "[end]", "[firmware]"] => {
                all.last_mut().unwrap().code.end = address(end);
            }
            _ => {}
        }
    }
    all
}

#[test]
fn code_of_uefi_has_the_names_of_its_images() {
    let finished = once("attach-firmware", || {
        let firmware = debian_package("ovmf")
            .unwrap()
            .join("usr/share/ovmf/OVMF.fd");
        Scenario::new()
            .memory(2048)
            .file("OVMF.fd", fs::read(firmware).unwrap())
            .kernel("vmlinuz", &debian("6.12"))
            .file(
                "guest.cpio",
                guest_init(include_str!("firmware_init.sh"), &[]),
            )
            .qemu()
            .run(&format!("{COMMON}\n{}", include_str!("firmware.sh")))
    });
    let (contents, samples) = finished.recording("ovmf.kvmprof");
    let linux = contents.kernel.as_ref().expect("the kernel is found");
    println!("{}; {}", linux.release, finished.text("ovmf.attach"));
    let names = named(&contents.symbols);
    let begin = |time: u64| names.iter().filter(move |it| it.time.contains(&time));
    let of = |pc: u64, time: u64| {
        let mut found = begin(time).filter(|it| it.code.contains(&pc));
        let first = found.next();
        assert!(found.next().is_none(), "{pc:x} has two names");
        first
    };
    // The kernel's first sample in its own addresses ends the firmware.
    let is_kernels = |pc: u64| pc >= KERNEL;
    let started = samples.iter().position(|(sample, _)| is_kernels(sample.pc));
    let (firmware, others) = samples.split_at(started.unwrap());
    let mut counts = std::collections::BTreeMap::<&str, u32>::new();
    for (sample, _) in firmware {
        assert_eq!((sample.mode, sample.pid), (Mode::Kernel, -1), "{sample:x?}");
        let name = of(sample.pc, sample.time).map_or("-", |it| it.name.as_str());
        *counts.entry(name).or_default() += 1;
    }
    println!("{} before the kernel: {counts:?}", firmware.len());
    let unnamed = counts.get("-").copied().unwrap_or_default() as usize;
    assert!(firmware.len() >= 50 && unnamed * 2 <= firmware.len());
    assert!(
        counts.contains_key("DxeCore") && counts.len() >= 5,
        "{counts:?}"
    );
    // Nothing of the kernel has such a name, nor do programs.
    for (sample, _) in others {
        let is_programs = sample.mode == Mode::User;
        assert!(!is_kernels(sample.pc) && !is_programs || of(sample.pc, sample.time).is_none());
    }
    let path = finished.path("ovmf.kvmprof");
    let report = run(["report".as_ref(), path.as_os_str()]);
    println!("{}", report.stdout);
    assert!(report.stdout.contains("firmware") && report.stdout.contains("DxeCore"));
}
