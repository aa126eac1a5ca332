//! The devices that endpoints can open, and the requests that are carried out for them.
//!
//! Nothing here waits. A request that needs ticks of vCPUs, or files, becomes a [`Stage`], which continues whenever the endpoint asks
//! again. The time of each stage is limited, so that a vCPU that doesn't answer delays only requests that need its answer, and these not
//! forever.

use std::collections::{BTreeMap, BTreeSet};
use std::task::Poll;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::device;
use kvmprof_devices::endpoint::{Backend, Client, Handle, IoctlReply, Readiness};

use super::Profiler;
use super::consumers::{Command, Preparation, Reply, Request, Side, TicksBefore};
use super::texts::{Text, TextBudget};
use super::waits::Wait;

/// The object of a handle.
#[derive(Debug)]
enum Target {
    /// The device of a consumer, by the consumer's index, and the minor.
    Device { consumer: usize, minor: u16 },
    /// The guest as a whole.
    Control,
    /// A text that is made when it is opened, by its device number.
    Text(u16),
}

/// The stage of a request.
#[derive(Debug, Default)]
enum Stage {
    /// There is no request.
    #[default]
    Idle,
    /// The request is to be carried out after this wait.
    Before(Wait),
    /// The request was carried out, and the clocks are being changed to what consumers need now.
    After(Wait, Result<Reply, Errno>),
}

/// The state of a handle.
#[derive(Debug)]
struct Open {
    side: Side,
    target: Target,
    is_open: bool,
    /// The stage of an open, an ioctl or a close.
    action: Stage,
    read: Stage,
    text: Option<Text>,
}

/// The handles of all endpoints.
#[derive(Debug, Default)]
pub struct Handles {
    open: BTreeMap<Handle, Open>,
    /// The handles whose endpoints are gone, and which aren't closed yet.
    closing: BTreeSet<Handle>,
    /// The handles with a stage in progress, and whether it is that of a read. There may be very many handles, but few have a stage in
    /// progress.
    busy: BTreeSet<(Handle, bool)>,
    last: u32,
    texts: TextBudget,
}

impl Handles {
    /// True while a client has a device open.
    pub fn are_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// True while a request is being carried out.
    pub fn are_busy(&self) -> bool {
        !(self.closing.is_empty() && self.busy.is_empty())
    }

    /// Takes room as a text of device `number` would.
    #[cfg(test)]
    pub(super) fn keep(&self, number: u16, bytes: std::sync::Arc<[u8]>) -> Result<Text, Errno> {
        self.texts.keep(number, bytes)
    }

    /// The size of all open texts in bytes.
    #[cfg(test)]
    pub(super) fn text_bytes(&self) -> usize {
        self.texts.used()
    }

    fn add(&mut self, side: Side, target: Target) -> Handle {
        loop {
            self.last = self.last.wrapping_add(1);
            let handle = Handle(self.last);
            if let std::collections::btree_map::Entry::Vacant(entry) = self.open.entry(handle) {
                entry.insert(Open {
                    side,
                    target,
                    is_open: false,
                    action: Stage::Idle,
                    read: Stage::Idle,
                    text: None,
                });
                return handle;
            }
        }
    }

    fn remove(&mut self, handle: Handle) {
        self.give_up(handle);
        self.closing.remove(&handle);
        self.open.remove(&handle);
    }

    /// The stage of `request`.
    fn stage(&mut self, handle: Handle, request: &Request<'_>) -> Option<&mut Stage> {
        let open = self.open.get_mut(&handle)?;
        Some(if is_read(request) {
            &mut open.read
        } else {
            &mut open.action
        })
    }

    /// Takes the stage of `request`, which is idle then.
    fn take_stage(&mut self, handle: Handle, request: &Request<'_>) -> Option<Stage> {
        self.busy.remove(&(handle, is_read(request)));
        self.stage(handle, request).map(std::mem::take)
    }

    /// Sets the stage of `request`, which continues later.
    fn set_stage(&mut self, handle: Handle, request: &Request<'_>, stage: Stage) {
        if let Some(place) = self.stage(handle, request) {
            *place = stage;
            self.busy.insert((handle, is_read(request)));
        }
    }

