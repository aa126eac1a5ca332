//! The tracer's side of a channel: a thread that does what it is asked for, and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kvmprof_introspection::PhysicalMemory;
use vm_memory::GuestAddress;

use super::blocks::{BLOCK_BYTES, UnreadBlocks};
use super::message::{Answer, GuestRange, Request, Stopped};
use super::processor::ProcessorPin;
use super::shared::{DATA_BYTES, MESSAGE_WORDS, Shared};
use super::slot::{self, SLOT_BYTES};
use crate::tracer::{SLOW_PAUSE, State, StopOutcome, TraceError, TracedVcpu};
use crate::{AttachError, AttachedMemory, NestedGuest, Slots};

/// How long a vCPU may stand still for a look by any channel, unless [`StandStill::UntilReleased`] was asked for at the start.
const MAX_LOOK: Duration = Duration::from_secs(2);
/// How long the thread takes the processor to wait for the next request: while a vCPU stands still, whose processor is free meanwhile, unless whoever asks needs the
/// same one; and after a read, which another one often follows.
const SPIN_IN_LOOK: Duration = Duration::from_micros(100);
const SPIN_AFTER_READ: Duration = Duration::from_micros(20);

/// A vCPU that a channel can ask about.
#[derive(Debug)]
pub struct ServedVcpu {
    traced: TracedVcpu,
    /// The check whether its registers are those of a nested guest.
    nested: Option<NestedGuest>,
    /// What counts how long it is held.
    held: Arc<Shared>,
}

impl ServedVcpu {
    /// The vCPU of `traced`. The channel with `held` counts how long it is held.
    pub fn new(traced: TracedVcpu, memory: &AttachedMemory, held: Arc<Shared>) -> Self {
        Self {
            nested: memory.nested_guest(traced.descriptor()),
            traced,
            held,
        }
    }
}

/// The memory that is served: a guest's, or another one in tests.
pub trait ServedMemory: PhysicalMemory {
    /// Reads the memory slots again, if they have changed.
    fn refresh(&self) -> Result<bool, AttachError>;

    /// The memory slots as they were read last.
    fn slots(&self) -> Arc<Slots>;

    /// The number of vCPUs that the guest has made until now; `None` if it isn't known.
    fn vcpu_count(&self) -> Option<u32>;
}

impl ServedMemory for AttachedMemory {
    fn refresh(&self) -> Result<bool, AttachError> {
        Self::refresh(self)
    }

    fn slots(&self) -> Arc<Slots> {
        Self::slots(self)
    }

    fn vcpu_count(&self) -> Option<u32> {
        Self::vcpu_count(self)
    }
}

/// How long a vCPU may stand still for a look. The tracer knows it from the start: nobody can ask for more later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandStill {
    /// For 2 s.
    Briefly,
    /// Until it is released, or one of both processes ends.
    UntilReleased,
}

/// What serves one channel.
#[derive(Debug)]
pub struct Service<M> {
    shared: Arc<Shared>,
    memory: Arc<M>,
    vcpus: Vec<ServedVcpu>,
    /// The number of the last request.
    last: u32,
    /// Whether the last look was ended before it was asked for.
    is_overdue: bool,
    /// How long the thread takes the processor for the next request of this look.
    spin_in_look: Duration,
    /// How long its vCPUs may stand still.
    stand_still: StandStill,
    /// The memory slots that were told last.
    told: Arc<Slots>,
    buffer: Vec<u8>,
    words: Vec<u64>,
    stopping: Arc<AtomicBool>,
}

impl<M: ServedMemory> Service<M> {
    /// Serves the channel of `shared`, which can ask about these vCPUs. `told` are the memory slots that the other side has.
    pub fn new(
        shared: Arc<Shared>,
        memory: Arc<M>,
        vcpus: Vec<ServedVcpu>,
        stand_still: StandStill,
        told: Arc<Slots>,
        stopping: Arc<AtomicBool>,
    ) -> Self {
        Self {
            shared,
            memory,
            vcpus,
            last: 0,
            is_overdue: false,
            spin_in_look: SPIN_IN_LOOK,
            stand_still,
            told,
            buffer: vec![0; DATA_BYTES],
            words: Vec::with_capacity(MESSAGE_WORDS),
            stopping,
        }
    }

