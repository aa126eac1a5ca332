//! The side of a channel that asks: in the process that parses what a guest has made, without the right to look at the guest itself.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use kvm_bindings::{kvm_regs, kvm_sregs};
use kvmprof_introspection::PhysicalMemory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vm_memory::GuestAddress;

use super::blocks::{BLOCK_BYTES, BlockCache};
use super::message::{Answer, GuestRange, Request, Stopped};
use super::processor::ProcessorPin;
use super::shared::{DATA_BYTES, MESSAGE_WORDS, Shared};
use super::slot::{self, SLOT_BYTES};
use crate::tracer::{StopOutcome, TraceError};
use crate::{AttachError, Slot, Slots};

/// How long a thread takes the processor to wait for the answer to a read, before it sleeps.
pub(super) const SPIN: Duration = Duration::from_micros(50);
/// How long it sleeps between two looks at whether the tracer is still there.
const SLICE: Duration = Duration::from_millis(100);
/// A longer read isn't put together of blocks.
const MAX_OF_BLOCKS: usize = 4 * BLOCK_BYTES;

/// What all channels of a guest share.
#[derive(Debug)]
pub struct ChannelState {
    /// The VMM.
    pub pid: i32,
    /// The memory slots as they were told last, without their addresses in the VMM.
    slots: RwLock<Arc<Slots>>,
    /// The process that traces. It becomes readable when the process ends.
    tracer: OnceLock<OwnedFd>,
}

/// The guest's physical memory, and its vCPUs, as a thread of the tracer shows them. Threads can share it, and take turns.
#[derive(Debug)]
pub struct Channel {
    guest: Arc<ChannelState>,
    requester: Mutex<Requester>,
}

#[derive(Debug)]
struct Requester {
    shared: Arc<Shared>,
    /// The number of the last request.
    number: u32,
    request: Vec<u64>,
    answer: Box<[u64; MESSAGE_WORDS]>,
    /// The processor on which the threads of both processes work while the vCPU stands still.
    pin: Option<ProcessorPin>,
    blocks: BlockCache,
}

impl ChannelState {
    pub fn new(pid: i32, slots: &Slots) -> Self {
        let slots = slots.iter().map(|slot| Slot {
            host_address: 0,
            ..*slot
        });
        let slots: Vec<Slot> = slots.collect();
        Self {
            pid,
            slots: RwLock::new(Arc::new(Slots::new(&slots).unwrap_or_default())),
            tracer: OnceLock::new(),
        }
    }

    /// Notes the process that traces.
    pub fn is_traced_by(&self, tracer: OwnedFd) {
        // There is one.
        let _ = self.tracer.set(tracer);
    }

    fn has_tracer(&self) -> bool {
        let Some(tracer) = self.tracer.get() else {
            return true;
        };
        let now = Timespec::default();
        let ended = poll(&mut [PollFd::new(tracer, PollFlags::IN)], Some(&now));
        // It isn't known after an error.
        !matches!(ended, Ok(1..))
    }
}

impl Channel {
    pub(super) fn new(guest: Arc<ChannelState>, shared: Arc<Shared>) -> Self {
        let requester = Requester {
            shared,
            number: 0,
            request: Vec::with_capacity(MESSAGE_WORDS),
            answer: Box::new([0; MESSAGE_WORDS]),
            pin: None,
            blocks: BlockCache::default(),
        };
        Self {
            guest,
            requester: Mutex::new(requester),
        }
    }

    /// How long its vCPU was held so far, in ns, if it is a vCPU's own channel.
    fn held(&self) -> u64 {
        self.requester().shared.held()
    }

    fn requester(&self) -> MutexGuard<'_, Requester> {
        self.requester
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ask(&self, request: &Request, spin: Duration) -> Answer {
        self.requester().ask(&self.guest, request, spin)
    }

    /// The memory slots as they were told last. Their addresses in the VMM are 0.
    pub fn slots(&self) -> Arc<Slots> {
        let slots = self.guest.slots.read();
        Arc::clone(&slots.unwrap_or_else(PoisonError::into_inner))
    }

    /// Has the tracer read the memory slots again if they have changed. Returns the number of vCPUs that the guest has made until now, closed ones included; `None`
    /// if that isn't known.
    ///
    /// # Errors
    /// The guest or the tracer has ended, or the guest has no memory that can be read any more. [`Channel::slots`] stay as they were.
    pub fn refresh(&self) -> Result<Option<u32>, AttachError> {
        let mut requester = self.requester();
        match requester.ask(&self.guest, &Request::Refresh, Duration::ZERO) {
            Answer::Slots(vcpus, None) => Ok(vcpus),
            Answer::Slots(vcpus, Some(count)) => {
                let slots = requester
                    .slots(count)
                    .ok_or(AttachError::Slots(self.guest.pid))?;
                *(self.guest.slots.write()).unwrap_or_else(PoisonError::into_inner) =
                    Arc::new(slots);
                Ok(vcpus)
            }
            Answer::Ended => Err(AttachError::Ended(self.guest.pid)),
            Answer::Failed(_) => Err(AttachError::NoTracer(self.guest.pid)),
            _ => Err(AttachError::Slots(self.guest.pid)),
        }
    }
}

