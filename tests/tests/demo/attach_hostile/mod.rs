//! Hostile VMMs, which do at the worst time what a VMM may do: at most, `kvmprof attach` reports wrong data about them.

mod fuse;
mod memory;
mod starved;
mod vcpu_thread;
mod vmm;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use kvmprof_abi::wire::device;
use kvmprof_client::Connection;
use kvmprof_introspection::GuestKnowledge;
use kvmprof_introspection_fixtures::kernel::HOT;
use kvmprof_recording::Sample;
use kvmprof_recording::file::Contents;
use kvmprof_tests::{CAPTURES, Guest, Ran, kvmprof, on_kvm, read_status, recorded, run, until};
use rustix::process::Signal;
use tempfile::TempDir;
use vmm::{Vmm, be_vmm};

/// A status document is some KiB.
const MAX_STATUS: usize = 1 << 20;
/// The pid of the process that the synthetic guest runs.
const PID: i32 = 41;

/// The VMM's process: see `vmm.rs`.
#[test]
fn the_vmm() {
    be_vmm();
}

/// kvmprof, attached to the guest of a VMM and recording.
struct Attachment {
    guest: Guest,
    folder: TempDir,
}

impl Attachment {
    fn start(vmm: &Vmm, capture: &str) -> Self {
        Self::start_with(vmm, capture, &[])
    }

    fn start_with(vmm: &Vmm, capture: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let record = folder.path().join("recording").display().to_string();
        let options = ["--hz", "500", "--capture", capture, "--record", &record];
        let guest = Guest::attach(vmm.pid(), None, options.iter().chain(more));
        Self { guest, folder }
    }

    fn sampled(&self) -> u64 {
        self.guest.status().clock.ledger.sampled
    }

    /// The number of ticks; `None` once it has ended.
    fn ticks(&self) -> Option<u64> {
        let connection = Connection::connect(&self.guest.socket()).ok()?;
        let document = connection.snapshot(device::STATUS, MAX_STATUS).ok()?;
        Some(read_status(document).clock.ledger.ticks)
    }

    fn until_ticks(&self, more: u64) {
        let before = self.ticks().unwrap();
        until("the clock goes on", || {
            (self.ticks() > Some(before + more)).then_some(())
        });
    }

    fn until_sampled(&self, more: u64) {
        let before = self.sampled();
        until("enough is sampled", || {
            (self.sampled() >= before + more).then_some(())
        });
    }

    /// Waits until the recording has so many samples of the synthetic guest's process since the guest's last reset.
    fn until_known(&self, resets: usize, samples: usize) {
        until("the process is known", || {
            let path = self.folder.path().join("recording");
            // It has its name with the first samples.
            let (all, contents) = path.exists().then(|| recorded(&path))?;
            let last = contents.resets.last().map_or(0, |reset| reset.time);
            let known = all.iter().filter(|it| it.time >= last && it.pid == PID);
            (contents.resets.len() == resets && known.count() >= samples).then_some(())
        });
    }

    /// Waits for its end; its recording is complete. Returns its messages, the samples, and what else was recorded.
    fn wait(&mut self) -> (Ran, Vec<Sample>, Contents) {
        let ran = self.guest.wait().without_slow_looks();
        assert_eq!(ran.status, 0, "{ran:?}");
        assert!(!ran.stderr.contains("panicked"), "{ran:?}");
        let (samples, contents) = recorded(&self.folder.path().join("recording"));
        assert_eq!(contents.closed, Some(contents.account));
        (ran, samples, contents)
    }

    /// Ends it.
    fn stop(mut self) -> (Ran, Vec<Sample>, Contents) {
        self.guest.signal(Signal::TERM);
        self.wait()
    }
}

/// A VMM, and a kvmprof attached to its guest that has taken some samples.
fn sampled(capture: &str) -> (Vmm, Attachment) {
    let vmm = Vmm::start();
    let attached = Attachment::start(&vmm, capture);
    attached.until_sampled(100);
    (vmm, attached)
}

