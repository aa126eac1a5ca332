//! A program at the other end of a Unix stream socket, with the protocol of QEMU's `-netdev stream`: each frame follows its
//! length. passt(1) is such a program, and gives a guest access to the host's network without privileges.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use kvmprof_devices::virtio::net::{
    FrameReader, FrameWriter, HEADER_SIZE, Link, Offloads, Sent, StreamError,
};
use rustix::net::SendFlags;

use super::peer::{Peer, PeerLog, is_later};
use crate::connector::{SocketConnector, connect};

/// Maximum number of reads for one frame.
const READS: usize = 8;

/// A connection to a program, which is made again when it is lost. There are no offloads: virtio headers are zero.
pub struct SocketPeer {
    path: PathBuf,
    stream: Option<UnixStream>,
    reader: FrameReader,
    writer: FrameWriter,
    faults: u64,
    complaints: PeerLog,
    /// The process that connects, if this one may not.
    connector: Option<Arc<SocketConnector>>,
}

impl SocketPeer {
    /// Connects to `path`, by `connector` if there is one. If no program listens there, or the connection is lost, [`Peer::reconnect`] tries again.
    pub fn new(path: PathBuf, connector: Option<Arc<SocketConnector>>) -> Self {
        let mut complaints = PeerLog::new(format!("socket={}", path.display()));
        let stream = match connect(connector.as_deref(), &path) {
            Ok(stream) => Some(stream),
            Err(error) => {
                complaints.say(format_args!(
                    "no program listens there yet ({error}); the guest's link is down until one does"
                ));
                None
            }
        };
        Self {
            path,
            stream,
            reader: FrameReader::default(),
            writer: FrameWriter::default(),
            faults: 0,
            complaints,
            connector,
        }
    }

    fn close(&mut self) {
        self.stream = None;
        self.reader.clear();
        self.writer.clear();
    }

    fn lose(&mut self, why: impl std::fmt::Display) {
        if self.stream.is_some() {
            self.complaints
                .say(format_args!("{why}; the guest's link is down"));
        }
        self.close();
    }

    /// Closes the connection to a peer that has broken the protocol: the beginning of its next frame is unknown.
    fn blame(&mut self, error: StreamError) {
        self.faults += 1;
        self.lose(format_args!("the peer has sent {error}"));
    }

    /// Reads the data that the stream has now. False if there are none.
    fn fill(&mut self) -> bool {
        let Some(mut stream) = self.stream.as_ref() else {
            return false;
        };
        match stream.read(self.reader.room()) {
            Ok(0) => {
                match self.reader.finish() {
                    Ok(()) => self.lose("the peer has closed the connection"),
                    Err(error) => self.blame(error),
                }
                false
            }
            Ok(bytes) => {
                self.reader.filled(bytes);
                true
            }
            Err(error) if is_later(&error) => false,
            Err(error) => {
                self.lose(format_args!("the connection is lost: {error}"));
                false
            }
        }
    }
}

impl Link for SocketPeer {
    fn is_up(&self) -> bool {
        self.stream.is_some()
    }

    fn set_offloads(&mut self, _received: Offloads, _sent: Offloads) {}

    fn send(&mut self, packet: &[u8]) -> Sent {
        self.flush();
        if self.stream.is_none() {
            return Sent::Refused;
        }
        if self.has_output() {
            return Sent::Later;
        }
        let frame = packet.get(HEADER_SIZE..).unwrap_or_default();
        if !self.writer.take(frame) {
            return Sent::Refused;
        }
        self.flush();
        Sent::Done
    }

    fn receive(&mut self, packet: &mut [u8]) -> Option<usize> {
        for _ in 0..READS {
            match self.reader.next_frame() {
                Ok(Some(frame)) => {
                    let length = HEADER_SIZE + frame.len();
                    let (header, rest) = packet.split_at_mut_checked(HEADER_SIZE)?;
                    header.fill(0);
                    rest.get_mut(..frame.len())?.copy_from_slice(frame);
                    return Some(length);
                }
                Ok(None) => {}
                Err(error) => {
                    self.blame(error);
                    return None;
                }
            }
            if !self.fill() {
                return None;
            }
        }
        None
    }
}