    /// Drops all requests of `handle`: they aren't carried out, or their results aren't needed any more.
    fn give_up(&mut self, handle: Handle) {
        for is_read in [false, true] {
            self.busy.remove(&(handle, is_read));
        }
        if let Some(open) = self.open.get_mut(&handle) {
            (open.action, open.read) = (Stage::Idle, Stage::Idle);
        }
    }
}

/// Whether `request` is a read, which has a stage of its own.
fn is_read(request: &Request<'_>) -> bool {
    matches!(request, Request::Read { .. })
}

impl Backend for Profiler {
    fn open(&mut self, client: Client, number: u16, minor: u16) -> Result<Handle, Errno> {
        let side = client.into();
        let target = match number {
            device::STATUS | device::PROCESSES | device::KALLSYMS | device::PROCESS_LIST => {
                if minor != 0 {
                    return Err(Errno::ENXIO);
                }
                Target::Text(number)
            }
            device::CONTROL => {
                self.check_control(minor)?;
                Target::Control
            }
            _ => {
                let consumer = self.consumers.with_device(number, side);
                Target::Device {
                    consumer: consumer.ok_or(Errno::ENODEV)?,
                    minor,
                }
            }
        };
        Ok(self.handles.add(side, target))
    }

    fn opened(&mut self, handle: Handle) -> Poll<Result<(), Errno>> {
        let minor = match self.handles.open.get(&handle).map(|open| &open.target) {
            Some(Target::Device { minor, .. }) => *minor,
            Some(Target::Text(_) | Target::Control) => 0,
            None => return Poll::Ready(Err(Errno::EBADF)),
        };
        let opened = self.proceed(handle, &Request::Open { minor });
        opened.map(|result| match result {
            Ok(_) => Ok(()),
            Err(errno) => {
                self.handles.remove(handle);
                Err(errno)
            }
        })
    }

    fn read(&mut self, handle: Handle, limit: usize) -> Poll<Result<Vec<u8>, Errno>> {
        let open = self.handles.open.get_mut(&handle);
        if let Some(text) = open.and_then(|open| open.text.as_mut()) {
            return Poll::Ready(Ok(text.read(limit)));
        }
        let result = self.proceed(handle, &Request::Read { limit });
        result.map(|result| match result? {
            Reply::Read(bytes) => Ok(bytes),
            Reply::Done | Reply::Ioctl(_) => Err(Errno::EIO),
        })
    }

    fn write(&mut self, handle: Handle, bytes: &[u8]) -> Result<usize, Errno> {
        match self.handles.open.get(&handle).map(|open| &open.target) {
            Some(Target::Device { consumer, .. }) => {
                let device = self.consumers.device(*consumer);
                device.ok_or(Errno::EBADF)?.write(handle, bytes)
            }
            // It can only be read, for which write(2) has EBADF.
            Some(Target::Text(_) | Target::Control) | None => Err(Errno::EBADF),
        }
    }

    fn ioctl(
        &mut self,
        handle: Handle,
        command: u32,
        argument: i64,
        data: &[u8],
    ) -> Poll<Result<IoctlReply, Errno>> {
        let request = Request::Ioctl(Command {
            number: command,
            argument,
            data,
        });
        self.proceed(handle, &request).map(|result| match result? {
            Reply::Ioctl(reply) => Ok(reply),
            Reply::Done | Reply::Read(_) => Err(Errno::EIO),
        })
    }

    fn poll(&mut self, handle: Handle) -> Readiness {
        let device = match self.handles.open.get(&handle).map(|open| &open.target) {
            Some(Target::Device { consumer, .. }) => self.consumers.device(*consumer),
            Some(Target::Text(_) | Target::Control) => {
                return Readiness {
                    readable: true,
                    ..Readiness::default()
                };
            }
            None => None,
        };
        match device {
            Some(device) => device.readiness(handle),
            None => Readiness {
                hang_up: true,
                ..Readiness::default()
            },
        }
    }

    fn close(&mut self, handle: Handle) -> Poll<()> {
        let Some(is_open) = self.handles.open.get(&handle).map(|open| open.is_open) else {
            return Poll::Ready(());
        };
        if self.handles.closing.insert(handle) {
            self.handles.give_up(handle);
        }
        if is_open && self.proceed(handle, &Request::Close).is_pending() {
            return Poll::Pending;
        }
        self.handles.remove(handle);
        Poll::Ready(())
    }
}

