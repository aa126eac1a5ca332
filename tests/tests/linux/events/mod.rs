//! Which code of a Debian kernel makes a guest exit. KASLR is on. One kernel stands for all: nothing of it depends on the
//! kernel's version.
//!
//! A process writes to the log, which goes out by the serial port; another one uses most of the time without an exit.

use kvmprof_recording::file::Contents;
use kvmprof_recording::{Sample, StackEnd};
use kvmprof_report::profile::Symbols;
use kvmprof_tests::linux::{Finished, Scenario, debian, guest_init, once};
use kvmprof_tests::share;

const SUCCESS: u8 = 0;

/// A sample, and the names of its frames in the kernel, innermost first.
struct Seen {
    sample: Sample,
    frames: Vec<String>,
}

impl Seen {
    fn has(&self, function: &str) -> bool {
        self.frames.iter().any(|frame| frame == function)
    }

    /// The innermost one; empty in user mode.
    fn innermost(&self) -> &str {
        self.frames.first().map_or("", String::as_str)
    }

    /// As `has`, also for a part of the function that the compiler has moved elsewhere (`.cold`).
    fn has_one_like(&self, function: &str) -> bool {
        self.frames.iter().any(|frame| frame.starts_with(function))
    }

    fn is_of(&self, name: &str) -> bool {
        self.sample.comm.starts_with(name.as_bytes())
    }

    /// Whether it is in the loop that writes a message to the serial port.
    fn is_message(&self) -> bool {
        self.has("serial8250_console_write")
    }
}

fn run() -> Finished {
    once("events", || {
        Scenario::new()
            .unpacked_kernel("vmlinuz", &debian("6.12"))
            .file("guest.cpio", guest_init(include_str!("init.sh"), &[]))
            .run(include_str!("driver.sh"))
    })
}

fn read(run: &Finished, name: &str) -> (Contents, Vec<Seen>) {
    let (contents, samples) = run.recording(name);
    assert_eq!(contents.closed, Some(contents.account));
    assert!(contents.account.balances());
    let kernel = Symbols::parse(&contents.symbols);
    let seen = samples.into_iter().map(|(sample, frames)| Seen {
        frames: frames[..usize::from(sample.stack.kernel)]
            .iter()
            .map(|frame| kernel.find(*frame).unwrap_or("?").to_owned())
            .collect(),
        sample,
    });
    let seen = seen.collect();
    (contents, seen)
}

/// The part of `seen` that is `good`, of which a few that aren't are printed.
fn part(what: &str, seen: &[&Seen], good: impl Fn(&Seen) -> bool) -> f64 {
    let bad: Vec<_> = seen.iter().filter(|seen| !good(seen)).collect();
    println!("{what}: {} of {}", seen.len() - bad.len(), seen.len());
    for seen in bad.iter().take(8) {
        println!("  {:?} {:?}", seen.sample, seen.frames);
    }
    assert!(seen.len() >= 100, "{what}: only {} samples", seen.len());
    share((seen.len() - bad.len()) as u64, seen.len() as u64)
}

/// The messages go out byte by byte: each byte waits by reads of a port, and is written to one.
#[test]
fn exits_are_in_the_code_that_makes_them() {
    let run = &run();
    assert_eq!(run.status("guest"), SUCCESS, "{}", run.text("guest.stderr"));
    println!("{}", run.text("guest.report"));
    let status = run.status_document("guest.status.json");
    assert_eq!(status.clock.event.as_deref(), Some("exits:3"));
    let (contents, seen) = read(run, "guest.kvmprof");
    assert_eq!(contents.account.idle + contents.account.stolen, 0);
    let messages: Vec<&Seen> = seen.iter().filter(|seen| seen.is_message()).collect();
    let at = part("at port I/O", &messages, |seen| {
        ["io_serial_in", "io_serial_out"].contains(&seen.frames[0].as_str())
    });
    assert!(at >= 0.95, "{at}");
    let whole = part("whole stacks", &messages, |seen| {
        seen.sample.stack.kernel_end == StackEnd::Complete
    });
    assert!(whole >= 0.95, "{whole}");
}

/// By exits the one who writes to the log is seen, by time the other one.
#[test]
fn exits_are_of_the_process_that_has_the_kernel_make_them() {
    let run = &run();
    let (_, seen) = read(run, "guest.kvmprof");
    let messages: Vec<&Seen> = seen.iter().filter(|seen| seen.is_message()).collect();
    let of_writer = part("of init", &messages, |seen| {
        seen.is_of("init") && seen.has_one_like("devkmsg_write")
    });
    assert!(of_writer >= 0.9, "{of_writer}");
    assert!(
        !seen
            .iter()
            .any(|seen| seen.is_of("dd") && seen.has("vfs_read"))
    );
    let (by_clock, timed) = read(run, "clock.kvmprof");
    assert_eq!(by_clock.info.event, None);
    assert!(timed.iter().any(|seen| seen.is_of("dd")));
}

#[test]
fn port_reads_are_at_reads_of_ports() {
    let run = &run();
    let (contents, seen) = read(run, "reads.kvmprof");
    assert_eq!(contents.info.event, Some("port-read:1".parse().unwrap()));
    let all: Vec<&Seen> = seen.iter().collect();
    let at = part("at reads", &all, |seen| seen.frames[0] == "io_serial_in");
    assert!(at >= 0.95, "{at}");
}

/// Exits that KVM answers itself are seen too: those to kvmprof are only a part of all.
#[test]
fn exits_to_kvm_are_more_than_those_to_kvmprof() {
    let run = &run();
    let (contents, seen) = read(run, "all.kvmprof");
    assert_eq!(contents.info.event, Some("kvm-exits:3".parse().unwrap()));
    assert_eq!(contents.account.idle + contents.account.stolen, 0);
    let ports = |seen: &&Seen| ["io_serial_in", "io_serial_out"].contains(&seen.innermost());
    let at_ports: Vec<&Seen> = seen.iter().filter(ports).collect();
    assert!(!at_ports.is_empty() && at_ports.len() < seen.len());
    let of_writer = part("of init", &at_ports, |seen| seen.is_of("init"));
    assert!(of_writer >= 0.9, "{of_writer}");
}

/// The one who uses the processor has the time, and the one who waits for its port has some, too.
#[test]
fn guest_time_is_of_who_runs() {
    let run = &run();
    let (contents, seen) = read(run, "time.kvmprof");
    assert_eq!(
        contents.info.event,
        Some("guest-time:10ms".parse().unwrap())
    );
    assert_eq!(contents.account.idle + contents.account.stolen, 0);
    let all: Vec<&Seen> = seen.iter().collect();
    let of_both = part("of dd and init", &all, |seen| {
        seen.is_of("dd") || seen.is_of("init")
    });
    assert!(of_both >= 0.9, "{of_both}");
    assert!(all.iter().any(|seen| seen.is_of("dd")));
}
