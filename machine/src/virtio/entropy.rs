//! The machine's entropy device, which gives the guest random bytes of the host's kernel.

use std::io;
use std::sync::{Arc, Mutex};

use kvmprof_devices::virtio::entropy::Entropy;
use kvmprof_recording::status::{EntropyStatus, MachineStatus};
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::{
    Assembled, DeviceMonitor, DeviceThread, Notifications, VirtioMmio, VirtioParts, borrowed,
};
use crate::error::MachineError;
use crate::lock::lock;
use crate::memory::GuestMemory;

/// The entropy device that a machine is to have.
#[derive(Default)]
pub struct EntropySource {
    /// The device's counts when it was served last.
    status: Arc<Mutex<EntropyStatus>>,
}

impl DeviceMonitor for Mutex<EntropyStatus> {
    fn enter(&self, machine: &mut MachineStatus) {
        machine.entropy = Some(*lock(self));
    }
}

impl VirtioParts for EntropySource {
    fn monitor(&self) -> Arc<dyn DeviceMonitor> {
        self.status.clone()
    }

    fn assemble(self: Box<Self>, memory: &GuestMemory) -> Result<Assembled, MachineError> {
        let work = EventFd::new(EFD_NONBLOCK).map_err(MachineError::EventFd)?;
        let mine = work.try_clone().map_err(MachineError::EventFd)?;
        let notifications = Notifications::Together(work);
        let mmio = VirtioMmio::new(Entropy::default(), memory.clone(), notifications)?;
        let mmio = Arc::new(mmio);
        let served = Arc::clone(&mmio);
        let status = self.status;
        let thread =
            DeviceThread::start("entropy", kvmprof_sandbox::Thread::Entropy, move |ending| {
                while !ending.or_readable(&[borrowed(&mine)]) {
                    // No other thread reads it.
                    let _ = mine.read();
                    served.with(|transport, memory| {
                        if transport.serve(memory, &mut random) {
                            served.ask_for_service();
                        }
                        *lock(&status) = transport.device().counts();
                    });
                }
            });
        Ok(Assembled {
            registers: mmio,
            threads: vec![thread.map_err(MachineError::Thread)?],
        })
    }
}

/// Fills `bytes` by getrandom(2). This never waits: it fails until the host has gathered enough entropy after its start.
fn random(bytes: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        done += retry_on_intr(|| getrandom(&mut *rest, GetRandomFlags::NONBLOCK))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_fill_the_whole_buffer_and_differ() {
        let mut bytes = [0; 4096];
        random(&mut bytes).unwrap();
        let mut others = [0; 4096];
        random(&mut others).unwrap();
        assert_ne!(bytes, others);
        // It isn't enough that the buffers differ: each quarter has random bytes.
        for quarter in bytes.chunks(1024) {
            assert!(quarter.iter().any(|byte| *byte != 0));
        }
        random(&mut []).unwrap();
    }
}
