//! A profile whose buffer the device keeps, fed with ticks.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::profil::{Call, Function, MAX_KEPT, RATE_HZ, State, Status, WORD_SIZE};
use kvmprof_recording::{Mode, Ticks};

use super::{KeptBuffer, Profile};
use crate::profiling::Phase;

/// The profile of one process, and its buffer.
#[derive(Debug)]
pub struct KeptProfile {
    pid: i32,
    profile: Profile,
    buffer: KeptBuffer,
    /// The phase of each vCPU.
    phases: Vec<Phase>,
}

impl KeptProfile {
    /// The size of the buffer for `call`, in bytes.
    ///
    /// # Errors
    /// EINVAL if the device can't keep such a buffer.
    pub fn size(call: &Call) -> Result<usize, Errno> {
        let size = match call.function {
            Function::Profil | Function::AixProfil => Some(call.size),
            Function::Pcsample => call.size.checked_mul(WORD_SIZE),
            Function::AixRanges => None,
        };
        let size = size.filter(|size| *size <= MAX_KEPT && call.buffer == 0);
        size.and_then(|size| usize::try_from(size).ok())
            .ok_or(Errno::EINVAL)
    }

    /// Carries out `call`, whose buffer is zeroed, in a guest with `vcpus` vCPUs and a clock at `hz` ticks a second.
    ///
    /// # Errors
    /// EINVAL if the function's page refuses the call, or if the device can't keep the buffer.
    pub fn new(call: &Call, vcpus: usize, hz: u32) -> Result<Self, Errno> {
        let buffer = KeptBuffer::new(Self::size(call)?);
        let mut profile = Profile::default();
        profile.call(call, &[])?;
        Ok(Self {
            pid: call.pid,
            profile,
            buffer,
            phases: vec![Phase::new(hz, RATE_HZ); vcpus],
        })
    }

    /// Carries out another `call` for the process, with a zeroed buffer. Returns the function's result; `None` if the call has no effect, and
    /// the function returns 0. The clock runs at `hz` ticks a second.
    ///
    /// # Errors
    /// EINVAL if the function's page refuses the call, or if the device can't keep the buffer. Nothing has changed then.
    pub fn call(&mut self, call: &Call, hz: u32) -> Result<Option<i64>, Errno> {
        let size = Self::size(call)?;
        if !self.profile.is_changed_by(call, &[])? {
            return Ok(None);
        }
        let returned = self.profile.call(call, &[])?;
        self.buffer = KeptBuffer::new(size);
        self.set_hz(hz);
        Ok(Some(returned))
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The profile's state and account.
    pub fn status(&self) -> Status {
        self.profile.status()
    }

    /// Whether the profile stores ticks.
    pub fn is_on(&self) -> bool {
        self.profile.is_on()
    }

    /// The size of its buffer, in bytes.
    pub fn memory(&self) -> usize {
        self.buffer.bytes().len()
    }

    /// The stored data: all counts, or the samples so far.
    pub fn stored(&self) -> &[u8] {
        let all = self.buffer.bytes();
        let filled = self.profile.filled_bytes();
        let filled = filled.and_then(|filled| usize::try_from(filled).ok());
        filled.and_then(|filled| all.get(..filled)).unwrap_or(all)
    }

    /// Notes that the clock runs at `hz` ticks a second from now on.
    pub fn set_hz(&mut self, hz: u32) {
        self.phases.fill(Phase::new(hz, RATE_HZ));
    }

    /// Takes ticks of the clock.
    pub fn feed(&mut self, ticks: &Ticks) {
        let Some(phase) = self.phases.get_mut(usize::from(ticks.vcpu)) else {
            return;
        };
        phase.pass(ticks.total() - u64::from(ticks.sample.is_some()));
        let Some(sample) = &ticks.sample else {
            return;
        };
        let is_counted = phase.pass(1) == 1 || self.profile.takes_every_tick();
        if is_counted && sample.mode == Mode::User && sample.pid == self.pid {
            self.profile.tick(sample.pc, &mut self.buffer);
        }
    }

    /// Stops storing until the next call, for the reason `state`, if the profile is on.
    pub fn stop(&mut self, state: State) {
        self.profile.stop(state);
    }

    /// Stops storing, for the reason `state`. The state changes even if the profile is off.
    pub fn end(&mut self, state: State) {
        self.profile.end(state);
    }
}
