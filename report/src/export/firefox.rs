//! The Firefox Profiler's processed profile format
//! (<https://github.com/firefox-devtools/profiler/blob/main/docs-developer/processed-profile-format.md>). The crate
//! `fxprof-processed-profile` writes it, and keeps the whole profile in memory, some 40 bytes a sample.
//!
//! Processes and threads are the guest's. A sample's category, and so its colour, is its mode. A marker shows each stay
//! of a thread on a vCPU, from the first sample there to the last. Halted vCPUs are threads of process 0. Modules are
//! libraries, with the names of sampled functions. Where an event takes the samples, the title says so, and there is no
//! CPU usage: the samples tell nothing of it.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, MarkerFieldFlags,
    MarkerFieldFormat, MarkerTiming, ProcessHandle, Profile, ReferenceTimestamp, SamplingInterval,
    StackHandle, StaticSchemaMarker, StaticSchemaMarkerField, StringHandle, ThreadHandle,
    Timestamp, WeightType,
};
use kvmprof_recording::Mode;
use kvmprof_recording::file::RecordingInfo;

use super::libraries::Libraries;
use super::{Event, ExportError, Source};
use crate::profile::Stack;

/// The interval of samples that have none, in ns: the format wants one.
const NO_INTERVAL: u64 = 1_000_000;

/// A thread's identity: pid, tid, and the vCPU if pid and tid don't distinguish threads.
type ThreadKey = (i32, i32, Option<u16>);

/// A thread's stay on a vCPU.
struct Stay {
    vcpu: u16,
    first: Timestamp,
    last: Timestamp,
}

struct Thread {
    handle: ThreadHandle,
    stacks: HashMap<(Mode, Option<Stack>), Option<StackHandle>>,
    stay: Stay,
}

struct Builder<'a> {
    source: &'a Source,
    profile: Profile,
    categories: [CategoryHandle; 4],
    libraries: Libraries,
    processes: HashMap<i32, ProcessHandle>,
    threads: HashMap<ThreadKey, Thread>,
}

/// Writes `source` to `out`.
pub fn write(source: &Source, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut builder = Builder::new(source);
    source.for_each(|event| builder.add(event))?;
    serde_json::to_writer(out, &builder.finish()).map_err(|error| io::Error::from(error).into())
}

impl<'a> Builder<'a> {
    fn new(source: &'a Source) -> Self {
        let info = &source.profile().contents.info;
        let began = Duration::from_nanos(info.began_ns);
        let mut profile = Profile::new(
            &title(info),
            ReferenceTimestamp::from_duration_since_unix_epoch(began),
            SamplingInterval::from_nanos(match source.weight().time_ns() {
                0 => NO_INTERVAL,
                time => time,
            }),
        );
        // A symbol server has nothing to add.
        profile.set_symbolicated(true);
        let categories = [
            ("User", CategoryColor::Yellow),
            ("Kernel", CategoryColor::Orange),
            ("Interrupt", CategoryColor::Red),
            ("Idle", CategoryColor::Transparent),
        ]
        .map(|(name, color)| profile.add_category(name, color));
        let libraries = Libraries::new(source, &mut profile);
        Self {
            source,
            profile,
            categories,
            libraries,
            processes: HashMap::new(),
            threads: HashMap::new(),
        }
    }

    fn add(&mut self, event: &Event) -> Result<(), ExportError> {
        let began = self.source.profile().contents.info.began_monotonic_ns;
        let time = Timestamp::from_nanos_since_reference(event.time.saturating_sub(began));
        let on_vcpu = (event.pid <= 0).then_some(event.vcpu);
        let key = (event.pid, event.tid, on_vcpu);
        let mut thread = match self.threads.remove(&key) {
            Some(thread) => thread,
            None => self.new_thread(event, time),
        };
        // The last name counts, as in the guest.
        self.profile.set_thread_name(thread.handle, &event.comm);
        if thread.stay.vcpu != event.vcpu {
            mark(&mut self.profile, &thread);
            thread.stay = Stay {
                vcpu: event.vcpu,
                first: time,
                last: time,
            };
        }
        // Events of different vCPUs are only roughly in order.
        thread.stay.last = thread.stay.last.max(time);
        let key_of_stack = (event.mode, event.stack.clone());
        let stack = match thread.stacks.get(&key_of_stack) {
            Some(stack) => *stack,
            None => {
                let frames = self.frames(event)?;
                let stack = self
                    .profile
                    .intern_stack_frames(thread.handle, frames.into_iter());
                thread.stacks.insert(key_of_stack, stack);
                stack
            }
        };
        let busy = match event.mode {
            Mode::Idle => CpuDelta::ZERO,
            _ => CpuDelta::from_nanos(self.source.weight().time_ns()),
        };
        let weight = i32::try_from(event.ticks).unwrap_or(i32::MAX);
        self.profile
            .add_sample(thread.handle, time, stack, busy, weight);
        self.threads.insert(key, thread);
        Ok(())
    }