/// All samples are of the synthetic guest's process, in its kernel.
fn check_samples(samples: &[Sample]) {
    // The first ones may be taken before the location of processes is known, which takes a while on a busy host.
    let known: Vec<_> = samples.iter().skip_while(|it| it.pid != PID).collect();
    let right = known.iter().filter(|sample| sample.pid == PID).count();
    assert!(right >= 20, "{right} of {}", samples.len());
    assert!(right * 10 >= known.len() * 9, "{right} of {}", known.len());
}

/// As `System.map`, with each function this far from where it is.
fn symbols(distance: u64) -> Vec<u8> {
    let knowledge = GuestKnowledge::from_kernel_image(&HOT.file()).unwrap();
    let functions = knowledge.linux().unwrap().symbols().functions();
    let lines = functions
        .map(|(address, kind, name)| format!("{:016x} {kind} {name}\n", address + distance));
    lines.collect::<String>().into_bytes()
}

/// The kernel's file, with another text in place of its own.
fn kernel_with(own: &str, other: &str) -> Vec<u8> {
    let mut file = HOT.file();
    let mut words = file.windows(own.len());
    let place = words.position(|word| word == own.as_bytes()).unwrap();
    file[place..place + own.len()].copy_from_slice(other.as_bytes());
    file
}

/// Preconditions of the other tests. Files of the kernel's build give the same as its memory.
#[test]
fn the_synthetic_guest_is_recognised_by_its_memory_and_files() {
    on_kvm(|| {
        let vmm = Vmm::start();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let name = file.to_str().unwrap();
        for (capture, options, contents) in [
            ("ptrace", &[][..], Vec::new()),
            ("kernel", &[], Vec::new()),
            ("ptrace", &["--kernel", name], HOT.file()),
            ("kernel", &["--kernel", name], HOT.file()),
            ("ptrace", &["--kernel", name], symbols(0)),
            ("ptrace", &["--symbols", name], symbols(0)),
        ] {
            fs::write(&file, contents).unwrap();
            let attached = Attachment::start_with(&vmm, capture, options);
            attached.until_sampled(100);
            let linux = attached.guest.status().machine.linux.unwrap();
            assert_eq!(linux.release, "6.99.0-test");
            let (ran, samples, _) = attached.stop();
            assert_eq!(ran.stderr, "", "{capture} {options:?}");
            check_samples(&samples);
        }
    });
}

#[test]
fn files_of_another_build_are_refused() {
    on_kvm(|| {
        let vmm = Vmm::start();
        let folder = tempfile::tempdir().unwrap();
        let [file, socket] = ["file", "socket"].map(|name| folder.path().join(name));
        let name = file.to_str().unwrap();
        let pid = vmm.pid().to_string();
        let elsewhere = ["has the symbols of another kernel", "are elsewhere"];
        for (option, contents, said) in [
            (
                "--kernel",
                kernel_with("6.99.0", "6.98.0"),
                &["Linux 6.99.0-test"][..],
            ),
            (
                "--kernel",
                kernel_with("#1 SMP", "#2 SMP"),
                &["another build"],
            ),
            ("--kernel", symbols(16), &elsewhere),
            ("--symbols", symbols(16), &elsewhere),
            ("--btf", b"nothing".to_vec(), &["has no types"]),
        ] {
            fs::write(&file, contents).unwrap();
            let words = [
                "attach",
                &pid,
                option,
                name,
                "--socket",
                socket.to_str().unwrap(),
            ];
            run(words).assert_refused(1, &[&[name], said].concat());
        }
    });
}

#[test]
fn a_guest_that_starts_later_is_waited_for() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let record = folder.path().join("recording");
        let name = format!("later-{}", std::process::id());
        let mut attach = Command::new(kvmprof())
            .args(["attach", &name, "--wait", "--seconds", "2", "--hz", "500"])
            .arg("--record")
            .arg(&record)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(attach.stderr.take().unwrap()).lines();
        let first = said.next().unwrap().unwrap();
        assert!(first.contains("Waiting for the guest later-"), "{first}");
        let _vmm = Vmm::start_as(&env::current_exe().unwrap(), &name);
        let more: Vec<String> = said.map_while(Result::ok).collect();
        assert!(attach.wait().unwrap().success(), "{more:?}");
        let (_, contents) = recorded(&record);
        assert_eq!(contents.closed, Some(contents.account));
        assert!(contents.account.ticks > 0, "{more:?}");
    });
}

