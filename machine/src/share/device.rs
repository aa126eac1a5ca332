//! The device of a shared folder: its registers, which start and stop the program that serves the queues, and the thread that
//! notices the program's end.
//!
//! This process doesn't serve the queues: a notification by the guest wakes the program (KVM_IOEVENTFD), and the program's event
//! interrupts the guest (KVM_IRQFD). The thread serves them only after the program's end: it refuses the guest's requests then.

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use kvm_ioctls::VmFd;
use kvmprof_devices::virtio::fs::{FileSystem, QUEUES, RunningQueues};
use kvmprof_devices::virtio::{MmioTransport, QUEUE_READY, STATUS};
use rustix::event::{PollFd, PollFlags, poll};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::monitor::{FAILED, SERVING, ShareMonitor, WAITING};
use super::options::{ShareOptions, ShareSource};
use super::program::Starter;
use super::session::{Events, Openers, Session};
use super::start_limit::StartLimit;
use super::{ShareError, check_folder};
use crate::error::MachineError;
use crate::helper::described;
use crate::lock::lock;
use crate::log_limit::LogLimit;
use crate::memory::GuestMemory;
use crate::virtio::{
    Assembled, DeviceMonitor, DeviceThread, Ending, MmioRegisters, Notifications, VirtioMmio,
    VirtioParts, VirtioSlot, borrowed, queue_events,
};

/// Maximum number of lines of a program's standard error that are shown while the guest runs.
const LINES_MAX: u32 = 20;

/// A shared folder that is to become a device. The program that serves it runs.
pub struct Share {
    options: ShareOptions,
    openers: Openers,
    session: Session,
    monitor: Arc<ShareMonitor>,
}

impl Share {
    /// Starts or finds the program that serves the folder.
    ///
    /// # Errors
    /// There is no such folder or program, or the program doesn't work.
    pub(super) fn open(options: &ShareOptions, openers: Openers) -> Result<Self, ShareError> {
        let starter = openers.starter.as_ref();
        let is_outside = starter.is_some_and(Starter::is_outside);
        if let ShareSource::Folder { path, .. } = &options.source
            && !is_outside
        {
            check_folder(path)?;
        }
        let session = Session::open(&options.source, &openers);
        Ok(Self {
            options: options.clone(),
            openers,
            session: session.map_err(|error| error.of(&options.tag))?,
            monitor: Arc::new(ShareMonitor::new(options)),
        })
    }

    /// The device, without the thread that watches it.
    fn device(self, memory: &GuestMemory) -> Result<Arc<SharedFolder>, MachineError> {
        let features = self.session.queue_features();
        let device = FileSystem::new(&self.options.tag, features);
        let notifications = Notifications::Elsewhere(queue_events(QUEUES)?);
        let mmio = Arc::new(VirtioMmio::new(device, memory.clone(), notifications)?);
        self.monitor.show(&mmio);
        Ok(Arc::new(SharedFolder {
            mmio,
            monitor: self.monitor,
            options: self.options,
            openers: self.openers,
            features,
            state: Mutex::new(State {
                session: Some(self.session),
                running: None,
                failures: LogLimit::default(),
                starts: StartLimit::new(Instant::now()),
            }),
            changed: EventFd::new(EFD_NONBLOCK).map_err(MachineError::EventFd)?,
        }))
    }
}

impl VirtioParts for Share {
    fn monitor(&self) -> Arc<dyn DeviceMonitor> {
        self.monitor.clone()
    }

    fn assemble(self: Box<Self>, memory: &GuestMemory) -> Result<Assembled, MachineError> {
        let folder = self.device(memory)?;
        let watched = Arc::clone(&folder);
        let watch = DeviceThread::start("share", kvmprof_sandbox::Thread::Share, move |ending| {
            watched.watch(ending)
        });
        Ok(Assembled {
            registers: folder,
            threads: vec![watch.map_err(MachineError::Thread)?],
        })
    }
}

/// A shared folder of a machine.
struct SharedFolder {
    mmio: Arc<VirtioMmio<FileSystem>>,
    monitor: Arc<ShareMonitor>,
    options: ShareOptions,
    openers: Openers,
    /// The features that the guest has been offered.
    features: u64,
    /// A thread that holds the device's own lock must not lock this.
    state: Mutex<State>,
    /// Wakes the thread when there is another session to watch.
    changed: EventFd,
}

