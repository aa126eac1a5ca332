//! The device of profil(2) and pcsample(2): histograms and program counters of one process.
//!
//! A client opens the device and makes a [`Call`] with [`PROFIL_CALL`]. From then on the ticks that find the process in
//! user mode are stored: in the process's own memory, at the addresses that the call names, or with [`Call::KEEP`] in a
//! buffer of the device, which the client reads. `PROFIL.md` beside this crate describes the device for programs in any
//! language.

use crate::encoded::{Encoded, array};
use crate::wire::MAX_DATA;

const fn command(number: u32) -> u32 {
    ((b'U' as u32) << 8) | number
}

/// `PROFIL_CALL`: executes the [`Call`] that the argument points to. Returns what the function returns: pcsample the number of samples that
/// the call before has stored, the others 0.
pub const PROFIL_CALL: u32 = command(1);
/// `PROFIL_GETSTAT`: stores the [`Status`] of the process of the last call at the argument.
pub const PROFIL_GETSTAT: u32 = command(2);

/// The rate of storing in Hz on each vCPU, at any rate of the clock (`sysconf(_SC_CLK_TCK)`).
pub const RATE_HZ: u32 = 100;
/// The node in a guest.
pub const NODE: &str = "/dev/profil";
/// Maximum number of [`Range`]s of a call.
pub const MAX_RANGES: usize = 256;
/// Maximum number of bytes of a buffer that the device keeps: it is read in one piece.
pub const MAX_KEPT: u64 = MAX_DATA as u64;
/// Bytes of a program counter in the array of pcsample.
pub const WORD_SIZE: u64 = 8;
/// The Solaris histogram's highest count; profiling stops instead of passing it.
pub const SOLARIS_MAX_COUNT: u16 = i16::MAX as u16;

/// Bytes of a count of a histogram.
pub const COUNT_SIZE: u64 = 2;
/// The scale that maps all code to the first count. Smaller ones turn profiling off.
pub const WHOLE_SCALE: u32 = 2;

/// The offset in a histogram, in bytes, of the count for the code `delta` bytes into its region: Solaris rounds down to a whole count, AIX
/// up. `scale` is a fraction of 65,536, from [`WHOLE_SCALE`] on. `None` if the offset exceeds 64 bits.
pub fn count_offset(delta: u64, scale: u32, rounds_up: bool) -> Option<u64> {
    if scale == WHOLE_SCALE {
        return Some(0);
    }
    // This equals the page's formula in two parts, (delta >> 16) * scale + (((delta & 0xffff) * scale) >> 16).
    let byte = (u128::from(delta) * u128::from(scale)) >> 16;
    let byte = u64::try_from(byte).ok()?;
    if rounds_up {
        byte.checked_next_multiple_of(COUNT_SIZE)
    } else {
        Some(byte - byte % COUNT_SIZE)
    }
}

/// A function of one of the manual pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// profil(2) of Solaris.
    Profil = 1,
    /// profil of AIX with one buffer.
    AixProfil = 2,
    /// profil of AIX with an array of `struct prof`.
    AixRanges = 3,
    /// pcsample(2) of Solaris.
    Pcsample = 4,
}

impl Function {
    /// The function with this number.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Profil),
            2 => Some(Self::AixProfil),
            3 => Some(Self::AixRanges),
            4 => Some(Self::Pcsample),
            _ => None,
        }
    }
}

