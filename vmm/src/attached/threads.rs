//! The threads for a guest that another program runs: one for each vCPU, and one that reads the guest's kernel.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};

use kvmprof_attach::remote::Channel;

use super::AttachedEnd;
use super::kernel_finder::KernelFinder;
use super::reboot::RebootWatch;
use super::vcpu::{AttachedCommon, AttachedVcpu, SampledVcpu};
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
    /// Starts a thread for each of `vcpus`. The threads ring the doorbell of `common` when
    /// the vCPUs' own threads have ended.
    ///
    /// # Errors
    /// When the host gives no thread.
    pub fn start(
        vcpus: Vec<SampledVcpu>,
        common: AttachedCommon,
    ) -> io::Result<(Self, Vec<Profiled>)> {
        let mut all = Self {
            shared: Vec::new(),
            common: Arc::new(common),
            left: Arc::new(AtomicUsize::new(vcpus.len())),
            threads: Vec::new(),
        };
        let mut profiled = Vec::new();
        for (sampled, vcpu) in vcpus.into_iter().zip(0..) {
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
                sampled,
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

    /// Starts the thread on which `finder` searches for the guest's kernel. That thread then watches the kernel, by the `schedstat` of each vCPU's thread, until
    /// the end. Another one then reads its modules out of `memory`. The doorbell rings when the guest has rebooted, and if it has run too many kernels then.
    ///
    /// # Errors
    /// When the host gives no thread.
    pub fn introspect(
        &mut self,
        finder: KernelFinder,
        schedstat: Vec<Option<File>>,
        memory: Arc<Channel>,
    ) -> io::Result<()> {
        // It starts now: the other thread may start none.
        let (found, is_found) = channel();
        let common = Arc::clone(&self.common);
        let modules = thread::Builder::new().name("modules".into());
        self.threads.push(modules.spawn(move || {
            kvmprof_sandbox::enter(kvmprof_sandbox::Thread::Introspection);
            if is_found.recv().is_err() {
                return;
            }
            // Another kernel may take the place of one that has ended.
            while !common.stopping.load(Ordering::SeqCst)
                && let Some(linux) = common.knowledge.linux()
            {
                (linux.modules()).serve(linux, &memory, &common.stopping, monotonic_ns);
            }
        })?);
        let common = Arc::clone(&self.common);
        let shared = self.shared.clone();
        let builder = thread::Builder::new().name("introspection".into());
        self.threads.push(builder.spawn(move || {
            kvmprof_sandbox::enter(kvmprof_sandbox::Thread::AttachedKernel);
            let AttachedCommon {
                knowledge,
                sampled,
                stopping,
                ..
            } = &*common;
            let finder = finder.search(knowledge, sampled, stopping);
            let Some(linux) = common.knowledge.linux() else {
                return;
            };
            // That thread has ended only if it has panicked.
            let _ = found.send(());
            let (memory, vcpus) = finder.into_parts();
            let vcpus = vcpus.into_iter().zip(schedstat);
            if RebootWatch::new(vcpus, shared, memory, linux, &common).watch() {
                common.has_other_kernel.store(true, Ordering::Relaxed);
                common.doorbell.ring_anyway();
            }
        })?);
        Ok(())
    }
}

impl GuestThreads for AttachedThreads {
    type End = AttachedEnd;

    fn ended(&self) -> Option<AttachedEnd> {
        if self.common.has_other_kernel.load(Ordering::Relaxed) {
            return Some(AttachedEnd::OtherKernel);
        }
        if self.common.tracer_has_ended.load(Ordering::Relaxed) {
            return Some(AttachedEnd::NoTracer);
        }
        let only_output = self.common.only_output.as_ref();
        if only_output.is_some_and(|failure| failure.message().is_some()) {
            return Some(AttachedEnd::NoOutput);
        }
        let is_over = self.common.guest_has_ended.load(Ordering::Relaxed)
            || self.left.load(Ordering::Relaxed) == 0;
        is_over.then_some(AttachedEnd::Guest)
    }

    fn stop(&mut self) {
        self.common.stopping.store(true, Ordering::SeqCst);
        self.common.sampled.open();
        self.common.restart.wake();
        if let Some(linux) = self.common.knowledge.linux() {
            linux.modules().wake();
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
