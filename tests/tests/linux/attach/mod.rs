//! Running guests of other VMMs, attached to: kvmprof's own in another process, and QEMU's. Their kernels are found in their memory only. KASLR is
//! on.

mod kexec;
mod nested;
mod often;
mod perf;
mod programs;
mod slots;
mod vmms;

use std::collections::BTreeSet;
use std::ops::Range;

use kvmprof_recording::file::{Contents, Mapping, Recording, Unobserved};
use kvmprof_recording::processes::GuestProcessList;
use kvmprof_recording::{Mode, Sample, StackEnd};
use kvmprof_tests::linux::{
    Finished, Scenario, debian, guest_builder, guest_program, kernel_knowledge, once,
    unexpected_gaps,
};
use kvmprof_tests::{HostFrame, host_stacks, not_run, share, standard_error};

use crate::named::{NamedSample, read};

/// How scripts start QEMU's guests, and attach to guests.
pub const COMMON: &str = include_str!("common.sh");

/// A guest: its name, how many vCPUs it has, and its memory in bytes.
type Guest = (&'static str, usize, u64);

/// The guests. The last one has memory on both sides of the 32-bit gap, and page tables of their own for user mode.
const GUESTS: [Guest; 3] = [
    ("qemu", 2, 512 << 20),
    ("own", 2, 512 << 20),
    ("memfd", 1, 4608 << 20),
];
pub const ONE: u64 = 0x1000_0000;
const TWO: u64 = 0x2000_0000;
const SOMETIMES: u64 = 0x3000_0000;

/// Minimum number of samples of a process that shares the processors with others: how many of them it gets is up to the guest's scheduler.
const LEAST: usize = 10;

kvmprof_tests::in_each_kernel! {
    described or not:
    a_halted_guest_stays_halted
    guests_are_listed_with_their_vcpus_and_memory
    looks_at_tasks_have_all_of_them
    guests_continue_and_their_end_is_noticed
    kernel_stacks_are_whole
    host_stacks_are_below_the_guests_stacks
    user_stacks_are_whole
    the_kernels_functions_are_those_of_its_file
    user_samples_name_their_process
    the_guests_processes_are_listed
}

// The clock of a kernel that doesn't describe itself isn't known: that it doesn't run any more is seen by its vCPUs alone.
kvmprof_tests::in_each_kernel! {
    described:
    a_kernel_is_known_again_after_a_reboot
}

// A kernel that is moved by KASLR, of which all that is known is read out of its code in its memory. dd reads a module's disk in it.
kvmprof_tests::in_each_kernel! {
    of { in_an_undescribed_linux_6_12("6.12", false) }
    a_moved_kernel_is_known_by_its_code
    kernel_stacks_lead_through_modules
}

/// The guests with that series of kernels: all of them with one that only the profile `all` runs, for they take minutes.
fn guests(series: &str, is_described: bool) -> &'static [Guest] {
    if series == "6.1" && is_described {
        &GUESTS
    } else {
        &GUESTS[..1]
    }
}

/// The results of guests with that series of kernels.
struct Run {
    finished: Finished,
    series: String,
    is_described: bool,
}

fn run(series: &str, is_described: bool) -> Run {
    let finished = once(&format!("attach-{series}-{is_described}"), || {
        let one = guest_program("spin.c", ONE, &[]);
        let two = guest_program("spin.c", TWO, &[]);
        let sometimes = guest_program("brief.c", SOMETIMES, &[]);
        let programs = [("one", &one), ("two", &two), ("sometimes", &sometimes)];
        let names = guests(series, is_described).iter().map(|(name, ..)| *name);
        let names: Vec<&str> = names.collect();
        let kernel = debian(series);
        let mut guest = guest_builder(include_str!("init.sh"), &programs);
        if series == "6.12" && !is_described {
            guest = guest.modules(&kernel, &["brd"]);
        }
        Scenario::new()
            .memory(8192)
            .file("guests", names.join(" ").into_bytes())
            .kernel_described_or_not("vmlinuz", &kernel, is_described)
            .file("guest.cpio", guest.build().unwrap())
            .qemu()
            .run(&format!("{COMMON}\n{}", include_str!("driver.sh")))
    });
    Run {
        finished,
        series: series.to_owned(),
        is_described,
    }
}

