//! Call stacks of the demo guest, in its programs, its kernel, and across the boundary agree with its source.

use std::collections::BTreeMap;

use kvmprof_demo_guest::{INTERRUPT, function_at, stacks};
use kvmprof_recording::{Mode, Sample, StackEnd};
use kvmprof_tests::{
    Boot, Clock, Guest, Machine, on_kvm, recorded_with_frames, sampling_rate, until_recorded,
};

/// The functions of a stack's two parts, innermost first.
type Names = (Vec<&'static str>, Vec<&'static str>);

fn names(sample: &Sample, frames: &[u64]) -> Names {
    let names = frames
        .iter()
        .map(|frame| function_at(*frame).unwrap_or("?"));
    let mut names: Vec<_> = names.collect();
    let user = names.split_off(usize::from(sample.stack.kernel));
    (names, user)
}

/// Checks that each part with frames is complete.
fn check_ends(sample: &Sample) {
    let stack = sample.stack;
    for (frames, end) in [
        (stack.kernel, stack.kernel_end),
        (stack.user, stack.user_end),
    ] {
        let expected = match frames {
            0 => StackEnd::Absent,
            _ => StackEnd::Complete,
        };
        assert_eq!(end, expected, "{sample:x?}");
    }
}

#[test]
fn every_sample_has_the_callers_of_the_source() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let clock = Clock::jittered(sampling_rate(1000));
        let machine = Machine::recorded(Boot::Demo, 2, clock, &path);
        until_recorded(&machine.connect(), 3000);
        machine.stop();
        let (samples, _) = recorded_with_frames(&path);
        let mut seen = BTreeMap::new();
        let (mut interrupts, mut others) = (0, 0);
        for (sample, frames) in &samples {
            let (kernel, user) = names(sample, frames);
            let is_interrupt = kernel.starts_with(INTERRUPT);
            let kernel = &kernel[if is_interrupt { INTERRUPT.len() } else { 0 }..];
            let innermost = |kernel: &[_], user: &[_]| kernel.first().or(user.first()).copied();
            let works = |it: &&kvmprof_demo_guest::Stack| {
                innermost(it.kernel, it.user) == innermost(kernel, &user)
            };
            if !stacks().iter().any(|it| works(&it)) {
                others += 1;
                continue;
            }
            let mut known = stacks().iter();
            let known = known.position(|it| it.kernel == kernel && it.user == user);
            let known = known.unwrap_or_else(|| panic!("{kernel:?} {user:?} {sample:x?}"));
            assert_eq!(sample.pid, stacks()[known].pid, "{kernel:?} {user:?}");
            check_ends(sample);
            interrupts += u64::from(is_interrupt);
            *seen.entry(known).or_insert(0_u64) += u64::from(!is_interrupt);
        }
        println!(
            "{seen:?}, {interrupts} in interrupts, {others} of {}",
            samples.len()
        );
        // Those between two activities are fewer. How few depends on how fast the host's KVM runs the kernel's code: it may interpret it.
        assert!(others * 2 <= samples.len());
        assert!(interrupts > 0);
        for (index, stack) in stacks().iter().enumerate() {
            // Most ticks of a halted vCPU are computed, so that hardly any is a sample.
            assert!(stack.pid == 0 || seen.contains_key(&index), "{stack:?}");
        }
        // Fibres are drawn for two thirds of the time in which the wheel turns.
        let of = |name| {
            let mut all = stacks().iter();
            let index = all.position(|stack| stack.user.get(1) == Some(&name));
            seen[&index.unwrap()]
        };
        let (drawn, twisted) = (of("draw_fibres"), of("twist_yarn"));
        let drawn_of_ten = drawn * 10 / (drawn + twisted);
        assert!((5..=7).contains(&drawn_of_ten), "{drawn} {twisted}");
    });
}

/// 100 calls on a stack of the kernel.
#[test]
fn stacks_have_the_requested_number_of_frames() {
    on_kvm(|| {
        let deepest = |options: &[&str]| {
            let options = [&["--hz", "200"], options].concat();
            let guest = Guest::start(Boot::Test("workload=nested depth=100"), options);
            let path = guest.folder().join("recording");
            let output = path.to_str().unwrap();
            let ran = guest.record(100, &["--output", output]);
            assert_eq!(ran.status, 0, "{ran:?}");
            let (samples, _) = recorded_with_frames(&path);
            guest.stop();
            let samples = samples.iter().map(|(sample, _)| sample);
            let busy = samples.filter(|sample| sample.mode == Mode::Kernel);
            let stacks = busy.map(|sample| (sample.stack.kernel, sample.stack.kernel_end));
            stacks.max_by_key(|(frames, _)| *frames).unwrap()
        };
        assert_eq!(deepest(&[]), (64, StackEnd::Truncated));
        assert_eq!(deepest(&["--max-stack", "32"]), (16, StackEnd::Truncated));
        let (frames, end) = deepest(&["--max-stack", "1024"]);
        // The first call, and its callers.
        assert!((101..120).contains(&frames), "{frames}");
        assert_eq!(end, StackEnd::Complete);
    });
}
