//! What all exports are made from: a recording's events in the order of the file, and the names of their frames.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use kvmprof_devices::profiling::{Mode, Sample, Ticks};

use super::ExportError;
use crate::file::{FileError, Recording};
use crate::profile::{CUT_SHORT, HALTED, Profile, Stack, task_name};

/// What a thread is called whose name isn't known.
const UNKNOWN: &str = "[unknown]";
/// What runs on a halted vCPU.
const IDLE: &str = "[idle]";

/// A recording that is exported.
#[derive(Debug)]
pub struct Source {
    recording: Recording,
    pids: Vec<i32>,
    profile: Profile,
}

/// Something that took ticks of one vCPU: one sample, or a run of ticks for which the vCPU was halted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in ns of CLOCK_MONOTONIC; of a run of ticks, the first one, reckoned from the vCPU's last sample.
    pub time: u64,
    /// How many ticks.
    pub ticks: u64,
    /// The vCPU's index.
    pub vcpu: u16,
    /// What the vCPU was doing.
    pub mode: Mode,
    /// Process id, -1 when unknown, 0 of a halted vCPU.
    pub pid: i32,
    /// Thread id, -1 when unknown, 0 of a halted vCPU.
    pub tid: i32,
    /// The thread's name, in printable ASCII.
    pub comm: String,
    /// Its stack; `None` for a halted vCPU.
    pub stack: Option<Stack>,
}

impl Event {
    fn of_sample(sample: &Sample, frames: &[u64]) -> Self {
        let comm = task_name(&sample.comm);
        Self {
            time: sample.time,
            ticks: 1,
            vcpu: sample.vcpu,
            mode: sample.mode,
            pid: sample.pid,
            tid: sample.tid,
            comm: if comm.trim().is_empty() {
                UNKNOWN.to_owned()
            } else {
                comm
            },
            stack: Some(Stack::of(sample, frames)),
        }
    }

    fn of_idle(vcpu: u16, ticks: u64, time: u64) -> Self {
        Self {
            time,
            ticks,
            vcpu,
            mode: Mode::Idle,
            pid: 0,
            tid: 0,
            comm: IDLE.to_owned(),
            stack: None,
        }
    }
}

/// One frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame<'a> {
    /// The function, or the address where none is known, or a note in brackets.
    pub name: Cow<'a, str>,
    /// The address; 0 for a note.
    pub address: u64,
    /// How many bytes from the function's begin; `None` where no function is known.
    pub offset: Option<u64>,
    /// Whether it is the kernel's.
    pub is_kernel: bool,
}

impl Frame<'_> {
    fn note(text: &'static str, is_kernel: bool) -> Self {
        Self {
            name: text.into(),
            address: 0,
            offset: None,
            is_kernel,
        }
    }
}

impl Source {
    /// Opens the recording at `path`, of which all processes or only `pids` are wanted.
    ///
    /// # Errors
    /// As [`Recording::open`] and [`Recording::read`].
    pub fn open(path: &Path, pids: &[i32]) -> Result<Self, FileError> {
        let recording = Recording::open(path)?;
        let profile = Profile::of_recording(&recording, pids)?;
        Ok(Self {
            recording,
            pids: pids.to_owned(),
            profile,
        })
    }

    /// The same recording, summed up.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Time between two ticks of a vCPU, in ns, at least 1.
    pub fn period_ns(&self) -> u64 {
        let hz = self.profile.contents.facts.hz.max(1);
        (1_000_000_000 / u64::from(hz)).max(1)
    }

    /// Hands all events to `each`, those of one vCPU in the order of time.
    ///
    /// # Errors
    /// As [`Recording::read`], and the first one of `each`.
    pub fn for_each(
        &self,
        mut each: impl FnMut(&Event) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let mut clock = Clock::new(self);
        let mut result = Ok(());
        self.recording.read(|ticks, frames| {
            let begin = clock.advance(ticks);
            if result.is_ok() && ticks.idle > 0 && self.wants(0) {
                result = each(&Event::of_idle(ticks.vcpu, ticks.idle, begin));
            }
            if let Some(sample) = &ticks.sample
                && result.is_ok()
                && self.wants(sample.pid)
            {
                result = each(&Event::of_sample(sample, frames));
            }
        })?;
        result
    }

    fn wants(&self, pid: i32) -> bool {
        self.pids.is_empty() || self.pids.contains(&pid)
    }

    /// The frames of `event`, innermost first; a stack that is cut short ends with a frame that says so.
    pub fn frames<'a>(&'a self, event: &Event) -> Vec<Frame<'a>> {
        let Some(stack) = &event.stack else {
            return vec![Frame::note(HALTED, true)];
        };
        let mut frames: Vec<Frame<'a>> = (0..stack.frames.len())
            .map(|index| self.frame(stack.frames[index], stack.is_kernel(index)))
            .collect();
        if stack.is_cut_short() {
            let is_kernel = frames.last().is_some_and(|frame| frame.is_kernel);
            frames.push(Frame::note(CUT_SHORT, is_kernel));
        }
        frames
    }

    fn frame(&self, address: u64, is_kernel: bool) -> Frame<'_> {
        let found = self.profile.symbols.find_with_offset(address);
        Frame {
            name: found.map_or_else(|| format!("{address:#x}").into(), |(name, _)| name.into()),
            address,
            offset: found.map(|(_, offset)| offset),
            is_kernel,
        }
    }
}

/// What the mode is called.
pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::User => "user",
        Mode::Kernel => "kernel",
        Mode::Interrupt => "interrupt",
        Mode::Idle => "idle",
    }
}

/// Tells when ticks were that have no sample, and so no time.
struct Clock {
    period: u64,
    began: u64,
    // The last tick of each vCPU.
    last: HashMap<u16, u64>,
}

impl Clock {
    fn new(source: &Source) -> Self {
        Self {
            period: source.period_ns(),
            began: source.profile.contents.facts.began_monotonic_ns,
            last: HashMap::new(),
        }
    }

    /// Goes on by `ticks`; the result is the time of the first of them.
    fn advance(&mut self, ticks: &Ticks) -> u64 {
        let last = self.last.entry(ticks.vcpu).or_insert(self.began);
        let begin = last.saturating_add(self.period);
        let missed = ticks
            .idle
            .saturating_add(ticks.stolen)
            .saturating_add(ticks.lost);
        *last = match &ticks.sample {
            Some(sample) => sample.time,
            None => last.saturating_add(missed.saturating_mul(self.period)),
        };
        // The clock isn't exact: what comes before a sample mustn't seem to come after it.
        begin.min(*last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_without_a_sample_lie_between_those_with_one() {
        let mut clock = Clock {
            period: 10,
            began: 100,
            last: HashMap::new(),
        };
        let sampled = |time| Ticks {
            idle: 3,
            sample: Some(Sample {
                time,
                ..Sample::default()
            }),
            ..Ticks::default()
        };
        let idle = Ticks {
            idle: u64::MAX,
            ..Ticks::default()
        };
        assert_eq!(clock.advance(&sampled(141)), 110);
        assert_eq!(clock.advance(&sampled(145)), 145);
        assert_eq!(clock.advance(&idle), 155);
        assert_eq!(clock.advance(&idle), u64::MAX);
    }

    #[test]
    fn a_thread_without_a_name_is_called_something() {
        let event = Event::of_sample(&Sample::default(), &[]);
        assert_eq!(event.comm, "[unknown]");
        assert_eq!(event.stack.unwrap().frames, [0]);
    }
}
