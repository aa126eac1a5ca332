//! The console device (section 5.3) with several ports, each a stream of bytes in both directions. Port 0 is the
//! guest's console; the others carry the framed protocol, and the guest finds them by name.
//!
//! Queues 0 and 1 belong to port 0, queues 2 and 3 carry control messages, and further pairs belong to the other ports. The first
//! queue of a pair goes to the driver, the second comes from it.
//!
//! After an error of the guest the port's queues aren't served until the next reset, and its devices are closed. Other
//! ports aren't affected.

mod control;
mod line;
mod port;

use virtio_bindings::virtio_ids::VIRTIO_ID_CONSOLE;

use self::control::{Event, FromDriver, MESSAGE_SIZE, PendingEvents};
use self::line::{Line, PortQueues, Progress};
use super::{Direction, GuestMemory, MmioTransport, QueueError, VirtioDevice, Virtqueue};
use crate::endpoint::Backend;

pub use line::PortFaults;
pub use port::{EndpointPort, Port, PortError};

/// Feature: the configuration has the console's size (section 5.3.3).
pub const F_SIZE: u32 = 0;
/// Feature: there are several ports, and control queues.
pub const F_MULTIPORT: u32 = 1;

/// Maximum number of entries of each queue.
const QUEUE_SIZE_MAX: u16 = 64;
/// Maximum number of control messages before the ports have their turn.
const CONTROL_BUDGET: usize = 64;
/// Index of the queue of control messages to the driver; the next one comes from it.
const CONTROL_QUEUE: usize = 2;

/// The size of a console, in characters; zeros if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsoleSize {
    /// Characters in a line.
    pub columns: u16,
    /// Lines.
    pub rows: u16,
}

/// Errors of the guest's driver since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsoleFaults {
    /// Unusable chains and control queues.
    pub control: u64,
    /// Each port's name (port 0 is `console`), and its errors.
    pub ports: Vec<(String, PortFaults)>,
}

/// The device.
pub struct Console {
    /// By number; `None` for missing ports.
    lines: Vec<Option<Line>>,
    size: ConsoleSize,
    multiport: bool,
    /// The control queues are unusable until a reset.
    control_broken: bool,
    control_faults: u64,
    /// The control message that takes more than one turn.
    unanswered: Option<FromDriver>,
    /// The configuration has changed, and the transport hasn't been informed yet.
    reconfigured: bool,
    complained: bool,
}

impl Console {
    /// A device with `console` as its port 0, if there is one, and ports with these names from 1 on.
    #[must_use]
    pub fn new(console: Option<Box<dyn Port>>, ports: Vec<(String, Box<dyn Port>)>) -> Self {
        let console = console.map(|port| Line::new(0, None, port));
        let named = ports
            .into_iter()
            .zip(1..)
            .map(|((name, port), number)| Some(Line::new(number, Some(name), port)));
        Self {
            lines: std::iter::once(console).chain(named).collect(),
            size: ConsoleSize::default(),
            multiport: false,
            control_broken: false,
            control_faults: 0,
            unanswered: None,
            reconfigured: false,
            complained: false,
        }
    }

    /// The guest's errors since the start.
    #[must_use]
    pub fn faults(&self) -> ConsoleFaults {
        let lines = self.lines.iter().flatten();
        ConsoleFaults {
            control: self.control_faults,
            ports: lines
                .map(|line| (line.title().to_owned(), line.faults))
                .collect(),
        }
    }

    /// Changes the console's size. The guest is informed when it is served next.
    pub fn resize(&mut self, size: ConsoleSize) {
        if self.size == size {
            return;
        }
        self.size = size;
        self.reconfigured = true;
        if let Some(Some(console)) = self.lines.first_mut() {
            console.pending.size = self.multiport && !console.pending.add;
        }
    }

    /// Closes what the guest had open before it reset the device.
    fn release(&mut self, backend: &mut dyn Backend) {
        for line in self.lines.iter_mut().flatten() {
            line.release(backend);
        }
    }

