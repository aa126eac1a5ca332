//! The host socket: the framed protocol on a Unix socket, served on the event thread.

mod connection;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use kvmprof_devices::endpoint::{Backend, Client, HelloInfo};
use kvmprof_recording::QueueBudget;
use rustix::io::Errno;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use kvmprof_machine::log_limit::LogLimit;
use kvmprof_machine::unix_socket::{SocketFileError, SocketListener, check_user};

use connection::{Connection, ConnectionEnd};

/// Maximum number of clients at a time.
pub const MAX_CONNECTIONS: usize = 64;
/// Maximum number of further clients, which may only ask for the status.
pub const MAX_STATUS_CONNECTIONS: usize = 4;

/// Maximum number of bytes that wait for all clients together, beyond the room that each connection and each recording has of its own.
pub const MAX_WAITING: usize = 128 << 20;

/// Maximum number of events that are handled before other subscribers have their turns.
const BATCH: usize = 32;

/// Names the listener among the sources of events; connections count from 1.
const LISTENER: u64 = 0;
/// Names the event that is written to when a client's requests wait for the next turn.
const NEXT_TURN: u64 = u64::MAX;

/// Listener and clients: one subscriber of the event manager.
///
/// They have an epoll instance of their own, so that the events that each waits for can change at
/// any time, even in [`wake`](Self::wake).
///
/// The backend is borrowed while requests are served. Other users of the backend on this thread must not
/// hold a borrow when they call a method of this type, and the backend must not call one itself.
pub struct HostSocket {
    listener: SocketListener,
    epoll: Epoll,
    connections: BTreeMap<u64, (Connection, EventSet)>,
    last_name: u64,
    next_turn: EventFd,
    info: HelloInfo,
    backend: Rc<RefCell<dyn Backend>>,
    room: Arc<QueueBudget>,
    turned_away: LogLimit,
    dropped: LogLimit,
}

impl HostSocket {
    /// Serves `backend` to the clients of `listener`. The reply to a hello has `info`. Waiting data of all clients together is in `room`, which
    /// recordings of clients share.
    ///
    /// # Errors
    /// [`SocketFileError::System`] if the host gives no epoll instance.
    pub fn new(
        listener: SocketListener,
        info: HelloInfo,
        backend: Rc<RefCell<dyn Backend>>,
        room: Arc<QueueBudget>,
    ) -> Result<Self, SocketFileError> {
        let failed = |error| SocketFileError::io("wait for clients of", listener.path(), error);
        let epoll = Epoll::new().map_err(failed)?;
        let event = EpollEvent::new(EventSet::IN, LISTENER);
        epoll
            .ctl(ControlOperation::Add, listener.as_fd().as_raw_fd(), event)
            .map_err(failed)?;
        let next_turn = EventFd::new(EFD_NONBLOCK).map_err(failed)?;
        let event = EpollEvent::new(EventSet::IN, NEXT_TURN);
        epoll
            .ctl(ControlOperation::Add, next_turn.as_raw_fd(), event)
            .map_err(failed)?;
        Ok(Self {
            listener,
            epoll,
            connections: BTreeMap::new(),
            last_name: LISTENER,
            next_turn,
            info,
            backend,
            room,
            turned_away: LogLimit::default(),
            dropped: LogLimit::default(),
        })
    }

    /// Number of bytes that were sent to the connected clients.
    pub fn bytes_sent(&self) -> u64 {
        let clients = self.connections.values();
        clients.map(|(client, _)| client.bytes_sent()).sum()
    }

    /// Retries the waiting requests of all clients, and sends their replies. Call this after the devices have
    /// changed, while the backend isn't borrowed.
    pub fn wake(&mut self) {
        let backend = Rc::clone(&self.backend);
        self.wake_with(&mut *backend.borrow_mut());
    }

    /// Handles the ready events: a turn of each client.
    fn handle_events(&mut self) {
        let mut events = [EpollEvent::default(); BATCH];
        let count = match self.epoll.wait(0, &mut events) {
            Ok(count) => count,
            Err(error) => {
                if error.kind() != std::io::ErrorKind::Interrupted {
                    log::error!("Host socket: cannot wait for events: {error}");
                }
                return;
            }
        };
        for (connection, _) in self.connections.values_mut() {
            connection.begin_turn();
        }
        let backend = Rc::clone(&self.backend);
        let backend = &mut *backend.borrow_mut();
        for event in events.iter().take(count) {
            match event.data() {
                LISTENER => self.accept(backend),
                // Clients that waited for the turn continue below. The event is readable, so this doesn't wait.
                NEXT_TURN => drop(self.next_turn.read()),
                name => self.with_connection(name, backend, |connection, backend| {
                    connection.handle(event.event_set(), backend)
                }),
            }
        }
        // A request of one client may complete a request of another.
        self.wake_with(backend);
    }

    fn wake_with(&mut self, backend: &mut dyn Backend) {
        let names: Vec<u64> = self.connections.keys().copied().collect();
        for name in names {
            self.with_connection(name, backend, Connection::advance);
        }
        let mut connections = self.connections.values();
        if connections.any(|(connection, _)| connection.waits_for_turn()) {
            // If the counter is full, the event is readable already.
            let _ = self.next_turn.write(1);
        }
    }

