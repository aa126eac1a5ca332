//! The socket device of a machine, and the thread that serves it.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};

use kvmprof_devices::virtio::MmioTransport;
use kvmprof_devices::virtio::vsock::{Readiness, Vsock};
use kvmprof_recording::status::{MachineStatus, VsockStatus};
use rustix::io::Errno;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::clients::Clients;
use super::config::VsockConfig;
use super::streams::{HostStream, Streams};
use crate::connector::{PortConnector, PortSockets};
use crate::error::MachineError;
use crate::lock::lock;
use crate::log_limit::LogLimit;
use crate::memory::GuestMemory;
use crate::output_names::{OutputNames, listen};
use crate::unix_socket::{SocketFileError, SocketListener, check_user};
use crate::virtio::{
    Assembled, DeviceMonitor, DeviceThread, Ending, Notifications, VirtioMmio, VirtioParts,
};

/// Names of events. The streams' names follow them.
const ENDING: u64 = 0;
const WORK: u64 = 1;
const LISTENER: u64 = 2;
/// Maximum number of events that are handled before the device is served again.
const BATCH: usize = 64;

impl DeviceMonitor for Mutex<VsockStatus> {
    fn enter(&self, machine: &mut MachineStatus) {
        machine.vsock = Some(lock(self).clone());
    }
}

/// The socket device that a machine is to have.
pub struct VsockParts {
    listener: SocketListener,
    connector: Arc<PortConnector>,
    config: VsockConfig,
    /// The state and the counts when the device was served last.
    status: Arc<Mutex<VsockStatus>>,
}

impl VsockParts {
    /// Listens at the device's path. `names` makes the socket, and `connector` makes the guest's connections; without them, this process does.
    ///
    /// # Errors
    /// [`SocketFileError`]. What was at the path is unchanged then.
    pub fn listen(
        config: &VsockConfig,
        names: Option<&Arc<OutputNames>>,
        connector: Option<&Arc<PortConnector>>,
    ) -> Result<Self, SocketFileError> {
        let listener = listen(names, &config.path)?;
        let connector = match connector {
            Some(connector) => Arc::clone(connector),
            None => Arc::new(PortConnector::Own(PortSockets::at(&config.path).map_err(
                |error| SocketFileError::io("open the folder of", &config.path, error),
            )?)),
        };
        let status = VsockStatus {
            cid: config.cid,
            socket: config.path.display().to_string(),
            ..VsockStatus::default()
        };
        Ok(Self {
            listener,
            connector,
            config: config.clone(),
            status: Arc::new(Mutex::new(status)),
        })
    }
}

impl VirtioParts for VsockParts {
    fn monitor(&self) -> Arc<dyn DeviceMonitor> {
        self.status.clone()
    }

    fn assemble(self: Box<Self>, memory: &GuestMemory) -> Result<Assembled, MachineError> {
        let work = EventFd::new(EFD_NONBLOCK).map_err(MachineError::EventFd)?;
        let mine = work.try_clone().map_err(MachineError::EventFd)?;
        let device = Vsock::new(self.config.cid);
        let mmio = VirtioMmio::new(device, memory.clone(), Notifications::Together(work))?;
        let mmio = Arc::new(mmio);
        let epoll = Arc::new(Epoll::new().map_err(MachineError::EventFd)?);
        let server = Server {
            mmio: Arc::clone(&mmio),
            work: mine,
            streams: Streams::new(Arc::clone(&epoll), LISTENER, self.connector),
            epoll,
            listener: self.listener,
            clients: Clients::default(),
            turned_away: LogLimit::default(),
            status: self.status,
        };
        let thread = DeviceThread::start("vsock", kvmprof_sandbox::Thread::Vsock, move |ending| {
            if let Err(error) = server.run(ending) {
                log::error!("The socket device isn't served any more: {error}");
            }
        });
        Ok(Assembled {
            registers: mmio,
            threads: vec![thread.map_err(MachineError::Thread)?],
        })
    }
}

/// The state of the device's thread.
struct Server {
    mmio: Arc<VirtioMmio<Vsock<HostStream>>>,
    work: EventFd,
    epoll: Arc<Epoll>,
    streams: Streams,
    listener: SocketListener,
    clients: Clients,
    turned_away: LogLimit,
    status: Arc<Mutex<VsockStatus>>,
}

impl Server {
    fn run(mut self, ending: &Ending) -> io::Result<()> {
        let sources = [
            (ENDING, ending.event().as_raw_fd()),
            (WORK, self.work.as_raw_fd()),
            (LISTENER, self.listener.as_fd().as_raw_fd()),
        ];
        for (name, descriptor) in sources {
            let event = EpollEvent::new(EventSet::IN, name);
            self.epoll.ctl(ControlOperation::Add, descriptor, event)?;
        }
        let mut events = [EpollEvent::default(); BATCH];
        loop {
            let more = self.serve();
            let count = match self.epoll.wait(if more { 0 } else { -1 }, &mut events) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(error),
            };
            for event in events.iter().take(count) {
                match event.data() {
                    ENDING => return Ok(()),
                    WORK => {
                        // No other thread reads it.
                        let _ = self.work.read();
                    }
                    LISTENER => self.admit(),
                    name => self.ready(name, event.event_set()),
                }
            }
        }
    }

    /// Serves the device for a bounded time. Returns whether there is more to do.
    fn serve(&mut self) -> bool {
        let (status, turned_away) = (&self.status, self.clients.turned_away);
        let streams = &mut self.streams;
        self.mmio.with(|transport, memory| {
            let more = transport.serve(memory, streams);
            note(status, transport, turned_away);
            more
        })
    }

    /// Accepts one client. The listener stays readable while more clients wait.
    fn admit(&mut self) {
        let admitted = match self.listener.accept() {
            Ok(client) => check_user(&client).and_then(|()| {
                let stream = self.streams.add(client);
                stream.map_err(|error| format!("it cannot be waited for: {error}"))
            }),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            Err(errno) => Err(errno.to_string()),
        };
        match admitted {
            Ok(stream) => self.clients.add(stream),
            Err(reason) => {
                self.clients.turned_away += 1;
                if let Some(more) = self.turned_away.take() {
                    log::warn!("--vsock: client turned away: {reason}{more}");
                }
            }
        }
    }

    /// Handles events of the stream with this name.
    fn ready(&mut self, name: u64, events: EventSet) {
        if self.clients.has(name) {
            let Some((stream, port)) = self.clients.request(name) else {
                return;
            };
            (self.mmio).with(|transport, _| transport.accept(stream, port));
        }
        let gone = EventSet::HANG_UP | EventSet::ERROR;
        let ready = Readiness {
            input: events.intersects(EventSet::IN | EventSet::READ_HANG_UP | gone),
            room: events.intersects(EventSet::OUT | gone),
            hung_up: events.intersects(gone),
        };
        (self.mmio).with(|transport, _| transport.ready(name, ready));
    }
}

fn note(
    status: &Mutex<VsockStatus>,
    transport: &MmioTransport<Vsock<HostStream>>,
    turned_away: u64,
) {
    let (device, driver) = (transport.device(), transport.counts());
    let mut status = lock(status);
    status.connections = device.connections();
    status.clients_turned_away = turned_away;
    status.counts = device.counts();
    status.refused_queues = driver.refused_queues;
    status.resets = driver.resets;
}