    /// Serves it until the end.
    pub fn run(mut self) {
        let mut spin = Duration::ZERO;
        while !self.stopping.load(Ordering::SeqCst) {
            let is_slow = self.vcpus.iter().any(|vcpu| vcpu.traced.is_slow());
            let slice = is_slow.then_some(SLOW_PAUSE);
            let number = self.shared.next_request(self.last, spin, slice);
            // A slow thread doesn't wait for the next request, which may come much later, or not at all.
            for vcpu in &mut self.vcpus {
                vcpu.traced.let_go();
            }
            spin = Duration::ZERO;
            let Some(number) = number else {
                continue;
            };
            self.last = number;
            let answer = match self.request() {
                Some(Request::Look(vcpu, processor, blocks)) => {
                    let pin = processor.and_then(|it| ProcessorPin::at(usize::try_from(it).ok()?));
                    self.spin_in_look = match pin {
                        Some(_) => Duration::ZERO,
                        None => SPIN_IN_LOOK,
                    };
                    self.look(vcpu, &blocks)
                }
                Some(Request::Read(range)) => {
                    spin = SPIN_AFTER_READ;
                    Some(self.read(range))
                }
                Some(Request::ReadBlocks(blocks)) => {
                    spin = SPIN_AFTER_READ;
                    Some(Answer::Blocks(self.put_blocks(&blocks)))
                }
                Some(Request::Refresh) => Some(self.refresh()),
                Some(Request::HasThread(vcpu)) => Some(match self.vcpus.get(vcpu) {
                    Some(vcpu) => Answer::Is(vcpu.traced.has_thread()),
                    None => Answer::Refused,
                }),
                Some(Request::MpState | Request::Release) if self.is_overdue => {
                    Some(Answer::Failed(TraceError::Overdue))
                }
                Some(Request::MpState | Request::Release) | None => Some(Answer::Refused),
            };
            if let Some(answer) = answer {
                self.answer(&answer);
            }
        }
    }

    fn request(&self) -> Option<Request> {
        let mut words = [0; MESSAGE_WORDS];
        self.shared.request_words(&mut words);
        Request::decode(&words)
    }

    fn answer(&mut self, answer: &Answer) {
        self.words.clear();
        answer.encode(&mut self.words);
        self.shared.answer(self.last, &self.words);
    }

    fn read(&mut self, range: GuestRange) -> Answer {
        let buffer = self.buffer.get_mut(..range.bytes).unwrap_or_default();
        let is_read = self.memory.read_physical(range.address, buffer).is_some();
        if is_read {
            self.shared.put_data(0, buffer);
        }
        Answer::Is(is_read)
    }

    fn refresh(&mut self) -> Answer {
        match self.memory.refresh() {
            Ok(_) => {}
            Err(AttachError::Ended(_)) => return Answer::Ended,
            Err(_) => return Answer::NoSlots,
        }
        let slots = self.memory.slots();
        let is_new = !Arc::ptr_eq(&slots, &self.told);
        if is_new {
            put_slots(&self.shared, &slots);
            self.told = Arc::clone(&slots);
        }
        let count = is_new.then(|| slots.iter().count());
        Answer::Slots(self.memory.vcpu_count(), count)
    }