impl Run {
    fn guests(&self) -> impl Iterator<Item = Guest> + Clone {
        guests(&self.series, self.is_described).iter().copied()
    }

    /// A recording of an attached guest.
    fn recording(&self, name: &str) -> (Contents, Vec<(Sample, Vec<u64>)>) {
        self.finished.attached(name)
    }

    /// The messages of kvmprof attach.
    fn said(&self, name: &str) -> String {
        self.finished.text(&format!("{name}.attach"))
    }
}

/// The samples in user mode of the program that is linked to `start`.
pub fn of_program(samples: &[(Sample, Vec<u64>)], start: u64) -> Vec<&Sample> {
    let text = start..start + 0x100_0000;
    let samples = samples.iter().map(|(sample, _)| sample);
    let of_program = samples.filter(|one| one.mode == Mode::User && text.contains(&one.pc));
    of_program.collect()
}

/// Checks that `pid` is the process of `percent` of these samples, and of all others than a few that have none.
pub fn check_pids(what: &str, samples: &[&Sample], pid: i32, least: usize, percent: usize) {
    let all = samples.len();
    let known = samples.iter().filter(|sample| sample.pid != -1).count();
    let right = samples.iter().filter(|sample| sample.pid == pid).count();
    println!("{what}: of {all} samples {known} have a pid, {right} have {pid}");
    assert!(all >= least && right * 100 >= all * percent, "{what}");
    assert!(right * 100 >= known * 99, "{what}");
}

fn guests_are_listed_with_their_vcpus_and_memory(run: &Run) {
    for (guest, vcpus, memory) in run.guests() {
        let named = run.finished.text(&format!("{guest}.named"));
        println!("{guest}: until the first sample and the kernel's names {named}");
        let list = format!("{guest}.list.json");
        let machine = run.finished.listed(&list, "attachable", true);
        let name = (guest != "own").then_some(guest);
        assert_eq!(machine["name"].as_str(), name);
        let all = machine["vcpus"].as_array().unwrap();
        assert_eq!(all.len(), vcpus);
        assert!(all.iter().all(|vcpu| vcpu["thread"].is_number()));
        // Firmware is memory, too.
        let bytes = machine["memory_bytes"].as_u64().unwrap();
        assert!((memory..memory + (16 << 20)).contains(&bytes), "{machine}");
    }
}

/// The recordings of busy guests, by ptrace and by the host's kernel: the guest and the recording's name.
fn captures(run: &Run) -> impl Iterator<Item = (&'static str, String)> {
    run.guests().flat_map(|(guest, ..)| {
        [guest.to_owned(), format!("{guest}.kernel")].map(|name| (guest, name))
    })
}

/// A program counter identifies its program by the link addresses.
fn user_samples_name_their_process(run: &Run) {
    let mut brief_samples = 0;
    for (guest, name) in captures(run) {
        let (_, samples) = run.recording(&name);
        for (program, start) in [("one", ONE), ("two", TWO)] {
            let pid = run.finished.pid(guest, program);
            check_pids(&name, &of_program(&samples, start), pid, LEAST, 99);
        }
        let brief = SOMETIMES..SOMETIMES + 0x100_0000;
        let known = samples
            .iter()
            .filter(|(sample, _)| brief.contains(&sample.pc));
        let (known, all) = (
            known.clone().filter(|(one, _)| one.pid > 0).count(),
            known.count(),
        );
        println!("{name}: {known} of {all} of the part-time process have a pid");
        // The host's kernel doesn't wait for absent memory.
        let least = if name == guest { 100 } else { 99 };
        assert!(known * 100 >= all * least);
        brief_samples += all;
    }
    assert!(brief_samples > 0);
}

fn the_guests_processes_are_listed(run: &Run) {
    for (guest, ..) in run.guests() {
        let document = run.finished.json(&format!("{guest}.processes.json"));
        let list: GuestProcessList = serde_json::from_value(document).unwrap();
        let with_pid = |pid| {
            let mut processes = list.processes.iter();
            processes.find(|process| process.pid == pid)
        };
        let init = with_pid(1).unwrap();
        assert_eq!((init.name.as_str(), init.parent), ("init", 0));
        for program in ["one", "two", "dd"] {
            let pid = run.finished.pid(guest, program);
            let process = with_pid(pid).unwrap_or_else(|| panic!("{program}: {list:?}"));
            assert_eq!((process.name.as_str(), process.parent), (program, 1));
        }
    }
}