    /// Calls `action` with a connection. Then ends the connection, or registers the events that it waits
    /// for.
    fn with_connection(
        &mut self,
        name: u64,
        backend: &mut dyn Backend,
        action: impl FnOnce(&mut Connection, &mut dyn Backend) -> Result<(), ConnectionEnd>,
    ) {
        let Some((connection, interest)) = self.connections.get_mut(&name) else {
            return;
        };
        let result = action(connection, backend).and_then(|()| {
            let wanted = connection.interest();
            if wanted != *interest {
                let event = EpollEvent::new(wanted, name);
                self.epoll
                    .ctl(ControlOperation::Modify, connection.as_raw_fd(), event)
                    .map_err(ConnectionEnd::Socket)?;
                *interest = wanted;
            }
            Ok(())
        });
        if let Err(ended) = result {
            self.end(name, &ended, backend);
        }
    }

    fn end(&mut self, name: u64, ended: &ConnectionEnd, backend: &mut dyn Backend) {
        let Some((connection, _)) = self.connections.remove(&name) else {
            return;
        };
        match ended {
            ConnectionEnd::ByClient | ConnectionEnd::GaveWay => {
                log::debug!("Host socket: client {name}: {ended}")
            }
            ConnectionEnd::Protocol(error) => {
                let cause = std::error::Error::source(error);
                let cause = cause.map_or(String::new(), |cause| format!(": {cause}"));
                self.log_dropped(name, &format_args!("dropped: {error}{cause}"));
            }
            ConnectionEnd::Socket(error) => {
                self.log_dropped(name, &format_args!("{ended}: {error}"))
            }
        }
        connection.close(backend);
    }

    /// Logs why a client was dropped. The number of messages is limited: a hostile client that connects again and again must not be able to fill the log.
    fn log_dropped(&mut self, name: u64, why: &dyn std::fmt::Display) {
        if let Some(more) = self.dropped.take() {
            log::warn!("Host socket: client {name} {why}{more}");
        }
    }

    /// Accepts one client. If more wait, the listener reports them again.
    fn accept(&mut self, backend: &mut dyn Backend) {
        let socket = match self.listener.accept() {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
            Err(Errno::MFILE | Errno::NFILE) => return self.log_turned_away("too many open files"),
            Err(errno) => return self.log_turned_away(&format!("it cannot be accepted: {errno}")),
        };
        if let Err(reason) = self.admit(socket, backend) {
            self.log_turned_away(&reason);
        }
    }

    fn log_turned_away(&mut self, reason: &str) {
        if let Some(more) = self.turned_away.take() {
            log::warn!("Host socket: client turned away: {reason}{more}");
        }
    }

    /// Finds a place for one more client: a free one, that of the client that has been idle for longest, or one for the
    /// status only, which its last holder gives up.
    fn make_room(&mut self, backend: &mut dyn Backend) -> Client {
        if self.of_client(Client::Host).count() < MAX_CONNECTIONS {
            return Client::Host;
        }
        let idle = self
            .of_client(Client::Host)
            .filter_map(|(name, connection)| Some((connection.idle_since()?, name)))
            .min();
        if let Some((_, longest)) = idle {
            self.end(longest, &ConnectionEnd::GaveWay, backend);
            return Client::Host;
        }
        if self.of_client(Client::HostStatus).count() >= MAX_STATUS_CONNECTIONS {
            let oldest = self
                .of_client(Client::HostStatus)
                .map(|(name, _)| name)
                .next();
            if let Some(oldest) = oldest {
                self.end(oldest, &ConnectionEnd::GaveWay, backend);
            }
        }
        Client::HostStatus
    }

    /// The connections of `client` with their names, the oldest first.
    fn of_client(&self, client: Client) -> impl Iterator<Item = (u64, &Connection)> {
        let connections = self.connections.iter();
        connections
            .map(|(name, (connection, _))| (*name, connection))
            .filter(move |(_, connection)| connection.client() == client)
    }

    fn admit(&mut self, socket: OwnedFd, backend: &mut dyn Backend) -> Result<(), String> {
        check_user(&socket)?;
        let client = self.make_room(backend);
        let connection = Connection::new(socket, client, self.info, &self.room);
        let interest = connection.interest();
        let name = self.last_name + 1;
        self.epoll
            .ctl(
                ControlOperation::Add,
                connection.as_raw_fd(),
                EpollEvent::new(interest, name),
            )
            .map_err(|error| format!("it cannot be waited for: {error}"))?;
        self.last_name = name;
        self.connections.insert(name, (connection, interest));
        Ok(())
    }
}

impl AsRawFd for HostSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

impl MutEventSubscriber for HostSocket {
    fn process(&mut self, _events: Events, _operations: &mut EventOps) {
        self.handle_events();
    }

    fn init(&mut self, operations: &mut EventOps) {
        if let Err(error) = operations.add(Events::new(&self.epoll, EventSet::IN)) {
            log::error!("Host socket: not served: {error}");
        }
    }
}

impl Drop for HostSocket {
    fn drop(&mut self) {
        let Ok(mut backend) = self.backend.try_borrow_mut() else {
            return;
        };
        for (connection, _) in std::mem::take(&mut self.connections).into_values() {
            connection.close(&mut *backend);
        }
    }
}