/// A call of a function for a process. Addresses are the process's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The called function.
    pub function: Function,
    /// [`Call::EVERY_TICK`] and [`Call::KEEP`].
    pub flags: u32,
    /// The process, by the id that it has in the guest's initial pid namespace.
    pub pid: i32,
    /// Number of [`Range`]s that follow; 0 for functions other than [`Function::AixRanges`].
    pub ranges: u32,
    /// The buffer's address; 0 with [`Call::KEEP`].
    pub buffer: u64,
    /// The buffer's length: in bytes, for pcsample in samples. It is signed for pcsample.
    pub size: u64,
    /// The first address of the profiled region.
    pub offset: u64,
    /// The contraction factor.
    pub scale: u32,
    /// The time of the call, in ns of the guest's CLOCK_MONOTONIC: a process that the caller forks later is profiled too. With `u64::MAX`
    /// no other process is.
    pub time: u64,
    /// The 16 bytes that the kernel gave the process's program at its start (`AT_RANDOM`, getauxval(3)). They distinguish it, and the
    /// processes that it forks, from all others, and change with exec. All zeros: unknown.
    pub program: [u8; 16],
}

impl Call {
    /// Flag: every tick of the clock is stored, not 100 a second.
    pub const EVERY_TICK: u32 = 1;
    /// Flag: the device keeps the buffer, and the client reads it.
    pub const KEEP: u32 = 2;
    /// Bytes of an encoded call, without its ranges.
    pub const SIZE: usize = 72;

    /// A call of `function` for the process `pid`, without a buffer.
    pub const fn new(function: Function, pid: i32) -> Self {
        Self {
            function,
            flags: 0,
            pid,
            ranges: 0,
            buffer: 0,
            size: 0,
            offset: 0,
            scale: 0,
            time: u64::MAX,
            program: [0; 16],
        }
    }

    /// The encoded form, as in `PROFIL.md`.
    pub fn encode(&self) -> Encoded<{ Self::SIZE }> {
        let mut bytes = Encoded::new();
        bytes.push(&(self.function as u32).to_le_bytes());
        bytes.push(&self.flags.to_le_bytes());
        bytes.push(&self.pid.to_le_bytes());
        bytes.push(&self.ranges.to_le_bytes());
        for word in [self.buffer, self.size, self.offset] {
            bytes.push(&word.to_le_bytes());
        }
        bytes.push(&self.scale.to_le_bytes());
        bytes.push(&[0; 4]);
        bytes.push(&self.time.to_le_bytes());
        bytes.push(&self.program);
        bytes
    }

    /// The call in the first [`Call::SIZE`] of `bytes`. `None` if they are fewer, or name an unknown function or flag.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let call = Self {
            function: Function::from_number(u32::from_le_bytes(array(bytes, 0)?))?,
            flags: u32::from_le_bytes(array(bytes, 4)?),
            pid: u32::from_le_bytes(array(bytes, 8)?).cast_signed(),
            ranges: u32::from_le_bytes(array(bytes, 12)?),
            buffer: u64::from_le_bytes(array(bytes, 16)?),
            size: u64::from_le_bytes(array(bytes, 24)?),
            offset: u64::from_le_bytes(array(bytes, 32)?),
            scale: u32::from_le_bytes(array(bytes, 40)?),
            time: u64::from_le_bytes(array(bytes, 48)?),
            program: array(bytes, 56)?,
        };
        (call.flags & !(Self::EVERY_TICK | Self::KEEP) == 0).then_some(call)
    }
}

/// One `struct prof` of AIX, without its padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// `p_low`: the first address.
    pub low: u64,
    /// `p_high`: the first address after the range.
    pub high: u64,
    /// `p_buff`: the address of the counts.
    pub buffer: u64,
    /// `p_bufsize`: bytes of the counts.
    pub size: i32,
    /// `p_scale`; `u32::MAX`: computed from the range and the size.
    pub scale: u32,
}

impl Range {
    /// Bytes of an encoded range.
    pub const SIZE: usize = 32;

    /// The encoded form, as in `PROFIL.md`.
    pub fn encode(&self) -> Encoded<{ Self::SIZE }> {
        let mut bytes = Encoded::new();
        for word in [self.low, self.high, self.buffer] {
            bytes.push(&word.to_le_bytes());
        }
        bytes.push(&self.size.to_le_bytes());
        bytes.push(&self.scale.to_le_bytes());
        bytes
    }

