//! The threads for a guest that another program runs: one for each vCPU, and one that reads the guest's kernel.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use kvmprof_attach::tracer::TracedVcpu;

use super::AttachedEnd;
use super::kernel_finder::KernelFinder;
use super::reboot::RebootWatch;
use super::vcpu::{AttachedCommon, AttachedVcpu};
use crate::vm::{GuestThreads, Profiled};
use kvmprof_profiling::clock::monotonic_ns;
use kvmprof_profiling::sampling::{VcpuShared, tick_ring};

/// All threads. Dropping this ends them.
pub struct AttachedThreads {
    shared: Vec<Arc<VcpuShared>>,
    common: Arc<AttachedCommon>,
    /// The number of the vCPUs' threads that are left in the VMM.
    left: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl AttachedThreads {
    /// Starts a thread for each of `vcpus`, which come with the numbers of their CPUs in the guest. The threads ring the doorbell of `common` when
    /// the vCPUs' own threads have ended.
    ///
    /// # Errors
    /// When the host gives no thread.
    pub fn start(
        vcpus: Vec<(u16, TracedVcpu)>,
        common: AttachedCommon,
    ) -> io::Result<(Self, Vec<Profiled>)> {
        let mut all = Self {
            shared: Vec::new(),
            common: Arc::new(common),
            left: Arc::new(AtomicUsize::new(vcpus.len())),
            threads: Vec::new(),
        };
        let mut profiled = Vec::new();
        for ((cpu, traced), vcpu) in vcpus.into_iter().zip(0..) {
            let doorbell = Arc::clone(&all.common.doorbell);
            let (ticks, ring) = tick_ring(vcpu, Arc::clone(&doorbell));
            let shared = Arc::<VcpuShared>::default();
            let left = Arc::clone(&all.left);
            let ended = move || {
                left.fetch_sub(1, Ordering::Relaxed);
                doorbell.ring_anyway();
            };
            all.threads.push(AttachedVcpu::sample(
                vcpu,
                cpu,
                traced,
                Arc::clone(&shared),
                ticks,
                &all.common,
                ended,
            )?);
            all.shared.push(Arc::clone(&shared));
            profiled.push((shared, ring));
        }
        Ok((all, profiled))
    }

    /// Starts the thread on which `finder` searches for the guest's kernel. That thread then watches the kernel, and another one reads its
    /// modules, until the end. The doorbell rings if the guest reboots.
    ///
    /// # Errors
    /// When the host gives no thread.
    pub fn introspect(&mut self, finder: KernelFinder) -> io::Result<()> {
        let common = Arc::clone(&self.common);
        let builder = thread::Builder::new().name("introspection".into());
        self.threads.push(builder.spawn(move || {
            let AttachedCommon {
                memory,
                knowledge,
                sampled,
                stopping,
                ..
            } = &*common;
            let finder = finder.search(memory, knowledge, sampled, stopping);
            let Some(linux) = common.knowledge.linux() else {
                return;
            };
            thread::scope(|scope| {
                let modules = || {
                    (common.knowledge).serve_modules(&common.memory, &common.stopping, monotonic_ns)
                };
                let builder = thread::Builder::new().name("modules".into());
                if let Err(error) = builder.spawn_scoped(scope, modules) {
                    log::warn!("The kernel's modules aren't read: {error}");
                }
                if RebootWatch::new(finder.into_vcpus(), linux, &common).watch() {
                    common.has_rebooted.store(true, Ordering::Relaxed);
                    common.doorbell.ring_anyway();
                }
            });
        })?);
        Ok(())
    }
}

impl GuestThreads for AttachedThreads {
    type End = AttachedEnd;

    fn ended(&self) -> Option<AttachedEnd> {
        if self.common.has_rebooted.load(Ordering::Relaxed) {
            return Some(AttachedEnd::Reboot);
        }
        let is_over = self.common.guest_has_ended.load(Ordering::Relaxed)
            || self.left.load(Ordering::Relaxed) == 0;
        is_over.then_some(AttachedEnd::Guest)
    }

    fn stop(&mut self) {
        self.common.stopping.store(true, Ordering::SeqCst);
        self.common.sampled.open();
        if let Some(modules) = self.common.knowledge.modules() {
            modules.wake();
        }
        for vcpu in &self.shared {
            vcpu.kicker.kick();
        }
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // A panic of that thread has been reported already.
            let _ = thread.join();
        }
    }
}

impl Drop for AttachedThreads {
    fn drop(&mut self) {
        self.stop();
    }
}
