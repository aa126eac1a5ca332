//! `--host-stacks`: the functions of the host's kernel and the VMM for a vCPU are below the guest's stack, by name.

use std::process::Command;

use kvmprof_recording::Sample;
use kvmprof_tests::Capability::{self, Bpf, Perfmon};
use kvmprof_tests::{
    Boot, Guest, HostFrame, as_root_with, host_stacks, is_kernel_clock_for_demo, is_perfmon_enough,
    kvmprof, on_kvm, recorded_with_frames, run_command,
};

/// Number of stacks of the host.
const ENOUGH: usize = 200;
/// The module of frames that aren't functions.
const NONE: &str = "[host]";

/// Stacks lead from the host's kernel or from kvmprof to the start of a thread of kvmprof.
fn check(stacks: &[Vec<HostFrame>]) {
    let (mut whole, mut of_kvm) = (0, 0);
    for stack in stacks {
        let is_own = |(_, module): &HostFrame| module == "[host:kvmprof]";
        let first = stack.iter().position(is_own).unwrap_or(stack.len());
        let (kernel, vmm) = stack.split_at(first);
        let is_kernels = |(name, module): &HostFrame| {
            module == NONE || module.starts_with("[host:") || panic!("{name} {module}")
        };
        assert!(kernel.iter().all(is_kernels));
        // After the VMM's own frames there is only a truncation mark, if any.
        assert!(
            vmm.iter().all(|frame| is_own(frame) || frame.1 == NONE),
            "{stack:?}"
        );
        whole += usize::from(stack.last().is_some_and(is_own));
        of_kvm += usize::from(kernel.iter().any(|(name, _)| name == "kvm_vcpu_ioctl"));
    }
    println!(
        "{} stacks of the host, {whole} whole, {of_kvm} in KVM",
        stacks.len()
    );
    // Some code has no unwind information.
    assert!(whole * 10 >= stacks.len() * 9, "{:?}", stacks.last());
    // A running guest makes exits: the VMM's other work for it takes less.
    assert!(of_kvm * 2 > stacks.len());
}

#[test]
fn kvmprofs_own_guest_has_host_stacks_of_kvmprof() {
    on_kvm(|| {
        if !is_kernel_clock_for_demo() {
            return;
        }
        let options = ["--clock", "kernel", "--hz", "1000", "--host-stacks"];
        let guest = Guest::start(Boot::Demo, options);
        let path = guest.folder().join("recording");
        let arguments = ["--output", path.to_str().unwrap()];
        let mut stacks = Vec::new();
        // The number of ticks with a sample depends on the host.
        while stacks.len() < ENOUGH {
            let ran = guest.record(2000, &arguments);
            assert_eq!(ran.status, 0, "{ran:?}");
            let (samples, contents) = recorded_with_frames(&path);
            let has_host = |sample: &Sample| sample.stack.host > 0;
            // The guest's own programs run without KVM.
            let in_guest = samples.iter().filter(|(sample, _)| !has_host(sample));
            assert!(in_guest.count() * 10 > samples.len(), "{}", samples.len());
            stacks.extend(host_stacks(&samples, &contents));
            std::fs::remove_file(&path).unwrap();
        }
        check(&stacks);
        guest.stop();
    });
}

#[test]
fn missing_rights_for_host_stacks_are_named() {
    on_kvm(|| {
        if !is_kernel_clock_for_demo() || !is_perfmon_enough() {
            return;
        }
        let demo = |options: &[&str], kept: Option<&'static [Capability]>| {
            let mut command = Command::new(kvmprof());
            command.args(["demo", "--seconds", "1", "--json", "--host-stacks"]);
            command.args(options);
            if let Some(kept) = kept {
                as_root_with(&mut command, kept);
            }
            run_command(&mut command)
        };
        demo(&[], None).assert_refused(2, &["--host-stacks needs --clock kernel"]);
        let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap();
        let is_open = paranoid.trim().parse::<i32>().unwrap() <= 1;
        let ran = demo(&["--clock", "kernel"], Some(&[Bpf, Perfmon]));
        // With the rights to use perf, the addresses are shown, too.
        if is_open {
            println!(
                "the host's kernel tells everybody its addresses: {}",
                ran.status
            );
        } else {
            ran.assert_refused(1, &["CAP_SYSLOG", "kernel.kptr_restrict"]);
        }
    });
}
