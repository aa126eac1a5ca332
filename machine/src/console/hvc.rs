//! The virtio console `hvc0`: port 0 of the virtio console device, between the guest and the user.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kvmprof_devices::endpoint::Backend;
use kvmprof_devices::virtio::console::{Port, PortError};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::output::ConsoleOutput;
use super::output_thread::OutputThread;
use super::panic_watch::PanicWatch;
use super::room::{InputTarget, RoomForInput};
use crate::lock::lock;

/// Bytes of input that may wait for the guest.
const INPUT_MAX: usize = 4096;
/// Maximum time to wait for the reader of the guest's last output.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
struct State {
    /// The guest has a driver that listens.
    open: bool,
    input: VecDeque<u8>,
    panic_watch: PanicWatch,
}

impl State {
    /// The number of bytes of input that there is room for: 0 before a driver listens, because input would be lost.
    fn room(&self) -> usize {
        if self.open {
            INPUT_MAX.saturating_sub(self.input.len())
        } else {
            0
        }
    }
}

/// A console, usable from any thread.
pub struct HvcConsole {
    state: Mutex<State>,
    output: OutputThread,
    room: RoomForInput,
    work: EventFd,
}

impl HvcConsole {
    /// A console that writes to `output`.
    ///
    /// # Errors
    /// If there are no more file descriptors or threads.
    pub fn new(output: ConsoleOutput) -> io::Result<Self> {
        let work = EventFd::new(EFD_NONBLOCK)?;
        Ok(Self {
            state: Mutex::default(),
            output: OutputThread::start(output, work.try_clone()?)?,
            room: RoomForInput::new()?,
            work,
        })
    }

    /// Becomes readable when the device should be served: there is input, or room for output.
    pub fn work(&self) -> &EventFd {
        &self.work
    }

    /// This console as a port of the device.
    #[must_use]
    pub fn port(self: &Arc<Self>) -> Box<dyn Port> {
        Box::new(HvcPort(Arc::clone(self)))
    }

    /// The guest kernel's panic message, if there was one on this console.
    #[must_use]
    pub fn panic_message(&self) -> Option<String> {
        self.state().panic_watch.message().map(str::to_owned)
    }

    /// Writes what is left, unless its reader is stalled; throws output away from now on.
    pub fn finish(&self) {
        self.output.finish(LAST_WORDS_TIMEOUT);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl InputTarget for HvcConsole {
    fn input_room(&self) -> usize {
        self.state().room()
    }

    fn enqueue(&self, input: &[u8], more: bool) -> usize {
        let taken = {
            let mut state = self.state();
            let taken = state.room().min(input.len());
            state.input.extend(input.iter().take(taken));
            if taken < input.len() || more {
                self.room.want();
            }
            taken
        };
        if taken > 0 {
            // A full counter has asked already.
            let _ = self.work.write(1);
        }
        taken
    }

    fn room_event(&self) -> &EventFd {
        self.room.event()
    }
}

/// The port's side of the console.
struct HvcPort(Arc<HvcConsole>);

impl Port for HvcPort {
    fn opened(&mut self) {
        self.0.state().open = true;
        self.0.room.announce();
    }

    fn closed(&mut self, _backend: &mut dyn Backend) {
        let mut state = self.0.state();
        state.open = false;
        state.input.clear();
    }

    fn wants_input(&self) -> bool {
        self.0.output.has_room()
    }

    fn receive(&mut self, bytes: &[u8], _backend: &mut dyn Backend) -> Result<(), PortError> {
        self.0.state().panic_watch.watch(bytes);
        self.0.output.write(bytes);
        Ok(())
    }

    fn wake(&mut self, _backend: &mut dyn Backend) -> Result<(), PortError> {
        Ok(())
    }

    fn send(&mut self, bytes: &mut [u8]) -> usize {
        let mut state = self.0.state();
        let count = bytes.len().min(state.input.len());
        for (target, source) in bytes.iter_mut().zip(state.input.drain(..count)) {
            *target = source;
        }
        drop(state);
        if count > 0 {
            self.0.room.announce();
        }
        count
    }

    fn has_output(&self) -> bool {
        !self.0.state().input.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;
    use kvmprof_abi::errno::Errno;
    use kvmprof_devices::endpoint::{Client, Handle, IoctlReply, Readiness};

    /// A console needs no devices.
    struct NoDevices;

    impl Backend for NoDevices {
        fn open(&mut self, _client: Client, _device: u16, _minor: u16) -> Result<Handle, Errno> {
            Err(Errno::ENODEV)
        }

        fn opened(&mut self, _handle: Handle) -> Poll<Result<(), Errno>> {
            Poll::Ready(Err(Errno::EBADF))
        }

        fn read(&mut self, _handle: Handle, _limit: usize) -> Poll<Result<Vec<u8>, Errno>> {
            Poll::Ready(Err(Errno::EBADF))
        }

        fn write(&mut self, _handle: Handle, _bytes: &[u8]) -> Result<usize, Errno> {
            Err(Errno::EBADF)
        }

        fn ioctl(
            &mut self,
            _: Handle,
            _: u32,
            _: i64,
            _: &[u8],
        ) -> Poll<Result<IoctlReply, Errno>> {
            Poll::Ready(Err(Errno::EBADF))
        }

        fn poll(&mut self, _handle: Handle) -> Readiness {
            Readiness::default()
        }

        fn close(&mut self, _handle: Handle) -> Poll<()> {
            Poll::Ready(())
        }
    }

    fn console(output: ConsoleOutput) -> (Arc<HvcConsole>, Box<dyn Port>) {
        let console = Arc::new(HvcConsole::new(output).unwrap());
        let port = console.port();
        (console, port)
    }

    #[test]
    fn input_waits_for_the_guest_to_listen() {
        let (console, mut port) = console(ConsoleOutput::discard());
        assert_eq!(console.enqueue(b"early", false), 0);
        port.opened();
        assert_eq!(console.room_event().read().unwrap(), 1);
        assert_eq!(console.enqueue(b"early", false), 5);
        assert!(console.work().read().is_ok());
        let mut bytes = [0; 3];
        assert_eq!(port.send(&mut bytes), 3);
        assert_eq!(&bytes, b"ear");
        assert!(port.has_output());
        assert_eq!(port.send(&mut bytes), 2);
        assert!(!port.has_output());
    }

    #[test]
    fn excess_input_stays_in_the_writers_pipe() {
        let (console, mut port) = console(ConsoleOutput::discard());
        port.opened();
        let much = vec![b'a'; INPUT_MAX + 100];
        assert_eq!(console.enqueue(&much, false), INPUT_MAX);
        assert_eq!(console.input_room(), 0);
        assert!(console.room_event().read().is_err());
        port.send(&mut [0; 10]);
        assert!(console.room_event().read().is_ok());
        assert_eq!(console.input_room(), 10);
    }

    #[test]
    fn input_for_an_ended_guest_is_dropped() {
        let (console, mut port) = console(ConsoleOutput::discard());
        port.opened();
        console.enqueue(b"for the old driver", false);
        port.closed(&mut NoDevices);
        port.opened();
        assert!(!port.has_output());
    }

    #[test]
    fn output_reaches_its_file_and_panics_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console");
        let (console, mut port) = console(ConsoleOutput::file(&path).unwrap());
        port.opened();
        let words = b"Kernel panic - not syncing: test\n";
        port.receive(words, &mut NoDevices).unwrap();
        console.finish();
        assert_eq!(std::fs::read(path).unwrap(), words);
        let message = console.panic_message().unwrap();
        assert_eq!(message.as_bytes(), words.trim_ascii_end());
    }
}
