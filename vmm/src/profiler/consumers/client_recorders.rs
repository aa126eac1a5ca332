//! The recorder as a device: recordings that clients read, any number at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::recorder::{MAX_PIDS, REC_PIDS, REC_START, REC_STOP, STACK_KERNEL, STACK_USER};
use kvmprof_abi::wire::device;
use kvmprof_devices::endpoint::{Handle, IoctlReply, Readiness};
use kvmprof_introspection::{GuestKnowledge, StackWish};
use kvmprof_recording::Ticks;
use kvmprof_recording::file::Stacks;
use kvmprof_recording::status::{ConsumerStatus, RecorderStatus};

use super::{ClockNeeds, Consumer, Context, Device, Preparation, Reply, Request, TicksBefore};
use crate::profiler::kernel_text::KernelText;
use crate::profiler::recorder::{RecordWish, StreamRecorder, facts, kernel_block};

/// What a client has open.
#[derive(Debug)]
enum Open {
    /// Not started yet, and the processes that are to be recorded.
    Idle { pids: Vec<i32> },
    /// Started, at so many Hz; perhaps it is over.
    Started {
        recorder: Box<StreamRecorder>,
        hz: u32,
    },
}

impl Open {
    fn is_recording(&self) -> bool {
        matches!(self, Self::Started { recorder, .. } if recorder.wants_ticks())
    }
}

/// All recorders of clients.
#[derive(Debug, Default)]
pub struct ClientRecorders {
    open: BTreeMap<Handle, Open>,
}

impl ClientRecorders {
    fn started(&self) -> impl Iterator<Item = (&StreamRecorder, u32)> {
        self.open.values().filter_map(|open| match open {
            Open::Started { recorder, hz } => Some((&**recorder, *hz)),
            Open::Idle { .. } => None,
        })
    }

    fn started_mut(&mut self) -> impl Iterator<Item = &mut StreamRecorder> {
        self.open.values_mut().filter_map(|open| match open {
            Open::Started { recorder, .. } => Some(&mut **recorder),
            Open::Idle { .. } => None,
        })
    }

    fn recording(&self) -> impl Iterator<Item = (&StreamRecorder, u32)> {
        (self.started()).filter(|(recorder, _)| recorder.wants_ticks())
    }

    /// What has to be done before the recording of `handle` ends, if it goes on.
    fn before_stop(&self, handle: Handle) -> Preparation {
        if !self.open.get(&handle).is_some_and(Open::is_recording) {
            return Preparation::default();
        }
        let mut others = self.open.iter().filter(|(other, _)| **other != handle);
        Preparation {
            ticks: TicksBefore::Last {
                others: others.any(|(_, open)| open.is_recording()),
            },
            files: true,
        }
    }

    fn choose_processes(&mut self, handle: Handle, data: &[u8]) -> Result<(), Errno> {
        let Some(Open::Idle { pids }) = self.open.get_mut(&handle) else {
            return Err(Errno::EBUSY);
        };
        let (chosen, []) = data.as_chunks::<4>() else {
            return Err(Errno::EINVAL);
        };
        if chosen.len() > MAX_PIDS {
            return Err(Errno::EINVAL);
        }
        *pids = chosen.iter().copied().map(i32::from_le_bytes).collect();
        Ok(())
    }

    fn start(&mut self, handle: Handle, argument: i64, context: &Context<'_>) -> Result<(), Errno> {
        if context.has_ended {
            return Err(Errno::ENXIO);
        }
        let Some(open @ Open::Idle { .. }) = self.open.get_mut(&handle) else {
            return Err(Errno::EBUSY);
        };
        if argument & !(STACK_KERNEL | STACK_USER) != 0 || context.hz == 0 {
            return Err(Errno::EINVAL);
        }
        let pids = match open {
            Open::Idle { pids } => std::mem::take(pids),
            Open::Started { .. } => Vec::new(),
        };
        let wish = RecordWish {
            stacks: StackWish {
                kernel: argument & STACK_KERNEL != 0,
                user: argument & STACK_USER != 0,
            },
            pids,
        };
        let Context {
            machine,
            plan,
            hz,
            vcpus,
            ..
        } = *context;
        let facts = facts(machine, plan, hz, vcpus, &wish);
        let mut recorder = Box::new(StreamRecorder::new(&facts, wish));
        for block in context.processes.known() {
            recorder.add_block(block);
        }
        *open = Open::Started { recorder, hz };
        Ok(())
    }

    /// Ends a recording, if there is one that goes on; it can still be read.
    fn stop(&mut self, handle: Handle) -> Result<(), Errno> {
        match self.open.get_mut(&handle) {
            Some(Open::Started { recorder, .. }) => {
                recorder.stop();
                Ok(())
            }
            Some(Open::Idle { .. }) | None => Err(Errno::EINVAL),
        }
    }
}