/// Checks that 95 percent of stacks are whole, as far as a sample of so many says it: those of context switches are cut short, and those of modules until they are read.
fn check_whole(whole: usize, all: usize) {
    let (whole, all) = (whole as u64, all as u64);
    assert!(share(whole, all) >= 0.95 - 4.0 * standard_error(0.95, all));
}

fn kernel_stacks_are_whole(run: &Run) {
    for (_, name) in captures(run) {
        let (_, samples) = run.recording(&name);
        let kernel = samples
            .iter()
            .filter(|(sample, _)| sample.mode == Mode::Kernel);
        let ends: Vec<StackEnd> = kernel.map(|(sample, _)| sample.stack.kernel_end).collect();
        let whole = ends
            .iter()
            .filter(|end| **end == StackEnd::Complete)
            .count();
        println!("{name}: {whole} of {} kernel stacks are whole", ends.len());
        assert!(ends.len() >= 30);
        check_whole(whole, ends.len());
    }
}

/// Recordings of `--capture kernel` have them, by `--host-stacks`. KVM is a module of the host's kernel.
fn host_stacks_are_below_the_guests_stacks(run: &Run) {
    for (guest, ..) in run.guests() {
        let (contents, samples) = run.recording(&format!("{guest}.kernel"));
        let stacks = host_stacks(&samples, &contents);
        let program = match guest {
            "own" => "[host:kvmprof]",
            _ => "[host:qemu-system-x86_64]",
        };
        let has = |module: &str| {
            let with = |stack: &&Vec<HostFrame>| stack.iter().any(|frame| frame.1 == module);
            stacks.iter().filter(with).count()
        };
        let (of_kvm, of_vmm, cut_short) = (has("[host:kvm]"), has(program), has("[host]"));
        println!(
            "{guest}: {} of {} samples have stacks of the host, {of_kvm} in KVM, {of_vmm} in the VMM, {cut_short} are cut short; {:?}",
            stacks.len(),
            samples.len(),
            stacks
                .iter()
                .find(|stack| stack.iter().any(|frame| frame.1 == "[host:kvm]"))
        );
        // Ticks in exits are a few percent. Each of their stacks reaches the VMM's program, or is marked as truncated.
        assert!(stacks.len() >= 5 && stacks.len() < samples.len());
        let ends = stacks.iter().filter(|stack| {
            let is_of = |frame: &HostFrame| frame.1 == program || frame.1 == "[host]";
            stack.iter().any(is_of)
        });
        assert_eq!(ends.count(), stacks.len());
        assert!(of_kvm * 2 > stacks.len() && cut_short * 2 < stacks.len());
    }
}

/// Checks that the stacks of these samples of a program are complete, from when each vCPU's thread has the program's unwind information, which takes
/// a while.
fn check_whole_stacks(recording: &str, program: &str, mut samples: Vec<&Sample>) {
    let is_whole = |sample: &Sample| sample.stack.user_end == StackEnd::Complete;
    let mut informed = BTreeSet::new();
    samples.retain(|sample| {
        if is_whole(sample) {
            informed.insert(sample.vcpu);
        }
        informed.contains(&sample.vcpu)
    });
    let whole = samples.iter().filter(|sample| is_whole(sample)).count();
    let all = samples.len();
    println!("{recording}: {whole} of {all} user stacks of {program} are whole");
    // On a busy host, the time of the recording may be over by then.
    if all < LEAST {
        not_run(&format!("{recording}: only {all} user stacks of {program}"));
    } else {
        check_whole(whole, all);
    }
}

/// Programs that have frame pointers or unwind information, busy in user mode.
fn user_stacks_are_whole(run: &Run) {
    for (guest, name) in captures(run) {
        let (contents, samples) = run.recording(&name);
        for (program, start) in [("one", ONE), ("two", TWO)] {
            let pid = run.finished.pid(guest, program);
            check_whole_stacks(&name, program, of_program(&samples, start));
            let mappings = contents.mappings.iter().filter(|found| found.pid == pid);
            let text = start..start + 0x100_0000;
            let is_programs = |mapping: &Mapping| {
                text.contains(&mapping.begin) && mapping.file.ends_with(&format!("/{program}"))
            };
            let mut code = mappings.flat_map(|found| &found.mappings);
            assert!(code.any(is_programs), "{name}: {:?}", contents.mappings);
        }
    }
}

