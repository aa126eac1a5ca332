//! profil(2) and pcsample(2) of one process, as a plain state machine: calls and ticks in, stores out.
//!
//! The manual pages of Solaris and AIX are the specification, and `guest/abi/PROFIL.md` describes the device. The pages leave
//! some details open, which this device defines:
//!
//! - **Bounds.** A count is stored only if both of its bytes are in the buffer, also where a page checks only the first
//!   one. A scale of 2 maps all code to the first count.
//! - **AIX.** A call with a buffer of 0 bytes turns nothing on. A profile that a function of Solaris has turned on is on for
//!   AIX, too, but counts as turned on by another function.
//! - **pcsample** numbers its samples in the order in which they are stored, so that the array has no gaps.
//! - **A store that waits** is tried again at the process's next ticks, the oldest first. Stores that wait when profiling is
//!   turned off, or when it stops, are lost.

mod histogram;
mod kept;
mod memory;

use std::collections::VecDeque;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::profil::{Call, Function, MAX_RANGES, Range, State, Status, WORD_SIZE};

use histogram::{CountUpdate, Histogram, System};
pub use kept::KeptProfile;
pub use memory::{Blocked, KeptBuffer, ProcessMemory};

/// Maximum number of stores of a process that wait.
pub const MAX_WAITING: usize = 1024;
/// Maximum number of waiting stores that one tick tries again.
const MAX_TRIED: usize = 16;

/// The data that a tick stores.
#[derive(Clone, Debug)]
enum Target {
    /// Counts of one or several regions, by the rule of an operating system.
    Counts {
        system: System,
        regions: Vec<Histogram>,
    },
    /// Program counters, in an array of this many elements, of which the first ones are filled.
    Samples {
        buffer: u64,
        capacity: u64,
        filled: u64,
    },
}

/// A store that waits for its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    /// Increments the count at this address.
    Count(u64),
    /// Stores a program counter in the next element.
    Sample(u64),
}

/// The result of a store.
enum Outcome {
    Stored,
    /// Profiling has stopped, for this reason.
    Stopped(State),
    NotYet,
}

/// The profile of one process.
#[derive(Debug, Default)]
pub struct Profile {
    /// The function that was called last.
    function: Option<Function>,
    target: Option<Target>,
    every_tick: bool,
    waiting: VecDeque<Store>,
    status: Status,
}

impl Profile {
    /// Carries out `call`, with its `ranges`. Returns the function's result.
    ///
    /// # Errors
    /// EINVAL if the function's page refuses the call. Nothing has changed then.
    pub fn call(&mut self, call: &Call, ranges: &[Range]) -> Result<i64, Errno> {
        if !self.is_changed_by(call, ranges)? {
            return Ok(0);
        }
        let target = target(call, ranges)?;
        let returned = self.samples().unwrap_or_default();
        self.stop(State::Off);
        let state = if target.is_some() {
            State::On
        } else {
            State::Off
        };
        // The account restarts, and so does the array.
        self.status = Status {
            state,
            ..Status::default()
        };
        self.function = Some(call.function);
        self.every_tick = call.flags & Call::EVERY_TICK != 0;
        self.target = target;
        Ok(match call.function {
            Function::Pcsample => i64::try_from(returned).unwrap_or(i64::MAX),
            Function::Profil | Function::AixProfil | Function::AixRanges => 0,
        })
    }

    /// Whether `call`, with its `ranges`, has an effect. On AIX, it has none if it turns on what is on, or turns off what is off or was turned on
    /// by another function, or would turn on a buffer of 0 bytes.
    ///
    /// # Errors
    /// EINVAL if the function's page refuses the call.
    pub fn is_changed_by(&self, call: &Call, ranges: &[Range]) -> Result<bool, Errno> {
        let turns_on = turns_on(call, ranges)?;
        let function = call.function;
        Ok(match function {
            Function::Profil | Function::Pcsample => true,
            Function::AixProfil | Function::AixRanges if turns_on => !self.is_on(),
            Function::AixProfil if !Histogram::is_off(call.scale & 0xffff) => false,
            Function::AixProfil | Function::AixRanges => {
                self.is_on() && self.function == Some(function)
            }
        })
    }

