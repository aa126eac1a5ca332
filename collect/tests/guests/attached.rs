//! Guests of other VMMs, as `kvmprof collect` follows them. This process is the VMM.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process;

use kvmprof_collect::batch::Batch;
use kvmprof_demo_guest::{Mode, rows};
use kvmprof_machine::virtio::GuestAccess;
use kvmprof_recording::Mode as SampleMode;
use kvmprof_tests::{
    Boot, Clock, CpuPressure, Machine, Sampled, assert_share, on_kvm_with_collector, run,
    sampling_rate, share, until,
};

use super::{Fleet, all_windows, free_port, get};

pub(super) fn machine() -> Machine {
    let machine = Machine::start_with_ports(Boot::Demo, 1, Clock::default(), GuestAccess::None);
    machine.truth();
    machine
}

/// The processes of `kvmprof attach` that are attached to this one, without those that they start.
pub(super) fn attachers() -> Vec<PathBuf> {
    // The start time follows.
    let pid = format!("{}:", process::id());
    let is_attacher = |path: &PathBuf| {
        let words = fs::read(path.join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        words.get(1) == Some(&b"attach".as_slice())
            && words
                .get(2)
                .is_some_and(|word| word.starts_with(pid.as_bytes()))
            && !name.starts_with("kvmprof-")
    };
    let parent = |path: &PathBuf| {
        let status = fs::read_to_string(path.join("status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        Some(PathBuf::from("/proc").join(parent.trim()))
    };
    let folder = fs::read_dir("/proc").unwrap();
    let paths = folder.map(|entry| entry.unwrap().path());
    let all: Vec<PathBuf> = paths.filter(is_attacher).collect();
    // The processes that attach starts have its command line, and for a moment its name.
    let is_first = |path: &&PathBuf| parent(path).is_some_and(|parent| !all.contains(&parent));
    all.iter().filter(is_first).cloned().collect()
}

/// Waits until nothing is attached to this process any more.
pub(super) fn until_let_go() {
    until("the guest is let go", || {
        attachers().is_empty().then_some(())
    });
}

/// The shares of user mode, the kernel and idle.
#[test]
fn a_look_at_a_guest_of_another_vmm_agrees_with_its_count() {
    on_kvm_with_collector(|| {
        let shares = ["user", "idle", "kernel"];
        look_agrees(
            "ptrace",
            &shares,
            KnownFields {
                jitter: true,
                interrupts: true,
            },
        );
    });
}

/// The host's kernel takes the samples: user mode is as the guest counted it; interrupts off (RFLAGS) isn't known.
#[test]
fn a_look_by_the_hosts_kernel_agrees_with_a_guests_count() {
    on_kvm_with_collector(|| {
        look_agrees(
            "kernel",
            &["user"],
            KnownFields {
                jitter: false,
                interrupts: false,
            },
        );
    });
}

/// What windows have by this kind of capture.
struct KnownFields {
    jitter: bool,
    interrupts: bool,
}

/// Compares the ticks in these modes with what the guest counted.
fn look_agrees(capture: &str, compared: &[&str], known: KnownFields) {
    let machine = machine();
    let fleet = Fleet::new(&[]);
    fleet.configure(&format!("attach.capture = '{capture}'\n"));
    let config = fleet.path("collect.toml");
    let (pattern, pid) = (fleet.pattern(), process::id().to_string());
    let hz = sampling_rate(150).to_string();
    let pressure = CpuPressure::begin();
    let before = machine.truth();
    let words = [
        "collect",
        "--config",
        config.to_str().unwrap(),
        "--once",
        "--json",
        "--window",
        "12",
        "--hz",
        &hz,
        "--sockets",
        &pattern,
        "--attach",
        &pid,
    ];
    let ran = run(words);
    let cycles = machine.truth().cycles_since(&before);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert_eq!(attachers(), [] as [PathBuf; 0]);
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut stolen, mut lost) = (0, 0);
    for line in ran.stdout.lines() {
        let batch: Batch = serde_json::from_str(line).unwrap();
        for window in &batch.windows {
            // By this program's name, and by its pid.
            assert!(
                window.guest.ends_with(&format!("-{pid}")),
                "{}",
                window.guest
            );
            assert!(window.account.balances(), "{window:?}");
            assert_eq!(window.jitter, Some(known.jitter));
            stolen += window.account.stolen;
            lost += window.account.lost;
            for row in &window.rows {
                assert_eq!(row.interrupts_off.is_some(), known.interrupts);
                let what = match row.mode() {
                    SampleMode::User => "user",
                    SampleMode::Idle => "idle",
                    SampleMode::Kernel | SampleMode::Interrupt => "kernel",
                };
                *counts.entry(what).or_default() += row.ticks;
            }
        }
    }
    let whole: u64 = counts.values().sum();
    assert!(whole > 0, "{ran:?}");
    let sampled = Sampled::new(whole, stolen, lost, &pressure);
    for (what, modes) in [
        ("user", &[Mode::User][..]),
        ("idle", &[Mode::Idle]),
        ("kernel", &[Mode::Kernel, Mode::Interrupt]),
    ] {
        if !compared.contains(&what) {
            continue;
        }
        let own = rows().iter().zip(cycles);
        let own = own.filter(|(row, _)| modes.contains(&row.mode));
        let own: u64 = own.map(|(_, cycles)| cycles).sum();
        let count = counts.get(what).copied().unwrap_or_default();
        let (observed, expected) = (share(count, whole), share(own, cycles.iter().sum()));
        assert_share(what, observed, expected, sampled);
    }
    machine.stop();
}

/// One process attaches to it at a time, is restarted if it is killed, and ends with the collector however that ends.
#[test]
fn a_guest_is_attached_once_and_again_after_a_restart() {
    on_kvm_with_collector(|| {
        let machine = machine();
        let fleet = Fleet::new(&[]);
        let address = free_port();
        let pid = process::id();
        // By two patterns together.
        fleet.configure(&format!(
            "metrics.listen = '{address}'\n[attach]\nguests = ['{pid}', 'demo-*{pid}', '{pid}*']\n"
        ));
        let mut collector = fleet.start();
        let has_windows = |least: u64| {
            until("windows come", || {
                let windows = all_windows(&get(&address)?);
                (windows >= least).then_some(windows)
            })
        };
        has_windows(2);
        let first = attachers();
        assert_eq!(first.len(), 1, "{first:?}");
        let attacher: i32 = first[0]
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        let attacher = rustix::process::Pid::from_raw(attacher).unwrap();
        rustix::process::kill_process(attacher, rustix::process::Signal::KILL).unwrap();
        until("another one is attached", || {
            let now = attachers();
            assert!(now.len() <= 1, "{now:?}");
            (now.len() == 1 && now != first).then_some(())
        });
        let windows = has_windows(1);
        has_windows(windows + 3);
        collector.kill().unwrap();
        collector.wait().unwrap();
        until_let_go();
        let collector = fleet.start();
        until("it is attached to again", || {
            (attachers().len() == 1).then_some(())
        });
        fleet.stop(collector);
        assert_eq!(attachers(), [] as [PathBuf; 0]);
        let before = machine.truth();
        until("the guest goes on", || {
            let now = machine.truth();
            (now.vcpus[0].updates > before.vcpus[0].updates + 10).then_some(())
        });
        machine.stop();
    });
}
