//! The information in recordings on the machine and on the guest's kernel.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvmprof_attach::HostStacks;
use kvmprof_introspection::{GuestKnowledge, TaskScope};
use kvmprof_recording::StackParts;
use kvmprof_recording::file::{Encoder, KernelInfo, RecordingInfo, Sink};

use super::LookNeeds;
use crate::clock::{TickSource, monotonic_ns};
use crate::config::LookPlan;
use crate::profiler::kernel_text::KernelText;
use crate::profiler::{ClockPlan, MachineInfo};

/// Chooses the looks at the guest's tasks that one recording takes, because other recordings may need more looks.
#[derive(Debug)]
pub struct LookPace {
    /// The time between two looks, in ns.
    period: u64,
    scope: TaskScope,
    /// The time of the next look, in ns of CLOCK_MONOTONIC.
    due: u64,
}

impl LookPace {
    /// The looks of `plan`, with ticks of `source`. `None` if that isn't the clock.
    pub fn new(plan: LookPlan, source: TickSource) -> Option<Self> {
        let hz = u64::from(source.hz());
        let period = u64::from(plan.ticks).saturating_mul(1_000_000_000);
        Some(Self {
            period: period.checked_div(hz)?.max(1),
            scope: plan.scope,
            due: 0,
        })
    }

    /// The looks that the recording needs.
    pub fn needs(&self) -> LookNeeds {
        LookNeeds {
            period: Duration::from_nanos(self.period),
            scope: self.scope,
        }
    }

    /// Whether the recording takes the look at `time`. It takes a look that is a little early, too.
    pub fn takes(&mut self, time: u64) -> bool {
        let is_due = time.saturating_add(self.period / 4) >= self.due;
        if is_due {
            self.due = time.saturating_add(self.period);
        }
        is_due
    }
}

/// The properties of a recording that begins now, of the ticks of `source` on each of `vcpus` vCPUs, with these parts of stacks; of
/// `pids`, or of all processes if there are none; with a look at the guest's tasks every `tasks` ticks.
pub fn recording_info(
    machine: &MachineInfo,
    clock: &ClockPlan,
    source: Option<TickSource>,
    vcpus: usize,
    stacks: StackParts,
    pids: &[i32],
    tasks: Option<u32>,
) -> RecordingInfo {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    RecordingInfo {
        program: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: machine.kernel.clone(),
        vcpus: u32::try_from(vcpus).unwrap_or(u32::MAX),
        hz: source.map_or(0, TickSource::hz),
        event: source.and_then(TickSource::event),
        clock: clock.of_recordings.name().to_owned(),
        jitter: clock.profiling.jitter,
        memory_bytes: machine.memory_bytes,
        began_ns: now.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
        began_monotonic_ns: monotonic_ns(),
        stacks,
        pids: pids.to_vec(),
        tasks,
    }
}

/// The sources of the names of functions.
pub struct SymbolSources<'a> {
    /// The texts of the guest's kernel.
    pub kernel_text: &'a mut KernelText,
    /// The knowledge of the guest.
    pub knowledge: &'a GuestKnowledge,
    /// The functions of the host, if samples have its stacks.
    pub host: Option<&'a HostStacks>,
}

/// Adds to `recording` what it lacks of the functions of the kernel, of its modules, of the firmware and of the host, and of the names of locks, as far as
/// they are known.
pub fn add_symbols<S: Sink>(recording: &mut Encoder<S>, sources: &mut SymbolSources<'_>) {
    let SymbolSources {
        kernel_text,
        knowledge,
        host,
    } = sources;
    while let Some(known) = recording.host_text()
        && let Some(new) = host.and_then(|host| host.functions_after(known))
    {
        recording.add_host_functions(new.text.into(), new.known);
    }
    while let Some(known) = recording.firmware_text()
        && let Some(new) = knowledge.firmware().functions_after(known)
    {
        recording.add_firmware(new.text.into(), new.known);
    }
    if recording.wants_kernel()
        && let Some(text) = kernel_text.kernel_symbols(knowledge)
    {
        if let Some(block) = kernel_block(knowledge) {
            recording.add_block(block);
        }
        recording.add_kernel(text);
    }
    let mut variables = String::new();
    while let Some(lock) = recording.next_lock() {
        let variable = knowledge.linux().and_then(|linux| linux.variable(lock));
        variables += &variable.unwrap_or_default();
    }
    recording.add_variables(variables);
    while let Some(known) = recording.module_text()
        && let Some((text, known)) = kernel_text.modules_after(knowledge, known)
    {
        recording.add_modules(text, known);
    }
}

