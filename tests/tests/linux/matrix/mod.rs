//! Debian's kernels, with one and two vCPUs, with and without KPTI, from their first instruction
//! to their power-off. KASLR is on.

mod boot;
mod group;
mod work;

use std::ops::Range;

use kvmprof_recording::{ClockLedger, Mode, StackEnd};
use kvmprof_tests::linux::{
    Console, Finished, Program, Scenario, Stream, debian, guest_init, guest_program,
    kernel_knowledge, once,
};
use serde_json::Value;

use boot::{
    boot_has_its_phases_in_order, boot_has_only_pids_that_were_given,
    boot_is_in_the_kernels_functions,
};
use group::the_members_of_a_group_are_sampled;
use work::{
    samples_in_each_program_are_of_its_process, samples_of_threads_are_of_one_process,
    work_has_no_sample_of_a_sleeper, work_has_the_guests_idle_time, work_has_the_guests_shares,
    work_has_the_processes_of_ps,
};

const DRIVER: &str = include_str!("driver.sh");
const INIT: &str = include_str!("init.sh");

/// Where the programs of the guest are linked to.
const HOG_ONE: u64 = 0x1000_0000;
const HOG_TWO: u64 = 0x2000_0000;
const BRIEF: u64 = 0x3000_0000;
const THREADS: u64 = 0x4000_0000;
const FIRST_THREAD: Range<u64> = 0x5000_0000..0x5000_1000;
const SECOND_THREAD: Range<u64> = 0x6000_0000..0x6000_1000;

/// A guest of the matrix.
struct Case {
    /// For its folder.
    name: &'static str,
    series: &'static str,
    cpus: u16,
    command_line: &'static str,
    options: &'static str,
}

/// Its results.
struct Run {
    case: Case,
    finished: Finished,
    console: Console,
    hog_one: Program,
    hog_two: Program,
    brief: Program,
}

fn run(case: Case) -> Run {
    let kernel = debian(case.series);
    let hog_one = guest_program("spin.c", HOG_ONE, &[]);
    let hog_two = guest_program("spin.c", HOG_TWO, &[]);
    let brief = guest_program("brief.c", BRIEF, &[]);
    let sections = [
        format!("-Wl,--section-start=.spin_first={:#x}", FIRST_THREAD.start),
        format!(
            "-Wl,--section-start=.spin_second={:#x}",
            SECOND_THREAD.start
        ),
    ];
    let threads = guest_program(
        "threads.c",
        THREADS,
        &sections.each_ref().map(String::as_str),
    );
    let programs = [
        ("hog_one", &hog_one),
        ("hog_two", &hog_two),
        ("brief", &brief),
        ("threads", &threads),
    ];
    let script = format!(
        "cpus={} cmdline='{}' options='{}'\n{DRIVER}",
        case.cpus, case.command_line, case.options
    );
    let finished = once(&format!("matrix-{}", case.name), || {
        Scenario::new()
            .kernel("vmlinuz", &kernel)
            .file("guest.cpio", guest_init(INIT, &programs))
            .run(&script)
    });
    let console = finished.console("guest");
    Run {
        case,
        finished,
        console,
        hog_one,
        hog_two,
        brief,
    }
}

impl Run {
    fn stream(&self, name: &str) -> Stream {
        let stream = self.finished.stream(&format!("guest.{name}"));
        stream.check_accounts();
        self.check_report(name, &stream);
        stream
    }

    /// pcstat reads the stream as this test does.
    fn check_report(&self, name: &str, stream: &Stream) {
        let report = self.finished.json(&format!("guest.{name}.json"));
        assert_eq!(report["problems"], Value::Array(Vec::new()));
        assert_eq!(report["ledger"]["ticks"], stream.pstat.status.ledger.ticks);
        for (kind, word) in [(1, "KERNEL"), (2, "USER"), (3, "IDLE"), (9, "KERNELI")] {
            assert_eq!(report["types"][word], stream.ticks(kind, None), "{word}");
        }
    }

    /// The status at the end of a stream; every account in it balances.
    fn check_status(&self, name: &str) {
        let status = self
            .finished
            .status_document(&format!("guest.{name}.status"));
        let clock = status.clock;
        assert_eq!(clock.vcpus.len(), usize::from(self.case.cpus));
        for ledger in clock.vcpus.iter().chain([&clock.ledger]) {
            assert!(ledger.balances(), "{ledger:?}");
        }
        let sum: ClockLedger = clock.vcpus.iter().copied().sum();
        assert_eq!(clock.ledger, sum);
        assert!(!clock.running, "there is no client any more");
    }