    /// Serves all queues, for a bounded time.
    fn serve(
        &mut self,
        queues: &mut [Virtqueue],
        memory: &GuestMemory,
        backend: &mut dyn Backend,
    ) -> Progress {
        // Control messages come first: they open and close ports, which decides what happens to data.
        let mut progress = Progress::Done;
        if self.multiport {
            progress = self.guarded(|console| console.take_control(queues, memory, backend));
        } else if let Some(Some(console)) = self.lines.first_mut() {
            // Without control messages the guest can't open it.
            console.open();
        }
        for index in 0..self.lines.len() {
            if let (Some(Some(line)), Some(mut queues)) = (
                self.lines.get_mut(index),
                port_queues(queues, memory, index),
            ) {
                progress = progress.and(line.serve(&mut queues, backend));
            }
        }
        if self.multiport {
            self.guarded(|console| console.tell(queues, memory));
        }
        progress
    }

    /// Calls `action` on the control queues unless they are unusable. Gives them up after an error.
    fn guarded(
        &mut self,
        action: impl FnOnce(&mut Self) -> Result<Progress, QueueError>,
    ) -> Progress {
        if self.control_broken {
            return Progress::Done;
        }
        action(self).unwrap_or_else(|error| {
            self.control_faults += 1;
            self.control_broken = true;
            if !std::mem::replace(&mut self.complained, true) {
                log::warn!(
                    "virtio-console: control queues not served before the next reset: {error}"
                );
            }
            Progress::Done
        })
    }

    /// Handles the driver's control messages.
    fn take_control(
        &mut self,
        queues: &mut [Virtqueue],
        memory: &GuestMemory,
        backend: &mut dyn Backend,
    ) -> Result<Progress, QueueError> {
        for _ in 0..CONTROL_BUDGET {
            let Some(queue) = queues.get_mut(CONTROL_QUEUE + 1) else {
                return Ok(Progress::Done);
            };
            // The message of an unfinished chain is dropped with the chain.
            let unanswered = self.unanswered.take().filter(|_| queue.in_progress());
            if !queue.begin(memory, Direction::ToDevice)? {
                return Ok(Progress::Done);
            }
            let message = match unanswered {
                Some(message) => message,
                None => {
                    let mut bytes = [0; MESSAGE_SIZE];
                    if queue.read(memory, &mut bytes)? < MESSAGE_SIZE {
                        return Err(QueueError::TooShort);
                    }
                    FromDriver::decode(bytes)
                }
            };
            if self.act_on(message, queues, memory, backend) == Progress::More {
                self.unanswered = Some(message);
                return Ok(Progress::More);
            }
            // For Linux, the returned buffer means that the message has taken effect.
            if let Some(queue) = queues.get_mut(CONTROL_QUEUE + 1) {
                queue.finish(memory)?;
            }
        }
        Ok(Progress::More)
    }

    fn act_on(
        &mut self,
        message: FromDriver,
        queues: &mut [Virtqueue],
        memory: &GuestMemory,
        backend: &mut dyn Backend,
    ) -> Progress {
        let index = usize::try_from(message.port).unwrap_or(usize::MAX);
        let on = message.value != 0;
        if message.event == Some(Event::DeviceReady) {
            for line in self.lines.iter_mut().flatten() {
                line.pending.add |= on;
            }
            return Progress::Done;
        }
        let Some(Some(line)) = self.lines.get_mut(index) else {
            return Progress::Done;
        };
        match message.event {
            Some(Event::PortReady) if on => {
                let is_console = line.name.is_none();
                line.pending = PendingEvents {
                    add: line.pending.add,
                    console: is_console,
                    size: is_console && self.size != ConsoleSize::default(),
                    name: !is_console,
                    open: true,
                };
            }
            Some(Event::PortOpen) if on => line.open(),
            Some(Event::PortOpen) => {
                if let Some(mut queues) = port_queues(queues, memory, index) {
                    return line.close(&mut queues, backend);
                }
            }
            _ => {}
        }
        Progress::Done
    }