impl Peer for SocketPeer {
    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        self.stream.as_ref().map(AsFd::as_fd)
    }

    fn has_output(&self) -> bool {
        !self.writer.rest().is_empty()
    }

    fn flush(&mut self) {
        while let (Some(stream), true) = (&self.stream, self.has_output()) {
            match rustix::net::send(stream, self.writer.rest(), SendFlags::NOSIGNAL) {
                Ok(bytes) => self.writer.written(bytes),
                Err(error) if is_later(&error.into()) => return,
                Err(error) => self.lose(format_args!("the connection is lost: {error}")),
            }
        }
    }

    fn hang_up(&mut self) {
        self.lose("the peer has closed the connection");
    }

    fn can_reconnect(&self) -> bool {
        true
    }

    fn reconnect(&mut self) {
        self.close();
        self.stream = connect(self.connector.as_deref(), &self.path).ok();
    }

    fn faults(&self) -> u64 {
        self.faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvmprof_devices::virtio::net::FRAME_MAX;
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use tempfile::TempDir;

    struct Bench {
        _folder: TempDir,
        listener: UnixListener,
        peer: SocketPeer,
        buffer: Vec<u8>,
    }

    impl Bench {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("socket");
            let listener = UnixListener::bind(&path).unwrap();
            Self {
                _folder: folder,
                listener,
                peer: SocketPeer::new(path, None),
                buffer: vec![0xff; HEADER_SIZE + FRAME_MAX],
            }
        }

        fn accept(&self) -> UnixStream {
            self.listener.accept().unwrap().0
        }

        fn receive(&mut self) -> Option<Vec<u8>> {
            let length = self.peer.receive(&mut self.buffer)?;
            Some(self.buffer[..length].to_vec())
        }
    }

    fn packet(length: usize, byte: u8) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_SIZE];
        bytes.extend(vec![byte; length]);
        bytes
    }

    fn framed(length: u32, byte: u8) -> Vec<u8> {
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend(vec![byte; usize::try_from(length).unwrap()]);
        bytes
    }

    #[test]
    fn frames_go_both_ways_with_their_length_in_front() {
        let mut bench = Bench::new();
        let mut other = bench.accept();
        assert_eq!(bench.peer.send(&packet(60, 1)), Sent::Done);
        let mut bytes = [0; 64];
        other.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes.to_vec(), framed(60, 1));
        assert_eq!(bench.receive(), None);
        other.write_all(&framed(60, 2)).unwrap();
        other.write_all(&framed(70, 3)[..50]).unwrap();
        assert_eq!(bench.receive(), Some(packet(60, 2)));
        assert_eq!(bench.receive(), None);
        other.write_all(&framed(70, 3)[50..]).unwrap();
        assert_eq!(bench.receive(), Some(packet(70, 3)));
        assert!(bench.peer.is_up());
    }

    #[test]
    fn frames_to_a_peer_that_does_not_read_stay_complete() {
        let mut bench = Bench::new();
        let mut other = bench.accept();
        let mut sent = 0;
        while bench.peer.send(&packet(1500, 9)) == Sent::Done {
            sent += 1;
        }
        assert!(bench.peer.has_output());
        assert!(bench.peer.is_up());
        other.set_nonblocking(true).unwrap();
        let mut all = Vec::new();
        while bench.peer.has_output() {
            let _ = other.read_to_end(&mut all);
            bench.peer.flush();
        }
        let _ = other.read_to_end(&mut all);
        assert_eq!(all, framed(1500, 9).repeat(sent));
    }

    #[test]
    fn a_peer_that_breaks_the_protocol_is_left() {
        for bytes in [[0; 4], [0, 0, 0, 13], [0xff; 4], [0, 1, 0, 18]] {
            let mut bench = Bench::new();
            let mut other = bench.accept();
            other.write_all(&framed(60, 1)).unwrap();
            other.write_all(&bytes).unwrap();
            assert_eq!(bench.receive(), Some(packet(60, 1)));
            assert_eq!(bench.receive(), None);
            assert!(!bench.peer.is_up());
            assert_eq!(bench.peer.faults(), 1);
        }
    }

    #[test]
    fn a_peer_reconnects() {
        let mut bench = Bench::new();
        drop(bench.accept());
        // This raises no signal.
        bench.peer.send(&packet(60, 1));
        assert!(!bench.peer.is_up());
        bench.peer.reconnect();
        drop(bench.accept());
        assert_eq!(bench.receive(), None);
        assert!(!bench.peer.is_up());
        assert_eq!(bench.peer.faults(), 0);
        assert_eq!(bench.peer.send(&packet(60, 1)), Sent::Refused);
        bench.peer.reconnect();
        assert!(bench.peer.is_up());
        let mut other = bench.accept();
        // It closes the connection in the middle of its second frame.
        other.write_all(&framed(60, 1)).unwrap();
        other.write_all(&framed(60, 2)[..20]).unwrap();
        drop(other);
        assert_eq!(bench.receive(), Some(packet(60, 1)));
        assert_eq!(bench.receive(), None);
        assert_eq!((bench.peer.is_up(), bench.peer.faults()), (false, 1));
        bench.peer.reconnect();
        let mut other = bench.accept();
        other.write_all(&framed(60, 3)).unwrap();
        assert_eq!(bench.receive(), Some(packet(60, 3)));
    }

    #[test]
    fn a_path_without_a_listener_is_a_link_that_is_down() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let mut peer = SocketPeer::new(path.clone(), None);
        assert!(!peer.is_up());
        peer.reconnect();
        assert!(!peer.is_up());
        let _listener = UnixListener::bind(path).unwrap();
        peer.reconnect();
        assert!(peer.is_up());
    }
}
