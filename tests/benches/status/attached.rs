//! Hostile guests of other VMMs.

use std::thread::scope;

use kvmprof_tests::Guest;

use super::vmm::Vmm;
use super::{Times, end};

/// Slots over other parts of the VMM's memory, and the guest's own slot repeatedly removed and added, during an attached recording.
pub fn lying_vmm(answers: usize) -> Times {
    let mut vmm = Vmm::start();
    vmm.tell("alias");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recording = folder.path().join("recording");
    let recording = recording.to_str().expect("a path in UTF-8");
    let options = ["--hz", "500", "--record", recording];
    let guest = Guest::attach(vmm.pid(), None, options);
    let times = scope(|scope| {
        let measuring = scope.spawn(|| Times::of(&guest, answers));
        while !measuring.is_finished() {
            vmm.tell("move-slots 25");
        }
        measuring.join().expect("answers")
    });
    end(guest);
    times
}
