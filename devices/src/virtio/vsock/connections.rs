//! All connections of a device, by their ports and by their streams, and the order in which they send to the guest.

use std::collections::{BTreeMap, VecDeque};

use super::Stream;
use super::connection::Connection;

/// The first port that is assigned to a program of the host that connects to the guest. Ports below it are for programs that listen.
const FIRST_HOST_PORT: u32 = 1 << 30;
/// The end of these ports, exclusive.
const HOST_PORTS_END: u32 = 1 << 31;

/// A port of the guest and one of the host.
type Ports = (u32, u32);

/// The connections, by the names of their streams: the oldest is first.
#[derive(Debug)]
pub(super) struct Connections<S> {
    by_name: BTreeMap<u64, Connection<S>>,
    names: BTreeMap<Ports, u64>,
    /// The names of connections that may have packets for the guest, each once.
    queue: VecDeque<u64>,
    last_host_port: u32,
}

impl<S> Default for Connections<S> {
    fn default() -> Self {
        Self {
            by_name: BTreeMap::new(),
            names: BTreeMap::new(),
            queue: VecDeque::new(),
            last_host_port: FIRST_HOST_PORT,
        }
    }
}

impl<S: Stream> Connections<S> {
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    pub fn by_name(&mut self, name: u64) -> Option<&mut Connection<S>> {
        self.by_name.get_mut(&name)
    }

    pub fn by_ports(&mut self, ports: Ports) -> Option<&mut Connection<S>> {
        self.by_name.get_mut(self.names.get(&ports)?)
    }

    /// Adds and queues a connection. No other connection may have its ports.
    pub fn add(&mut self, connection: Connection<S>) {
        let name = connection.name();
        let ports = (connection.guest_port, connection.host_port);
        self.names.insert(ports, name);
        self.by_name.insert(name, connection);
        self.queue(name);
    }

    pub fn remove(&mut self, ports: Ports) -> Option<Connection<S>> {
        let name = self.names.remove(&ports)?;
        let connection = self.by_name.remove(&name)?;
        if connection.queued {
            self.queue.retain(|queued| *queued != name);
        }
        Some(connection)
    }

    /// Queues the connection, unless it is queued: it sends to the guest when its turn comes.
    pub fn queue(&mut self, name: u64) {
        if let Some(connection) = self.by_name.get_mut(&name)
            && !std::mem::replace(&mut connection.queued, true)
        {
            self.queue.push_back(name);
        }
    }

    pub fn any_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Takes the connection whose turn it is from the queue.
    pub fn next_queued(&mut self) -> Option<u64> {
        let name = self.queue.pop_front()?;
        if let Some(connection) = self.by_name.get_mut(&name) {
            connection.queued = false;
        }
        Some(name)
    }

    /// The ports of the oldest connection that is over for the host.
    pub fn oldest_over(&self) -> Option<Ports> {
        let over = (self.by_name.values()).find(|connection| connection.is_over_for_host());
        over.map(|connection| (connection.guest_port, connection.host_port))
    }

    /// A port of the host that has no connection to the guest's port `guest_port`. The search ends, since there are more ports than connections.
    pub fn free_host_port(&mut self, guest_port: u32) -> u32 {
        loop {
            self.last_host_port += 1;
            if self.last_host_port >= HOST_PORTS_END {
                self.last_host_port = FIRST_HOST_PORT;
            }
            if !self.names.contains_key(&(guest_port, self.last_host_port)) {
                return self.last_host_port;
            }
        }
    }
}
