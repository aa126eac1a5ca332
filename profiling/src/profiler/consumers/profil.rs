//! profil and pcsample: calls of clients, and the profiles whose buffers are kept for clients.
//!
//! Ticks of other profiles are stored by the vCPUs' threads (`crate::profil`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvmprof_abi::errno::Errno;
use kvmprof_abi::profil::{Call, MAX_RANGES, PROFIL_CALL, PROFIL_GETSTAT, RATE_HZ, Range, State};
use kvmprof_abi::wire::device;
use kvmprof_devices::endpoint::{Handle, IoctlReply};
use kvmprof_devices::profiling::profil::{KeptProfile, turns_on};
use kvmprof_recording::status::{ConsumerStatus, ProfilStatus};
use kvmprof_recording::{Mode, Ticks};

use super::kept_profile::{PassedTicks, WatchedProfile};
use super::rate::{RateCheck, can_follow, ticks_a_second};
use super::{
    ClockNeeds, Command, Consumer, Context, Device, Preparation, Side, SymbolSources, TicksBefore,
};
use crate::clock::TickSource;
use crate::profil::{ProfiledProcesses, Watch};

/// Maximum size in bytes of all buffers that are kept for the host's clients, and of those that are kept for the guest.
const MAX_MEMORY: usize = 64 << 20;

/// The time between two checks for processes that ended some time ago.
const FORGET_INTERVAL: Duration = Duration::from_millis(100);

/// The effect of the last call of a handle.
#[derive(Clone, Copy, Debug)]
enum Open {
    /// There was no call.
    Idle,
    /// A profile whose buffer the process has.
    Process(i32),
    /// A profile of this process whose buffer is kept here.
    Kept(i32),
}

/// The device, and the handles that clients have open.
#[derive(Debug)]
pub struct ProfilConsumer {
    processes: Arc<ProfiledProcesses>,
    /// The handles. There may be very many, and those without a buffer cost no time at ticks.
    open: BTreeMap<Handle, Open>,
    /// The kept buffers, by process, so that a tick is only passed to those of its process.
    kept: BTreeMap<(i32, Handle), WatchedProfile>,
    passed: PassedTicks,
    /// The source of ticks at the last call that turned a profile on.
    source: Option<TickSource>,
    rates: RateCheck,
    forgotten: Instant,
}

impl ProfilConsumer {
    /// The device, which stores ticks of `processes`.
    pub fn new(processes: Arc<ProfiledProcesses>) -> Self {
        Self {
            processes,
            open: BTreeMap::new(),
            kept: BTreeMap::new(),
            passed: PassedTicks::default(),
            source: None,
            rates: RateCheck::default(),
            forgotten: Instant::now(),
        }
    }

    fn is_on(&self) -> bool {
        self.kept.values().any(|kept| kept.profile.is_on()) || self.processes.any_is_on()
    }

    fn call(&mut self, handle: Handle, data: &[u8], context: &Context<'_>) -> Result<i64, Errno> {
        let (call, ranges) = decode(data)?;
        if context.has_ended {
            return Err(Errno::ENXIO);
        }
        if turns_on(&call, &ranges)? {
            let source = context.ticks();
            self.check_rate(&call, ticks_a_second(source, RATE_HZ))?;
            self.source = source;
        }
        if call.flags & Call::KEEP == 0 {
            let all = context.list_processes();
            let value = self.processes.call(&call, &ranges, all.as_deref())?;
            self.replace(handle, Open::Process(call.pid));
            return Ok(value);
        }
        self.check_memory(handle, context.side, &call)?;
        let hz = ticks_a_second(self.source, RATE_HZ);
        if let Some(kept) = self.kept.get_mut(&(call.pid, handle)) {
            return kept.call(&call, hz, self.passed.clone());
        }
        let vcpus = context.clocks.ledgers().len();
        let profile = KeptProfile::new(&call, vcpus, hz)?;
        let watch = Watch::begin(&self.processes, call.pid)?;
        self.replace(handle, Open::Kept(call.pid));
        let kept = WatchedProfile::new(context.side, profile, watch, self.passed.clone());
        self.kept.insert((call.pid, handle), kept);
        Ok(0)
    }

    /// Sets the object of `handle`, and drops the buffer that was kept for it.
    fn replace(&mut self, handle: Handle, open: Open) {
        if let Some(Open::Kept(pid)) = self.open.insert(handle, open) {
            self.kept.remove(&(pid, handle));
        }
    }

    /// Checks that the clock's rate allows `call`.
    fn check_rate(&mut self, call: &Call, hz: u32) -> Result<(), Errno> {
        let takes_all = hz != 0 && call.flags & Call::EVERY_TICK != 0;
        let may = takes_all || (self.rates).divides(hz, RATE_HZ, "profil and pcsample store");
        may.then_some(()).ok_or(Errno::EINVAL)
    }

    /// Checks that there is memory for the buffer of `call`, which replaces that of `handle`.
    fn check_memory(&self, handle: Handle, side: Side, call: &Call) -> Result<(), Errno> {
        let size = KeptProfile::size(call)?;
        let others = self
            .kept
            .iter()
            .filter(|((_, other), kept)| *other != handle && kept.side == side);
        let taken: usize = others.map(|(_, kept)| kept.profile.memory()).sum();
        if taken + size > MAX_MEMORY {
            return Err(Errno::ENOSPC);
        }
        Ok(())
    }

    /// The buffer that is kept for `handle`; `None` if it has none.
    fn kept_for(&self, handle: Handle) -> Result<Option<&WatchedProfile>, Errno> {
        match *self.open.get(&handle).ok_or(Errno::EBADF)? {
            Open::Kept(pid) => Ok(self.kept.get(&(pid, handle))),
            Open::Idle | Open::Process(_) => Ok(None),
        }
    }