impl Consumer for ClientRecorders {
    fn needs(&self) -> ClockNeeds {
        let mut needs = ClockNeeds::default();
        for (recorder, hz) in self.recording() {
            let stacks = recorder.wish().stacks;
            needs.hz = hz;
            needs.starts_guest = true;
            needs.processes = true;
            needs.stacks.kernel |= stacks.kernel;
            needs.stacks.user |= stacks.user;
        }
        needs
    }

    fn take(&mut self, ticks: &Ticks, frames: &[u64]) {
        for recorder in self.started_mut() {
            recorder.feed(ticks, frames);
        }
    }

    fn take_block(&mut self, block: &Arc<[u8]>) {
        for recorder in self.started_mut() {
            recorder.add_block(block);
        }
    }

    fn advance(&mut self, kernel_text: &mut KernelText, knowledge: &GuestKnowledge) {
        let lacks_symbols = self.started().any(|(recorder, _)| recorder.wants_symbols());
        if lacks_symbols && let Some(text) = kernel_text.kernel(knowledge) {
            let kernel = kernel_block(knowledge);
            let waiting = self.started_mut();
            for recorder in waiting.filter(|recorder| recorder.wants_symbols()) {
                if let Some(block) = &kernel {
                    recorder.add_block(block);
                }
                recorder.give_symbols(&text);
            }
        }
        for recorder in self.started_mut() {
            if let Some(modules) = knowledge.modules() {
                recorder.take_module_functions(modules);
            }
            recorder.tend();
        }
    }

    fn end(&mut self) {
        for recorder in self.started_mut() {
            recorder.stop();
        }
    }

    fn status(&self) -> Vec<ConsumerStatus> {
        let recorders = self.started().map(|(recorder, _)| {
            let RecordWish { stacks, pids } = recorder.wish();
            ConsumerStatus::Recorder(RecorderStatus {
                name: "recorder".to_owned(),
                path: None,
                recording: recorder.wants_ticks(),
                stacks: Stacks {
                    kernel: stacks.kernel,
                    user: stacks.user,
                },
                pids: pids.clone(),
                ledger: recorder.ledger(),
            })
        });
        recorders.collect()
    }

    fn unread(&self) -> u64 {
        let recorders = self.started();
        let bytes = recorders.map(|(recorder, _)| recorder.waiting_bytes() as u64);
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
    fn prepare(
        &self,
        handle: Handle,
        request: &Request<'_>,
        context: &Context<'_>,
    ) -> Result<Preparation, Errno> {
        Ok(match *request {
            Request::Open { minor } if minor != 0 || context.has_ended => {
                return Err(Errno::ENXIO);
            }
            Request::Open { .. } | Request::Read { .. } => Preparation::default(),
            // Ticks from before belong to nobody.
            Request::Ioctl {
                command: REC_START, ..
            } => Preparation::ticks(TicksBefore::All),
            Request::Ioctl {
                command: REC_STOP, ..
            }
            | Request::Close => self.before_stop(handle),
            Request::Ioctl { .. } => Preparation::default(),
        })
    }

    fn carry_out(
        &mut self,
        handle: Handle,
        request: &Request<'_>,
        context: &Context<'_>,
    ) -> Result<Reply, Errno> {
        match *request {
            Request::Open { .. } => {
                self.open.insert(handle, Open::Idle { pids: Vec::new() });
                Ok(Reply::Done)
            }
            Request::Read { limit } => match self.open.get_mut(&handle) {
                Some(Open::Started { recorder, .. }) => recorder.read(limit).map(Reply::Read),
                Some(Open::Idle { .. }) | None => Err(Errno::EINVAL),
            },
            Request::Ioctl {
                command,
                argument,
                data,
            } => {
                match command {
                    REC_PIDS => self.choose_processes(handle, data)?,
                    REC_START => self.start(handle, argument, context)?,
                    REC_STOP => self.stop(handle)?,
                    _ => return Err(Errno::EINVAL),
                }
                Ok(Reply::Ioctl(IoctlReply::default()))
            }
            Request::Close => {
                // What the client hasn't read is thrown away.
                self.open.remove(&handle);
                Ok(Reply::Done)
            }
        }
    }

    fn readiness(&self, handle: Handle) -> Readiness {
        let readable = match self.open.get(&handle) {
            Some(Open::Started { recorder, .. }) => recorder.readable(),
            // Before it was started a read fails, and doesn't wait.
            Some(Open::Idle { .. }) | None => true,
        };
        Readiness {
            readable,
            ..Readiness::default()
        }
    }
}
