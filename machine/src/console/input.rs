//! Console input: an event-manager subscriber that feeds a console device from a descriptor.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};

use super::escape::EscapeFilter;
use super::room::InputTarget;

/// Called when the user typed the escape sequence.
type OnQuit = Box<dyn FnMut() + Send>;

/// Maximum number of bytes that a user can type ahead of a guest that doesn't read.
const TYPED_AHEAD_MAX: usize = 4096;

/// Feeds a console. Of a pipe or file it reads no more than the console has room for, so that
/// what the guest doesn't take stays with its writer. A terminal is always read, because the
/// escape key has to work above all when the guest hangs.
pub struct ConsoleInput {
    target: Arc<dyn InputTarget>,
    source: File,
    state: State,
    /// For terminals only: a file may well hold the escape sequence's bytes.
    escape: Option<EscapeFilter>,
    /// Read, but not yet taken by the console: of a terminal at most [`TYPED_AHEAD_MAX`] bytes, else
    /// at most as many as the port's FIFO holds.
    pending: Vec<u8>,
    on_quit: OnQuit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// epoll says when there is something to read.
    Watched,
    /// The console is full; epoll doesn't watch.
    Paused,
    /// A regular file or the like, which epoll refuses: there is always something to read.
    AlwaysReady,
    /// The source is at its end.
    Ended,
}

impl ConsoleInput {
    /// Input from `source`. `on_quit` is called when a user at a terminal types the escape
    /// sequence ([`super::ESCAPE_HELP`]).
    #[must_use]
    pub fn new(target: Arc<dyn InputTarget>, source: OwnedFd, on_quit: OnQuit) -> Self {
        let source = File::from(source);
        let escape = source.is_terminal().then(EscapeFilter::default);
        Self {
            target,
            source,
            state: State::Watched,
            escape,
            pending: Vec::new(),
            on_quit,
        }
    }

    /// Input from standard input.
    ///
    /// # Errors
    /// If its descriptor can't be duplicated.
    pub fn stdin(target: Arc<dyn InputTarget>, on_quit: OnQuit) -> io::Result<Self> {
        let source = io::stdin().as_fd().try_clone_to_owned()?;
        Ok(Self::new(target, source, on_quit))
    }

    fn source_events(&self) -> Events {
        Events::new(&self.source, EventSet::IN)
    }

    fn watch(&mut self, ops: &mut EventOps) {
        self.state = match ops.add(self.source_events()) {
            Ok(()) => State::Watched,
            Err(event_manager::Error::Epoll(error)) if error.errno() == libc::EPERM => {
                State::AlwaysReady
            }
            Err(error) => {
                log::warn!("The guest gets no console input: {error}");
                State::Ended
            }
        };
    }

    fn stop_watching(&mut self, ops: &mut EventOps, next: State) {
        if self.state == State::Watched
            && let Err(error) = ops.remove(self.source_events())
        {
            log::warn!("Console input: {error}");
        }
        self.state = next;
    }

    /// Moves available input to the console, as far as it has room.
    fn pump(&mut self, ops: &mut EventOps) {
        if self.pending.is_empty() || self.escape.is_some() {
            match self.read() {
                Ok(true) => {}
                Ok(false) => self.stop_watching(ops, State::Ended),
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(error) => {
                    log::debug!("Console input ends: {error}");
                    self.stop_watching(ops, State::Ended);
                }
            }
        }
        self.hand_over();
        if !self.pending.is_empty() && self.escape.is_none() && self.state == State::Watched {
            self.stop_watching(ops, State::Paused);
        }
    }

    /// Reads at least a byte. False at the end of input.
    fn read(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 64];
        let most = match self.escape {
            Some(_) => buffer.len(),
            None => self.target.input_room().clamp(1, buffer.len()),
        };
        let length = self.source.read(&mut buffer[..most])?;
        let input = &buffer[..length];
        match &mut self.escape {
            None => self.pending.extend_from_slice(input),
            Some(escape) => {
                let typed = escape.filter(input);
                self.pending.extend(typed.bytes);
                self.pending.truncate(TYPED_AHEAD_MAX);
                if typed.quit {
                    (self.on_quit)();
                }
            }
        }
        Ok(length > 0)
    }

    /// Hands waiting input over to the console, as far as it has room.
    fn hand_over(&mut self) {
        let more = self.state == State::AlwaysReady;
        if !self.pending.is_empty() {
            let taken = self.target.enqueue(&self.pending, more);
            self.pending.drain(..taken);
        }
    }

    fn there_is_room(&mut self, ops: &mut EventOps) {
        // An unsignalled eventfd is no error.
        let _ = self.target.room_event().read();
        match self.state {
            State::AlwaysReady => self.pump(ops),
            State::Watched | State::Ended => self.hand_over(),
            State::Paused => {
                // What waits goes first; only then is the source watched again.
                self.hand_over();
                if self.pending.is_empty() {
                    self.watch(ops);
                }
            }
        }
    }
}

