//! The profiler: takes the ticks out of the vCPUs' rings, keeps every account, feeds the devices,
//! and has the clocks run exactly while somebody listens.
//!
//! All of it lives on the event thread, so nothing here is shared: the rings and each vCPU's
//! [`ClockControl`](crate::clock::ClockControl) are the only ways to the vCPU threads.

mod backend;
mod clocks;
mod kallsyms;
mod names;
mod prf;
mod processes;
mod recorder;
mod status;
mod streams;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvmprof_devices::endpoint::Handle;
use kvmprof_devices::profiling::{ClockLedger, Pcs, Prf};

use crate::binaries::BinarySources;
use crate::introspection::{ProcessMap, StackWish};
use crate::vcpu::{Gate, RING_ENTRIES, TickReceiver, VcpuShared};
use backend::Open;
use kallsyms::KernelText;
use names::Names;
use processes::Processes;
use recorder::StreamRecorder;

pub use clocks::ClockPlan;
pub use recorder::{RecordPlan, RecordWish, Recorder, facts as recording_facts};
pub use status::MachineFacts;

/// How long the end of a client's recording may wait for the files that are still being read.
const LOADING_PATIENCE: Duration = Duration::from_secs(1);
/// The same at the guest's end, when nothing else is left to do.
const LAST_PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at whether they are.
const LOADING_POLL: Duration = Duration::from_millis(1);

/// The profiler, shared by what runs on the event thread.
pub type SharedProfiler = Rc<RefCell<Profiler>>;

/// One vCPU as the profiler knows it.
#[derive(Debug)]
struct VcpuLink {
    shared: Arc<VcpuShared>,
    ring: TickReceiver,
    ledger: ClockLedger,
}

/// See the module's documentation.
pub struct Profiler {
    vcpus: Vec<VcpuLink>,
    plan: ClockPlan,
    // The rate that the consumers want, in Hz, while there are any.
    rate: u32,
    // What the vCPUs' clocks have been told, in Hz.
    hz: u32,
    // The parts of stacks that they have been told to take.
    stacks: StackWish,
    // Whether they have been told to follow the mappings of processes.
    follows_processes: bool,
    processes: Processes,
    // Those that came with the last ticks; empty in between.
    maps: Vec<Arc<ProcessMap>>,
    gate: Arc<Gate>,
    pcs: Pcs,
    prf: Prf,
    recorder: Option<Recorder>,
    // Those that clients read, by what they have open.
    streams: BTreeMap<Handle, StreamRecorder>,
    // The last rate with which prf couldn't be turned on, in Hz.
    refused_rate: Option<u32>,
    kernel_text: KernelText,
    names: Names,
    open: BTreeMap<Handle, Open>,
    next_handle: u32,
    facts: MachineFacts,
    ended: bool,
}

impl Profiler {
    /// A profiler of the vCPUs whose threads have the other ends of these; `gate` holds them
    /// until something is counted. A table of prf may have `prf_addresses` addresses. The files that the guest executes
    /// are looked for in `sources`.
    pub fn new(
        vcpus: Vec<(Arc<VcpuShared>, TickReceiver)>,
        plan: ClockPlan,
        gate: Arc<Gate>,
        facts: MachineFacts,
        prf_addresses: usize,
        sources: BinarySources,
    ) -> Self {
        let count = u16::try_from(vcpus.len()).unwrap_or(u16::MAX);
        Self {
            vcpus: vcpus
                .into_iter()
                .map(|(shared, ring)| VcpuLink {
                    shared,
                    ring,
                    ledger: ClockLedger::default(),
                })
                .collect(),
            plan,
            rate: plan.hz,
            hz: 0,
            stacks: StackWish::default(),
            follows_processes: false,
            processes: Processes::new(sources),
            maps: Vec::new(),
            gate,
            pcs: Pcs::new(count),
            prf: Prf::new(count, prf_addresses),
            recorder: None,
            streams: BTreeMap::new(),
            refused_rate: None,
            kernel_text: KernelText::default(),
            names: Names::default(),
            open: BTreeMap::new(),
            next_handle: 0,
            facts,
            ended: false,
        }
    }

