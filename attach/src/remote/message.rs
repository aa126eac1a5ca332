//! What the process that parses may ask the tracer for, and the answers, in the words of 8 bytes in which they go from one to the other.
//!
//! There are no other requests. All addresses are those of the guest's physical memory.

use std::io;

use kvm_bindings::{kvm_regs, kvm_sregs};
use vm_memory::GuestAddress;

use super::blocks::{BLOCK_BYTES, MAX_BLOCKS, UNREAD_WORDS, UnreadBlocks};
use super::shared::{DATA_BYTES, MESSAGE_WORDS};
use crate::tracer::TraceError;

/// Words of a vCPU's registers.
const REGISTER_WORDS: usize = (size_of::<kvm_regs>() + size_of::<kvm_sregs>()) / 8;

/// A part of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestRange {
    /// Its first guest-physical address.
    pub address: GuestAddress,
    /// Its length in bytes.
    pub bytes: usize,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Stop this vCPU of those of the channel, and read its registers and the blocks of guest memory at these addresses. It stands still until
    /// [`Request::Release`]. Meanwhile the thread that asks stays on this processor.
    Look(usize, Option<u32>, Vec<GuestAddress>),
    /// Ask KVM whether the vCPU that stands still runs or is halted.
    MpState,
    /// Let the vCPU that stands still go on.
    Release,
    /// Read guest memory. The data of the answer has its bytes.
    Read(GuestRange),
    /// Read the blocks of guest memory at these addresses. The data of the answer has them, one after the other.
    ReadBlocks(Vec<GuestAddress>),
    /// Read the memory slots again, if they have changed.
    Refresh,
    /// Say whether the thread of this vCPU is still there.
    HasThread(usize),
}

impl Request {
    /// Appends the request's words.
    pub fn encode(&self, words: &mut Vec<u64>) {
        match self {
            Self::Look(vcpu, processor, blocks) => {
                let processor = processor.map_or(u64::MAX, u64::from);
                words.extend([0, *vcpu as u64, processor]);
                encode_blocks(blocks, words);
            }
            Self::MpState => words.push(1),
            Self::Release => words.push(2),
            Self::Read(read) => words.extend([3, read.address.0, read.bytes as u64]),
            Self::Refresh => words.push(4),
            Self::HasThread(vcpu) => words.extend([5, *vcpu as u64]),
            Self::ReadBlocks(blocks) => {
                words.push(6);
                encode_blocks(blocks, words);
            }
        }
    }

    /// The request that `words` begin with; `None` for what isn't one. Neither a read nor the blocks of a look are longer than the data.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let mut words = words.iter().copied();
        let words = &mut words;
        Some(match words.next()? {
            0 => {
                let vcpu = usize::try_from(words.next()?).ok()?;
                let processor = match words.next()? {
                    u64::MAX => None,
                    number => Some(u32::try_from(number).ok()?),
                };
                Self::Look(vcpu, processor, decode_blocks(words)?)
            }
            1 => Self::MpState,
            2 => Self::Release,
            3 => {
                let address = GuestAddress(words.next()?);
                let bytes = usize::try_from(words.next()?).ok()?;
                (bytes <= DATA_BYTES).then_some(())?;
                Self::Read(GuestRange { address, bytes })
            }
            4 => Self::Refresh,
            5 => Self::HasThread(usize::try_from(words.next()?).ok()?),
            6 => Self::ReadBlocks(decode_blocks(words)?),
            _ => return None,
        })
    }
}

fn encode_blocks(blocks: &[GuestAddress], words: &mut Vec<u64>) {
    words.push(blocks.len() as u64);
    words.extend(blocks.iter().map(|block| block.0));
}

fn decode_blocks(words: &mut impl Iterator<Item = u64>) -> Option<Vec<GuestAddress>> {
    let count = words.next().filter(|count| *count <= MAX_BLOCKS as u64)?;
    (0..count).map(|_| words.next().map(GuestAddress)).collect()
}

/// What a vCPU that stands still shows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stopped {
    /// Whether its thread was in KVM_RUN.
    pub is_in_guest: bool,
    /// Its registers, from KVM_GET_REGS and KVM_GET_SREGS; `None` if they are those of a nested guest.
    pub registers: Option<(kvm_regs, kvm_sregs)>,
    /// The blocks of the request that can't be read.
    pub unread: UnreadBlocks,
}