impl MutEventSubscriber for ConsoleInput {
    fn process(&mut self, events: Events, ops: &mut EventOps) {
        let room = Events::new(self.target.room_event(), EventSet::IN);
        if events.fd() == room.fd() {
            self.there_is_room(ops);
        } else if self.state == State::Watched {
            self.pump(ops);
        }
    }

    fn init(&mut self, ops: &mut EventOps) {
        if let Err(error) = ops.add(Events::new(self.target.room_event(), EventSet::IN)) {
            log::warn!("The guest gets no console input: {error}");
            self.state = State::Ended;
            return;
        }
        self.watch(ops);
        if self.state == State::AlwaysReady {
            self.pump(ops);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::{ConsoleOutput, SerialConsole};
    use event_manager::{EventManager, SubscriberOps};
    use std::io::{Seek, Write};

    /// The serial port's receive register.
    const DATA: u8 = 0;
    const INTERRUPT_ENABLE: u8 = 1;
    const MODEM_CONTROL: u8 = 4;
    const LINE_STATUS: u8 = 5;

    struct Fixture {
        serial: Arc<SerialConsole>,
        events: EventManager<ConsoleInput>,
    }

    impl Fixture {
        fn new(source: impl Into<OwnedFd>) -> Self {
            let serial = Arc::new(SerialConsole::new(ConsoleOutput::discard()).unwrap());
            // Shows that the guest listens: OUT2, and the receive interrupt.
            serial.write(MODEM_CONTROL, &[1 << 3]);
            serial.write(INTERRUPT_ENABLE, &[1]);
            let input = ConsoleInput::new(serial.clone(), source.into(), Box::new(|| {}));
            let mut events = EventManager::new().unwrap();
            events.add_subscriber(input);
            Self { serial, events }
        }

        /// Everything that a guest reads.
        fn guest_reads(&mut self) -> Vec<u8> {
            let mut received = Vec::new();
            while self.events.run_with_timeout(0).unwrap() > 0 || self.data_ready() {
                while self.data_ready() {
                    let mut byte = [0];
                    self.serial.read(DATA, &mut byte);
                    received.push(byte[0]);
                }
                assert!(received.len() < 100_000, "input never ends");
            }
            received
        }

        fn data_ready(&self) -> bool {
            let mut status = [0];
            self.serial.read(LINE_STATUS, &mut status);
            status[0] & 1 == 1
        }
    }

    fn long_text() -> Vec<u8> {
        let numbers = (0..1000u32).map(|n| n.to_string());
        numbers.collect::<String>().into_bytes()
    }

    #[test]
    fn a_pipe_is_read_to_its_end() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut fixture = Fixture::new(reader);
        writer.write_all(&long_text()).unwrap();
        assert_eq!(fixture.guest_reads(), long_text());
        drop(writer);
        assert!(fixture.guest_reads().is_empty());
        assert_eq!(fixture.events.run_with_timeout(0).unwrap(), 0);
    }

    #[test]
    fn a_guest_that_does_not_read_stops_the_reading() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut fixture = Fixture::new(reader);
        writer.write_all(&long_text()).unwrap();
        while fixture.events.run_with_timeout(0).unwrap() > 0 {}
        assert_eq!(fixture.serial.input_room(), 0);
        assert_eq!(fixture.guest_reads(), long_text());
    }

    #[test]
    fn a_regular_file_is_read_to_its_end() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&long_text()).unwrap();
        file.rewind().unwrap();
        let mut fixture = Fixture::new(file);
        assert_eq!(fixture.guest_reads(), long_text());
    }

    #[test]
    fn dev_null_is_not_polled() {
        let mut fixture = Fixture::new(File::open("/dev/null").unwrap());
        assert!(fixture.guest_reads().is_empty());
        assert_eq!(fixture.events.run_with_timeout(0).unwrap(), 0);
    }
}
