//! A guest of QEMU that runs a guest itself, the demo guest in kvmprof, beside a program of its own. It is attached to by ptrace and by the
//! host's kernel simultaneously.

use kvmprof_recording::{Mode, Sample, StackSummary};
use kvmprof_tests::linux::{
    Finished, Scenario, debian, guest_builder, guest_program, once, print_losses,
};

use super::{COMMON, ONE, check_pids, check_whole_stacks, of_program};
use crate::prf::functions_of_modules;

/// The recordings: by ptrace, and by the host's kernel.
const RECORDINGS: [&str; 2] = ["traced", "copied"];
/// Where the kernel's addresses begin.
const KERNEL: u64 = 1 << 63;

fn run() -> Finished {
    once("attach-nested", || {
        let kernel = debian("6.12");
        let one = guest_program("spin.c", ONE, &[]);
        let kvmprof = kvmprof_lab::build_program("kvmprof").unwrap();
        let guest = guest_builder(include_str!("nested_init.sh"), &[("one", &one)])
            .add(kvmprof, "/bin/kvmprof")
            .contents("/bin/demo.elf", 0o644, kvmprof_demo_guest::ELF)
            .modules(&kernel, &["kvm_amd"]);
        Scenario::new()
            .memory(4096)
            .kernel("vmlinuz", &kernel)
            .file("guest.cpio", guest.build().unwrap())
            .qemu()
            .run(&format!("{COMMON}\n{}", include_str!("nested.sh")))
    })
}

/// Whether a sample was taken while the vCPU ran the nested guest, as recordings mark it.
fn is_nested(sample: &Sample) -> bool {
    sample.mode == Mode::User && sample.pc == 0
}

#[test]
fn samples_of_a_nested_guest_have_only_the_process_that_runs_it() {
    let run = run();
    let vmm = run.pid("qemu", "vmm");
    for name in RECORDINGS {
        let (_, samples) = run.recording(&format!("{name}.kvmprof"));
        let of_vmm = samples.iter().filter(|(sample, _)| sample.pid == vmm);
        let of_vmm = of_vmm.count();
        let nested = samples.iter().filter(|(sample, _)| is_nested(sample));
        let nested: Vec<_> = nested.collect();
        let right = nested.iter().filter(|(sample, _)| sample.pid == vmm);
        let right = right.count();
        println!(
            "{name}: of {} samples {of_vmm} are of the VMM; {right} of {} in its guest have its pid",
            samples.len(),
            nested.len()
        );
        assert!(of_vmm * 10 >= samples.len(), "{name}");
        assert!(
            nested.len() >= 30 && right * 100 >= nested.len() * 99,
            "{name}"
        );
        for (sample, frames) in nested {
            assert_eq!(sample.stack, StackSummary::default(), "{name}");
            assert!(frames.is_empty(), "{name}: {frames:x?}");
            assert_eq!((sample.cpl, sample.address_space), (3, 0), "{name}");
        }
    }
}

/// The nested guest's kernel and processes are at low addresses, where the attached guest has no kernel, and its VMM no code.
#[test]
fn no_address_of_a_nested_guest_is_recorded() {
    let run = run();
    let vmm = run.pid("qemu", "vmm");
    for name in RECORDINGS {
        let (contents, samples) = run.recording(&format!("{name}.kvmprof"));
        let functions = functions_of_modules(&contents.symbols);
        let is_in_kvm = |address: &u64| {
            let function = functions.range(..=*address).next_back();
            function.is_some_and(|(_, function)| {
                function.ends_with(" [kvm]") || function.ends_with(" [kvm_amd]")
            })
        };
        let mut through_kvm = 0;
        for (sample, frames) in &samples {
            let is_in_kernel = matches!(sample.mode, Mode::Kernel | Mode::Interrupt);
            assert!(!is_in_kernel || sample.pc >= KERNEL, "{name}: {sample:x?}");
            if ![vmm, -1].contains(&sample.pid) {
                continue;
            }
            let of_nested = frames
                .iter()
                .chain([&sample.pc])
                .find_map(|address| kvmprof_demo_guest::function_at(*address));
            assert_eq!(of_nested, None, "{name}: {sample:x?} {frames:x?}");
            through_kvm += usize::from(frames.iter().any(is_in_kvm));
        }
        // The attached guest's kernel functions for its guest are like those for other work.
        println!("{name}: {through_kvm} stacks of the VMM lead through the attached guest's KVM");
        assert!(through_kvm > 0, "{name}");
    }
}

/// On the same vCPU, alternating with the nested guest.
#[test]
fn the_guests_own_program_keeps_its_pid_and_its_stacks() {
    let run = run();
    let one = run.pid("qemu", "one");
    for name in RECORDINGS {
        let (_, samples) = run.recording(&format!("{name}.kvmprof"));
        let first = samples.iter().position(|(sample, _)| is_nested(sample));
        let beside_nested = of_program(&samples[first.unwrap()..], ONE);
        check_pids(name, &beside_nested, one, 50, 99);
        check_whole_stacks(name, "one", beside_nested);
    }
}

#[test]
fn a_guest_with_a_nested_guest_has_not_rebooted() {
    let run = run();
    let console = run.console("qemu");
    println!("{}", console.text());
    assert!(!console.after("nested guest says ").is_empty());
    for name in RECORDINGS {
        let account = run.attached(name).0.account;
        let said = run.text(&format!("{name}.attach"));
        assert!(!said.contains("has rebooted"), "{name}: {said}");
        print_losses(name, account.ticks, account.stolen, account.lost);
    }
    assert_eq!(run.status("qemu"), 0, "{}", run.text("qemu.stderr"));
}
