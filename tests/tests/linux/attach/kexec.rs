//! A guest of QEMU's that starts another kernel by kexec, while it is attached to by ptrace and by the host's kernel simultaneously.

use std::collections::BTreeMap;

use kvmprof_recording::{Mode, Sample};
use kvmprof_report::symbolize::Symbols;
use kvmprof_tests::linux::{
    Finished, Scenario, debian, guest_builder, guest_init, guest_program, kernel_knowledge, once,
};

use super::{COMMON, ONE, check_pids, of_program};

/// Both recordings.
const RECORDINGS: [&str; 2] = ["traced", "copied"];
/// The kernels, the first one first.
const SERIES: [&str; 2] = ["6.1", "6.12"];

fn run() -> Finished {
    once("attach-kexec", || {
        let [first, next] = SERIES.map(debian);
        let one = guest_program("spin.c", ONE, &[]);
        let kexec = guest_program("kexec.c", 0x40_0000, &[]);
        let init = include_str!("kexec_init.sh");
        let image = std::fs::read(&next.image).unwrap();
        let guest = guest_builder(init, &[("one", &one), ("kexec", &kexec)])
            .contents("/next/vmlinuz", 0o644, image)
            .contents(
                "/next/guest.cpio",
                0o644,
                guest_init(init, &[("one", &one)]),
            );
        Scenario::new()
            .memory(4096)
            .kernel("vmlinuz", &first)
            .file("guest.cpio", guest.build().unwrap())
            .qemu()
            .run(&format!("{COMMON}\n{}", include_str!("kexec.sh")))
    })
}

/// Samples, and their frames.
type Samples = Vec<(Sample, Vec<u64>)>;

/// The samples of each kernel, by the time of the change.
fn by_kernel(run: &Finished, name: &str) -> ([Samples; 2], Symbols) {
    let (contents, samples) = run.attached(name);
    let [reset] = contents.resets.as_slice() else {
        panic!("{name}: {:?}", contents.resets);
    };
    let kernel = contents.kernel.as_ref().unwrap();
    assert_eq!(kernel.release, debian(SERIES[1]).version, "{name}");
    let samples = samples.into_iter();
    let (first, next) = samples.partition(|(sample, _)| sample.time < reset.time);
    ([first, next], Symbols::parse(&contents.symbols))
}

#[test]
fn the_next_kernels_processes_are_known() {
    let run = run();
    for name in RECORDINGS {
        let (samples, _) = by_kernel(&run, name);
        let said = run.text(&format!("{name}.attach"));
        let words = "runs another kernel now: Linux 6.12";
        assert!(said.contains(words), "{said}");
        for (samples, one) in samples.iter().zip(run.pids("qemu", "one")) {
            check_pids(name, &of_program(samples, ONE), one, 30, 79);
        }
    }
}

/// The distance between a function's addresses in the guest and in the kernel's image is the same for all functions.
#[test]
fn each_kernels_functions_have_their_own_names() {
    let run = run();
    for name in RECORDINGS {
        let (samples, symbols) = by_kernel(&run, name);
        for (samples, series) in samples.iter().zip(SERIES) {
            let knowledge = kernel_knowledge(&debian(series));
            let own = knowledge.linux().unwrap().symbols();
            let mut slides = BTreeMap::<u64, usize>::new();
            let samples = samples.iter().map(|(sample, _)| sample);
            let of_kernel = samples.filter(|sample| sample.mode == Mode::Kernel);
            let mut all = 0;
            for sample in of_kernel.filter(|sample| sample.pc >= 0xffff_ffff_8000_0000) {
                let epoch = symbols.epoch(sample.time);
                let Some(found) = symbols.locate_then(sample.pc, epoch) else {
                    continue;
                };
                all += 1;
                if let Some(linked) = own.address_of(found.name) {
                    let slide = (sample.pc - found.offset).wrapping_sub(linked);
                    *slides.entry(slide).or_default() += 1;
                }
            }
            let most = slides.iter().max_by_key(|(_, count)| **count).unwrap();
            println!(
                "{name}: {series}: {} of {all} samples at {:#x}",
                most.1, most.0
            );
            // Several functions may have the same name.
            assert!(all >= 20 && most.1 * 100 >= all * 95, "{slides:x?}");
            assert!(most.0.is_multiple_of(2 << 20));
        }
    }
}