    /// The number of samples that the last call of pcsample has stored; `None` if another function was called last.
    fn samples(&self) -> Option<u64> {
        match (self.function?, &self.target) {
            (Function::Pcsample, Some(Target::Samples { filled, .. })) => Some(*filled),
            (Function::Pcsample, _) => Some(0),
            _ => None,
        }
    }

    /// The number of bytes from the start of the buffer that have been stored: all of a histogram.
    pub fn filled_bytes(&self) -> Option<u64> {
        self.samples().map(|samples| samples * WORD_SIZE)
    }

    /// Whether ticks are stored.
    pub fn is_on(&self) -> bool {
        self.status.state == State::On
    }

    /// Whether the profile stores every tick of the clock. If not, it stores 100 a second.
    pub fn takes_every_tick(&self) -> bool {
        self.every_tick
    }

    /// The profile's state and account.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Whether a process that is forked now inherits the profile: it is on, or its array is full.
    pub fn is_inherited(&self) -> bool {
        matches!(self.status.state, State::On | State::Full)
    }

    /// The profile of a process that this process has forked while the profile was inherited, with an account of its own. It is on,
    /// unless its array is full.
    #[must_use]
    pub fn fork(&self) -> Self {
        let state = match self.status.state {
            State::Full => State::Full,
            _ => State::On,
        };
        Self {
            function: self.function,
            target: self.target.clone(),
            every_tick: self.every_tick,
            waiting: VecDeque::new(),
            status: Status {
                state,
                ..Status::default()
            },
        }
    }

    /// Stops the profile for the reason `state`, if it is on.
    pub fn stop(&mut self, state: State) {
        if self.is_on() {
            self.status.state = state;
            self.status.lost += self.status.waiting;
            self.status.waiting = 0;
            self.waiting.clear();
        }
    }

    /// Notes that the process's program has ended, for the reason `state`. A profile that has stopped before keeps its reason.
    pub fn end(&mut self, state: State) {
        self.stop(state);
        if self.status.state == State::Off {
            self.status.state = state;
        }
    }

    /// Stores a tick of the process, which runs in user mode at `pc`.
    pub fn tick(&mut self, pc: u64, memory: &mut impl ProcessMemory) {
        self.try_waiting(memory);
        if !self.is_on() {
            return;
        }
        self.status.ticks += 1;
        let store = match &self.target {
            Some(Target::Counts { system, regions }) => {
                let mut counts = regions.iter().map(|region| region.count_of(pc, *system));
                counts.find_map(|count| count).map(Store::Count)
            }
            Some(Target::Samples { .. }) => Some(Store::Sample(pc)),
            None => None,
        };
        match store {
            None => self.status.outside += 1,
            // Samples keep their order.
            Some(store @ Store::Sample(_)) if !self.waiting.is_empty() => self.wait(store),
            Some(store) => match self.store(store, memory) {
                Outcome::Stored => self.status.stored += 1,
                Outcome::NotYet => self.wait(store),
                Outcome::Stopped(state) => {
                    self.status.lost += 1;
                    self.stop(state);
                }
            },
        }
        self.stop_when_full();
    }

