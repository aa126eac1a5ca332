//! The vCPU threads, from their start to their end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use kvm_ioctls::VcpuFd;

use super::build_files::ReadFiles;
use super::event_loop::GuestThreads;
use crate::vcpu::{Ending, Restart, VcpuCommon, VcpuThread};
use kvmprof_introspection::{GuestKnowledge, IntrospectionError};
use kvmprof_machine::{Machine, VcpuState};
use kvmprof_profiling::clock::monotonic_ns;
use kvmprof_profiling::counters::VcpuCounting;
use kvmprof_profiling::sampling::{Doorbell, Gate, TickReceiver, VcpuShared, tick_ring};

/// One vCPU's ends at the profiler.
pub type Profiled = (Arc<VcpuShared>, TickReceiver);

/// All vCPU threads of a machine, and the machine itself, which must outlive them. Dropping this
/// ends the threads.
pub struct VcpuThreads {
    shared: Vec<Arc<VcpuShared>>,
    common: Arc<VcpuCommon>,
    threads: Vec<JoinHandle<()>>,
    sender: Sender<Ending>,
    endings: Receiver<Ending>,
    machine: Arc<Machine>,
}

impl VcpuThreads {
    /// Starts one thread for each of `fds`. They ring `doorbell` when they end by themselves.
    ///
    /// # Errors
    /// The host can't start a thread.
    pub fn start(
        machine: Arc<Machine>,
        fds: Vec<(VcpuFd, VcpuState)>,
        vcpus: Vec<(Arc<VcpuShared>, VcpuCounting)>,
        common: VcpuCommon,
        doorbell: &Arc<Doorbell>,
    ) -> io::Result<(Self, Vec<Profiled>)> {
        let (sender, endings) = mpsc::channel();
        let (shared, counting): (Vec<_>, Vec<_>) = vcpus.into_iter().unzip();
        let mut all = Self {
            shared,
            common: Arc::new(common),
            threads: Vec::new(),
            sender,
            endings,
            machine,
        };
        let mut profiled = Vec::new();
        let vcpus = fds.into_iter().zip(&all.shared).zip(counting);
        for ((((fd, initial), shared), counting), vcpu) in vcpus.zip(0..) {
            let (ticks, ring) = tick_ring(vcpu, Arc::clone(doorbell));
            let thread = VcpuThread {
                vcpu,
                fd,
                initial: Box::new(initial),
                shared: Arc::clone(shared),
                ticks,
                counting,
                common: Arc::clone(&all.common),
            };
            let sender = all.sender.clone();
            let doorbell = Arc::clone(doorbell);
            all.threads.push(thread.start(move |ending| {
                if !matches!(ending, Ending::Stopped) {
                    // There is no receiver while all threads are being stopped.
                    let _ = sender.send(ending);
                    doorbell.ring_anyway();
                }
            })?);
            profiled.push((Arc::clone(shared), ring));
        }
        Ok((all, profiled))
    }

    /// The gate that holds the threads until they may run.
    pub fn gate(&self) -> Arc<Gate> {
        Arc::clone(&self.common.gate)
    }

    /// The threads' machine.
    pub fn machine(&self) -> Arc<Machine> {
        Arc::clone(&self.machine)
    }

    /// Restarts the guest.
    pub fn restart(&self) -> Arc<Restart> {
        Arc::clone(&self.common.restart)
    }

    /// Reads the guest's image on a thread of its own, because unpacking takes about as long as in the
    /// guest. An image that can't be used ends the guest. The thread then reads the kernel's modules whenever a
    /// vCPU runs one that isn't known, until all threads are stopped.
    ///
    /// # Errors
    /// The host can't start a thread.
    pub fn read_image(
        &self,
        image: Arc<[u8]>,
        files: ReadFiles,
        knowledge: Arc<GuestKnowledge>,
        doorbell: Arc<Doorbell>,
    ) -> io::Result<()> {
        let sender = self.sender.clone();
        let memory = self.common.memory.clone();
        let stopping = Arc::clone(&self.common.stopping);
        let known = Arc::clone(&self.common.known);
        std::thread::Builder::new()
            .name("introspection".into())
            .spawn(move || {
                kvmprof_sandbox::enter(kvmprof_sandbox::Thread::Introspection);
                match knowledge_of(&image, files) {
                    Ok(found) => {
                        drop(image);
                        knowledge.complete(found);
                        known.open();
                        if let Some(linux) = knowledge.linux() {
                            for gap in linux.gaps() {
                                log::info!("{gap}");
                            }
                            (linux.modules()).serve(linux, &memory, &stopping, monotonic_ns);
                        }
                    }
                    Err(error) => {
                        // There is no receiver if the guest has ended already.
                        let _ = sender.send(Ending::Unprofilable(error));
                        doorbell.ring_anyway();
                    }
                }
            })?;
        Ok(())
    }
}

/// What is known of the kernel with this image, and these files of its build.
fn knowledge_of(image: &[u8], files: ReadFiles) -> Result<GuestKnowledge, IntrospectionError> {
    match files.is_empty() {
        true => GuestKnowledge::from_image(image),
        false => GuestKnowledge::from_kernel_image_with(image, &files.parse()?),
    }
}

impl GuestThreads for VcpuThreads {
    type End = Ending;

    fn ended(&self) -> Option<Ending> {
        self.endings.try_recv().ok()
    }

    fn stop(&mut self) {
        self.common.stopping.store(true, Ordering::SeqCst);
        self.common.gate.open();
        self.common.known.open();
        self.common.restart.wake();
        self.common.devices.serial().close_output();
        if let Some(linux) = self.common.knowledge.linux() {
            linux.modules().wake();
        }
        for vcpu in &self.shared {
            vcpu.kicker.kick();
        }
        for thread in self.threads.drain(..) {
            // A panic of that thread has been reported already.
            let _ = thread.join();
        }
        self.machine.end_devices();
    }
}

impl Drop for VcpuThreads {
    fn drop(&mut self) {
        self.stop();
    }
}
