//! Which threads run vCPUs, by /proc alone.

use std::thread;
use std::time::Duration;

use super::Vcpu;
use super::processes::{self, Descriptor, Kind};

/// How often threads are looked at. A look doesn't show the system call of a thread that is on a processor.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(2);

/// The vCPUs among `descriptors` of a process, with the threads that were seen in KVM_RUN.
pub fn vcpus(pid: i32, descriptors: &[Descriptor]) -> Vec<Vcpu> {
    let vcpu = |descriptor: &Descriptor| match descriptor.kind {
        Kind::Vcpu(index) => Some(Vcpu {
            index,
            descriptor: descriptor.number,
            thread: None,
        }),
        Kind::Guest | Kind::Sev => None,
    };
    let mut vcpus: Vec<Vcpu> = descriptors.iter().filter_map(vcpu).collect();
    for _ in 0..LOOKS {
        if vcpus.iter().all(|vcpu| vcpu.thread.is_some()) {
            break;
        }
        for tid in processes::threads(pid) {
            if let Some(descriptor) = processes::running_vcpu(pid, tid) {
                let found = vcpus.iter_mut().find(|vcpu| vcpu.descriptor == descriptor);
                if let Some(vcpu) = found {
                    vcpu.thread = Some(tid);
                }
            }
        }
        thread::sleep(PAUSE);
    }
    vcpus
}
