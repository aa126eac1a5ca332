//! The entropy device of the machine, which gives the guest random bytes of the host's kernel.

use std::io;
use std::sync::{Arc, Mutex};

use kvmprof_devices::virtio::entropy::Entropy;
use kvmprof_recording::status::EntropyStatus;
use rustix::rand::{GetRandomFlags, getrandom};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::{Assembled, DeviceThread, Notifications, VirtioMmio, VirtioParts, borrowed};
use crate::lock::lock;
use crate::machine::{GuestMemory, MachineError};

/// As of when the device was served last, for whoever asks.
#[derive(Clone, Debug, Default)]
pub struct EntropyMonitor(Arc<Mutex<EntropyStatus>>);

impl EntropyMonitor {
    /// What the device has done until now.
    #[must_use]
    pub fn counts(&self) -> EntropyStatus {
        *lock(&self.0)
    }
}

/// The entropy device that a machine is to have.
#[derive(Default)]
pub struct EntropySource {
    monitor: EntropyMonitor,
}

impl EntropySource {
    /// What happens with it, for whoever asks while the guest runs.
    #[must_use]
    pub fn monitor(&self) -> EntropyMonitor {
        self.monitor.clone()
    }
}

impl VirtioParts for EntropySource {
    fn assemble(self: Box<Self>, memory: &GuestMemory) -> Result<Assembled, MachineError> {
        let work = EventFd::new(EFD_NONBLOCK).map_err(MachineError::EventFd)?;
        let mine = work.try_clone().map_err(MachineError::EventFd)?;
        let notifications = Notifications::Together(work);
        let mmio = VirtioMmio::new(Entropy::default(), memory.clone(), notifications)?;
        let mmio = Arc::new(mmio);
        let served = Arc::clone(&mmio);
        let counts = self.monitor.0;
        let thread =
            DeviceThread::start("entropy", kvmprof_sandbox::Thread::Entropy, move |ending| {
                while !ending.or_readable(&[borrowed(&mine)]) {
                    // Somebody else can't have read it.
                    let _ = mine.read();
                    served.with(|transport, memory| {
                        if transport.serve(memory, &mut random) {
                            served.ask_for_service();
                        }
                        *lock(&counts) = transport.device().counts();
                    });
                }
            });
        Ok(Assembled {
            registers: mmio,
            threads: vec![thread.map_err(MachineError::DeviceThread)?],
        })
    }
}

/// Fills with bytes of getrandom(2). It never waits: without a host that has gathered enough since its start, it fails.
fn random(bytes: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match getrandom(rest, GetRandomFlags::NONBLOCK) {
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
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
        // Not one of 4096 bytes would be as good as none, and each quarter has its part.
        for quarter in bytes.chunks(1024) {
            assert!(quarter.iter().any(|byte| *byte != 0));
        }
        random(&mut []).unwrap();
    }
}
