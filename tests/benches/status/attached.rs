//! Hostile guests of other VMMs.

use std::thread::{scope, sleep};
use std::time::Duration;

use kvmprof_tests::Guest;
use rustix::process::{Pid, Signal, kill_process};

use super::vmm::Vmm;
use super::{Times, end};

/// Measures the status of an attached recording while the VMM repeatedly does `act`.
fn beside(answers: usize, mut vmm: Vmm, act: impl Fn(&mut Vmm)) -> Times {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recording = folder.path().join("recording");
    let recording = recording.to_str().expect("a path in UTF-8");
    let options = ["--hz", "500", "--record", recording];
    let guest = Guest::attach(vmm.pid(), None, options);
    let times = scope(|scope| {
        let measuring = scope.spawn(|| Times::of(&guest, answers));
        while !measuring.is_finished() {
            act(&mut vmm);
        }
        measuring.join().expect("answers")
    });
    end(guest);
    times
}

/// Slots over other parts of the VMM's memory, and the guest's own slot removed and added.
pub fn lying_vmm(answers: usize) -> Times {
    let mut vmm = Vmm::start();
    vmm.tell("alias");
    beside(answers, vmm, |vmm| vmm.tell("move-slots 25"))
}

/// The VMM is stopped and continued, gets signals for its vCPU's thread, and replaces the vCPU's descriptor.
pub fn fighting_vmm(answers: usize) -> Times {
    beside(answers, Vmm::start(), |vmm| {
        let process = Pid::from_raw(vmm.pid().cast_signed()).expect("a process");
        for signal in [Signal::STOP, Signal::CONT] {
            kill_process(process, signal).expect("a signal to the VMM");
            sleep(Duration::from_millis(5));
        }
        vmm.tell("hide");
        vmm.tell("show");
    })
}