impl Profiler {
    /// Continues to close the handles that endpoints have left open.
    pub(super) fn close_abandoned(&mut self) {
        for handle in self.handles.closing.clone() {
            // If it isn't closed yet, this is called again.
            let _ = self.close(handle);
        }
    }

    /// Carries out `request`, as far as that is possible now.
    fn proceed(&mut self, handle: Handle, request: &Request<'_>) -> Poll<Result<Reply, Errno>> {
        let Some(stage) = self.handles.take_stage(handle, request) else {
            return Poll::Ready(Err(Errno::EBADF));
        };
        let mut wait = match stage {
            Stage::Idle => match self.before(handle, request) {
                Ok(wait) => wait,
                Err(errno) => return Poll::Ready(Err(errno)),
            },
            Stage::Before(wait) => wait,
            Stage::After(wait, result) => return self.conclude(handle, request, wait, result),
        };
        self.ask_for_list(&mut wait);
        if !self.is_over(&wait) {
            self.handles.set_stage(handle, request, Stage::Before(wait));
            return Poll::Pending;
        }
        if wait.flush.is_some() {
            self.drain();
        }
        let result = self.carry_out(handle, request);
        match self.follow_consumers() {
            Some(flush) => {
                let wait = Wait {
                    flush: Some(flush),
                    ..Wait::default()
                };
                self.conclude(handle, request, wait, result)
            }
            None => Poll::Ready(result),
        }
    }

    fn conclude(
        &mut self,
        handle: Handle,
        request: &Request<'_>,
        wait: Wait,
        result: Result<Reply, Errno>,
    ) -> Poll<Result<Reply, Errno>> {
        if self.is_over(&wait) {
            self.drain();
            return Poll::Ready(result);
        }
        self.handles
            .set_stage(handle, request, Stage::After(wait, result));
        Poll::Pending
    }

    /// Begins the preparation of `request`.
    fn before(&mut self, handle: Handle, request: &Request<'_>) -> Result<Wait, Errno> {
        let open = self.handles.open.get(&handle).ok_or(Errno::EBADF)?;
        let consumer = match open.target {
            Target::Device { consumer, .. } => consumer,
            Target::Control => {
                return Ok(Wait {
                    flush: Some(self.before_control()),
                    ..Wait::default()
                });
            }
            Target::Text(number) => {
                return match request {
                    Request::Open { .. } => Ok(self.before_text(number)),
                    Request::Close => Ok(Wait::default()),
                    Request::Read { .. } | Request::Ioctl(_) => Err(Errno::EINVAL),
                };
            }
        };
        let side = open.side;
        let Preparation { ticks, files } =
            self.with_device(consumer, side, |device, context| {
                device.prepare(handle, request, context)
            })?;
        let flush = match ticks {
            TicksBefore::Any => None,
            TicksBefore::All => Some(self.clocks.flush()),
            TicksBefore::AllAndEnds => Some(self.clocks.ask_all()),
            TicksBefore::Last { others }
                if others || self.consumers.needs().others_count(consumer) =>
            {
                Some(self.clocks.flush())
            }
            TicksBefore::Last { .. } => Some(self.stop_clocks()),
        };
        Ok(Wait {
            flush,
            files,
            ..Wait::default()
        })
    }

    fn carry_out(&mut self, handle: Handle, request: &Request<'_>) -> Result<Reply, Errno> {
        let open = self.handles.open.get(&handle).ok_or(Errno::EBADF)?;
        let side = open.side;
        let reply = match open.target {
            Target::Device { consumer, .. } => {
                self.with_device(consumer, side, |device, context| {
                    device.carry_out(handle, request, context)
                })?
            }
            Target::Control => self.carry_out_control(request)?,
            Target::Text(number) if matches!(request, Request::Open { .. }) => {
                self.handles.texts.check(number, self.least_text(number))?;
                let text = self.text(number)?;
                let text = self.handles.texts.keep(number, text)?;
                let open = self.handles.open.get_mut(&handle);
                open.ok_or(Errno::EBADF)?.text = Some(text);
                Reply::Done
            }
            // This is a close, which removes the handle and its text.
            Target::Text(_) => Reply::Done,
        };
        if let (Request::Open { .. }, Some(open)) = (request, self.handles.open.get_mut(&handle)) {
            open.is_open = true;
        }
        Ok(reply)
    }
}