impl PhysicalMemory for Channel {
    fn read_physical(&self, address: GuestAddress, buffer: &mut [u8]) -> Option<()> {
        let mut requester = self.requester();
        if requester.blocks.is_open && buffer.len() <= MAX_OF_BLOCKS {
            return requester.read_blocks(&self.guest, address, buffer);
        }
        let mut address = address;
        for part in buffer.chunks_mut(DATA_BYTES) {
            requester.read(&self.guest, address, part)?;
            address = GuestAddress(address.0.checked_add(part.len() as u64)?);
        }
        Some(())
    }

    fn contains(&self, address: GuestAddress) -> bool {
        self.slots().find(address).is_some()
    }

    fn begin_sample(&self) {
        self.requester().blocks.begin();
    }

    fn end_sample(&self) {
        self.requester().blocks.end();
    }
}

impl Requester {
    /// Asks, and waits for the answer: first for `spin` without giving the processor away, unless the tracer needs it to answer.
    fn ask(&mut self, guest: &ChannelState, request: &Request, spin: Duration) -> Answer {
        let spin = match self.pin {
            Some(_) => Duration::ZERO,
            None => spin,
        };
        self.request.clear();
        request.encode(&mut self.request);
        self.number = self.number.wrapping_add(1);
        self.shared.ask(&self.request);
        while !self.shared.is_answered(self.number, spin, SLICE) {
            if !guest.has_tracer() {
                return Answer::Failed(TraceError::NoTracer);
            }
        }
        self.shared.answer_words(&mut self.answer);
        Answer::decode(&*self.answer).unwrap_or(Answer::Refused)
    }

    /// The memory slots in the data.
    fn slots(&self, count: usize) -> Option<Slots> {
        let mut slots = Vec::new();
        for index in 0..count.min(DATA_BYTES / SLOT_BYTES) {
            let mut bytes = [0; SLOT_BYTES];
            self.shared.data(index * SLOT_BYTES, &mut bytes);
            slots.push(slot::decode(&bytes)?);
        }
        Slots::new(&slots)
    }

    /// Reads at most [`DATA_BYTES`].
    fn read(
        &mut self,
        guest: &ChannelState,
        address: GuestAddress,
        buffer: &mut [u8],
    ) -> Option<()> {
        let bytes = buffer.len();
        let range = GuestRange { address, bytes };
        match self.ask(guest, &Request::Read(range), SPIN) {
            Answer::Is(true) => self.shared.data(0, buffer),
            _ => return None,
        }
        Some(())
    }

    /// Reads for a sample, by blocks.
    fn read_blocks(
        &mut self,
        guest: &ChannelState,
        address: GuestAddress,
        buffer: &mut [u8],
    ) -> Option<()> {
        if std::mem::take(&mut self.blocks.is_empty) {
            self.read_first_blocks(guest);
        }
        let mut address = address.0;
        let mut rest = buffer;
        while !rest.is_empty() {
            let within = usize::try_from(address % BLOCK_BYTES as u64).ok()?;
            let (part, behind) = rest.split_at_mut_checked(rest.len().min(BLOCK_BYTES - within))?;
            let begin = GuestAddress(address - within as u64);
            let block = match self.blocks.find(begin) {
                Some(known) => known?,
                None => match self.read_block(guest, begin) {
                    Some(index) => index,
                    None => {
                        // There is no room for more of them.
                        self.read(guest, GuestAddress(address), part)?;
                        address = address.checked_add(part.len() as u64)?;
                        rest = behind;
                        continue;
                    }
                },
            };
            let bytes = self.blocks.block(block)?;
            part.copy_from_slice(bytes.get(within..within + part.len())?);
            address = address.checked_add(part.len() as u64)?;
            rest = behind;
        }
        Some(())
    }

    /// Reads the blocks that the last sample needed.
    fn read_first_blocks(&mut self, guest: &ChannelState) {
        let next = std::mem::take(&mut self.blocks.next);
        if next.is_empty() {
            return;
        }
        let request = Request::ReadBlocks(next);
        let answer = self.ask(guest, &request, SPIN);
        let Request::ReadBlocks(next) = request else {
            return;
        };
        if let Answer::Blocks(unread) = answer {
            self.blocks.fill(&next, &unread, &self.shared);
        }
        self.blocks.next = next;
    }

    /// Reads the block at `address`, and returns its number; `None` if there is no room for it. A block that can't be read has a number, too.
    fn read_block(&mut self, guest: &ChannelState, address: GuestAddress) -> Option<usize> {
        if !self.blocks.has_room() {
            return None;
        }
        let mut bytes = [0; BLOCK_BYTES];
        let is_readable = self.read(guest, address, &mut bytes).is_some();
        Some(self.blocks.push(address, is_readable, &bytes))
    }
}

/// A vCPU of the guest, for the user of one channel.
#[derive(Debug)]
pub struct RemoteVcpu {
    pub(super) channel: Arc<Channel>,
    /// Its number among the vCPUs of the channel.
    pub(super) number: usize,
    thread: i32,
    descriptor: i32,
}