/// Between a reset and the new start of the kernel, or of another one, which isn't taken for it, samples have no process.
#[test]
fn a_guest_that_reboots_is_known_again() {
    on_kvm(|| {
        for capture in CAPTURES {
            let (mut vmm, attached) = sampled(capture);
            attached.until_known(0, 50);
            for (resets, boot) in [(1, "boot"), (2, "boot-other")] {
                vmm.tell("reset");
                until("the reset is noticed", || {
                    (attached.guest.status().machine.resets == resets).then_some(())
                });
                attached.until_sampled(50);
                vmm.tell(boot);
                attached.until_known(usize::try_from(resets).unwrap(), 100);
            }
            let (ran, samples, contents) = attached.stop();
            for said in ["has rebooted", "runs another kernel now"] {
                assert!(ran.stderr.contains(said), "{said}: {ran:?}");
            }
            let times = contents.resets.iter().map(|reset| reset.time);
            let ends: Vec<u64> = times.chain([u64::MAX]).collect();
            assert_eq!(ends.len(), 3);
            let mut begin = 0;
            for end in ends {
                let lived = samples
                    .iter()
                    .filter(|one| (begin..end).contains(&one.time));
                let lived: Vec<&Sample> = lived.collect();
                let unknown = lived.iter().take_while(|sample| sample.pid == -1).count();
                let known = &lived[unknown..];
                let right = known.iter().filter(|sample| sample.pid == PID).count();
                let all = known.len();
                println!("{capture}: {unknown} without a process, then {right} of {all}");
                assert!(all >= 50 && right * 100 >= all * 95);
                assert!(unknown >= 20 || begin == 0, "{unknown}");
                begin = end;
            }
            assert!(vmm.is_running());
        }
    });
}

/// A client that takes no ticks is notified of the end, too.
#[test]
fn a_guest_may_end_in_any_way_while_it_is_attached() {
    on_kvm(|| {
        for capture in CAPTURES {
            for way in ["close-vm", "end-thread", "exec sleep 1000"] {
                let (mut vmm, mut attached) = sampled(capture);
                vmm.begin(way);
                let (ran, samples, _) = attached.wait();
                assert!(ran.stderr.contains("has ended"), "{way}: {ran:?}");
                check_samples(&samples);
                assert!(vmm.is_running());

                let mut vmm = Vmm::start();
                let mut guest = Guest::attach(vmm.pid(), None, ["--capture", capture]);
                vmm.begin(way);
                let ran = guest.wait();
                assert_eq!(ran.status, 0, "{way}: {ran:?}");
                assert!(ran.stderr.contains("has ended"), "{way}: {ran:?}");
            }
        }
    });
}

#[test]
fn a_vcpu_may_be_closed_while_it_is_attached() {
    on_kvm(|| {
        for capture in CAPTURES {
            let (mut vmm, attached) = sampled(capture);
            vmm.tell("close");
            attached.until_ticks(100);
            let (ran, samples, _) = attached.stop();
            let says_so = ran.stderr.matches("A tick of vCPU 0 is lost").count();
            assert_eq!(says_so, usize::from(capture == "ptrace"), "{ran:?}");
            check_samples(&samples);
        }
    });
}

/// The thread's waits end as without kvmprof, and all signals reach it.
#[test]
fn a_vcpus_thread_may_sleep_and_wait() {
    on_kvm(|| {
        for capture in CAPTURES {
            let (mut vmm, attached) = sampled(capture);
            vmm.tell("work 500");
            attached.until_sampled(50);
            let (ran, samples, _) = attached.stop();
            assert_eq!(ran.stderr, "");
            check_samples(&samples);
        }
    });
}