    fn status_of(&self, handle: Handle) -> Result<Vec<u8>, Errno> {
        let status = match (self.kept_for(handle)?, self.open.get(&handle)) {
            (Some(kept), _) => kept.profile.status(),
            // The process was forgotten, or the call turned it off before it was ever on.
            (None, Some(Open::Process(pid))) => self.processes.status(*pid).unwrap_or_default(),
            (None, _) => return Err(Errno::EINVAL),
        };
        Ok(status.encode().to_vec())
    }
}

/// The call in `data`, and its ranges.
fn decode(data: &[u8]) -> Result<(Call, Vec<Range>), Errno> {
    let (head, mut rest) = data.split_at_checked(Call::SIZE).ok_or(Errno::EFAULT)?;
    let call = Call::decode(head).ok_or(Errno::EINVAL)?;
    let count = usize::try_from(call.ranges).map_err(|_| Errno::EINVAL)?;
    if call.pid < 1 || count > MAX_RANGES {
        return Err(Errno::EINVAL);
    }
    let mut ranges = Vec::new();
    for _ in 0..count {
        ranges.push(Range::decode(rest).ok_or(Errno::EFAULT)?);
        rest = rest.get(Range::SIZE..).unwrap_or_default();
    }
    Ok((call, ranges))
}

impl Consumer for ProfilConsumer {
    fn needs(&self) -> ClockNeeds {
        let is_on = self.is_on();
        let mut kept = self.kept.values();
        ClockNeeds {
            source: self.source.filter(|_| is_on),
            // If the process has the buffer, the profile is the guest's, whichever client started it.
            gives_way: !kept.any(|kept| kept.side == Side::Host && kept.profile.is_on()),
            starts_guest: is_on,
            exits: true,
            ..ClockNeeds::default()
        }
    }

    fn take(&mut self, ticks: &Ticks, _frames: &[u64]) {
        let passed = self.passed.pass(ticks);
        let sample = ticks.sample.as_ref();
        let sample = sample.filter(|sample| sample.mode == Mode::User);
        let Some(pid) = sample.map(|sample| sample.pid) else {
            return;
        };
        let of_process = (pid, Handle(0))..=(pid, Handle(u32::MAX));
        for (_, kept) in self.kept.range_mut(of_process) {
            kept.feed(ticks, passed);
        }
    }

    fn follow(&mut self, source: Option<TickSource>) {
        if !self.is_on() {
            return;
        }
        if can_follow(self.source, source, RATE_HZ) {
            // The vCPUs' threads follow by themselves.
            let hz = ticks_a_second(source, RATE_HZ);
            for kept in self.kept.values_mut() {
                kept.set_hz(hz, self.passed.clone());
            }
        } else {
            let kept = self.kept.values_mut();
            kept.for_each(|kept| kept.profile.stop(State::OtherTicks));
            self.processes.stop();
        }
    }

    fn advance(&mut self, _sources: &mut SymbolSources<'_>) {
        self.kept.values_mut().for_each(WatchedProfile::follow);
        if self.forgotten.elapsed() >= FORGET_INTERVAL {
            self.processes.forget_ended();
            self.forgotten = Instant::now();
        }
    }

    fn end(&mut self) {
        let kept = self.kept.values_mut();
        kept.for_each(|kept| kept.profile.end(State::Ended));
        self.processes.end();
    }

    fn status(&self) -> Vec<ConsumerStatus> {
        let kept = self
            .kept
            .values()
            .map(|kept| ProfilStatus::new(kept.profile.pid(), true, &kept.profile.status()));
        let own = self.processes.reports().into_iter();
        let own = own.map(|report| ProfilStatus::new(report.pid, false, &report.status));
        kept.chain(own).map(ConsumerStatus::Profil).collect()
    }

    fn device_number(&self) -> Option<u16> {
        Some(device::PROFIL)
    }

    fn device(&mut self) -> Option<&mut dyn Device> {
        Some(self)
    }
}

impl Device for ProfilConsumer {
    fn before_read(&self, _handle: Handle) -> Result<Preparation, Errno> {
        // It returns the state at the time of the read.
        Ok(TicksBefore::All.into())
    }

    fn before_ioctl(
        &self,
        _handle: Handle,
        command: &Command<'_>,
        context: &Context<'_>,
    ) -> Result<Preparation, Errno> {
        // A call acts at its own time.
        let ticks = match command.number {
            PROFIL_CALL => context.ticks_before_list(),
            _ => TicksBefore::All,
        };
        Ok(ticks.into())
    }

    fn open(&mut self, handle: Handle, _minor: u16, _context: &Context<'_>) -> Result<(), Errno> {
        self.open.insert(handle, Open::Idle);
        Ok(())
    }

    fn read(&mut self, handle: Handle, limit: usize, _: &Context<'_>) -> Result<Vec<u8>, Errno> {
        let kept = self.kept_for(handle)?.ok_or(Errno::EINVAL)?;
        let stored = kept.profile.stored();
        Ok(stored.get(..limit).unwrap_or(stored).to_vec())
    }

    fn ioctl(
        &mut self,
        handle: Handle,
        command: &Command<'_>,
        context: &Context<'_>,
    ) -> Result<IoctlReply, Errno> {
        match command.number {
            PROFIL_CALL => Ok(IoctlReply {
                value: self.call(handle, command.data, context)?,
                data: Vec::new(),
            }),
            PROFIL_GETSTAT => Ok(IoctlReply {
                value: 0,
                data: self.status_of(handle)?,
            }),
            _ => Err(Errno::EINVAL),
        }
    }

    fn close(&mut self, handle: Handle) {
        self.replace(handle, Open::Idle);
        self.open.remove(&handle);
    }
}
