//! The recorder as a device: recordings that clients read, several at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{MAX_HZ, MIN_HZ};
use kvmprof_abi::recorder::{
    MAX_INTERVAL, MAX_LOOK_TICKS, MAX_PIDS, MAX_RECORDINGS, REC_EVENT, REC_HZ, REC_INTERVAL,
    REC_PIDS, REC_START, REC_STOP, REC_TASKS, REC_YIELD, STACK_KERNEL, STACK_USER,
};
use kvmprof_abi::wire::device;
use kvmprof_devices::endpoint::{Handle, IoctlReply, Readiness};
use kvmprof_recording::file::{ClientSink, Encoder, Sink};
use kvmprof_recording::status::{ConsumerStatus, RecorderStatus};
use kvmprof_recording::tasks::TaskLook;
use kvmprof_recording::{EventKind, QueueBudget, SamplingEvent, StackParts, Ticks};

use super::recording::{LookPace, SymbolSources, add_symbols, recording_info};
use super::{ClockNeeds, Command, Consumer, Context, Device, LookNeeds, Preparation, TicksBefore};
use crate::clock::TickSource;
use crate::config::LookPlan;

/// A recording that a client has started.
#[derive(Debug)]
struct Recorder {
    encoder: Encoder<ClientSink>,
    stacks: StackParts,
    pids: Vec<i32>,
    /// What makes its ticks.
    source: TickSource,
    /// For a recording that yields: the source of its ticks while no other consumer requests another one.
    yields_from: Option<TickSource>,
    looks: Option<LookPace>,
}

/// What to record.
#[derive(Clone, Debug, Default)]
struct Choice {
    /// The processes; empty for all processes.
    pids: Vec<i32>,
    /// The source of ticks; `None` for the present source, or else the clock.
    source: Option<TickSource>,
    /// The number of ticks between two looks at the guest's tasks; `None` for no looks.
    tasks: Option<u32>,
    /// Whether the recording yields to other consumers' sources of ticks.
    yields: bool,
    /// Blocks of samples are written after multiples of this time, in s; 0 for once a second.
    interval: u32,
}

/// All recorders of clients.
#[derive(Debug)]
pub struct ClientRecorders {
    /// Limit of unread data of clients, beyond that of each recording.
    room: Arc<QueueBudget>,
    /// Recorders that are open and not started yet. Clients may have very many, and they cost no time at ticks.
    idle: BTreeMap<Handle, Choice>,
    /// Recorders that have been started, [`MAX_RECORDINGS`] at most. Some may have ended.
    started: BTreeMap<Handle, Recorder>,
}

impl ClientRecorders {
    /// No recorders yet. Unread data of clients is in `room`.
    pub fn new(room: Arc<QueueBudget>) -> Self {
        Self {
            room,
            idle: BTreeMap::new(),
            started: BTreeMap::new(),
        }
    }

    /// The recorders whose recordings haven't ended.
    fn recording(&self) -> impl Iterator<Item = &Recorder> {
        let started = self.started.values();
        started.filter(|recorder| recorder.encoder.is_recording())
    }

    fn encoders(&mut self) -> impl Iterator<Item = &mut Encoder<ClientSink>> {
        let started = self.started.values_mut();
        started.map(|recorder| &mut recorder.encoder)
    }

    /// The choice of a recorder that hasn't been started.
    fn choice(&mut self, handle: Handle) -> Result<&mut Choice, Errno> {
        self.idle.get_mut(&handle).ok_or(Errno::EBUSY)
    }

    fn choose_event(
        &mut self,
        handle: Handle,
        period: i64,
        data: &[u8],
        context: &Context<'_>,
    ) -> Result<(), Errno> {
        let choice = self.choice(handle)?;
        choice.source = match data {
            [] => None,
            _ => {
                let number = data.try_into().map_err(|_| Errno::EINVAL)?;
                let kind = EventKind::from_number(u32::from_le_bytes(number));
                let kind = kind.ok_or(Errno::ENODEV)?;
                let period = u64::try_from(period).map_err(|_| Errno::EINVAL)?;
                let event = SamplingEvent::new(kind, period).ok_or(Errno::EINVAL)?;
                context.has_event(kind)?;
                Some(TickSource::Event(event))
            }
        };
        Ok(())
    }

    fn choose_rate(&mut self, handle: Handle, hz: i64, context: &Context<'_>) -> Result<(), Errno> {
        let choice = self.choice(handle)?;
        let hz = u32::try_from(hz).map_err(|_| Errno::EINVAL)?;
        let has_clock = context.clocks.plan().profiling.hz != 0;
        if hz != 0 && !(has_clock && (MIN_HZ..=MAX_HZ).contains(&hz)) {
            return Err(Errno::EINVAL);
        }
        choice.source = TickSource::clock(hz);
        Ok(())
    }

    fn choose_to_yield(&mut self, handle: Handle, argument: i64) -> Result<(), Errno> {
        self.choice(handle)?.yields = match argument {
            0 => false,
            1 => true,
            _ => return Err(Errno::EINVAL),
        };
        Ok(())
    }

