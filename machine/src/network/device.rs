//! A network device of the machine, and the thread that serves it.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvmprof_devices::virtio::MmioTransport;
use kvmprof_devices::virtio::net::{Net, Wants};
use kvmprof_recording::status::{MachineStatus, NetworkStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::config::{NetworkConfig, PeerAddress};
use super::mac::MacAddress;
use super::peer::Peer;
use super::socket::SocketPeer;
use super::tap::{TapError, TapPeer};
use crate::connector::SocketConnector;
use crate::error::MachineError;
use crate::lock::lock;
use crate::memory::GuestMemory;
use crate::virtio::{
    Assembled, DeviceMonitor, DeviceThread, Ending, Notifications, VirtioMmio, VirtioParts,
    borrowed,
};

/// The time between the loss of the peer and the first attempt to connect again, and the maximum of that time: it
/// doubles at each attempt that fails, and when the peer is lost again before it has sent a frame.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);

impl DeviceMonitor for Mutex<NetworkStatus> {
    fn enter(&self, machine: &mut MachineStatus) {
        machine.networks.push(lock(self).clone());
    }
}

/// A network device that a machine is to have.
pub struct Network {
    peer: Box<dyn Peer>,
    mac: MacAddress,
    /// The state and the counts as of the device's last turn.
    status: Arc<Mutex<NetworkStatus>>,
}

impl Network {
    /// Connects to the other end. It isn't an error if no program listens on a socket: the link is down until one
    /// does. `connector` connects to a socket; without it this process does so.
    ///
    /// # Errors
    /// The tap can't be opened.
    pub fn connect(
        config: &NetworkConfig,
        connector: Option<&Arc<SocketConnector>>,
    ) -> Result<Self, TapError> {
        let mac = config.mac.unwrap_or(MacAddress::of_peer(&config.peer));
        let peer: Box<dyn Peer> = match &config.peer {
            PeerAddress::Tap(name) => Box::new(TapPeer::open(name)?),
            PeerAddress::Socket(path) => {
                Box::new(SocketPeer::new(path.clone(), connector.cloned()))
            }
        };
        let status = NetworkStatus {
            peer: config.peer.to_string(),
            mac: mac.to_string(),
            up: peer.is_up(),
            ..NetworkStatus::default()
        };
        let status = Arc::new(Mutex::new(status));
        Ok(Self { peer, mac, status })
    }
}

impl VirtioParts for Network {
    fn monitor(&self) -> Arc<dyn DeviceMonitor> {
        self.status.clone()
    }

    fn assemble(self: Box<Self>, memory: &GuestMemory) -> Result<Assembled, MachineError> {
        let device = Net::new(self.mac.0, self.peer.offloads(), self.peer.is_up());
        let work = EventFd::new(EFD_NONBLOCK).map_err(MachineError::EventFd)?;
        let mine = work.try_clone().map_err(MachineError::EventFd)?;
        let mmio = VirtioMmio::new(device, memory.clone(), Notifications::Together(work))?;
        let mmio = Arc::new(mmio);
        let server = Server {
            mmio: Arc::clone(&mmio),
            work: mine,
            peer: self.peer,
            status: self.status,
            retry: ReconnectTimer::new(),
        };
        let thread =
            DeviceThread::start("network", kvmprof_sandbox::Thread::Network, move |ending| {
                server.run(ending)
            })
            .map_err(MachineError::Thread)?;
        Ok(Assembled {
            registers: mmio,
            threads: vec![thread],
        })
    }
}

/// Decides when to connect to a lost peer again.
struct ReconnectTimer {
    delay: Duration,
    due: Option<Instant>,
    /// The number of frames that had been received when the peer was connected.
    frames: u64,
}

impl ReconnectTimer {
    fn new() -> Self {
        Self {
            delay: RETRY_FIRST,
            due: None,
            frames: 0,
        }
    }

    /// Notes whether the peer is connected, and the number of frames that have been received. True if it is time to connect
    /// again.
    fn is_due(&mut self, up: bool, frames: u64, now: Instant) -> bool {
        if up {
            if self.due.take().is_some() {
                self.frames = frames;
            }
            if frames != self.frames {
                self.delay = RETRY_FIRST;
            }
            return false;
        }
        match self.due {
            Some(due) if now < due => false,
            None => {
                self.due = Some(now + self.delay);
                false
            }
            Some(_) => {
                self.delay = (2 * self.delay).min(RETRY_MAX);
                self.due = Some(now + self.delay);
                true
            }
        }
    }

    /// The time from `now` to the next attempt. `None` if the peer is connected.
    fn left(&self, now: Instant) -> Option<Duration> {
        self.due.map(|due| due.saturating_duration_since(now))
    }
}

/// The state of a device's thread.
struct Server {
    mmio: Arc<VirtioMmio<Net>>,
    work: EventFd,
    peer: Box<dyn Peer>,
    status: Arc<Mutex<NetworkStatus>>,
    retry: ReconnectTimer,
}

/// Why a wait has ended.
enum WaitEnd {
    /// The thread has to end.
    Ending,
    /// There may be something to do. `gone`: the other end has closed the connection or the tap was removed.
    Work { gone: bool },
}

impl Server {
    fn run(mut self, ending: &Ending) {
        let mut gone = false;
        loop {
            self.peer.flush();
            let mut wants = self.serve();
            if gone && !wants.turn && self.peer.is_up() {
                // All frames that it had sent have been read, as far as the guest has room for them.
                self.peer.hang_up();
                wants = self.serve();
            }
            let frames = lock(&self.status).received.frames;
            if self.peer.can_reconnect()
                && self.retry.is_due(self.peer.is_up(), frames, Instant::now())
            {
                self.peer.reconnect();
                continue;
            }
            match self.wait(wants, ending) {
                WaitEnd::Ending => return,
                WaitEnd::Work { gone: now } => gone = now,
            }
        }
    }

    /// Serves the device, for a bounded time.
    fn serve(&mut self) -> Wants {
        let peer = &mut self.peer;
        self.mmio.with(|transport, memory| {
            let wants = transport.serve(memory, &mut **peer);
            note(&self.status, transport, peer.faults());
            wants
        })
    }

    fn wait(&self, wants: Wants, ending: &Ending) -> WaitEnd {
        let mut fds = vec![
            PollFd::from_borrowed_fd(ending.event(), PollFlags::IN),
            PollFd::from_borrowed_fd(borrowed(&self.work), PollFlags::IN),
        ];
        let wanted = |on, flags| if on { flags } else { PollFlags::empty() };
        let flags = PollFlags::RDHUP
            | wanted(wants.input, PollFlags::IN)
            | wanted(wants.room || self.peer.has_output(), PollFlags::OUT);
        let source = self.peer.source();
        fds.extend(source.map(|source: BorrowedFd<'_>| PollFd::from_borrowed_fd(source, flags)));
        let timeout = if wants.turn {
            Some(Duration::ZERO)
        } else {
            self.retry.left(Instant::now())
        };
        let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                // Without a working poll(2) the thread would spin.
                log::error!("A network device isn't served any more: {error}");
                return WaitEnd::Ending;
            }
        }
        let came = |index: usize| fds.get(index).map_or(PollFlags::empty(), PollFd::revents);
        if !came(0).is_empty() {
            return WaitEnd::Ending;
        }
        if !came(1).is_empty() {
            // No other thread reads it.
            let _ = self.work.read();
        }
        WaitEnd::Work {
            gone: came(2).intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP),
        }
    }
}

