//! The size of the user's terminal, and its changes (SIGWINCH).

use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use kvmprof_devices::virtio::console::ConsoleSize;
use rustix::termios::tcgetwinsize;
use signal_hook::SigId;
use signal_hook::low_level::{pipe, unregister};

/// Called with the initial size, and when the size has changed.
type OnSize = Box<dyn FnMut(ConsoleSize) + Send>;

/// Watches the terminal's size: a subscriber of the event manager. The signal has to be let through
/// on its thread.
pub struct WindowWatch {
    signalled: UnixStream,
    handler: SigId,
    on_size: OnSize,
}

impl WindowWatch {
    /// Starts to watch.
    ///
    /// # Errors
    /// If the host gives no socket or handler.
    pub fn new(on_size: OnSize) -> io::Result<Self> {
        let (signalled, write) = UnixStream::pair()?;
        signalled.set_nonblocking(true)?;
        Ok(Self {
            signalled,
            handler: pipe::register(libc::SIGWINCH, write)?,
            on_size,
        })
    }

    fn tell(&mut self) {
        if let Some(size) = terminal_size() {
            (self.on_size)(size);
        }
    }
}

impl Drop for WindowWatch {
    fn drop(&mut self) {
        unregister(self.handler);
    }
}

impl MutEventSubscriber for WindowWatch {
    fn process(&mut self, _events: Events, _ops: &mut EventOps) {
        while matches!(self.signalled.read(&mut [0; 16]), Ok(1..)) {}
        self.tell();
    }

    fn init(&mut self, ops: &mut EventOps) {
        if let Err(error) = ops.add(Events::new(&self.signalled, EventSet::IN)) {
            log::warn!("The console doesn't follow the terminal's size: {error}");
        }
        self.tell();
    }
}

/// The size of the terminal that shows the console. None if there is no terminal, or its size is unknown.
fn terminal_size() -> Option<ConsoleSize> {
    let streams: [BorrowedFd<'static>; 2] = [rustix::stdio::stdout(), rustix::stdio::stdin()];
    let size = streams
        .into_iter()
        .find_map(|stream| tcgetwinsize(stream).ok())?;
    let size = ConsoleSize {
        columns: size.ws_col,
        rows: size.ws_row,
    };
    (size != ConsoleSize::default()).then_some(size)
}