    /// The range in the first [`Range::SIZE`] of `bytes`. `None` if they are fewer.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            low: u64::from_le_bytes(array(bytes, 0)?),
            high: u64::from_le_bytes(array(bytes, 8)?),
            buffer: u64::from_le_bytes(array(bytes, 16)?),
            size: u32::from_le_bytes(array(bytes, 24)?).cast_signed(),
            scale: u32::from_le_bytes(array(bytes, 28)?),
        })
    }
}

/// Whether ticks are stored, or why not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Profiling wasn't turned on, or it was turned off.
    #[default]
    Off = 0,
    /// Ticks are stored.
    On = 1,
    /// The array of pcsample is full.
    Full = 2,
    /// A count of profil (Solaris) has reached its maximum.
    Saturated = 3,
    /// A store would have caused a memory fault.
    Fault = 4,
    /// The process has executed another program.
    Executed = 5,
    /// The process has ended.
    Ended = 6,
    /// Other ticks are made than those by which it was turned on.
    OtherTicks = 7,
}

impl State {
    /// All states, by their numbers.
    pub const ALL: [Self; 8] = [
        Self::Off,
        Self::On,
        Self::Full,
        Self::Saturated,
        Self::Fault,
        Self::Executed,
        Self::Ended,
        Self::OtherTicks,
    ];

    /// A description of the state.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Full => "off: the array is full",
            Self::Saturated => "off: a count has reached its maximum",
            Self::Fault => "off: an update would have caused a memory fault",
            Self::Executed => "off: the process has executed another program",
            Self::Ended => "off: the process has ended",
            Self::OtherTicks => {
                "off: the host counts an event, or by a clock whose rate 100 doesn't divide"
            }
        }
    }
}

/// The account of the ticks that are to be stored and found the process in user mode: `ticks == stored + outside + waiting + lost`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether ticks are stored.
    pub state: State,
    /// All of these ticks.
    pub ticks: u64,
    /// Ticks that were stored, or that found a count at its maximum.
    pub stored: u64,
    /// Ticks outside the profiled region.
    pub outside: u64,
    /// Ticks whose store waits for its page.
    pub waiting: u64,
    /// Ticks whose store had to be given up.
    pub lost: u64,
}

impl Status {
    /// Bytes of an encoded status.
    pub const SIZE: usize = 48;

    /// The encoded form, as in `PROFIL.md`.
    pub fn encode(&self) -> Encoded<{ Self::SIZE }> {
        let mut bytes = Encoded::new();
        bytes.push(&(self.state as u32).to_le_bytes());
        bytes.push(&[0; 4]);
        for word in [
            self.ticks,
            self.stored,
            self.outside,
            self.waiting,
            self.lost,
        ] {
            bytes.push(&word.to_le_bytes());
        }
        bytes
    }

    /// The status in the first [`Status::SIZE`] of `bytes`. `None` if they are fewer, or its state is unknown.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let state = usize::try_from(u32::from_le_bytes(array(bytes, 0)?)).ok()?;
        Some(Self {
            state: *State::ALL.get(state)?,
            ticks: u64::from_le_bytes(array(bytes, 8)?),
            stored: u64::from_le_bytes(array(bytes, 16)?),
            outside: u64::from_le_bytes(array(bytes, 24)?),
            waiting: u64::from_le_bytes(array(bytes, 32)?),
            lost: u64::from_le_bytes(array(bytes, 40)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_values_are_refused() {
        let call = |number: u8, flags: u8| {
            let mut bytes = [0; Call::SIZE];
            (bytes[0], bytes[4]) = (number, flags);
            Call::decode(&bytes)
        };
        assert!(call(1, 3).is_some());
        assert_eq!((call(0, 0), call(5, 0), call(1, 4)), (None, None, None));
        let mut status = Status::default().encode().to_vec();
        status[0] = 8;
        assert_eq!(Status::decode(&status), None);
    }
}