struct State {
    session: Option<Session>,
    /// The queues that the session serves; without a session, the queues whose requests are refused.
    running: Option<RunningQueues>,
    /// Limits messages: a guest can make the folder fail as often as it resets the device.
    failures: LogLimit,
    /// Limits how often the program is started.
    starts: StartLimit,
}

impl MmioRegisters for SharedFolder {
    fn read(&self, offset: u64, data: &mut [u8]) {
        self.mmio.read(offset, data);
    }

    /// Returns when the program has followed the change: after a reset it doesn't access guest memory any more. That takes until it has
    /// finished the requests that it is performing.
    fn write(&self, offset: u64, data: &[u8]) {
        self.mmio.write(offset, data);
        // Other registers don't need this, and an interrupt handler, which uses them, doesn't block.
        if [STATUS, QUEUE_READY].map(u64::from).contains(&offset) {
            self.follow();
        }
    }

    fn connect(&self, vm: &VmFd, slot: &VirtioSlot) -> Result<(), MachineError> {
        self.mmio.connect(vm, slot)
    }
}

impl SharedFolder {
    /// Makes the program serve the queues that the driver has set up, unless it does so already.
    fn follow(&self) {
        // This lock is taken first: of two vCPUs, the one that reads the device's state last acts last.
        let mut state = lock(&self.state);
        let wanted = self.mmio.with(|transport, _| transport.running_queues());
        if state.running == wanted {
            return;
        }
        let resets = |queues: &Option<RunningQueues>| queues.as_ref().map(|queues| queues.resets);
        let is_new = resets(&state.running) != resets(&wanted);
        self.stop(&mut state);
        state.running.clone_from(&wanted);
        let Some(wanted) = wanted else {
            self.monitor.set_state(WAITING);
            return;
        };
        if !is_new {
            // Another program can't take over queues that are in use: the driver has to reset the device.
            self.monitor.set_state(FAILED);
            self.begin_to_refuse(&wanted);
        } else if let Err(error) = self.start(&mut state, &wanted) {
            self.lose(&mut state, &error);
        } else {
            self.monitor.set_state(SERVING);
        }
    }

    fn start(&self, state: &mut State, queues: &RunningQueues) -> Result<(), ShareError> {
        let session = match &mut state.session {
            Some(session) => session,
            none => {
                if !state.starts.take(Instant::now()) {
                    return Err(ShareError::TooOften);
                }
                let session = Session::open(&self.options.source, &self.openers)?;
                if self.features & !session.queue_features() != 0 {
                    let why = "it lacks features that it had before";
                    return Err(ShareError::Protocol(why.to_owned()));
                }
                self.monitor.note(|status| status.restarts += 1);
                none.insert(session)
            }
        };
        self.wake_watch();
        let event = |queue| self.mmio.work(queue).unwrap_or(self.mmio.interrupt());
        let events = Events {
            notifications: std::array::from_fn(event),
            interrupt: self.mmio.interrupt(),
        };
        session.start(queues, self.mmio.memory(), &events)
    }

    /// Makes the program stop. A program that was started for this folder is ended at each reset: it would treat the requests after the
    /// reset as a continuation of those before.
    fn stop(&self, state: &mut State) {
        // Without queues the session continues, and waits for them.
        let Some(queues) = state.running.take() else {
            return;
        };
        let Some(mut session) = state.session.take() else {
            return;
        };
        let stopped = session.stop(&queues);
        if let Err(error) = &stopped {
            self.note_failure(&mut state.failures, error);
        }
        if stopped.is_ok() && !session.is_own() {
            state.session = Some(session);
            return;
        }
        session.close();
        self.wake_watch();
    }

    /// Ends the session with a program that can't be used any more.
    fn lose(&self, state: &mut State, error: &ShareError) {
        if let Some(session) = state.session.take() {
            session.close();
        }
        self.note_failure(&mut state.failures, error);
        if let Some(queues) = &state.running {
            self.monitor.set_state(FAILED);
            self.begin_to_refuse(queues);
        }
        self.wake_watch();
    }

    /// Makes the guest's requests on these queues fail until its driver resets the device.
    fn begin_to_refuse(&self, queues: &RunningQueues) {
        let begins = self.mmio.with(|transport, memory| {
            let running = transport.running_queues();
            // A vCPU that has just reset the device waits to be followed. Its driver waits until the status is 0.
            let is_it = running.is_some_and(|running| running.resets == queues.resets);
            if is_it {
                transport.need_reset();
                transport.begin_to_refuse(memory);
            }
            is_it
        });
        if !begins {
            return;
        }
        // The program may have answered requests without an interrupt, or taken notifications without serving them, before it ended.
        let _ = self.mmio.interrupt().write(1);
        self.mmio.ask_for_service();
        self.wake_watch();
    }