/// The kernel's address and file weren't given.
fn the_kernels_functions_are_those_of_its_file(run: &Run) {
    let kernel = debian(&run.series);
    let knowledge = kernel_knowledge(&kernel);
    let linux = knowledge.linux().unwrap();
    let mut shares = Vec::new();
    for (guest, recording) in captures(run) {
        let (contents, samples) = run.recording(&recording);
        let found = contents.kernel.as_ref().unwrap();
        assert_eq!(found.release, linux.release(), "{guest}");
        if run.is_described {
            assert_eq!(found.build_id, linux.build_id(), "{guest}");
        }
        for name in ["vfs_read", "do_syscall_64", "schedule", "start_kernel"] {
            let linked = linux.symbols().address_of(name).unwrap();
            let line = format!("{:016x} ", linked.wrapping_add(found.slide));
            let here = contents
                .symbols
                .lines()
                .find(|line| line.ends_with(&format!(" {name}")));
            assert!(
                here.is_some_and(|here| here.starts_with(&line)),
                "{guest} {name}: {here:?}"
            );
        }
        let function = |address: &u64| {
            let linked = address.wrapping_sub(found.slide);
            linux.symbols().function_at(linked).map(|(name, _)| name)
        };
        let image = linux.image();
        let kernel = samples.iter().filter(|(sample, _)| {
            // Modules have files of their own.
            sample.mode == Mode::Kernel && image.contains(&sample.pc.wrapping_sub(found.slide))
        });
        let named = kernel
            .clone()
            .filter(|(sample, _)| function(&sample.pc).is_some());
        let (named, all) = (named.count(), kernel.clone().count());
        // dd reads in the kernel.
        let dd = run.finished.pid(guest, "dd");
        let calls = kernel.filter(|(sample, _)| sample.pid == dd);
        let reading = calls.clone().filter(|(_, frames)| {
            frames
                .iter()
                .any(|frame| function(frame) == Some("vfs_read"))
        });
        let (reading, calls) = (reading.count() as u64, calls.count() as u64);
        println!(
            "{recording}: {named} of {all} kernel samples have names, {reading} of dd's {calls} are of reading"
        );
        assert!(all >= 30 && named * 100 >= all * 95 && reading >= 10);
        shares.push((reading, calls));
    }
    // By ptrace, and by the host's kernel.
    for pair in shares.chunks_exact(2) {
        let [traced, copied] = [pair[0], pair[1]];
        let [one, other] = [traced, copied].map(|(part, all)| share(part, all));
        let error = standard_error(one, traced.1) + standard_error(other, copied.1);
        assert!((one - other).abs() <= 4.0 * error + 0.05, "{one} {other}");
    }
}

fn a_moved_kernel_is_known_by_its_code(run: &Run) {
    for (_, name) in captures(run) {
        let kernel = run.recording(&name).0.kernel.unwrap();
        assert_ne!(kernel.slide, 0, "{name}: {kernel:?}");
        assert_eq!(unexpected_gaps(&kernel.gaps), [] as [&String; 0], "{name}");
    }
}

/// Stacks of dd, which reads a module's disk, are whole, and lead through that module.
fn kernel_stacks_lead_through_modules(run: &Run) {
    for (guest, name) in captures(run) {
        let dd = run.finished.pid(guest, "dd");
        let (_, seen) = read(&run.finished, &format!("{name}.kvmprof"));
        let leads_through = |seen: &&NamedSample| {
            let is_whole = seen.sample.stack.kernel_end == StackEnd::Complete;
            let mut frames = seen.kernel.iter();
            is_whole && seen.sample.pid == dd && frames.any(|frame| frame.module == "[brd]")
        };
        let through = seen.iter().filter(leads_through).count();
        println!("{name}: {through} whole kernel stacks of dd lead through the module");
        assert!(through >= 10, "{name}");
    }
}