    /// The kernel's slide in the status.
    fn slide(&self) -> u64 {
        let (release, slide) = self.finished.placement("guest.boot.status");
        assert_eq!(release, debian(self.case.series).version);
        slide.unwrap()
    }
}

/// It has powered itself off, and the last client saw the end of the machine.
fn the_machine_ends_without_errors(run: &Run) {
    assert_eq!(
        run.finished.status("guest"),
        0,
        "{}",
        run.finished.text("guest.stderr")
    );
    let end = run.stream("end");
    assert!(end.pstat.status.ledger.ticks > 0);
}

/// The accounts in the status at the end of each stream balance. After the guest's end there is no status.
fn accounts_balance(run: &Run) {
    for stream in ["boot", "work", "group"] {
        run.check_status(stream);
    }
}

/// The clock has the requested source, once processes run.
fn the_clock_has_the_requested_source(run: &Run) {
    let working = run.finished.status_document("guest.work.working");
    let options: Vec<&str> = run.case.options.split(' ').collect();
    let asked = match options[..] {
        ["--clock", source] => source,
        _ => "thread",
    };
    assert_eq!(working.clock.source, asked);
}

const LINUX_6_1_WITH_ONE_VCPU: Case = Case {
    name: "6.1-1",
    series: "6.1",
    cpus: 1,
    command_line: "",
    options: "",
};

const LINUX_6_1_WITH_TWO_VCPUS_AND_KPTI: Case = Case {
    name: "6.1-2",
    series: "6.1",
    cpus: 2,
    command_line: "pti=on",
    options: "--jitter",
};

/// The host kernel's records have neither the process group nor the guest's start: exits are used there.
const LINUX_6_12_BY_THE_HOSTS_KERNEL: Case = Case {
    name: "6.12-kernel",
    series: "6.12",
    cpus: 2,
    command_line: "pti=on",
    options: "--clock kernel",
};

const LINUX_6_12_WITH_ONE_VCPU_AND_KPTI: Case = Case {
    name: "6.12-1",
    series: "6.12",
    cpus: 1,
    command_line: "pti=on",
    options: "--jitter",
};

kvmprof_tests::in_each_kernel! {
    of {
        in_linux_6_1_with_one_vcpu(super::LINUX_6_1_WITH_ONE_VCPU)
        in_linux_6_1_with_two_vcpus_and_kpti(super::LINUX_6_1_WITH_TWO_VCPUS_AND_KPTI)
        in_linux_6_12_with_one_vcpu_and_kpti(super::LINUX_6_12_WITH_ONE_VCPU_AND_KPTI)
        in_linux_6_12_by_the_hosts_kernel(super::LINUX_6_12_BY_THE_HOSTS_KERNEL)
    }
    accounts_balance
    boot_has_its_phases_in_order
    boot_has_only_pids_that_were_given
    boot_is_in_the_kernels_functions
    the_clock_has_the_requested_source
    the_machine_ends_without_errors
    the_members_of_a_group_are_sampled
    work_has_the_guests_idle_time
    work_has_the_guests_shares
    work_has_the_processes_of_ps
    work_has_no_sample_of_a_sleeper
    samples_in_each_program_are_of_its_process
    samples_of_threads_are_of_one_process
}

/// The host kernel's copies of stacks, taken while the guest ran on, lead to their outermost frames.
#[test]
fn recordings_by_the_hosts_kernel_have_whole_stacks() {
    let run = run(LINUX_6_12_BY_THE_HOSTS_KERNEL);
    let (contents, samples) = run.finished.recording("stacks.kvmprof");
    assert_eq!(contents.info.clock, "kernel");
    let ends = |mode: Mode| {
        let of_mode = samples.iter().filter(|(sample, _)| sample.mode == mode);
        let ends = of_mode.map(|(sample, _)| sample.stack.kernel_end);
        let whole = |end: &StackEnd| *end == StackEnd::Complete;
        let all: Vec<StackEnd> = ends.collect();
        (all.iter().copied().filter(whole).count(), all.len())
    };
    let (whole, all) = ends(Mode::Kernel);
    println!("{whole} of {all} kernel stacks are whole");
    assert!(all >= 100 && whole * 100 >= all * 90);
    let user = samples
        .iter()
        .filter(|(sample, _)| sample.mode == Mode::User);
    let named = user.clone().filter(|(sample, _)| sample.pid > 0).count();
    let user = user.count();
    println!("{named} of {user} user samples have a process");
    assert!(user >= 50 && named * 100 >= user * 99);
}