    /// Looks at a vCPU: answers with its state, and serves requests until it is released. `None` if no further answer is needed.
    fn look(&mut self, number: usize, blocks: &[GuestAddress]) -> Option<Answer> {
        self.is_overdue = false;
        // See TracedVcpu.
        let mut others = self.vcpus.iter().zip(0..);
        if others.any(|(vcpu, other)| other != number && vcpu.traced.is_slow()) {
            return Some(Answer::Failed(TraceError::Slow));
        }
        let mut vcpus = std::mem::take(&mut self.vcpus);
        let looked = vcpus.get_mut(number).map(|vcpu| {
            let (nested, held) = (vcpu.nested.as_ref(), &vcpu.held);
            let looked = vcpu.traced.look(|state| {
                let begin = Instant::now();
                let _held = HeldTime { begin, held };
                let runs_nested_guest = nested.is_some_and(NestedGuest::runs);
                let registers = match runs_nested_guest {
                    true => None,
                    false => Some(state.registers()?),
                };
                self.show(state.is_in_guest(), registers, blocks);
                self.attend(state, begin)
            });
            looked.map(|outcome| match outcome {
                StopOutcome::Stopped(answer) => answer,
                StopOutcome::Suspended => Some(Answer::Suspended),
                StopOutcome::Busy => Some(Answer::Busy),
                StopOutcome::Gone => Some(Answer::Gone),
            })
        });
        self.vcpus = vcpus;
        match looked {
            None => Some(Answer::Refused),
            // Nobody has asked for the end of the look, so that nobody waits for an answer.
            Some(Err(_)) if self.is_overdue => None,
            Some(Err(error)) => Some(Answer::Failed(error)),
            Some(Ok(answer)) => answer,
        }
    }

    /// Answers with what a stopped vCPU shows.
    fn show(
        &mut self,
        is_in_guest: bool,
        registers: Option<(kvm_bindings::kvm_regs, kvm_bindings::kvm_sregs)>,
        blocks: &[GuestAddress],
    ) {
        let stopped = Stopped {
            is_in_guest,
            registers,
            unread: self.put_blocks(blocks),
        };
        self.answer(&Answer::Stopped(Box::new(stopped)));
    }

    /// Puts the blocks at these addresses into the data, one after the other. Returns those that can't be read.
    fn put_blocks(&self, blocks: &[GuestAddress]) -> UnreadBlocks {
        let mut unread = UnreadBlocks::default();
        let mut block = [0; BLOCK_BYTES];
        for (index, address) in blocks.iter().enumerate() {
            match self.memory.read_physical(*address, &mut block) {
                Some(()) => self.shared.put_data(index * BLOCK_BYTES, &block),
                None => unread.note(index),
            }
        }
        unread
    }

    /// Does what is asked for while a vCPU stands still, until it is to go on. The answer to the last request; `None` if nothing was asked for in time.
    fn attend(
        &mut self,
        state: &mut State<'_>,
        begin: Instant,
    ) -> Result<Option<Answer>, TraceError> {
        loop {
            let left = match self.stand_still {
                StandStill::Briefly => MAX_LOOK.saturating_sub(begin.elapsed()),
                StandStill::UntilReleased => MAX_LOOK,
            };
            if left.is_zero() || self.stopping.load(Ordering::SeqCst) {
                self.is_overdue = true;
                return Ok(None);
            }
            let next = (self.shared).next_request(self.last, self.spin_in_look, Some(left));
            let Some(number) = next else {
                continue;
            };
            self.last = number;
            let answer = match self.request() {
                Some(Request::Release) => return Ok(Some(Answer::Released)),
                // An error ends the look, and is the answer.
                Some(Request::MpState) => Answer::MpState(state.mp_state()?),
                Some(Request::Read(range)) => self.read(range),
                _ => Answer::Refused,
            };
            self.answer(&answer);
        }
    }
}

/// The time for which a vCPU is held, which is counted when this is dropped.
struct HeldTime<'a> {
    begin: Instant,
    held: &'a Shared,
}

impl Drop for HeldTime<'_> {
    fn drop(&mut self) {
        self.held.add_held(self.begin.elapsed());
    }
}

/// Puts the slots into the data, without their addresses in the VMM.
fn put_slots(shared: &Shared, slots: &Slots) {
    for (index, slot) in slots.iter().enumerate() {
        let bytes = slot::encode(slot).map(u64::to_le_bytes);
        shared.put_data(index * SLOT_BYTES, bytes.as_flattened());
    }
}