    /// Sends pending events to the driver, as far as it has provided buffers.
    fn tell(
        &mut self,
        queues: &mut [Virtqueue],
        memory: &GuestMemory,
    ) -> Result<Progress, QueueError> {
        let Some(queue) = queues.get_mut(CONTROL_QUEUE) else {
            return Ok(Progress::Done);
        };
        let size = self.size;
        for line in self.lines.iter_mut().flatten() {
            while let Some(event) = line.pending.first() {
                if !queue.begin(memory, Direction::ToDriver)? {
                    return Ok(Progress::Done);
                }
                let message = message(line, event, size);
                if queue.remaining() < message.len() {
                    return Err(QueueError::TooShort);
                }
                queue.write(memory, &message)?;
                queue.finish(memory)?;
                line.pending.clear(event);
            }
        }
        Ok(Progress::Done)
    }
}

/// The message for `event` of this port.
fn message(line: &Line, event: Event, size: ConsoleSize) -> Vec<u8> {
    let number = u32::try_from(line.number).unwrap_or(u32::MAX);
    match event {
        Event::PortName => {
            let name = line.name.as_deref().unwrap_or_default();
            control::encode(number, event, 1, name.as_bytes())
        }
        // Columns first, by section 5.3.6.2. Linux had the other order until 2025 (its commit 5326ab737a47); the
        // guest's version is unknown.
        Event::Resize => {
            let [c0, c1] = size.columns.to_le_bytes();
            let [r0, r1] = size.rows.to_le_bytes();
            control::encode(number, event, 0, &[c0, c1, r0, r1])
        }
        Event::PortOpen => control::encode(number, event, line.host_open().into(), &[]),
        _ => control::encode(number, event, 1, &[]),
    }
}

/// The queues of port number `port`.
fn port_queues<'a>(
    queues: &'a mut [Virtqueue],
    memory: &'a GuestMemory,
    port: usize,
) -> Option<PortQueues<'a>> {
    // The control queues are between those of port 0 and port 1.
    let first = if port == 0 { 0 } else { 2 * port + 2 };
    match queues.get_mut(first..first + 2)? {
        [receive, transmit] => Some(PortQueues {
            receive,
            transmit,
            memory,
        }),
        _ => None,
    }
}

impl VirtioDevice for Console {
    fn device_id(&self) -> u32 {
        VIRTIO_ID_CONSOLE
    }

    fn features(&self) -> u64 {
        1 << F_SIZE | 1 << F_MULTIPORT
    }

    fn queue_count(&self) -> usize {
        2 * self.lines.len() + 2
    }

    fn queue_size_max(&self) -> u16 {
        QUEUE_SIZE_MAX
    }

    fn configuration(&self) -> Vec<u8> {
        let ports = u32::try_from(self.lines.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(8);
        bytes.extend(self.size.columns.to_le_bytes());
        bytes.extend(self.size.rows.to_le_bytes());
        bytes.extend(ports.to_le_bytes());
        bytes
    }

    fn driver_ok(&mut self, features: u64) {
        self.multiport = features >> F_MULTIPORT & 1 == 1;
    }

    fn reset(&mut self) {
        self.multiport = false;
        self.control_broken = false;
        self.unanswered = None;
        for line in self.lines.iter_mut().flatten() {
            line.reset();
        }
    }
}

impl MmioTransport<Console> {
    /// Serves the device for a bounded time: transfers bytes between the guest and the ports, and retries what waits
    /// for `backend`. True if there is more to do after others have had their turn. Call it when the driver has
    /// notified a queue or the transport says so, and after each change of the ports or their devices.
    pub fn serve(&mut self, memory: &GuestMemory, backend: &mut dyn Backend) -> bool {
        self.device_mut().release(backend);
        let mut progress = Progress::Done;
        if let Some((console, queues)) = self.running() {
            progress = console.serve(queues, memory, backend);
        }
        if std::mem::take(&mut self.device_mut().reconfigured) {
            self.note_configuration();
        }
        if self.device().control_broken {
            self.need_reset();
        }
        self.note_used(memory);
        progress == Progress::More
    }

    /// Disconnects all ports permanently, at the guest's end.
    pub fn end(&mut self, backend: &mut dyn Backend) {
        for line in self.device_mut().lines.iter_mut().flatten() {
            line.end(backend);
        }
    }
}