/// The block about the guest's kernel, once the kernel is located.
fn kernel_block(knowledge: &GuestKnowledge) -> Option<Arc<[u8]>> {
    let linux = knowledge.linux()?;
    let info = KernelInfo {
        release: linux.release().to_owned(),
        build_id: linux.build_id().to_owned(),
        slide: linux.slide()?,
        gaps: linux.gaps().to_vec(),
    };
    Some(info.to_block()?.into())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use kvmprof_introspection_fixtures::kernel::{HOT, TEXT, offsets};
    use kvmprof_introspection_fixtures::linux_guest::LinuxGuest;
    use kvmprof_introspection_fixtures::modules::TestModule;
    use kvmprof_recording::file::{FileOptions, FileSink, NewFile, Recording};
    use kvmprof_recording::{LockWait, Sample};

    /// Adds the facts about `guest` to `recording`.
    fn add_known(
        recording: &mut Encoder<FileSink>,
        kernel_text: &mut KernelText,
        knowledge: &GuestKnowledge,
    ) {
        let mut sources = SymbolSources {
            kernel_text,
            knowledge,
            host: None,
        };
        add_symbols(recording, &mut sources);
    }

    fn begin(path: &Path) -> Encoder<FileSink> {
        let file = NewFile::create_recording(path).unwrap();
        let info = RecordingInfo::default();
        let sink = FileSink::to(file, path, &info, FileOptions::default());
        Encoder::new(sink.unwrap(), &[])
    }

    #[test]
    fn global_locks_have_their_names() {
        let guest = LinuxGuest::new(HOT);
        let knowledge = GuestKnowledge::from_kernel_image(&HOT.file()).unwrap();
        let linux = knowledge.linux().unwrap();
        linux.locate(&guest.memory, &guest.user());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let mut recording = begin(&path);
        let mut kernel_text = KernelText::default();
        let slide = linux.slide().unwrap();
        let variable = TEXT.wrapping_add(offsets::MODULES).wrapping_add(slide);
        // One lock twice, one outside the image, and one that is code.
        let lock = variable + 4;
        for address in [lock, 0xffff_8880_0000_1000, lock, TEXT + slide] {
            let lock = Some(LockWait {
                address,
                owner: None,
            });
            let sample = Sample {
                lock,
                ..Sample::default()
            };
            recording.feed(&sample.into(), &[]);
            add_known(&mut recording, &mut kernel_text, &knowledge);
        }
        recording.finish();
        let contents = Recording::open(&path).unwrap().read(|_, _| {}).unwrap();
        let variables = contents.symbols.lines().filter(|line| line.contains(" d "));
        let expected = format!("{:016x} d modules+0x4", variable + 4);
        assert_eq!(variables.collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn a_recording_has_all_modules_once_even_unloaded_ones() {
        let guest = LinuxGuest::new(HOT);
        let knowledge = GuestKnowledge::from_kernel_image(&HOT.file()).unwrap();
        let linux = knowledge.linux().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let mut recording = begin(&path);
        let mut kernel_text = KernelText::default();
        // The kernel hasn't been located yet.
        add_known(&mut recording, &mut kernel_text, &knowledge);
        assert!(recording.wants_kernel());
        linux.locate(&guest.memory, &guest.user());
        for name in ["first", "second"] {
            guest.load(&[TestModule::new(name, 2)]);
            linux.modules().read(linux, &guest.memory);
            for _ in 0..2 {
                add_known(&mut recording, &mut kernel_text, &knowledge);
            }
        }
        recording.finish();
        let contents = Recording::open(&path).unwrap().read(|_, _| {}).unwrap();
        let kernel = contents.kernel.unwrap();
        assert_eq!(Some(kernel.slide), linux.slide());
        let functions = contents.symbols.lines();
        let modules: Vec<&str> = functions.filter(|line| line.contains("\t[")).collect();
        let expected = ["first", "second"].map(|module| {
            format!(
                "ffffffffc0400000 t {module}_0\t[{module}]\nffffffffc0401000 t {module}_1\t[{module}]\n\
                 ffffffffc0402000 ? [end]\t[{module}]"
            )
        });
        assert_eq!(modules.join("\n"), expected.join("\n"));
    }
}
