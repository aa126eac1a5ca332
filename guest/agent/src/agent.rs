//! The loop that passes on requests and replies.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kvmprof_abi::wire::{HelloReply, Request as WireRequest, RequestFrame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::caller_reader::CallerReader;
use crate::cuse::protocol::{REQUEST_BUFFER, Request};
use crate::cuse::{Channel, Permissions};
use crate::nodes::{Environment, Forwarder, Inspection, Node};
use crate::port::{Connection, ConnectionError, Outgoing, PortLocation, PortLocationError};
use crate::{daemon, modules};

/// Maximum time to wait for kvmprof's answer to the hello.
const HELLO_LIMIT: Duration = Duration::from_secs(30);
/// Time before the agent looks for the port again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);
/// Time during which other programs, such as udev, may set permissions of new nodes.
const PERMISSIONS_WATCHED: Duration = Duration::from_secs(10);
/// Time between two checks of the permissions meanwhile.
const PERMISSIONS_PAUSE: Duration = Duration::from_millis(500);
/// Maximum number of requests of one node before the other nodes are served.
const REQUESTS_IN_TURN: usize = 32;

/// The settings from the command line.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the port is.
    pub port: PortLocation,
    /// The permissions of the nodes.
    pub permissions: Permissions,
    /// How long to wait for the port and for kvmprof at the start.
    pub attach_timeout: Duration,
}

/// The connections to the kernel and to kvmprof.
#[derive(Debug)]
struct AgentEnvironment {
    channels: Vec<Channel>,
    outgoing: Outgoing,
    caller_reader: CallerReader,
}

impl Environment for AgentEnvironment {
    fn answer(&mut self, node: usize, bytes: &[u8]) -> bool {
        let Some(channel) = self.channels.get_mut(node) else {
            return false;
        };
        channel.send(bytes).unwrap_or_else(|error| {
            // The end of a channel is handled when it is read.
            if error.raw_os_error() != Some(libc::ENODEV) {
                log::warn!("{}: answer refused: {error}", channel.name());
            }
            false
        })
    }

    fn send(&mut self, tag: u32, request: &WireRequest<'_>) {
        let frame = RequestFrame {
            tag,
            request: *request,
        };
        if let Err(error) = self.outgoing.queue(&frame) {
            log::error!("request isn't sent: {error}");
        }
    }

    fn inspect(&mut self, number: u64, inspection: Inspection) {
        self.caller_reader.inspect(number, inspection);
    }
}

/// The agent: the nodes, and the connection to kvmprof.
#[derive(Debug)]
pub struct Agent {
    settings: Settings,
    environment: AgentEnvironment,
    connection: Option<Connection>,
    forwarder: Forwarder,
    nodes: Vec<Node>,
    stop: UnixStream,
    buffer: Vec<u8>,
    /// The time at which a connection that isn't ready yet is given up.
    hello_deadline: Instant,
    /// The time of the next attempt to connect.
    reconnect_at: Instant,
    /// Whether a failure to connect has been logged since the last success.
    complained: bool,
    permissions_until: Instant,
    permissions_at: Instant,
}

/// The result of poll(2).
#[derive(Debug, Default)]
struct PollResult {
    stop: bool,
    port: bool,
    nodes: Vec<usize>,
}

impl Agent {
    /// Connects to kvmprof and makes the nodes.
    ///
    /// # Errors
    /// If there is no port or no kvmprof within the configured time, or no module cuse.
    pub fn start(settings: Settings) -> anyhow::Result<Self> {
        let stop = daemon::stop_signals().context("Cannot handle signals")?;
        let now = Instant::now();
        let mut agent = Self {
            environment: AgentEnvironment {
                channels: Vec::new(),
                outgoing: Outgoing::default(),
                caller_reader: CallerReader::new().context("Cannot make a pair of sockets")?,
            },
            connection: None,
            forwarder: Forwarder::new(Vec::new()),
            nodes: Vec::new(),
            stop,
            buffer: vec![0; REQUEST_BUFFER],
            hello_deadline: now,
            reconnect_at: now,
            complained: false,
            permissions_until: now + PERMISSIONS_WATCHED,
            permissions_at: now,
            settings,
        };
        let hello = agent.first_hello()?;
        agent.nodes = Node::all(hello.vcpus);
        agent.forwarder = Forwarder::new(agent.nodes.clone());
        agent.forwarder.connect();
        agent.make_nodes()?;
        log::info!(
            "{} nodes for {} vCPUs at {} Hz",
            agent.nodes.len(),
            hello.vcpus,
            hello.hz
        );
        Ok(agent)
    }

