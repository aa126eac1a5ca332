//! From the first instruction to the guest's first process.

use kvmprof_tests::linux::pcs_kind;

use super::{Run, debian, kernel_knowledge};

/// The start of the kernel's own mapping (Linux, `Documentation/arch/x86/x86_64/mm.rst`).
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;

/// The decompressor, whose task is unknown; the kernel on its own; its first process.
pub fn boot_has_its_phases_in_order(run: &Run) {
    let stream = run.stream("boot");
    let first = stream.samples.first().expect("samples");
    assert_eq!(
        (first.kind, first.pid),
        (pcs_kind::KERNEL, -1),
        "{first:x?}"
    );
    assert!(
        first.pc < KERNEL_MAP,
        "the kernel unpacks itself: {first:x?}"
    );
    let boot = || {
        stream
            .samples
            .iter()
            .take_while(|sample| sample.kind != pcs_kind::USER)
    };
    let unpacking = boot().take_while(|sample| sample.pid == -1).count();
    let alone = boot()
        .skip(unpacking)
        .take_while(|sample| sample.pid == 0)
        .count();
    assert!(
        unpacking > 0 && alone > 0,
        "{unpacking} samples without a task, {alone} of pid 0"
    );
    // Once the boot CPU's task is known it stays known.
    let forgotten = stream
        .samples
        .iter()
        .filter(|sample| sample.cpu == 0)
        .skip(unpacking);
    assert_eq!(forgotten.filter(|sample| sample.pid == -1).count(), 0);
    let idle_pid = stream
        .of_kind(pcs_kind::USER)
        .filter(|sample| sample.pid <= 0)
        .count();
    assert_eq!(idle_pid, 0, "user mode without a process");
}

/// No pid that the guest never used.
pub fn boot_has_only_pids_that_were_given(run: &Run) {
    let stream = run.stream("boot");
    let listed = run.console.ps();
    let last = run.console.accounts("boot").last_pid;
    for sample in stream.samples.iter().filter(|sample| sample.pid > 0) {
        assert!(sample.pid <= last, "the last pid was {last}: {sample:x?}");
        let name = stream
            .names
            .get(&sample.pid)
            .unwrap_or_else(|| panic!("no name: {sample:x?}"));
        assert!(!name.is_empty(), "{sample:x?}");
        // /proc adds the work queue to a kernel worker's name. A process that was last sampled
        // before its exec(2) has its shell's name, and a busybox applet takes its own name late.
        if let Some((_, comm)) = listed.get(&sample.pid) {
            // A thread of the kernel starts with the name of the one that made it.
            let early = ["init", "exe", "swapper/0", "kthreadd"].contains(&name.as_str());
            let same = comm.starts_with(name.as_str()) || early || comm == "exe";
            assert!(same, "ps says {comm:?}, we say {name:?}");
        }
    }
    let first = stream.names.get(&1).map(String::as_str);
    assert!(matches!(first, Some("init" | "swapper/0")), "{first:?}");
    let idle = stream.names.get(&0).map(String::as_str);
    assert!(
        idle.is_some_and(|name| name.starts_with("swapper/")),
        "{idle:?}"
    );
}

/// The kernel's program counters are in its functions, after subtracting the slide.
pub fn boot_is_in_the_kernels_functions(run: &Run) {
    let stream = run.stream("boot");
    let knowledge = kernel_knowledge(&debian(run.case.series));
    let symbols = knowledge.linux().unwrap().symbols();
    let address = |name| {
        symbols
            .address_of(name)
            .unwrap_or_else(|| panic!("no symbol {name}"))
    };
    let text = address("_text")..address("_etext");
    let init = address("_sinittext")..address("_einittext");
    let slide = run.slide();
    assert!(
        slide < 1 << 30 && slide.is_multiple_of(2 << 20),
        "{slide:#x}"
    );
    let kernel: Vec<_> = stream
        .kernel()
        .filter(|sample| sample.pc >= KERNEL_MAP)
        .collect();
    let resolved = kernel.iter().filter(|sample| {
        let linked = sample.pc.wrapping_sub(slide);
        (text.contains(&linked) || init.contains(&linked)) && symbols.function_at(linked).is_some()
    });
    let resolved = resolved.count() as u64;
    // Generated code has no symbol; one sample of it must not decide the result of a short boot.
    let all = kernel.len() as u64;
    assert!(resolved + 2 + all / 100 >= all, "{resolved} of {all}");
}