    fn wait(&mut self, store: Store) {
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(store);
            self.status.waiting += 1;
        } else {
            self.status.lost += 1;
        }
    }

    /// Tries the oldest waiting stores again.
    pub fn try_waiting(&mut self, memory: &mut impl ProcessMemory) {
        for _ in 0..self.waiting.len().min(MAX_TRIED) {
            let Some(store) = self.waiting.pop_front() else {
                return;
            };
            match self.store(store, memory) {
                Outcome::Stored => {
                    self.status.waiting -= 1;
                    self.status.stored += 1;
                }
                Outcome::NotYet if matches!(store, Store::Sample(_)) => {
                    self.waiting.push_front(store);
                    return;
                }
                // Others may be on another page.
                Outcome::NotYet => self.waiting.push_back(store),
                Outcome::Stopped(state) => return self.stop(state),
            }
        }
        self.stop_when_full();
    }

    fn store(&mut self, store: Store, memory: &mut impl ProcessMemory) -> Outcome {
        match (store, &mut self.target) {
            (Store::Count(address), Some(Target::Counts { system, .. })) => {
                increment(*system, address, memory)
            }
            (
                Store::Sample(pc),
                Some(Target::Samples {
                    buffer,
                    capacity,
                    filled,
                }),
            ) => {
                if *filled >= *capacity {
                    return Outcome::Stopped(State::Full);
                }
                let address = buffer.wrapping_add(filled.wrapping_mul(WORD_SIZE));
                match memory.store_word(address, pc) {
                    Ok(()) => {
                        *filled += 1;
                        Outcome::Stored
                    }
                    Err(blocked) => blocked.into(),
                }
            }
            // The target has changed. Stores that waited for the old one were lost then.
            _ => Outcome::Stopped(State::Off),
        }
    }

    fn stop_when_full(&mut self) {
        if let Some(Target::Samples {
            capacity, filled, ..
        }) = &self.target
            && filled >= capacity
        {
            self.stop(State::Full);
        }
    }
}

impl From<Blocked> for Outcome {
    fn from(blocked: Blocked) -> Self {
        match blocked {
            Blocked::NotYet => Self::NotYet,
            Blocked::Fault => Self::Stopped(State::Fault),
        }
    }
}

fn increment(system: System, address: u64, memory: &mut impl ProcessMemory) -> Outcome {
    let mut stops = false;
    let updated = memory.update_count(address, &mut |count| match system.increment(count) {
        CountUpdate::To(more) => Some(more),
        CountUpdate::Saturated => None,
        CountUpdate::Stop => {
            stops = true;
            None
        }
    });
    match updated {
        Ok(()) if stops => Outcome::Stopped(State::Saturated),
        Ok(()) => Outcome::Stored,
        Err(blocked) => blocked.into(),
    }
}

/// Whether `call`, with its `ranges`, turns profiling on, or off.
///
/// # Errors
/// EINVAL for what the function's page refuses.
pub fn turns_on(call: &Call, ranges: &[Range]) -> Result<bool, Errno> {
    Ok(target(call, ranges)?.is_some())
}

/// The target that `call` turns on; `None` if it turns profiling off.
///
/// # Errors
/// EINVAL if the function's page refuses the call.
fn target(call: &Call, ranges: &[Range]) -> Result<Option<Target>, Errno> {
    let counts = |system, regions| Target::Counts { system, regions };
    let region = |scale| Histogram {
        buffer: call.buffer,
        size: call.size,
        offset: call.offset,
        last: u64::MAX,
        scale,
    };
    let target = match call.function {
        Function::Profil => {
            let is_on = !Histogram::is_off(call.scale);
            is_on.then(|| counts(System::Solaris, vec![region(call.scale)]))
        }
        Function::AixProfil => {
            let scale = call.scale & 0xffff;
            let is_on = !Histogram::is_off(scale) && call.size != 0;
            is_on.then(|| counts(System::Aix, vec![region(scale)]))
        }
        Function::AixRanges => {
            let regions = regions(ranges)?;
            (!regions.is_empty()).then(|| counts(System::Aix, regions))
        }
        Function::Pcsample => {
            let capacity = call.size.cast_signed();
            let capacity = u64::try_from(capacity).map_err(|_| Errno::EINVAL)?;
            (capacity != 0).then_some(Target::Samples {
                buffer: call.buffer,
                capacity,
                filled: 0,
            })
        }
    };
    Ok(target)
}

/// The regions of AIX's second form, up to the one that ends the array.
fn regions(ranges: &[Range]) -> Result<Vec<Histogram>, Errno> {
    if ranges.len() > MAX_RANGES {
        return Err(Errno::EINVAL);
    }
    let mut regions = Vec::new();
    let mut last = 0;
    for range in ranges.iter().take_while(|range| range.high != 0) {
        if range.high <= last {
            return Err(Errno::EINVAL);
        }
        last = range.high;
        regions.push(Histogram::from_range(range));
    }
    Ok(regions)
}
