//! The recorder of `run --record`: a recording of all processes, from the guest's first instruction to its end.

use std::sync::Arc;

use kvmprof_introspection::GuestKnowledge;
use kvmprof_recording::Ticks;
use kvmprof_recording::file::Stacks;
use kvmprof_recording::status::{ConsumerStatus, RecorderStatus};

use super::{ClockNeeds, Consumer};
use crate::profiler::kernel_text::KernelText;
use crate::profiler::recorder::Recorder;

/// A recorder that nobody can stop.
#[derive(Debug)]
pub struct FileRecorder {
    recorder: Recorder,
    /// At which rate it records, in Hz.
    hz: u32,
}

impl FileRecorder {
    /// Records by `recorder` at `hz` Hz.
    pub fn new(recorder: Recorder, hz: u32) -> Self {
        Self { recorder, hz }
    }
}

impl Consumer for FileRecorder {
    fn needs(&self) -> ClockNeeds {
        ClockNeeds {
            hz: self.hz,
            starts_guest: true,
            process_group: false,
            stacks: self.recorder.plan().stacks,
            processes: true,
        }
    }

    fn take(&mut self, ticks: &Ticks, frames: &[u64]) {
        self.recorder.feed(ticks, frames);
    }

    fn take_block(&mut self, block: &Arc<[u8]>) {
        self.recorder.add_block(Arc::clone(block));
    }

    fn advance(&mut self, _kernel_text: &mut KernelText, _knowledge: &GuestKnowledge) {
        self.recorder.tend();
    }

    fn end(&mut self) {
        self.hz = 0;
        self.recorder.finish();
    }

    fn status(&self) -> Vec<ConsumerStatus> {
        let plan = self.recorder.plan();
        vec![ConsumerStatus::Recorder(RecorderStatus {
            name: "recorder".to_owned(),
            path: Some(plan.path.to_string_lossy().into_owned()),
            recording: self.recorder.is_writing(),
            stacks: Stacks {
                kernel: plan.stacks.kernel,
                user: plan.stacks.user,
            },
            pids: Vec::new(),
            ledger: self.recorder.ledger(),
        })]
    }
}
