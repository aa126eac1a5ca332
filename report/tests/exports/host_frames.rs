//! Stacks with the host's frames below the guest's.

use std::fs::OpenOptions;
use std::io::Write;

use kvmprof_recording::file::{Block, Kind};
use kvmprof_recording::{HOST_FRAMES, Mode, Sample, StackEnd, StackSummary};
use kvmprof_report::export::Format;

use super::export;
use super::recording::{info, write};
use crate::shared::recordings::stack_of;

const FUNCTIONS: &str = "fe00000000000002 t kvm_vcpu_ioctl\t[host:kvm]\n\
                         fe00000000000003 t main\t[host:qemu-system-x86_64]\n";
/// Innermost first: in the guest's kernel, in its program, in the host's kernel, in the VMM.
const FRAMES: [u64; 4] = [
    0xffff_ffff_8100_0b10,
    0x40_2080,
    HOST_FRAMES + 2,
    HOST_FRAMES + 3,
];

/// One sample whose guest part ends this way, in `format`.
fn exported(user_end: StackEnd, format: Format) -> String {
    let sample = Sample {
        pc: FRAMES[0],
        pid: 230,
        tid: 230,
        mode: Mode::Kernel,
        stack: StackSummary {
            host: 2,
            ..stack_of(1, 1, user_end)
        },
        ..Sample::default()
    };
    let (_folder, path) = write(&info(), &[(sample.into(), FRAMES.to_vec())]);
    let block = Block::encode(Kind::Symbols, FUNCTIONS.as_bytes()).unwrap();
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(&block).unwrap();
    String::from_utf8(export(&path, &[], format)).unwrap()
}

/// The frames of the folded stack, outermost first.
fn folded(user_end: StackEnd) -> Vec<String> {
    let folded = exported(user_end, Format::Folded);
    let line = folded.lines().find(|line| line.contains("main")).unwrap();
    line.split(';').map(str::to_owned).collect()
}

#[test]
fn host_frames_have_no_guest_callers() {
    let frames = folded(StackEnd::Complete);
    assert_eq!(frames.len(), 5, "{frames:?}");
    assert_eq!(frames[1..3], ["main_[k]", "kvm_vcpu_ioctl_[k]"]);
}

/// The truncation mark is between the guest's outermost frame and the host's.
#[test]
fn a_guests_stack_that_is_cut_short_is_marked_where_it_ends() {
    let text = exported(StackEnd::Truncated, Format::PerfScript);
    let frames: Vec<&str> = text.lines().filter(|line| line.starts_with('\t')).collect();
    let place = |name: &str| {
        let found = frames.iter().position(|line| line.contains(name));
        found.unwrap_or_else(|| panic!("no {name} in {text}"))
    };
    assert_eq!(frames.len(), 5, "{text}");
    let places = ["cut short", "kvm_vcpu_ioctl+0x0 ([host:kvm])", "main+0x0"].map(place);
    assert_eq!(places, [2, 3, 4], "{text}");
    let frames = folded(StackEnd::Truncated);
    let expected = ["main_[k]", "kvm_vcpu_ioctl_[k]", "[cut short]"];
    assert_eq!(frames[1..4], expected);
    assert_eq!(frames.len(), 6, "{frames:?}");
    for format in [Format::PerfScript, Format::Folded] {
        let whole = exported(StackEnd::Complete, format);
        assert!(!whole.contains("cut short"), "{whole}");
    }
}