    fn choose_interval(&mut self, handle: Handle, argument: i64) -> Result<(), Errno> {
        let interval = u32::try_from(argument).ok();
        let interval = interval.filter(|interval| *interval <= MAX_INTERVAL);
        self.choice(handle)?.interval = interval.ok_or(Errno::EINVAL)?;
        Ok(())
    }

    /// The source of ticks of recordings that yield, if there are any.
    fn yielding_source(&self) -> Option<TickSource> {
        self.recording().find_map(|recorder| recorder.yields_from)
    }

    /// The requested and the actual source of ticks of a recording with this choice.
    fn sources(
        &self,
        choice: &Choice,
        context: &Context<'_>,
    ) -> Result<(TickSource, TickSource), Errno> {
        let wanted = match choice.source {
            None => context.ticks().ok_or(Errno::EINVAL)?,
            Some(source) => source,
        };
        match context.can_count(wanted) {
            Err(error) if !choice.yields || error != Errno::EBUSY => Err(error),
            _ if choice.yields => {
                let present = context.source.or_else(|| self.yielding_source());
                Ok((wanted, present.unwrap_or(wanted)))
            }
            _ => Ok((wanted, wanted)),
        }
    }

    fn choose_processes(&mut self, handle: Handle, data: &[u8]) -> Result<(), Errno> {
        let choice = self.choice(handle)?;
        let (chosen, []) = data.as_chunks::<4>() else {
            return Err(Errno::EINVAL);
        };
        if chosen.len() > MAX_PIDS {
            return Err(Errno::EINVAL);
        }
        choice.pids = chosen.iter().copied().map(i32::from_le_bytes).collect();
        Ok(())
    }

    fn choose_tasks(
        &mut self,
        handle: Handle,
        ticks: i64,
        context: &Context<'_>,
    ) -> Result<(), Errno> {
        let choice = self.choice(handle)?;
        let ticks = u32::try_from(ticks).map_err(|_| Errno::EINVAL)?;
        if ticks > MAX_LOOK_TICKS {
            return Err(Errno::EINVAL);
        }
        if ticks > 0 && !context.can_look_at_tasks() {
            return Err(Errno::ENODEV);
        }
        choice.tasks = Some(ticks).filter(|ticks| *ticks > 0);
        Ok(())
    }

    fn start(&mut self, handle: Handle, argument: i64, context: &Context<'_>) -> Result<(), Errno> {
        if context.has_ended {
            return Err(Errno::ENXIO);
        }
        let choice = self.choice(handle)?;
        if argument & !(STACK_KERNEL | STACK_USER) != 0 {
            return Err(Errno::EINVAL);
        }
        let choice = choice.clone();
        let (wanted, source) = self.sources(&choice, context)?;
        let Choice {
            pids,
            tasks,
            yields,
            interval,
            ..
        } = choice;
        let looks =
            tasks.map(|ticks| LookPace::new(LookPlan::all(ticks), source).ok_or(Errno::EINVAL));
        let looks = looks.transpose()?;
        // Each recording needs time at every tick, and up to 32 MiB for its client's unread data.
        if self.started.len() >= MAX_RECORDINGS {
            return Err(Errno::ENOSPC);
        }
        let stacks = StackParts {
            kernel: argument & STACK_KERNEL != 0,
            user: argument & STACK_USER != 0,
        };
        let Context {
            machine, clocks, ..
        } = *context;
        let (plan, vcpus) = (clocks.plan(), clocks.ledgers().len());
        let info = recording_info(machine, plan, Some(source), vcpus, stacks, &pids, tasks);
        let mut encoder = Encoder::new(ClientSink::within(&info, &self.room), &pids);
        if interval > 0 {
            encoder.set_interval(interval);
        }
        for block in context.processes.known() {
            encoder.add_block(Arc::clone(block));
        }
        let recorder = Recorder {
            encoder,
            stacks,
            pids,
            source,
            yields_from: yields.then_some(wanted),
            looks,
        };
        self.idle.remove(&handle);
        self.started.insert(handle, recorder);
        Ok(())
    }

    /// Ends a recording, if it hasn't ended. The client can still read it.
    fn stop(&mut self, handle: Handle) -> Result<(), Errno> {
        let recorder = self.started.get_mut(&handle).ok_or(Errno::EINVAL)?;
        recorder.encoder.finish();
        Ok(())
    }
}

impl Consumer for ClientRecorders {
    fn needs(&self) -> ClockNeeds {
        let mut needs = ClockNeeds::default();
        for recorder in self.recording() {
            let is_first = needs.source.is_none();
            match recorder.yields_from {
                Some(wanted) if is_first => (needs.source, needs.yields) = (Some(wanted), true),
                Some(_) => {}
                None => (needs.source, needs.yields) = (Some(recorder.source), false),
            }
            needs.starts_guest = true;
            needs.processes = true;
            needs.stacks.kernel |= recorder.stacks.kernel;
            needs.stacks.user |= recorder.stacks.user;
            let looks = recorder.looks.as_ref().map(LookPace::needs);
            needs.looks = needs.looks.into_iter().chain(looks).reduce(LookNeeds::with);
        }
        needs
    }