/// An answer.
#[derive(Debug)]
pub enum Answer {
    /// The vCPU stands still. The data has the blocks, one after the other.
    Stopped(Box<Stopped>),
    /// The vCPU's `KVM_MP_STATE_*`.
    MpState(u32),
    /// The vCPU goes on.
    Released,
    /// The vCPU's process is stopped, by SIGSTOP or the like.
    Suspended,
    /// Another process traces the vCPU's thread.
    Busy,
    /// The vCPU's thread has ended.
    Gone,
    /// The vCPU can't be looked at, or can't any longer; it goes on.
    Failed(TraceError),
    /// Whether that is true, or was done.
    Is(bool),
    /// The data has the blocks, one after the other, but for these.
    Blocks(UnreadBlocks),
    /// The number of vCPUs that the guest has made, if that is known; and the number of memory slots in the data, if they have changed.
    Slots(Option<u32>, Option<usize>),
    /// The guest has ended.
    Ended,
    /// The memory slots can't be read.
    NoSlots,
    /// That isn't asked at this moment.
    Refused,
}

impl Answer {
    /// Appends the answer's words.
    pub fn encode(&self, words: &mut Vec<u64>) {
        match self {
            Self::Stopped(stopped) => {
                let has_registers = stopped.registers.is_some();
                words.extend([0, stopped.is_in_guest.into(), has_registers.into()]);
                words.extend(stopped.unread.0);
                if let Some((regs, sregs)) = &stopped.registers {
                    words.extend(words_of(regs).into_iter().chain(words_of(sregs)));
                }
            }
            Self::MpState(state) => words.extend([1, u64::from(*state)]),
            Self::Released => words.push(2),
            Self::Suspended => words.push(3),
            Self::Busy => words.push(4),
            Self::Gone => words.push(5),
            Self::Failed(error) => {
                words.push(6);
                words.extend(encode_error(error));
            }
            Self::Is(is) => words.extend([7, u64::from(*is)]),
            Self::Slots(vcpus, slots) => {
                words.push(8);
                words.extend(encode_option(vcpus.map(u64::from)));
                words.extend(encode_option(slots.map(|slots| slots as u64)));
            }
            Self::Ended => words.push(9),
            Self::NoSlots => words.push(10),
            Self::Refused => words.push(11),
            Self::Blocks(unread) => {
                words.push(12);
                words.extend(unread.0);
            }
        }
    }

    /// The answer that `words` begin with; `None` for what isn't one.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let (kind, words) = words.split_first()?;
        let word = |index: usize| words.get(index).copied();
        let number = |index: usize| u32::try_from(word(index)?).ok();
        Some(match kind {
            0 => {
                let is_in_guest = flag(word(0)?)?;
                let has_registers = flag(word(1)?)?;
                let (unread, rest) = words.get(2..)?.split_first_chunk()?;
                let registers = match has_registers {
                    true => Some(decode_registers(rest)?),
                    false => None,
                };
                Self::Stopped(Box::new(Stopped {
                    is_in_guest,
                    registers,
                    unread: UnreadBlocks(*unread),
                }))
            }
            1 => Self::MpState(number(0)?),
            2 => Self::Released,
            3 => Self::Suspended,
            4 => Self::Busy,
            5 => Self::Gone,
            6 => Self::Failed(decode_error([word(0)?, word(1)?, word(2)?])?),
            7 => Self::Is(flag(word(0)?)?),
            8 => {
                let (vcpus, slots) = (number(1)?, usize::try_from(word(3)?).ok()?);
                let vcpus = flag(word(0)?)?.then_some(vcpus);
                Self::Slots(vcpus, flag(word(2)?)?.then_some(slots))
            }
            9 => Self::Ended,
            10 => Self::NoSlots,
            11 => Self::Refused,
            12 => Self::Blocks(UnreadBlocks(*words.first_chunk()?)),
            _ => return None,
        })
    }
}

fn encode_option(number: Option<u64>) -> [u64; 2] {
    [number.is_some().into(), number.unwrap_or_default()]
}