/// Slots are removed, added and moved continuously, as by a balloon and by hotplug.
#[test]
fn slots_may_change_while_it_is_attached() {
    on_kvm(|| {
        for capture in CAPTURES {
            let (mut vmm, attached) = sampled(capture);
            vmm.tell("move-slots 25");
            vmm.tell("alias");
            attached.until_sampled(500);
            let (_, samples, _) = attached.stop();
            check_samples(&samples[samples.len() - 400..]);
        }
    });
}

/// Memory that becomes unreadable is an unknown process, and causes no signal in kvmprof.
#[test]
fn memory_may_go_away_while_it_is_attached() {
    on_kvm(|| {
        for capture in CAPTURES {
            // Memory that the VMM itself can't read is still readable through /proc; of the second guest only the kernel's image is
            // lost.
            for (way, is_known) in [
                ("protect", capture == "ptrace"),
                ("cut 4194304", true),
                ("cut 0", false),
                ("unmap", false),
            ] {
                let (mut vmm, attached) = sampled(capture);
                vmm.tell(way);
                attached.until_ticks(500);
                let (ran, samples, _) = attached.stop();
                assert_eq!(ran.stderr, "", "{way}");
                // Those before it was removed.
                check_samples(&samples[..50]);
                let last = samples.last().unwrap();
                assert_eq!(last.pid == PID, is_known, "{way}: {last:?}");
                assert!(vmm.is_running());
            }
        }
    });
}

/// A temporary refusal of the host's kernel is retried, and reported once.
#[test]
fn a_vcpu_may_be_another_file_for_a_while() {
    on_kvm(|| {
        let (mut vmm, attached) = sampled("kernel");
        vmm.tell("hide");
        // The sampling program is rebuilt with the slots.
        vmm.tell("move-slots 1");
        let refused = "Ticks of vCPU 0 are lost";
        until("it is refused", || {
            attached.guest.stderr().contains(refused).then_some(())
        });
        vmm.tell("move-slots 25");
        attached.until_ticks(1000);
        vmm.tell("show");
        attached.until_sampled(100);
        let (ran, samples, _) = attached.stop();
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
        check_samples(&samples[samples.len() - 50..]);
    });
}

/// A vCPU that is added later isn't sampled, and that is reported once.
#[test]
fn a_vcpu_may_be_added_while_it_is_attached() {
    on_kvm(|| {
        for capture in CAPTURES {
            let (mut vmm, attached) = sampled(capture);
            vmm.tell("add-vcpu");
            until("it is said", || {
                let said = attached.guest.stderr();
                said.contains("has 2 vCPUs by now, not 1").then_some(())
            });
            attached.until_ticks(1000);
            let (ran, samples, _) = attached.stop();
            assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
            check_samples(&samples);
        }
    });
}

/// Terminals, tables and walks handle any process name, number of descriptors, and false data.
#[test]
fn names_and_descriptors_are_only_displayed() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let evil = "\u{1b}[31mevil\n\u{7}";
        let program = folder.path().join(evil);
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let mut vmm = Vmm::start_as(&program, evil);
        vmm.tell("many-slots 300");
        vmm.tell("copy 900");
        let ran = run(["list"]);
        assert_eq!(ran.status, 0, "{ran:?}");
        assert!(!ran.stdout.contains(['\x1b', '\x07']), "{ran:?}");
        let pid = vmm.pid().to_string();
        let lines = ran.stdout.lines();
        let lines = lines.filter(|line| line.split_whitespace().next() == Some(&pid));
        assert_eq!(lines.count(), 1, "{ran:?}");
        let document = run(["list", "--json"]).json();
        let mut guests = document["guests"].as_array().unwrap().iter();
        let guest = guests.find(|guest| guest["pid"] == vmm.pid()).unwrap();
        assert_eq!(guest["name"], evil);
        let attached = Attachment::start(&vmm, "ptrace");
        attached.until_sampled(50);
        let (_, samples, _) = attached.stop();
        check_samples(&samples);
    });
}
