//! Commands and tools with the socket of a kvmprof that is attached to a guest, and options that describe the
//! guest.

use std::fs;
use std::path::Path;
use std::process;

use kvmprof_abi::note;
use kvmprof_abi::prf::ALL_VCPUS;
use kvmprof_introspection::notes;
use kvmprof_recording::{Mode, Sample, StackEnd};
use kvmprof_tests::{
    Boot, CAPTURES, Guest, Machine, Prf, check_demo_processes, on_kvm, recorded,
    recorded_with_frames, sampling_rate, until,
};

/// Commands that count, show and record work with an attached guest as with kvmprof's own.
#[test]
fn tools_work_as_on_kvmprofs_own_guest() {
    on_kvm(|| {
        let machine = Machine::unwatched(Boot::Demo, 2);
        for capture in CAPTURES {
            // That of prf.
            let options = ["--hz", "100", "--capture", capture];
            let guest = Guest::attach(process::id(), Some(Boot::Demo), options);
            check_profile(&guest);
            let table = guest
                .command("top", &["--count", "1", "--interval", "4"])
                .quiet();
            for what in ["weaver", "vCPU 0   [", "vCPU 1   ["] {
                assert!(table.contains(what), "{what} isn't in\n{table}");
            }
            let path = guest.folder().join("recording");
            let output = path.to_str().unwrap();
            let ran = guest.record(300, &["--output", output]);
            assert_eq!(ran.status, 0, "{ran:?}");
            check_samples(&path);
            guest.stop();
        }
        machine.stop();
    });
}

/// The profile of the guest's kernel, by the tools of prf.
fn check_profile(guest: &Guest) {
    let log = guest.folder().join("log");
    let log = log.to_str().unwrap();
    guest.command("prfld", &[]).quiet();
    guest.command("prfsnap", &[log]).quiet();
    let prf = Prf::open(&guest.connect(), ALL_VCPUS).unwrap();
    until("prf has counted", || {
        (prf.counts().sum() >= 400).then_some(())
    });
    guest.command("prfsnap", &[log]).quiet();
    let report = guest.command("prfpr", &[log, "0"]).quiet();
    // A process of the workload computes in the kernel.
    for name in ["compute ", "user ", "idle "] {
        let is_there = report.lines().any(|line| line.starts_with(name));
        assert!(is_there, "{name} isn't in\n{report}");
    }
}

fn check_samples(path: &Path) {
    let (samples, contents) = recorded(path);
    assert_eq!(contents.closed, Some(contents.account));
    for vcpu in [0, 1] {
        let own = samples.iter().filter(|sample| sample.vcpu == vcpu);
        assert!(own.count() > 0, "vCPU {vcpu}: {:?}", contents.account);
    }
    let mut user = samples.iter().filter(|sample| sample.mode == Mode::User);
    assert!(user.any(|sample| sample.pid > 0));
}

/// The location of the pid from the demo guest's own note, as an argument of `--pid-at`.
fn place() -> String {
    let notes = notes(kvmprof_demo_guest::ELF, note::OWNER.as_bytes());
    let mut notes = notes.into_iter();
    let (_, locations) = notes
        .find(|(kind, _)| *kind == note::TYPE_LOCATIONS)
        .unwrap();
    let pid = note::parse_note(locations).unwrap().pid.unwrap();
    let offsets: Vec<String> = pid.offsets().iter().map(ToString::to_string).collect();
    format!("gs:{}:{}", offsets.join(","), pid.width)
}

/// The demo guest's image without its note.
fn image_without_note() -> Vec<u8> {
    let mut image = kvmprof_demo_guest::ELF.to_vec();
    while let Some(owner) = image.windows(8).position(|it| it == b"kvmprof\0") {
        image[owner] = b'x';
    }
    image
}

/// An option and an image describe a guest without a note: its processes, functions and stacks.
#[test]
fn the_location_of_the_pid_and_the_image_suffice() {
    on_kvm(|| {
        let machine = Machine::unwatched(Boot::Demo, 1);
        for capture in CAPTURES {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("recording");
            let (hz, place) = (sampling_rate(250).to_string(), place());
            let (record, image) = (path.to_str().unwrap(), folder.path().join("image"));
            fs::write(&image, image_without_note()).unwrap();
            let options = ["--hz", &hz, "--capture", capture, "--record", record];
            let known = ["--pid-at", &place, "--kernel", image.to_str().unwrap()];
            let options = options.into_iter().chain(known);
            let guest = Guest::attach(process::id(), None, options);
            guest.until_sampled(1500);
            guest.stop();
            let (samples, contents) = recorded_with_frames(&path);
            // The first ones may be taken before the location of processes and of the image's code is known.
            let later = || samples.iter().skip(200).map(|(sample, _)| sample);
            let user = || later().filter(|sample| sample.mode == Mode::User);
            check_demo_processes(user().map(|sample| (sample.pc, sample.pid)));
            let is_whole = |sample: &&Sample| {
                sample.stack.user > 1 && sample.stack.user_end == StackEnd::Complete
            };
            let (whole, all) = (user().filter(is_whole).count(), user().count());
            assert!(whole * 20 >= all * 19, "{capture}: {whole} of {all}");
            let kernel = later().filter(|sample| sample.mode == Mode::Kernel);
            let ends = kernel.map(|sample| sample.stack.kernel_end);
            let (whole, others): (Vec<StackEnd>, _) =
                ends.partition(|end| *end == StackEnd::Complete);
            assert!(whole.len() >= others.len() * 10, "{capture}: {others:?}");
            assert!(contents.symbols.contains("draw_fibres"), "{capture}");
        }
        machine.stop();
    });
}