/// A vCPU that stands still.
#[derive(Debug)]
pub struct RemoteState<'a> {
    channel: &'a Channel,
    stopped: &'a Stopped,
    /// The look is over.
    is_over: bool,
}

impl RemoteVcpu {
    pub(super) fn new(channel: Arc<Channel>, number: usize, thread: i32, descriptor: i32) -> Self {
        Self {
            channel,
            number,
            thread,
            descriptor,
        }
    }

    /// How long it was held so far for looks, in ns: by this channel, which is the vCPU's own, and by the one that watches all vCPUs.
    pub fn held(&self) -> u64 {
        self.channel.held()
    }

    /// The thread id of its thread.
    pub fn thread(&self) -> i32 {
        self.thread
    }

    /// Its descriptor in its VMM.
    pub fn descriptor(&self) -> i32 {
        self.descriptor
    }

    /// Guest memory, which is read while the vCPU stands still if that is during a look.
    pub fn memory(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Whether its thread is still there.
    pub fn has_thread(&self) -> bool {
        let answer = (self.channel).ask(&Request::HasThread(self.number), Duration::ZERO);
        !matches!(answer, Answer::Is(false) | Answer::Refused)
    }

    /// Stops the vCPU, calls `see` with it, and lets it continue.
    ///
    /// # Errors
    /// The vCPU can't be stopped. It continues in any case.
    pub fn look<T>(
        &mut self,
        see: impl FnOnce(&mut RemoteState<'_>) -> Result<T, TraceError>,
    ) -> Result<StopOutcome<T>, TraceError> {
        let stopped = match self.stop() {
            Answer::Stopped(stopped) => stopped,
            answer => return not_stopped(answer),
        };
        let mut state = RemoteState {
            channel: &self.channel,
            stopped: &stopped,
            is_over: false,
        };
        let seen = see(&mut state);
        let is_over = state.is_over;
        let mut requester = self.channel.requester();
        requester.blocks.end();
        if is_over {
            requester.pin = None;
            return match seen {
                Err(TraceError::Gone) => Ok(StopOutcome::Gone),
                seen => seen.map(StopOutcome::Stopped),
            };
        }
        let answer = requester.ask(&self.channel.guest, &Request::Release, SPIN);
        requester.pin = None;
        match answer {
            Answer::Released => seen.map(StopOutcome::Stopped),
            answer => not_stopped(answer),
        }
    }

    fn stop(&self) -> Answer {
        let mut requester = self.channel.requester();
        let next = std::mem::take(&mut requester.blocks.next);
        requester.pin = ProcessorPin::here();
        let processor = requester.pin.as_ref();
        let processor = processor.and_then(|pin| u32::try_from(pin.processor).ok());
        let request = Request::Look(self.number, processor, next);
        let answer = requester.ask(&self.channel.guest, &request, Duration::ZERO);
        let Request::Look(_, _, next) = request else {
            return Answer::Refused;
        };
        let Requester {
            blocks,
            shared,
            pin,
            ..
        } = &mut *requester;
        if let Answer::Stopped(stopped) = &answer {
            blocks.fill(&next, &stopped.unread, shared);
            blocks.is_open = true;
        } else {
            *pin = None;
        }
        blocks.next = next;
        answer
    }
}

/// The result of a look at a vCPU that wasn't stopped, or not long enough.
pub(super) fn not_stopped<T>(answer: Answer) -> Result<StopOutcome<T>, TraceError> {
    match answer {
        Answer::Suspended => Ok(StopOutcome::Suspended),
        Answer::Busy => Ok(StopOutcome::Busy),
        Answer::Gone => Ok(StopOutcome::Gone),
        Answer::Failed(error) => Err(error),
        // Nothing else is answered.
        _ => Err(TraceError::Slow),
    }
}

impl RemoteState<'_> {
    /// Whether its thread was in KVM_RUN: it was executing the guest, or was halted.
    pub fn is_in_guest(&self) -> bool {
        self.stopped.is_in_guest
    }

    /// Whether it runs a nested guest.
    pub fn runs_nested_guest(&self) -> bool {
        self.stopped.registers.is_none()
    }

    /// Its registers, from KVM_GET_REGS and KVM_GET_SREGS.
    ///
    /// # Errors
    /// They are those of a nested guest.
    pub fn registers(&self) -> Result<(kvm_regs, kvm_sregs), TraceError> {
        self.stopped.registers.ok_or(TraceError::Unknown)
    }

    /// Whether it runs or is halted, from KVM_GET_MP_STATE.
    ///
    /// # Errors
    /// The thread can't be made to do the ioctl, or KVM refuses it.
    pub fn mp_state(&mut self) -> Result<u32, TraceError> {
        if self.is_over {
            return Err(TraceError::Overdue);
        }
        match self.channel.ask(&Request::MpState, SPIN) {
            Answer::MpState(state) => Ok(state),
            answer => {
                self.is_over = true;
                match answer {
                    Answer::Gone => Err(TraceError::Gone),
                    Answer::Failed(error) => Err(error),
                    _ => Err(TraceError::Slow),
                }
            }
        }
    }
}