/// While a guest is halted its ticks are idle, and most of them cause no wake-up.
fn a_halted_guest_stays_halted(run: &Run) {
    for (guest, ..) in run.guests() {
        let (contents, samples) = run.recording(&format!("{guest}.halted"));
        let account = contents.account;
        let halted = samples
            .iter()
            .filter(|(one, _)| one.mode == Mode::Idle)
            .count() as u64;
        let unseen = account.stolen + account.lost;
        println!(
            "{guest}: {halted} of {} samples are idle, {account:?}",
            samples.len()
        );
        // It includes the end of the guest.
        assert!((halted + account.idle) * 100 >= (account.ticks - unseen) * 70);
        assert!(account.idle > halted, "a halted vCPU isn't woken up");
    }
}

/// A recording continues over a reboot, with the names of the kernel where it is then.
fn a_kernel_is_known_again_after_a_reboot(run: &Run) {
    const KERNEL: Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_c000_0000;
    let kernel = debian(&run.series);
    let knowledge = kernel_knowledge(&kernel);
    let image = knowledge.linux().unwrap().image();
    let ones = run.finished.pids("qemu", "one");
    let [before, after] = ones[..] else {
        panic!("{ones:?}");
    };
    let slide = |contents: &Contents| contents.kernel.as_ref().unwrap().slide;
    let slide_before = slide(&run.recording("qemu").0);
    for name in ["qemu.reboot", "qemu.reboot.kernel"] {
        let (contents, samples) = run.recording(name);
        let said = run.said(name);
        assert!(said.contains("has rebooted"), "{name}: {said}");
        let [reset] = contents.resets.as_slice() else {
            panic!("{name}: {:?}", contents.resets);
        };
        let (old, new) = samples
            .into_iter()
            .partition(|(sample, _)| sample.time < reset.time);
        for (samples, slide, one) in [(old, slide_before, before), (new, slide(&contents), after)] {
            let samples: Vec<(Sample, Vec<u64>)> = samples;
            let elsewhere = samples.iter().map(|(sample, _)| sample).filter(|sample| {
                KERNEL.contains(&sample.pc) && !image.contains(&sample.pc.wrapping_sub(slide))
            });
            let elsewhere = elsewhere.count();
            println!("{name}: slide {slide:#x}, {elsewhere} samples outside of the kernel");
            assert_eq!(elsewhere, 0, "{name}");
            // In an interrupt the host's kernel doesn't wait for an absent page of the VMM: such a sample has no process.
            check_pids(name, &of_program(&samples, ONE), one, LEAST, 79);
        }
    }
}

/// Programs that run all the time are runnable in each look, and most looks are complete.
fn looks_at_tasks_have_all_of_them(run: &Run) {
    for (guest, ..) in run.guests() {
        let recording = format!("{guest}.kvmprof");
        let recording = Recording::open(&run.finished.path(&recording)).unwrap();
        let mut looks = Vec::new();
        let read = recording.looks(&Unobserved, |look| looks.push(look.clone()));
        read.unwrap();
        let complete = looks.iter().filter(|look| look.is_complete).count();
        println!("{guest}: {complete} of {} looks are complete", looks.len());
        assert!(looks.len() >= 10 && complete * 100 >= looks.len() * 90);
        for (pid, state) in [(1, 'S'), (run.finished.pid(guest, "one"), 'R')] {
            let with = looks.iter().filter(|look| {
                let task = look.tasks.iter().find(|task| task.tid == pid);
                task.is_some_and(|task| task.state.letter() == state)
            });
            let with = with.count();
            println!("{guest}: {pid} is {state} in {with}");
            assert!(with * 100 >= complete * 90, "{guest}: {pid}");
        }
    }
}

fn guests_continue_and_their_end_is_noticed(run: &Run) {
    for (guest, ..) in run.guests() {
        for kind in ["", ".kernel", ".halted"] {
            run.recording(&format!("{guest}{kind}"));
        }
        assert!(run.said(&format!("{guest}.halted")).contains("has ended"));
        assert!(run.finished.console(guest).has("halted"));
        let stderr = run.finished.text(&format!("{guest}.stderr"));
        assert_eq!(run.finished.status(guest), 0, "{stderr}");
        let document = |end: &str| run.finished.status_document(&format!("{guest}.{end}"));
        let status = document("json");
        assert_eq!(status.clock.source, "ptrace");
        assert_eq!(document("kernel.json").clock.source, "kernel");
        assert!(!status.machine.linux.unwrap().release.is_empty());
    }
}