    /// Waits for kvmprof's answer to the first hello.
    fn first_hello(&mut self) -> anyhow::Result<HelloReply> {
        let deadline = Instant::now() + self.settings.attach_timeout;
        let mut loaded = false;
        loop {
            let error = match self.try_hello(deadline) {
                Ok(hello) => return Ok(hello),
                Err(error) => error,
            };
            self.connection = None;
            if !loaded && matches!(error.downcast_ref(), Some(PortLocationError::NoPort)) {
                modules::load_port();
                loaded = true;
            }
            if Instant::now() >= deadline {
                return Err(error);
            }
            wait(
                &mut [PollFd::new(&self.stop, PollFlags::IN)],
                RECONNECT_PAUSE,
            )?;
            self.check_stop()?;
        }
    }

    fn try_hello(&mut self, deadline: Instant) -> anyhow::Result<HelloReply> {
        let mut connection = self.start_connection()?;
        let deadline = deadline.min(Instant::now() + HELLO_LIMIT);
        loop {
            if let Some(hello) = connection.hello()? {
                self.connection = Some(connection);
                return Ok(hello);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ConnectionError::NoHello.into());
            }
            let mut fds = [
                PollFd::new(&connection, self.wanted()),
                PollFd::new(&self.stop, PollFlags::IN),
            ];
            wait(&mut fds, left)?;
            self.check_stop()?;
            connection.flush(&mut self.environment.outgoing)?;
            connection.receive()?;
        }
    }

    /// Fails if a signal has asked the program to stop.
    fn check_stop(&self) -> anyhow::Result<()> {
        let mut fds = [PollFd::new(&self.stop, PollFlags::IN)];
        wait(&mut fds, Duration::ZERO)?;
        let [stop] = fds;
        if !stop.revents().is_empty() {
            bail!("Stopped by a signal before the nodes were there");
        }
        Ok(())
    }

    fn make_nodes(&mut self) -> anyhow::Result<()> {
        modules::load_cuse();
        let mut prf_major = 0;
        for node in &self.nodes {
            let channel = Channel::create(&node.name, node.number(prf_major))?;
            if node.number(1).major != 0 {
                prf_major = channel.number().major;
            }
            self.environment.channels.push(channel);
        }
        self.set_permissions();
        Ok(())
    }

    /// Passes on requests and replies until a signal ends it.
    ///
    /// # Errors
    /// If poll(2) fails, or the kernel removes a node and makes no new one.
    pub fn run(&mut self) -> anyhow::Result<()> {
        loop {
            let ready = self.wait()?;
            if ready.stop {
                log::info!("stopping");
                return Ok(());
            }
            if ready.port {
                self.port_is_ready();
            }
            for node in ready.nodes {
                self.node_is_ready(node)?;
            }
            while let Some((number, whole)) = self.environment.caller_reader.next() {
                self.forwarder
                    .inspected(number, whole, &mut self.environment);
            }
            self.flush();
            self.reconnect_in_time();
            self.look_at_permissions();
        }
    }

    /// The time until there is something to do even if no event comes.
    fn timeout(&self) -> Duration {
        let now = Instant::now();
        let mut timeout = Duration::from_secs(3600);
        match &self.connection {
            None => timeout = timeout.min(self.reconnect_at.saturating_duration_since(now)),
            Some(connection) if !connection.is_ready() => {
                timeout = timeout.min(self.hello_deadline.saturating_duration_since(now));
            }
            Some(_) => {}
        }
        if now < self.permissions_until {
            timeout = timeout.min(self.permissions_at.saturating_duration_since(now));
        }
        timeout
    }

    fn wait(&self) -> anyhow::Result<PollResult> {
        let connection = self.connection.as_ref();
        let mut fds = vec![
            PollFd::new(&self.stop, PollFlags::IN),
            PollFd::new(&self.environment.caller_reader, PollFlags::IN),
        ];
        if let Some(connection) = connection {
            fds.push(PollFd::new(connection, self.wanted()));
        }
        let before_nodes = fds.len();
        // A client that sends faster than kvmprof receives has to wait.
        if !self.environment.outgoing.is_full() {
            let channels = self.environment.channels.iter();
            fds.extend(channels.map(|channel| PollFd::new(channel, PollFlags::IN)));
        }
        wait(&mut fds, self.timeout())?;
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let (first, nodes) = fds.split_at(before_nodes);
        let nodes = nodes.iter().enumerate();
        Ok(PollResult {
            stop: first.first().is_some_and(is_ready),
            port: first.get(2).is_some_and(is_ready),
            nodes: nodes
                .filter_map(|(node, fd)| is_ready(fd).then_some(node))
                .collect(),
        })
    }

    fn port_is_ready(&mut self) {
        if let Err(error) = self.take_replies() {
            self.disconnect(&error);
        }
    }

    fn take_replies(&mut self) -> Result<(), ConnectionError> {
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };
        connection.flush(&mut self.environment.outgoing)?;
        connection.receive()?;
        if !connection.is_ready() {
            if connection.hello()?.is_none() {
                return Ok(());
            }
            log::info!("connected again");
            self.complained = false;
            self.forwarder.connect();
        }
        loop {
            match connection.next_reply()? {
                Some(frame) if self.forwarder.reply(&frame, &mut self.environment) => {}
                Some(_) => return Err(ConnectionError::Unasked),
                None => return Ok(()),
            }
        }
    }

    fn node_is_ready(&mut self, node: usize) -> anyhow::Result<()> {
        for _ in 0..REQUESTS_IN_TURN {
            let Some(channel) = self.environment.channels.get_mut(node) else {
                return Ok(());
            };
            match channel.receive(&mut self.buffer) {
                Ok(Some(bytes)) => match Request::decode(bytes) {
                    Some(request) => self
                        .forwarder
                        .request(node, &request, &mut self.environment),
                    None => log::warn!("{}: malformed request", channel.name()),
                },
                Ok(None) => return Ok(()),
                Err(error) => return self.renew(node, &error),
            }
        }
        Ok(())
    }

    /// Makes a node again that the kernel has removed.
    fn renew(&mut self, node: usize, error: &io::Error) -> anyhow::Result<()> {
        self.forwarder.node_ended(node, &mut self.environment);
        let Some(channel) = self.environment.channels.get_mut(node) else {
            return Ok(());
        };
        log::warn!("{}: ended ({error}), made anew", channel.name());
        channel.renew()?;
        self.set_permissions();
        Ok(())
    }

    fn flush(&mut self) {
        if let Some(connection) = &mut self.connection
            && let Err(error) = connection.flush(&mut self.environment.outgoing)
        {
            self.disconnect(&error);
        }
    }

    fn disconnect(&mut self, error: &(dyn std::error::Error + 'static)) {
        let was_ready = self.connection.as_ref().is_some_and(Connection::is_ready);
        self.connection = None;
        self.environment.outgoing = Outgoing::default();
        self.reconnect_at = Instant::now() + RECONNECT_PAUSE;
        self.forwarder.disconnect(&mut self.environment);
        if was_ready || !self.complained {
            log::warn!("not connected: {}", chain(error));
        }
        self.complained = true;
    }

    fn start_connection(&mut self) -> anyhow::Result<Connection> {
        let port = self.settings.port.open()?;
        let outgoing = &mut self.environment.outgoing;
        Ok(Connection::start(port, hello_tag(), outgoing)?)
    }

    fn reconnect_in_time(&mut self) {
        let now = Instant::now();
        match &self.connection {
            None if now >= self.reconnect_at => match self.start_connection() {
                Ok(connection) => {
                    self.connection = Some(connection);
                    self.hello_deadline = now + HELLO_LIMIT;
                }
                Err(error) => self.disconnect(error.as_ref()),
            },
            Some(connection) if !connection.is_ready() && now >= self.hello_deadline => {
                self.disconnect(&ConnectionError::NoHello);
            }
            _ => {}
        }
    }

    /// Sets the nodes' permissions again for some time, because udev sets its own when it finds a new node.
    fn look_at_permissions(&mut self) {
        let now = Instant::now();
        if now < self.permissions_until && now >= self.permissions_at {
            self.apply_permissions();
            self.permissions_at = now + PERMISSIONS_PAUSE;
        }
    }

    fn set_permissions(&mut self) {
        self.permissions_until = Instant::now() + PERMISSIONS_WATCHED;
        self.permissions_at = Instant::now() + PERMISSIONS_PAUSE;
        self.apply_permissions();
    }

    fn apply_permissions(&self) {
        for (channel, node) in self.environment.channels.iter().zip(&self.nodes) {
            let permissions = node.permissions(self.settings.permissions);
            if let Err(error) = permissions.apply(&channel.node()) {
                log::warn!("{}: permissions: {error}", channel.name());
            }
        }
    }

    fn wanted(&self) -> PollFlags {
        if self.environment.outgoing.is_empty() {
            PollFlags::IN
        } else {
            PollFlags::IN | PollFlags::OUT
        }
    }
}

/// A number that an earlier connection is unlikely to have used.
fn hello_tag() -> u32 {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    time.map_or(0, |time| time.subsec_nanos()) ^ std::process::id().rotate_left(16)
}

fn wait(fds: &mut [PollFd<'_>], timeout: Duration) -> anyhow::Result<()> {
    // Rounded up, so that timers have expired when the wait ends.
    let timeout = timeout + Duration::from_micros(100);
    let timeout = Timespec::try_from(timeout).context("Timeout")?;
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("Cannot wait for requests"),
    }
}

/// The error and its causes, on one line.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes: Vec<String> = anyhow::Chain::new(error).map(ToString::to_string).collect();
    causes.join(": ")
}