fn note(status: &Mutex<NetworkStatus>, transport: &MmioTransport<Net>, peer_faults: u64) {
    let (device, driver) = (transport.device(), transport.counts());
    let counts = device.counts();
    let mut status = lock(status);
    status.up = device.is_up();
    status.link_losses = counts.link_losses;
    status.received = counts.received;
    status.sent = counts.sent;
    status.peer_faults = peer_faults;
    status.queue_faults = counts.queue_faults;
    status.refused_queues = driver.refused_queues;
    status.resets = driver.resets;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reconnects_to_an_absent_peer_back_off() {
        let mut retry = ReconnectTimer::new();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert!(!retry.is_due(true, 0, start));
        assert_eq!(retry.left(start), None);
        assert!(!retry.is_due(false, 0, start));
        assert_eq!(retry.left(start), Some(RETRY_FIRST));
        assert!(!retry.is_due(false, 0, at(99)));
        assert!(retry.is_due(false, 0, at(100)));
        assert!(!retry.is_due(false, 0, at(299)));
        assert!(retry.is_due(false, 0, at(300)));
        assert!(retry.is_due(false, 0, at(700)));
        assert_eq!(retry.left(at(700)), Some(Duration::from_millis(800)));
        for turn in 1..20 {
            retry.is_due(false, 0, at(10_000 * turn));
        }
        assert_eq!(retry.left(at(190_000)), Some(RETRY_MAX));
    }

    #[test]
    fn only_a_peer_that_sends_resets_the_delay() {
        let mut retry = ReconnectTimer::new();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        retry.is_due(false, 5, start);
        assert!(retry.is_due(false, 5, at(100)));
        // It is connected, and lost without a frame.
        assert!(!retry.is_due(true, 5, at(101)));
        assert!(!retry.is_due(false, 5, at(102)));
        assert_eq!(retry.left(at(102)), Some(2 * RETRY_FIRST));
        assert!(retry.is_due(false, 5, at(302)));
        // Now it sends.
        assert!(!retry.is_due(true, 5, at(303)));
        assert!(!retry.is_due(true, 6, at(304)));
        assert!(!retry.is_due(false, 6, at(305)));
        assert_eq!(retry.left(at(305)), Some(RETRY_FIRST));
    }
}
