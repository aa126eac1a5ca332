//! The recorder as a device: recordings that clients read.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::recorder::{MAX_PIDS, REC_PIDS, REC_START, REC_STOP, STACK_KERNEL, STACK_USER};
use kvmprof_devices::endpoint::{Handle, IoctlReply};

use super::backend::Open;
use super::recorder::{RecordWish, StreamRecorder, facts, kernel_block};
use super::{LOADING_PATIENCE, Profiler};
use crate::introspection::StackWish;

impl Profiler {
    pub(super) fn ioctl_recorder(
        &mut self,
        handle: Handle,
        command: u32,
        argument: i64,
        data: &[u8],
    ) -> Result<IoctlReply, Errno> {
        match command {
            REC_PIDS => self.choose_processes(handle, data)?,
            REC_START => self.start_stream(handle, argument)?,
            REC_STOP => {
                if !self.streams.contains_key(&handle) {
                    return Err(Errno::EINVAL);
                }
                self.stop_stream(handle);
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(IoctlReply::default())
    }

    fn choose_processes(&mut self, handle: Handle, data: &[u8]) -> Result<(), Errno> {
        if self.streams.contains_key(&handle) {
            return Err(Errno::EBUSY);
        }
        let (chosen, []) = data.as_chunks::<4>() else {
            return Err(Errno::EINVAL);
        };
        if chosen.len() > MAX_PIDS {
            return Err(Errno::EINVAL);
        }
        if let Some(Open::Recorder { pids }) = self.open.get_mut(&handle) {
            *pids = chosen.iter().copied().map(i32::from_le_bytes).collect();
        }
        Ok(())
    }

    fn start_stream(&mut self, handle: Handle, argument: i64) -> Result<(), Errno> {
        if self.ended {
            return Err(Errno::ENXIO);
        }
        if self.streams.contains_key(&handle) {
            return Err(Errno::EBUSY);
        }
        // Ticks from before belong to nobody.
        self.settle();
        let rate = self.rate_for_another();
        if argument & !(STACK_KERNEL | STACK_USER) != 0 || rate == 0 {
            return Err(Errno::EINVAL);
        }
        let stacks = StackWish {
            kernel: argument & STACK_KERNEL != 0,
            user: argument & STACK_USER != 0,
        };
        let Some(Open::Recorder { pids }) = self.open.get(&handle) else {
            return Err(Errno::EBADF);
        };
        let wish = RecordWish {
            stacks,
            pids: pids.clone(),
        };
        self.rate = rate;
        let facts = facts(&self.facts, &self.plan, rate, self.vcpus.len(), &wish);
        let mut stream = StreamRecorder::new(&facts, wish);
        for block in self.processes.known() {
            stream.add_block(block);
        }
        self.streams.insert(handle, stream);
        self.follow_consumers(self.pcs.wants_process_group());
        Ok(())
    }

    /// Ends a recording, if there is one that goes on; it can still be read.
    fn stop_stream(&mut self, handle: Handle) {
        if !(self.streams.get(&handle)).is_some_and(StreamRecorder::wants_ticks) {
            return;
        }
        let others = self
            .streams
            .iter()
            .any(|(other, stream)| *other != handle && stream.wants_ticks());
        let rest = self.pcs.wants_ticks() || self.prf.wants_ticks() || self.recorder.is_some();
        self.settle_before_leaving(others || rest);
        self.await_files(LOADING_PATIENCE);
        if let Some(stream) = self.streams.get_mut(&handle) {
            stream.stop();
        }
        self.follow_consumers(self.pcs.wants_process_group());
    }

    /// The client has gone: what it hasn't read is thrown away.
    pub(super) fn close_stream(&mut self, handle: Handle) {
        self.stop_stream(handle);
        self.streams.remove(&handle);
    }

    /// EINVAL before REC_START.
    pub(super) fn read_stream(&mut self, handle: Handle, limit: usize) -> Result<Vec<u8>, Errno> {
        let stream = self.streams.get_mut(&handle);
        stream.ok_or(Errno::EINVAL)?.read(limit)
    }

    /// Hands over what has waited for long enough, and the kernel's symbols and its modules' once they are known.
    pub(super) fn tend_streams(&mut self) {
        if self.streams.values().any(StreamRecorder::wants_symbols)
            && let Some(text) = self.kernel_text.kernel(&self.facts.knowledge)
        {
            let kernel = kernel_block(&self.facts.knowledge);
            let waiting = self.streams.values_mut();
            for stream in waiting.filter(|stream| stream.wants_symbols()) {
                if let Some(block) = &kernel {
                    stream.add_block(block);
                }
                stream.give_symbols(&text);
            }
        }
        for stream in self.streams.values_mut() {
            if let Some(modules) = self.facts.knowledge.modules() {
                stream.take_module_functions(modules);
            }
            stream.tend();
        }
    }

    /// True while a recorder takes ticks.
    pub(super) fn is_recording(&self) -> bool {
        self.recorder.is_some() || self.streams.values().any(StreamRecorder::wants_ticks)
    }

    /// The parts of call stacks that any recorder wants.
    pub(super) fn stacks_wanted(&self) -> StackWish {
        let streams = self.streams.values().filter(|stream| stream.wants_ticks());
        let file = self.recorder.iter().map(|recorder| recorder.plan().stacks);
        let mut all = StackWish::default();
        for wish in streams.map(|stream| stream.wish().stacks).chain(file) {
            all.kernel |= wish.kernel;
            all.user |= wish.user;
        }
        all
    }
}
