//! Both sides of a channel, in one process, each of which may be taken over: a guest's memory without a vCPU that is served, and a tracer that answers anything.

use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, PoisonError};

use kvmprof_introspection::PhysicalMemory;
use vm_memory::GuestAddress;

use super::service::ServedMemory;
use super::shared::MESSAGE_WORDS;
use super::*;
use crate::{AttachError, Slot, Slots};

pub(super) const PID: i32 = 7;
pub(super) const BYTES: u64 = 4 << 20;
/// How long a side that is idle looks for the other one.
const SPIN: Duration = Duration::from_micros(50);

/// The byte at each address of guest memory.
pub(super) fn byte(address: u64) -> u8 {
    (address ^ address >> 8 ^ address >> 16).to_le_bytes()[0]
}

/// Guest memory from [`BYTES`] on, of as many bytes, which counts its reads.
#[derive(Debug)]
pub(super) struct Memory {
    pub reads: AtomicUsize,
    pub slots: Mutex<Arc<Slots>>,
    pub has_ended: AtomicBool,
}

pub(super) fn slots(bytes: u64) -> Slots {
    Slots::new(&[Slot {
        address: GuestAddress(BYTES),
        bytes,
        host_address: 0x7000_0000_0000,
        is_read_only: false,
        logs_writes: true,
        backing: crate::Backing::default(),
    }])
    .unwrap_or_default()
}

impl PhysicalMemory for Memory {
    fn read_physical(&self, address: GuestAddress, buffer: &mut [u8]) -> Option<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let end = address.0.checked_add(buffer.len() as u64)?;
        (address.0 >= BYTES && end <= 2 * BYTES).then_some(())?;
        for (place, address) in buffer.iter_mut().zip(address.0..) {
            *place = byte(address);
        }
        Some(())
    }

    fn contains(&self, address: GuestAddress) -> bool {
        self.slots().find(address).is_some()
    }
}

impl ServedMemory for Memory {
    fn refresh(&self) -> Result<bool, AttachError> {
        match self.has_ended.load(Ordering::Relaxed) {
            true => Err(AttachError::Ended(PID)),
            false => Ok(true),
        }
    }

    fn slots(&self) -> Arc<Slots> {
        Arc::clone(&self.slots.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn vcpu_count(&self) -> Option<u32> {
        Some(3)
    }
}

/// A channel, and the thread that serves it until the end.
#[derive(Debug)]
pub struct Served {
    pub(super) memory: Arc<Memory>,
    pub(super) shared: Arc<Shared>,
    channel: Arc<Channel>,
    /// The number of the last request that was asked for by words.
    asked: u32,
    _tracer: RunningTracer,
}

/// Serves that memory, without a vCPU.
///
/// # Errors
/// There is no memory for the channel.
pub fn served() -> io::Result<Served> {
    let memory = Arc::new(Memory {
        reads: AtomicUsize::new(0),
        slots: Mutex::new(Arc::new(slots(BYTES))),
        has_ended: AtomicBool::new(false),
    });
    let shared = Arc::new(Shared::map()?);
    let stopping: Arc<AtomicBool> = Arc::default();
    let service = Service::new(
        Arc::clone(&shared),
        Arc::clone(&memory),
        Vec::new(),
        StandStill::Briefly,
        memory.slots(),
        Arc::clone(&stopping),
    );
    let state = Arc::new(ChannelState::new(PID, &memory.slots()));
    Ok(Served {
        channel: Arc::new(Channel::new(state, Arc::clone(&shared))),
        memory,
        _tracer: RunningTracer {
            stopping,
            shared: vec![Arc::clone(&shared)],
            threads: vec![thread::spawn(|| service.run())],
        },
        shared,
        asked: 0,
    })
}

impl Served {
    /// The side that asks.
    pub fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    /// Sends these words as a request, and waits for the answer; `None` if the answer is invalid.
    pub fn ask(&mut self, request: &[u64]) -> Option<Answer> {
        let mut words = [0; MESSAGE_WORDS];
        self.shared.ask(request);
        self.asked = self.asked.wrapping_add(1);
        while !self.shared.is_answered(self.asked, SPIN, GRACE) {}
        self.shared.answer_words(&mut words);
        Answer::decode(&words)
    }

    /// How often guest memory was read.
    pub fn reads(&self) -> usize {
        self.memory.reads.load(Ordering::Relaxed)
    }
}

/// A tracer that is somebody else's: each request is answered by the next bytes of a script, whatever was asked for.
#[derive(Debug)]
pub struct HostileTracer {
    stopping: Arc<AtomicBool>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl HostileTracer {
    /// Starts it, and gives the other side: a vCPU with its channel. Of the script each answer takes a byte, that many words, and 64 bytes of data; behind its
    /// end all is refused.
    ///
    /// # Errors
    /// There is no memory for the channel.
    pub fn start(script: Vec<u8>) -> io::Result<(Self, RemoteVcpu)> {
        let shared = Arc::new(Shared::map()?);
        let stopping: Arc<AtomicBool> = Arc::default();
        let state = Arc::new(ChannelState::new(PID, &slots(BYTES)));
        let channel = Arc::new(Channel::new(state, Arc::clone(&shared)));
        let (answering, is_over) = (Arc::clone(&shared), Arc::clone(&stopping));
        let thread = thread::spawn(move || {
            let mut script = script.as_slice();
            let mut last = 0;
            while !is_over.load(Ordering::SeqCst) {
                if let Some(number) = answering.next_request(last, SPIN, Some(PAUSE)) {
                    last = number;
                    answer(&answering, number, &mut script);
                }
            }
        });
        let tracer = Self {
            stopping,
            shared,
            thread: Some(thread),
        };
        Ok((tracer, RemoteVcpu::new(channel, 0, 1, 2)))
    }
}

/// Answers a request by the next part of the script.
fn answer(shared: &Shared, number: u32, script: &mut &[u8]) {
    let Some((count, rest)) = script.split_first() else {
        // `Answer::Refused`
        return shared.answer(number, &[11]);
    };
    let (words, rest) = rest.split_at(rest.len().min(8 * usize::from(*count)));
    let (words, _) = words.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (data, rest) = rest.split_at(rest.len().min(64));
    shared.put_data(0, data);
    *script = rest;
    shared.answer(number, &words);
}

impl Drop for HostileTracer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.shared.interrupt();
        if let Some(thread) = self.thread.take() {
            // It doesn't panic.
            let _ = thread.join();
        }
    }
}
