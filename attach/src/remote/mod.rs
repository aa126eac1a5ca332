//! A guest of another process, in two processes: one has the rights to look at it, and does nothing with what it sees; the other one parses
//! that, and has no rights.
//!
//! What a guest's memory has is written by the guest, and its VMM may lie, too. So whoever parses it may be taken over. The process that has the rights, the
//! tracer, parses nothing of it: it stops vCPUs, and hands out their registers and parts of the guest's physical memory, which it finds by the memory slots
//! of the host's kernel. Whatever it is asked for, it reads no other memory of the VMM, and it lets a vCPU go on after 2 s, unless it was [started](divide) to hold it.
//!
//! [`divide`] makes both sides in one process, which then forks: [`Tracer`] is for the new process, [`Guest`] for the old one. They share memory
//! (`shared`), a part for each thread that asks, in which a request is answered without a system call where both processes have a processor.

mod blocks;
mod channel;
mod held;
mod message;
mod processor;
mod service;
mod shared;
mod slot;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use blocks::UnreadBlocks;
pub use channel::{Channel, RemoteState, RemoteVcpu};
pub use held::HeldVcpu;
pub use message::{Answer, GuestRange, Request, Stopped};
pub use service::StandStill;

use crate::AttachedMemory;
use crate::tracer::TracedVcpu;
use channel::ChannelState;
use service::{ServedVcpu, Service};
use shared::Shared;

/// How long a look that isn't over may take at the end of the process that asks.
const GRACE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(2);

/// The side that has the rights.
#[derive(Debug)]
pub struct Tracer {
    services: Vec<(String, Service<AttachedMemory>)>,
    stopping: Arc<AtomicBool>,
    shared: Vec<Arc<Shared>>,
}

/// The guest for the side that has none.
#[derive(Debug)]
pub struct Guest {
    state: Arc<ChannelState>,
    /// The vCPUs, each with a channel of its own.
    pub vcpus: Vec<RemoteVcpu>,
    /// The same vCPUs, for one thread that looks at them in turn.
    pub watched: Vec<RemoteVcpu>,
    /// The memory, for the same thread.
    pub watching: Arc<Channel>,
    /// The number of vCPUs that the guest had made by then, closed ones included; `None` if it isn't known.
    pub vcpu_count: Option<u32>,
    /// The memory, for the thread that asks whether it has changed.
    pub control: Arc<Channel>,
    /// The memory, for two further threads.
    pub others: [Arc<Channel>; 2],
}

/// Makes both sides for the guest whose memory is `memory` and which has these `vcpus`, each of which may `stand_still` so long for a look.
///
/// # Errors
/// There is no memory for the channels.
pub fn divide(
    memory: &Arc<AttachedMemory>,
    vcpus: &[TracedVcpu],
    stand_still: StandStill,
) -> io::Result<(Tracer, Guest)> {
    let state = Arc::new(ChannelState::new(memory.machine().pid, &memory.slots()));
    let mut tracer = Tracer {
        services: Vec::new(),
        stopping: Arc::default(),
        shared: Vec::new(),
    };
    // Each vCPU's own channel counts how long it is held: those in `held`, or the new one.
    let mut channel = |name: String, vcpus: &[TracedVcpu], held: &[Arc<Shared>]| {
        let shared = Arc::new(Shared::map()?);
        let served = vcpus.iter().enumerate().map(|(index, it)| {
            let held = held.get(index).unwrap_or(&shared);
            ServedVcpu::new(it.another(), memory, Arc::clone(held))
        });
        let service = Service::new(
            Arc::clone(&shared),
            Arc::clone(memory),
            served.collect(),
            stand_still,
            memory.slots(),
            Arc::clone(&tracer.stopping),
        );
        tracer.services.push((name, service));
        tracer.shared.push(Arc::clone(&shared));
        let channel = Arc::new(Channel::new(Arc::clone(&state), Arc::clone(&shared)));
        Ok::<_, io::Error>((channel, shared))
    };
    let remote = |channel: &Arc<Channel>, number, vcpu: &TracedVcpu| {
        RemoteVcpu::new(
            Arc::clone(channel),
            number,
            vcpu.thread(),
            vcpu.descriptor(),
        )
    };
    let (mut own, mut held) = (Vec::new(), Vec::new());
    for (index, vcpu) in vcpus.iter().enumerate() {
        let only = std::slice::from_ref(vcpu);
        let (channel, shared) = channel(format!("look {index}"), only, &[])?;
        own.push(remote(&channel, 0, vcpu));
        held.push(shared);
    }
    let (watch, _) = channel("watch".to_owned(), vcpus, &held)?;
    let mut reader = |name: &str| Ok::<_, io::Error>(channel(name.to_owned(), &[], &[])?.0);
    let watched = vcpus.iter().zip(0..);
    let watched: Vec<RemoteVcpu> = watched
        .map(|(vcpu, number)| remote(&watch, number, vcpu))
        .collect();
    let guest = Guest {
        vcpus: own,
        watched,
        watching: watch,
        vcpu_count: memory.vcpu_count(),
        control: reader("slots")?,
        others: [reader("read 0")?, reader("read 1")?],
        state: Arc::clone(&state),
    };
    Ok((tracer, guest))
}

impl Guest {
    /// Notes the process that traces, by a descriptor (pidfd_open(2)): a wait for its answer ends when it ends.
    pub fn is_traced_by(&self, tracer: OwnedFd) {
        self.state.is_traced_by(tracer);
    }
}

impl Tracer {
    /// Answers requests until the result is dropped.
    ///
    /// # Errors
    /// The host gives no thread.
    pub fn start(self) -> io::Result<RunningTracer> {
        let mut running = RunningTracer {
            stopping: self.stopping,
            shared: self.shared,
            threads: Vec::new(),
        };
        for (name, service) in self.services {
            let builder = thread::Builder::new().name(name);
            running.threads.push(builder.spawn(|| service.run())?);
        }
        Ok(running)
    }
}

/// The threads that answer. When this is dropped, looks end, and each vCPU goes on: what hasn't ended after half a second does with the process.
#[derive(Debug)]
pub struct RunningTracer {
    stopping: Arc<AtomicBool>,
    shared: Vec<Arc<Shared>>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for RunningTracer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        let begin = Instant::now();
        while begin.elapsed() < GRACE && !self.threads.iter().all(JoinHandle::is_finished) {
            for shared in &self.shared {
                shared.interrupt();
            }
            thread::sleep(PAUSE);
        }
    }
}