fn flag(word: u64) -> Option<bool> {
    match word {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// A structure that KVM fills.
///
/// # Safety
/// It consists of numbers, without padding, and its length is a multiple of 8.
unsafe trait Plain: Default {}

// SAFETY: 18 numbers of 64 bits.
unsafe impl Plain for kvm_regs {}
// SAFETY: bindgen's structures of numbers; what pads them has fields of its own.
unsafe impl Plain for kvm_sregs {}

const _: () = assert!(size_of::<kvm_regs>().is_multiple_of(8));
const _: () = assert!(size_of::<kvm_sregs>().is_multiple_of(8));
const _: () = assert!(3 + UNREAD_WORDS + REGISTER_WORDS <= MESSAGE_WORDS);
const _: () = assert!(4 + MAX_BLOCKS <= MESSAGE_WORDS);
const _: () = assert!(MAX_BLOCKS * BLOCK_BYTES <= DATA_BYTES);

fn words_of<T: Plain>(structure: &T) -> Vec<u64> {
    // SAFETY: `structure` is alive, and is plain numbers without padding.
    let bytes = unsafe {
        std::slice::from_raw_parts(std::ptr::from_ref(structure).cast::<u8>(), size_of::<T>())
    };
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

/// The structure that `words` begin with, and the words behind it.
fn structure<T: Plain>(words: &[u64]) -> Option<(T, &[u64])> {
    let (own, rest) = words.split_at_checked(size_of::<T>() / 8)?;
    let mut structure = T::default();
    // SAFETY: `structure` is alive, and is plain numbers, which any bytes are valid for.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut((&raw mut structure).cast::<u8>(), size_of::<T>())
    };
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(own) {
        *place = word.to_ne_bytes();
    }
    Some((structure, rest))
}

fn decode_registers(words: &[u64]) -> Option<(kvm_regs, kvm_sregs)> {
    let (regs, rest) = structure(words)?;
    let (sregs, _) = structure(rest)?;
    Some((regs, sregs))
}

/// An error: its kind, the thread or signal, and the system's error number.
fn encode_error(error: &TraceError) -> [u64; 3] {
    let tid = |tid: &i32| u64::from(tid.unsigned_abs());
    let errno = |error: &io::Error| {
        let number = error.raw_os_error().unwrap_or(libc::EIO);
        u64::from(number.unsigned_abs())
    };
    match error {
        TraceError::Refused { tid: of, source } => [0, tid(of), errno(source)],
        TraceError::Filtered { tid: of, source } => [1, tid(of), errno(source)],
        TraceError::ShadowStack { tid: of } => [2, tid(of), 0],
        TraceError::Restartable => [3, 0, 0],
        TraceError::Sequence(source) => [4, 0, errno(source)],
        TraceError::Signal(signal) => [5, tid(signal), 0],
        TraceError::Gone => [6, 0, 0],
        TraceError::OtherProgram => [7, 0, 0],
        TraceError::Slow => [8, 0, 0],
        TraceError::Not64Bit => [9, 0, 0],
        TraceError::Wait(source) => [10, 0, errno(source)],
        TraceError::Registers(source) => [11, 0, errno(source)],
        TraceError::Stack(source) => [12, 0, errno(source)],
        TraceError::Unknown => [13, 0, 0],
        TraceError::Kvm(source) => [14, 0, errno(source)],
        TraceError::Overdue => [15, 0, 0],
        TraceError::NoTracer => [16, 0, 0],
    }
}

fn decode_error([kind, of, number]: [u64; 3]) -> Option<TraceError> {
    let of = i32::try_from(of).ok()?;
    let source = io::Error::from_raw_os_error(i32::try_from(number).ok()?);
    Some(match kind {
        0 => TraceError::Refused { tid: of, source },
        1 => TraceError::Filtered { tid: of, source },
        2 => TraceError::ShadowStack { tid: of },
        3 => TraceError::Restartable,
        4 => TraceError::Sequence(source),
        5 => TraceError::Signal(of),
        6 => TraceError::Gone,
        7 => TraceError::OtherProgram,
        8 => TraceError::Slow,
        9 => TraceError::Not64Bit,
        10 => TraceError::Wait(source),
        11 => TraceError::Registers(source),
        12 => TraceError::Stack(source),
        13 => TraceError::Unknown,
        14 => TraceError::Kvm(source),
        15 => TraceError::Overdue,
        16 => TraceError::NoTracer,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(request: &Request) -> Vec<u64> {
        let mut words = Vec::new();
        request.encode(&mut words);
        words
    }

    fn read(address: u64, bytes: usize) -> GuestRange {
        GuestRange {
            address: GuestAddress(address),
            bytes,
        }
    }

    #[test]
    fn requests_decode_to_what_was_encoded() {
        let blocks: Vec<GuestAddress> = (0..MAX_BLOCKS as u64).map(GuestAddress).collect();
        for request in [
            Request::Look(3, Some(1), blocks),
            Request::Look(0, None, Vec::new()),
            Request::ReadBlocks(vec![GuestAddress(7); MAX_BLOCKS]),
            Request::ReadBlocks(Vec::new()),
            Request::MpState,
            Request::Release,
            Request::Read(read(u64::MAX, DATA_BYTES)),
            Request::Refresh,
            Request::HasThread(7),
        ] {
            let words = encoded(&request);
            assert!(words.len() <= MESSAGE_WORDS);
            assert_eq!(Request::decode(&words), Some(request));
            for length in 0..words.len() {
                assert_eq!(Request::decode(&words[..length]), None, "{length}");
            }
        }
    }

    #[test]
    fn requests_beyond_the_limits_are_refused() {
        let many = vec![GuestAddress(0); MAX_BLOCKS + 1];
        for words in [
            encoded(&Request::Look(0, None, many)),
            encoded(&Request::Read(read(0, DATA_BYTES + 1))),
            encoded(&Request::Read(read(0, usize::MAX))),
            vec![6, MAX_BLOCKS as u64 + 1],
            vec![6, 2, 0],
            vec![7, 0, 0],
        ] {
            assert_eq!(Request::decode(&words), None, "{words:?}");
        }
    }

    #[test]
    fn answers_decode_to_what_was_encoded() {
        let regs = kvm_regs {
            rip: 0x1234,
            rflags: 2,
            ..kvm_regs::default()
        };
        let mut sregs = kvm_sregs::default();
        (sregs.cr3, sregs.cs.selector, sregs.cs.dpl) = (0x5000, 0x33, 3);
        let mut stopped = Stopped {
            is_in_guest: true,
            registers: Some((regs, sregs)),
            unread: UnreadBlocks::default(),
        };
        stopped.unread.note(0);
        stopped.unread.note(MAX_BLOCKS - 1);
        let nested = Stopped {
            registers: None,
            ..stopped
        };
        for answer in [
            Answer::Stopped(Box::new(stopped)),
            Answer::Stopped(Box::new(nested)),
            Answer::MpState(3),
            Answer::Released,
            Answer::Suspended,
            Answer::Busy,
            Answer::Gone,
            Answer::Failed(TraceError::Signal(11)),
            Answer::Is(true),
            Answer::Blocks(stopped.unread),
            Answer::Slots(Some(2), None),
            Answer::Slots(None, Some(7)),
            Answer::Ended,
            Answer::NoSlots,
            Answer::Refused,
        ] {
            let mut words = Vec::new();
            answer.encode(&mut words);
            let decoded = Answer::decode(&words).unwrap();
            assert_eq!(format!("{decoded:?}"), format!("{answer:?}"));
            for length in 0..words.len() {
                assert!(Answer::decode(&words[..length]).is_none(), "{answer:?}");
            }
        }
        let failed: Vec<usize> = (0..MAX_BLOCKS)
            .filter(|it| stopped.unread.has(*it))
            .collect();
        assert_eq!(failed, [0, MAX_BLOCKS - 1]);
        assert!(stopped.unread.has(MAX_BLOCKS));
    }

    #[test]
    fn errors_keep_their_messages() {
        let source = || io::Error::from_raw_os_error(libc::EPERM);
        for error in [
            TraceError::Refused {
                tid: 7,
                source: source(),
            },
            TraceError::Filtered {
                tid: 7,
                source: source(),
            },
            TraceError::ShadowStack { tid: 7 },
            TraceError::Restartable,
            TraceError::Sequence(source()),
            TraceError::Signal(11),
            TraceError::Gone,
            TraceError::OtherProgram,
            TraceError::Slow,
            TraceError::Not64Bit,
            TraceError::Wait(source()),
            TraceError::Registers(source()),
            TraceError::Stack(source()),
            TraceError::Unknown,
            TraceError::Kvm(source()),
            TraceError::Overdue,
            TraceError::NoTracer,
        ] {
            let decoded = decode_error(encode_error(&error)).unwrap();
            assert_eq!(decoded.to_string(), error.to_string());
        }
        assert!(decode_error([17, 0, 0]).is_none());
    }
}