    fn refuse_requests(&self) {
        for event in (0..QUEUES).filter_map(|queue| self.mmio.work(queue)) {
            // There is no other reader now.
            let _ = event.read();
        }
        let refuse =
            |transport: &mut MmioTransport<_>, memory: &_| transport.refuse_requests(memory);
        if self.mmio.with(refuse) {
            self.mmio.ask_for_service();
        }
    }

    fn note_failure(&self, limit: &mut LogLimit, error: &ShareError) {
        let failure = described(error);
        if let Some(more) = limit.take() {
            log::error!(
                "The shared folder {} has failed, and the guest can't use it until it resets the device: {failure}{more}",
                self.options.tag
            );
        }
        self.monitor.note(|status| {
            status.failures += 1;
            status.failure = Some(failure);
        });
    }

    fn wake_watch(&self) {
        // If the counter is full, the thread has been woken up already.
        let _ = self.changed.write(1);
    }

    /// Notices the program's end, until the machine ends; then ends the program.
    fn watch(&self, ending: &Ending) {
        let mut lines = 0;
        while let Some(came) = self.wait(ending) {
            if came.words {
                self.pass_on_words(&mut lines);
            }
            if came.hangup {
                self.note_hangup();
            }
            if came.requests {
                self.refuse_requests();
            }
        }
        if let Some(session) = lock(&self.state).session.take() {
            session.close();
        }
    }

    /// Waits for something to happen; `None` if the thread has to end.
    fn wait(&self, ending: &Ending) -> Option<WaitEvents> {
        let (sources, refuses) = {
            let state = lock(&self.state);
            let session = state.session.as_ref();
            let connection =
                session.map(|session| session.connection().as_fd().try_clone_to_owned());
            let output = session.and_then(Session::output);
            let output = output.map(|output| output.try_clone_to_owned());
            let sources = connection
                .into_iter()
                .chain(output)
                .collect::<Result<Vec<_>, _>>();
            let refuses = session.is_none() && state.running.is_some();
            (sources.unwrap_or_default(), refuses)
        };
        let mut fds = vec![
            PollFd::from_borrowed_fd(ending.event(), PollFlags::IN),
            PollFd::from_borrowed_fd(borrowed(&self.changed), PollFlags::IN),
        ];
        // Waits only for the connection's end: another thread waits for answers on it.
        let flags = [PollFlags::RDHUP, PollFlags::IN];
        for (source, flags) in sources.iter().zip(flags) {
            fds.push(PollFd::new(source, flags));
        }
        if refuses {
            let queues = (0..QUEUES).filter_map(|queue| self.mmio.work(queue));
            fds.extend(
                queues.map(|event| PollFd::from_borrowed_fd(borrowed(event), PollFlags::IN)),
            );
        }
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                log::error!("A shared folder isn't watched any more: {error}");
                return None;
            }
        }
        let came = |index: usize| fds.get(index).is_some_and(|fd| !fd.revents().is_empty());
        if came(0) {
            return None;
        }
        // The writer has completed the work that this event signals.
        let _ = self.changed.read();
        Some(WaitEvents {
            hangup: !refuses && came(2),
            words: !refuses && came(3),
            requests: refuses && (came(2) || came(3)),
        })
    }

    fn note_hangup(&self) {
        let mut state = lock(&self.state);
        let Some(session) = &mut state.session else {
            return;
        };
        let mut fds = [PollFd::new(session.connection(), PollFlags::RDHUP)];
        // It may be another session by now.
        let is_gone = matches!(
            poll(&mut fds, Some(&rustix::event::Timespec::default())),
            Ok(1)
        );
        if is_gone {
            let error = ShareError::Gone(session.final_words());
            self.lose(&mut state, &error);
        }
    }

    fn pass_on_words(&self, lines: &mut u32) {
        let mut state = lock(&self.state);
        let Some(session) = &mut state.session else {
            return;
        };
        let words = session.last_words();
        if !words.is_empty() && *lines < LINES_MAX {
            *lines += 1;
            log::warn!("virtiofsd of {}: {words}", self.options.tag);
        }
    }
}

/// The reasons why a wait has ended.
struct WaitEvents {
    hangup: bool,
    words: bool,
    /// The guest has made requests while no program serves the folder.
    requests: bool,
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