    fn new_thread(&mut self, event: &Event, time: Timestamp) -> Thread {
        let process = match self.processes.get(&event.pid) {
            Some(process) => *process,
            None => self.new_process(event, time),
        };
        let is_main = event.tid == event.pid;
        let tid = event.tid.cast_unsigned();
        let handle = self.profile.add_thread(process, tid, time, is_main);
        self.profile
            .set_thread_samples_weight_type(handle, WeightType::Samples);
        Thread {
            handle,
            stacks: HashMap::new(),
            stay: Stay {
                vcpu: event.vcpu,
                first: time,
                last: time,
            },
        }
    }

    fn new_process(&mut self, event: &Event, time: Timestamp) -> ProcessHandle {
        let known = self.source.profile().processes.get(&event.pid);
        let name = match known.map(|process| process.name.as_str()) {
            Some(name) if !name.is_empty() => name,
            _ => &event.comm,
        };
        let process = self
            .profile
            .add_process(name, event.pid.cast_unsigned(), time);
        self.processes.insert(event.pid, process);
        process
    }

    /// The frames of `event`, outermost first; the innermost has the category of the mode.
    fn frames(&mut self, event: &Event) -> Result<Vec<FrameInfo>, ExportError> {
        let [user, kernel, interrupt, idle] = self.categories;
        let frames = self.source.frames_to_keep(event)?;
        let infos = frames.iter().enumerate().rev().map(|(index, frame)| {
            let category = match (index, event.mode) {
                (0, Mode::Interrupt) => interrupt,
                (0, Mode::Idle) => idle,
                _ if frame.is_kernel => kernel,
                _ => user,
            };
            FrameInfo {
                frame: match self.libraries.locate(frame) {
                    Some((library, address)) => {
                        Frame::RelativeAddressFromInstructionPointer(library, address)
                    }
                    None => Frame::Label(self.profile.intern_string(&frame.name)),
                },
                category_pair: category.into(),
                flags: FrameFlags::empty(),
            }
        });
        Ok(infos.collect())
    }

    fn finish(mut self) -> Profile {
        let mut threads: Vec<(ThreadKey, Thread)> = self.threads.into_iter().collect();
        threads.sort_by_key(|(key, _)| *key);
        for (_, thread) in &threads {
            mark(&mut self.profile, thread);
        }
        self.profile
    }
}

fn title(info: &RecordingInfo) -> String {
    let title = format!("{}, seen from the hypervisor", info.kernel);
    match info.event {
        None => title,
        Some(event) => format!("{title}, samples: {}", event.describe()),
    }
}

/// Adds a marker for the vCPU that `thread` was on.
fn mark(profile: &mut Profile, thread: &Thread) {
    let Stay { vcpu, first, last } = &thread.stay;
    let marker = OnVcpu {
        name: profile.intern_string("vCPU"),
        vcpu: profile.intern_string(&format!("vCPU {vcpu}")),
    };
    profile.add_marker(thread.handle, MarkerTiming::Interval(*first, *last), marker);
}

/// The vCPU of a thread's stay.
#[derive(Clone, Debug)]
struct OnVcpu {
    name: StringHandle,
    vcpu: StringHandle,
}

impl StaticSchemaMarker for OnVcpu {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "vCPU";
    const CHART_LABEL: Option<&'static str> = Some("{marker.data.vcpu}");
    const TABLE_LABEL: Option<&'static str> = Some("{marker.data.vcpu}");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[StaticSchemaMarkerField {
        key: "vcpu",
        label: "vCPU",
        format: MarkerFieldFormat::String,
        flags: MarkerFieldFlags::SEARCHABLE,
    }];

    fn name(&self, _profile: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _profile: &mut Profile) -> CategoryHandle {
        CategoryHandle::OTHER
    }

    fn string_field_value(&self, _field_index: u32) -> StringHandle {
        self.vcpu
    }

    fn number_field_value(&self, _field_index: u32) -> f64 {
        0.0
    }
}