    /// Has `recorder` record from now on, until the end, and lets the guest start.
    pub fn record(&mut self, mut recorder: Recorder) {
        self.settle();
        for block in self.processes.known() {
            recorder.add_block(Arc::clone(block));
        }
        self.recorder = Some(recorder);
        self.follow_consumers(self.pcs.wants_process_group());
    }

    /// Takes all that the vCPUs have handed over; true if there was anything.
    pub fn drain(&mut self) -> bool {
        let mut any = false;
        for vcpu in &mut self.vcpus {
            // Bounded, for a vCPU can fill its ring as fast as it is emptied.
            for _ in 0..RING_ENTRIES {
                let Some((ticks, frames)) = vcpu.ring.pop(&mut self.maps) else {
                    break;
                };
                any = true;
                // What a sample needs goes before it.
                for map in self.maps.drain(..) {
                    if let Some(block) = self.processes.enter(map) {
                        add_block(&mut self.recorder, &mut self.streams, &block);
                    }
                }
                vcpu.ledger.enter(&ticks);
                if let Some(sample) = &ticks.sample {
                    self.names.note(sample);
                }
                self.pcs.feed(&ticks);
                self.prf.feed(&ticks);
                if let Some(recorder) = &mut self.recorder {
                    recorder.feed(&ticks, frames);
                }
                for stream in self.streams.values_mut() {
                    stream.feed(&ticks, frames);
                }
            }
        }
        for block in self.processes.loaded() {
            add_block(&mut self.recorder, &mut self.streams, &block);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.tend();
        }
        self.tend_streams();
        any
    }

    /// Waits for the files that are still being read, for recordings that end.
    fn await_files(&mut self, patience: Duration) {
        let begun = Instant::now();
        while self.processes.is_loading() && begun.elapsed() < patience {
            std::thread::sleep(LOADING_POLL);
            self.drain();
        }
    }

    /// True while the clocks run.
    pub fn is_ticking(&self) -> bool {
        self.hz != 0
    }

    /// The clock's account, summed over the vCPUs.
    pub fn clock_ledger(&self) -> ClockLedger {
        let mut sum = ClockLedger::default();
        for vcpu in &self.vcpus {
            sum.ticks += vcpu.ledger.ticks;
            sum.sampled += vcpu.ledger.sampled;
            sum.idle += vcpu.ledger.idle;
            sum.stolen += vcpu.ledger.stolen;
            sum.lost += vcpu.ledger.lost;
        }
        sum
    }

    /// The VM has ended and its vCPU threads too: acts as PCS_STOP, and closes the recording. prf's counts stay as they
    /// are.
    pub fn end(&mut self) {
        while self.drain() {}
        self.await_files(LAST_PATIENCE);
        self.ended = true;
        self.hz = 0;
        self.pcs.stop();
        if let Some(recorder) = &mut self.recorder {
            recorder.finish();
        }
        for stream in self.streams.values_mut() {
            stream.stop();
        }
    }

    /// How much clients have yet to read: ticks of pcs, and bytes of recordings.
    pub fn pending(&self) -> u64 {
        let bytes: usize = self
            .streams
            .values()
            .map(StreamRecorder::waiting_bytes)
            .sum();
        self.pcs.ledger().pending + bytes as u64
    }

    /// True while a client has a device open.
    pub fn has_clients(&self) -> bool {
        !self.open.is_empty()
    }
}

/// Puts `block` into all recordings.
fn add_block(
    recorder: &mut Option<Recorder>,
    streams: &mut BTreeMap<Handle, StreamRecorder>,
    block: &Arc<[u8]>,
) {
    if let Some(recorder) = recorder {
        recorder.add_block(Arc::clone(block));
    }
    for stream in streams.values_mut() {
        stream.add_block(block);
    }
}
