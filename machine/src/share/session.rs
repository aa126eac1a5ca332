//! A conversation with the program that serves a folder: the vhost-user protocol, in which this program is the front end (QEMU:
//! docs/interop/vhost-user.rst).

use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use kvmprof_devices::virtio::fs::{QUEUES, RunningQueues};
use kvmprof_devices::virtio::{QUEUE_FEATURES, QueueLayout};
use vhost::vhost_user::message::{
    VhostUserHeaderFlag, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{GuestAddress, GuestMemoryBackend};
use vmm_sys_util::eventfd::EventFd;

use super::ShareError;
use super::limit::within;
use super::options::ShareSource;
use super::program::{Daemon, Starter};
use crate::connector::SocketConnector;
use crate::memory::GuestMemory;

/// Maximum time of a conversation, far longer than usual. A vCPU that resets or starts the device waits for its end.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Feature VIRTIO_F_VERSION_1 of virtio (section 6).
const VERSION_1: u64 = 1 << 32;

/// A program that serves the folder, and the connection to it.
pub struct Session {
    frontend: Frontend,
    stream: UnixStream,
    daemon: Option<Daemon>,
    features: u64,
}

/// Starts the program or connects to it, at the start and at each reset of the device.
#[derive(Clone, Debug, Default)]
pub(super) struct Openers {
    /// Starts the program for a folder.
    pub starter: Option<Starter>,
    /// Connects to a socket, if this process may not do so itself.
    pub connector: Option<Arc<SocketConnector>>,
}

/// The events by which the guest wakes the program, and the program wakes the guest.
#[derive(Debug)]
pub struct Events<'a> {
    /// For each queue, the event by which the guest wakes the program.
    pub notifications: [&'a EventFd; QUEUES],
    /// The event by which the program interrupts the guest, for all queues.
    pub interrupt: &'a EventFd,
}

impl Session {
    /// Starts or finds the program, and negotiates the features. The program gets no guest memory yet.
    ///
    /// # Errors
    /// There is no such program, or it breaks the protocol.
    pub(super) fn open(source: &ShareSource, openers: &Openers) -> Result<Self, ShareError> {
        let (daemon, stream) = match (source, &openers.starter) {
            (ShareSource::Folder { path, readonly }, Some(starter)) => {
                let (daemon, stream) = starter.start(path, *readonly)?;
                (Some(daemon), stream)
            }
            (ShareSource::Folder { .. }, None) => return Err(ShareError::NoProgram(Vec::new())),
            (ShareSource::Socket(path), _) => {
                let connected = match &openers.connector {
                    Some(connector) => connector.connect(path),
                    None => UnixStream::connect(path),
                };
                let failed = |source| ShareError::Connect {
                    path: path.clone(),
                    source,
                };
                (None, connected.map_err(failed)?)
            }
        };
        Self::with(stream, daemon)
    }

    /// Negotiates with the program at the other end of this connection.
    ///
    /// # Errors
    /// It breaks the protocol.
    pub fn over(stream: UnixStream) -> Result<Self, ShareError> {
        Self::with(stream, None)
    }

    fn with(stream: UnixStream, daemon: Option<Daemon>) -> Result<Self, ShareError> {
        let own = stream
            .try_clone()
            .map_err(ShareError::host("a descriptor"))?;
        let mut session = Self {
            frontend: Frontend::from_stream(stream, QUEUES as u64),
            stream: own,
            daemon,
            features: 0,
        };
        session.features = session.converse(negotiate)?;
        Ok(session)
    }

    /// The features of [`QUEUE_FEATURES`] that the program has.
    pub fn queue_features(&self) -> u64 {
        self.features & QUEUE_FEATURES
    }

    /// Tells the program to serve these queues.
    ///
    /// # Errors
    /// The program has ended, or refuses the queues.
    pub fn start(
        &mut self,
        queues: &RunningQueues,
        memory: &GuestMemory,
        events: &Events<'_>,
    ) -> Result<(), ShareError> {
        let protocol = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        let features = queues.features | (self.features & protocol);
        self.converse(|frontend| {
            let regions: Result<Vec<_>, _> = memory
                .iter()
                .map(VhostUserMemoryRegionInfo::from_guest_region)
                .collect();
            frontend.set_features(features)?;
            frontend.set_mem_table(&regions?)?;
            for (index, (layout, notification)) in
                queues.queues.iter().zip(events.notifications).enumerate()
            {
                let Some(layout) = layout else { continue };
                let ring = ring(layout, memory).ok_or(vhost::Error::InvalidQueue)?;
                frontend.set_vring_num(index, ring.queue_size)?;
                frontend.set_vring_base(index, 0)?;
                frontend.set_vring_addr(index, &ring)?;
                frontend.set_vring_call(index, events.interrupt)?;
                frontend.set_vring_kick(index, notification)?;
                if features & protocol != 0 {
                    frontend.set_vring_enable(index, true)?;
                }
            }
            Ok(())
        })
    }

    /// Tells the program to stop. When this succeeds, the program doesn't access the queues' memory any more.
    ///
    /// # Errors
    /// The program has ended, or doesn't answer.
    pub fn stop(&mut self, queues: &RunningQueues) -> Result<(), ShareError> {
        self.converse(|frontend| {
            for (index, layout) in queues.queues.iter().enumerate() {
                if layout.is_some() {
                    frontend.get_vring_base(index)?;
                }
            }
            Ok(())
        })
    }

    /// Closes the connection, and ends the program if it was started for this session.
    pub fn close(self) {
        // The program ends with the connection, and with it all processes of its sandbox.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Whether the program was started for this session, so that another one can be started.
    pub fn is_own(&self) -> bool {
        self.daemon.is_some()
    }

    /// The connection to the program: it hangs up when the program ends.
    pub fn connection(&self) -> &UnixStream {
        &self.stream
    }

    /// The program's standard error, which becomes readable when it writes something.
    pub fn output(&self) -> Option<BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        let output = self.daemon.as_ref().and_then(Daemon::output);
        output.map(AsFd::as_fd)
    }

    /// The last line of the program's standard error that hasn't been read yet.
    pub fn last_words(&mut self) -> String {
        let words = self.daemon.as_mut().map(Daemon::last_words);
        words.unwrap_or_default()
    }

    /// As [`Self::last_words`], for a program that has closed the connection: waits a short time for its end.
    pub fn final_words(&mut self) -> String {
        if let Some(daemon) = &mut self.daemon {
            daemon.ends_soon();
        }
        self.last_words()
    }

    /// Runs a conversation with the program, which is cut off after [`ANSWER_LIMIT`].
    fn converse<T>(
        &mut self,
        talk: impl FnOnce(&mut Frontend) -> Result<T, vhost::Error>,
    ) -> Result<T, ShareError> {
        let frontend = &mut self.frontend;
        let said = within(ANSWER_LIMIT, &self.stream, || talk(frontend));
        let (result, is_late) = said.map_err(ShareError::host("a thread"))?;
        result.map_err(|error| match error {
            _ if is_late => ShareError::Silent,
            error if is_hangup(&error) => ShareError::Gone(self.final_words()),
            error => ShareError::Protocol(error.to_string()),
        })
    }
}

/// Negotiates features, before the program gets memory and queues.
fn negotiate(frontend: &mut Frontend) -> Result<u64, vhost::Error> {
    let features = frontend.get_features()?;
    if features & VERSION_1 == 0 {
        return Err(vhost::Error::VhostUserProtocol(
            vhost::vhost_user::Error::FeatureMismatch,
        ));
    }
    frontend.set_owner()?;
    if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0 {
        let wanted = VhostUserProtocolFeatures::REPLY_ACK;
        let agreed = frontend.get_protocol_features()? & wanted;
        frontend.set_protocol_features(agreed)?;
        if agreed.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
    }
    Ok(features)
}

/// The queue's layout with addresses of this process, as the protocol wants them. `None` if it isn't in guest memory.
fn ring(layout: &QueueLayout, memory: &GuestMemory) -> Option<VringConfigData> {
    let address = |guest| {
        let address = memory.get_host_address(GuestAddress(guest)).ok()?;
        Some(address as u64)
    };
    let size = u16::try_from(layout.size).ok()?;
    Some(VringConfigData {
        queue_max_size: size,
        queue_size: size,
        flags: 0,
        desc_table_addr: address(layout.descriptors)?,
        used_ring_addr: address(layout.used)?,
        avail_ring_addr: address(layout.available)?,
        log_addr: None,
    })
}

fn is_hangup(error: &vhost::Error) -> bool {
    use vhost::vhost_user::Error;
    matches!(
        error,
        vhost::Error::VhostUserProtocol(
            Error::Disconnected | Error::SocketBroken(_) | Error::PartialMessage
        )
    )
}

#[cfg(test)]
#[path = "session_tests.rs"]
pub(super) mod tests;
