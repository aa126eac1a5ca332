//! Reports of boots, also of recordings that no recorder writes.

use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use crate::shared::boot as boots;
use crate::shared::read::opened;
use kvmprof_recording::file::{Observer, ResetInfo, Unobserved};
use kvmprof_report::boot::{Boot, BootError, Levels};
use kvmprof_report::budget::TooMuch;
use kvmprof_report::export::{ExportError, Source};
use kvmprof_report::profile::Selection;
use tempfile::TempDir;

const MS: u64 = 1_000_000;

fn recording() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("boot");
    boots::write(&path, 40, 20, 30);
    (folder, path)
}

#[test]
fn a_boot_has_phases_and_initcalls() {
    let (_folder, path) = recording();
    let source = Source::open(&path, &[]).unwrap();
    let boot = Boot::read(&source, &Levels::default(), &Unobserved).unwrap();
    let bounds = [0, 6, 16, 76, 80, 110].map(|ms| ms * MS);
    let phases: [_; 5] = std::array::from_fn(|phase| (bounds[phase], bounds[phase + 1]));
    assert_eq!(boot.phases, phases);
    let calls = boot.calls.iter();
    let calls = calls.map(|call| (call.function.as_str(), call.samples, call.time_ns / MS));
    let expected = [("slow_init", 40, 40), ("quick_init", 20, 20)];
    assert_eq!(calls.collect::<Vec<_>>(), expected);
}

#[test]
fn a_guest_that_was_reset_has_more_than_one_boot() {
    let (_folder, path) = recording();
    let reset = ResetInfo { time: 1 }.to_block().unwrap();
    let mut file = File::options().append(true).open(&path).unwrap();
    file.write_all(&reset).unwrap();
    let source = Source::open(&path, &[]).unwrap();
    let read = Boot::read(&source, &Levels::default(), &Unobserved);
    assert!(matches!(read, Err(BootError::Reset)), "{read:?}");
}

/// Interrupts at the second step.
#[derive(Default)]
struct InterruptingObserver(Cell<u32>);

impl Observer for InterruptingObserver {
    fn advance(&self, _: u64, _: u64) -> ControlFlow<()> {
        self.0.set(self.0.get() + 1);
        match self.0.get() {
            1 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }
}

#[test]
fn a_part_of_a_boot_is_not_a_boot() {
    let (_folder, path) = recording();
    let source = Source::open(&path, &[]).unwrap();
    let observer = InterruptingObserver::default();
    let read = Boot::read(&source, &Levels::default(), &observer);
    assert!(matches!(read, Err(BootError::Interrupted)), "{read:?}");
}

#[test]
fn boots_end_where_their_budget_does() {
    // Enough for the events, but not for the results.
    const ROOM: u64 = 28 << 10;
    let (_folder, path) = recording();
    let (recording, resolver) = opened(&path);
    let all = Selection::default();
    let source = Source::read(recording, all, resolver, Some(ROOM), &Unobserved).unwrap();
    let read = Boot::read(&source, &Levels::default(), &Unobserved);
    let Err(BootError::Recording(ExportError::TooMuch(TooMuch(ROOM)))) = read else {
        panic!("{read:?}");
    };
}