    /// Ends recordings that yield if `source` makes the ticks now: such a recording has ticks of one source only.
    fn follow(&mut self, source: Option<TickSource>) {
        for recorder in self.started.values_mut() {
            if recorder.yields_from.is_some() && Some(recorder.source) != source {
                recorder.encoder.finish();
            }
        }
    }

    fn take(&mut self, ticks: &Ticks, frames: &[u64]) {
        for encoder in self.encoders() {
            encoder.feed(ticks, frames);
        }
    }

    fn take_look(&mut self, look: &TaskLook) {
        for recorder in self.started.values_mut() {
            if let Some(pace) = &mut recorder.looks
                && pace.takes(look.time)
            {
                recorder.encoder.feed_look(look);
            }
        }
    }

    fn take_block(&mut self, block: &Arc<[u8]>) {
        for encoder in self.encoders() {
            encoder.add_block(Arc::clone(block));
        }
    }

    fn take_restart(&mut self, block: &Arc<[u8]>) {
        for encoder in self.encoders() {
            encoder.add_restart(Arc::clone(block));
        }
    }

    fn advance(&mut self, sources: &mut SymbolSources<'_>) {
        for encoder in self.encoders() {
            add_symbols(encoder, sources);
            encoder.flush_due();
        }
    }

    fn end(&mut self) {
        self.encoders().for_each(Encoder::finish);
    }

    fn status(&self) -> Vec<ConsumerStatus> {
        let recorders = self.started.values().map(|recorder| {
            let encoder = &recorder.encoder;
            ConsumerStatus::Recorder(RecorderStatus {
                pids: recorder.pids.clone(),
                ..RecorderStatus::new(encoder.is_recording(), recorder.stacks, encoder.ledger())
            })
        });
        recorders.collect()
    }

    fn unread(&self) -> u64 {
        let recorders = self.started.values();
        let bytes = recorders.map(|recorder| recorder.encoder.sink().waiting() as u64);
        bytes.sum()
    }

    fn device_number(&self) -> Option<u16> {
        Some(device::RECORDER)
    }

    fn device(&mut self) -> Option<&mut dyn Device> {
        Some(self)
    }
}

impl Device for ClientRecorders {
    fn before_ioctl(
        &self,
        handle: Handle,
        command: &Command<'_>,
        _context: &Context<'_>,
    ) -> Result<Preparation, Errno> {
        Ok(match command.number {
            // Ticks from before the start belong to no recording.
            REC_START => TicksBefore::All.into(),
            REC_STOP => self.before_close(handle),
            _ => Preparation::default(),
        })
    }

    /// The preparation for the end of the recording, if it hasn't ended.
    fn before_close(&self, handle: Handle) -> Preparation {
        let is_recording = |recorder: &Recorder| recorder.encoder.is_recording();
        if !self.started.get(&handle).is_some_and(is_recording) {
            return Preparation::default();
        }
        let mut others = self.started.iter().filter(|(other, _)| **other != handle);
        Preparation {
            ticks: TicksBefore::Last {
                others: others.any(|(_, recorder)| is_recording(recorder)),
            },
            files: true,
        }
    }

    fn open(&mut self, handle: Handle, _minor: u16, _context: &Context<'_>) -> Result<(), Errno> {
        self.idle.insert(handle, Choice::default());
        Ok(())
    }

    fn read(&mut self, handle: Handle, limit: usize, _: &Context<'_>) -> Result<Vec<u8>, Errno> {
        let recorder = self.started.get_mut(&handle).ok_or(Errno::EINVAL)?;
        let bytes = recorder.encoder.sink_mut().read(limit);
        bytes.ok_or(Errno::EAGAIN)
    }

    fn ioctl(
        &mut self,
        handle: Handle,
        command: &Command<'_>,
        context: &Context<'_>,
    ) -> Result<IoctlReply, Errno> {
        let Command { argument, data, .. } = *command;
        match command.number {
            REC_EVENT => self.choose_event(handle, argument, data, context)?,
            REC_YIELD => self.choose_to_yield(handle, argument)?,
            REC_HZ => self.choose_rate(handle, argument, context)?,
            REC_PIDS => self.choose_processes(handle, data)?,
            REC_INTERVAL => self.choose_interval(handle, argument)?,
            REC_TASKS => self.choose_tasks(handle, argument, context)?,
            REC_START => self.start(handle, argument, context)?,
            REC_STOP => self.stop(handle)?,
            _ => return Err(Errno::EINVAL),
        }
        Ok(IoctlReply::default())
    }

    fn close(&mut self, handle: Handle) {
        // The client's unread data is thrown away.
        self.idle.remove(&handle);
        self.started.remove(&handle);
    }

    fn readiness(&self, handle: Handle) -> Readiness {
        // Before the start, a read fails and doesn't wait.
        let recorder = self.started.get(&handle);
        let readable = recorder.is_none_or(|recorder| recorder.encoder.sink().is_readable());
        Readiness {
            readable,
            ..Readiness::default()
        }
    }
}
