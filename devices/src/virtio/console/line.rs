//! One port of the device: its state, and the transfer between its queues and the host's end.

use super::control::PendingEvents;
use super::port::{Port, PortError};
use crate::endpoint::Backend;
use crate::virtio::{Direction, GuestMemory, QueueError, Virtqueue};

/// Maximum number of bytes moved in one step.
const STEP: usize = 16 << 10;
/// Bytes moved before other ports have their turn: the same as the host socket takes from a client at a time.
const BUDGET: usize = 64 << 10;
/// The minimum that a step counts towards the budget: many tiny chains are work, too.
const STEP_COST: usize = 1 << 10;

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Everything possible is done.
    Done,
    /// There is more to do, after other ports have had their turns.
    More,
}

impl Progress {
    pub fn and(self, other: Self) -> Self {
        if self == Self::More { self } else { other }
    }
}

/// The two queues of a port.
pub(super) struct PortQueues<'a> {
    /// To the driver.
    pub receive: &'a mut Virtqueue,
    /// From the driver.
    pub transmit: &'a mut Virtqueue,
    pub memory: &'a GuestMemory,
}

/// The state of a port's conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The guest hasn't opened it.
    Closed,
    /// Bytes are transferred.
    Open,
    /// The host has hung up, and the guest hasn't closed it yet.
    HungUp,
}

/// Errors of a port since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortFaults {
    /// Unusable chains and rings.
    pub queue: u64,
    /// Conversations that broke the protocol.
    pub protocol: u64,
}

/// A port's state, and its two ends.
pub(super) struct Line {
    pub number: usize,
    /// `None`: it is a console.
    pub name: Option<String>,
    pub pending: PendingEvents,
    pub faults: PortFaults,
    port: Box<dyn Port>,
    state: State,
    /// One of its queues is unusable until a reset.
    broken: bool,
    /// The guest has reset the device, and the host's end doesn't know yet.
    abandoned: bool,
    /// Maximum number of chains that are still read before a close takes effect.
    draining: Option<u16>,
    complained: bool,
}

impl Line {
    pub fn new(number: usize, name: Option<String>, port: Box<dyn Port>) -> Self {
        Self {
            number,
            name,
            pending: PendingEvents::default(),
            faults: PortFaults::default(),
            port,
            state: State::Closed,
            broken: false,
            abandoned: false,
            draining: None,
            complained: false,
        }
    }

    /// Its name in messages.
    pub fn title(&self) -> &str {
        self.name.as_deref().unwrap_or("console")
    }

    /// Whether the guest should see the host's end as open.
    pub fn host_open(&self) -> bool {
        self.state != State::HungUp && !self.broken
    }

    /// Handles a reset of the device.
    pub fn reset(&mut self) {
        self.abandoned |= self.state == State::Open;
        self.state = State::Closed;
        self.broken = false;
        self.draining = None;
        self.pending = PendingEvents::default();
    }

    /// Completes a reset.
    pub fn release(&mut self, backend: &mut dyn Backend) {
        if std::mem::take(&mut self.abandoned) {
            self.port.closed(backend);
        }
    }

    /// Ends the conversation permanently from the host's side.
    pub fn end(&mut self, backend: &mut dyn Backend) {
        self.abandoned |= self.state == State::Open;
        self.release(backend);
        self.state = State::HungUp;
    }

    /// Handles the guest's opening.
    pub fn open(&mut self) {
        if self.state == State::Closed && !self.broken {
            self.port.opened();
            self.state = State::Open;
        }
    }

    /// Handles the guest's closing. It takes effect after the data sent before it has been read.
    pub fn close(&mut self, queues: &mut PortQueues<'_>, backend: &mut dyn Backend) -> Progress {
        if self.state == State::Closed {
            return Progress::Done;
        }
        if self.drain(queues, backend) == Progress::More {
            return Progress::More;
        }
        self.draining = None;
        if self.state == State::Open {
            self.port.closed(backend);
        } else if !self.broken {
            self.pending.open = true;
        }
        self.state = State::Closed;
        Progress::Done
    }

    /// Transfers bytes in both directions.
    pub fn serve(&mut self, queues: &mut PortQueues<'_>, backend: &mut dyn Backend) -> Progress {
        let mut progress = Progress::Done;
        let mut left = BUDGET;
        self.port.begin_turn();
        // While the port is being closed, `close` reads its data within a limit.
        while self.state == State::Open && self.draining.is_none() {
            if let Err(error) = self.port.wake(backend) {
                self.hang_up(&error, backend);
                break;
            }
            let moved = self
                .transmit(queues, backend)
                .and_then(|sent| Ok(sent + self.receive(queues)?));
            match moved {
                Ok(0) => {
                    if self.port.waits_for_turn() {
                        progress = Progress::More;
                    }
                    break;
                }
                Ok(moved) => left = left.saturating_sub(moved.max(STEP_COST)),
                Err(error) => self.break_off(error, backend),
            }
            if left == 0 {
                progress = Progress::More;
                break;
            }
        }
        progress.and(self.give_back(queues, left, backend))
    }

    /// Returns unread chains of a port that the host has hung up on. Otherwise a driver may wait for them forever (Linux does, in
    /// a blocking write(2)).
    fn give_back(
        &mut self,
        queues: &mut PortQueues<'_>,
        mut left: usize,
        backend: &mut dyn Backend,
    ) -> Progress {
        while self.state == State::HungUp && !self.broken && self.draining.is_none() {
            match discard(queues) {
                Ok(0) => break,
                Ok(bytes) => left = left.saturating_sub(bytes.max(STEP_COST)),
                Err(error) => self.break_off(error, backend),
            }
            if left == 0 {
                return Progress::More;
            }
        }
        Progress::Done
    }

    /// Reads one piece of the guest's data; returns its number of bytes.
    fn transmit(
        &mut self,
        queues: &mut PortQueues<'_>,
        backend: &mut dyn Backend,
    ) -> Result<usize, QueueError> {
        let (queue, memory) = (&mut *queues.transmit, queues.memory);
        if !self.port.wants_input() || !queue.begin(memory, Direction::ToDevice)? {
            return Ok(0);
        }
        let mut bytes = [0; STEP];
        let count = queue.read(memory, &mut bytes)?;
        let bytes = bytes.get(..count).unwrap_or_default();
        let result = self.port.receive(bytes, backend);
        if queue.remaining() == 0 {
            queue.finish(memory)?;
        }
        if let Err(error) = result {
            self.hang_up(&error, backend);
        }
        Ok(count)
    }

    /// Writes available data into one buffer of the guest; returns the number of bytes.
    fn receive(&mut self, queues: &mut PortQueues<'_>) -> Result<usize, QueueError> {
        let (queue, memory) = (&mut *queues.receive, queues.memory);
        if !self.port.has_output() || !queue.begin(memory, Direction::ToDriver)? {
            return Ok(0);
        }
        let mut moved = 0;
        let mut bytes = [0; STEP];
        while queue.remaining() > 0 && moved < BUDGET {
            let room = queue.remaining().min(STEP);
            let count = self.port.send(bytes.get_mut(..room).unwrap_or_default());
            if count == 0 {
                break;
            }
            queue.write(memory, bytes.get(..count).unwrap_or_default())?;
            moved += count;
        }
        queue.finish(memory)?;
        Ok(moved)
    }

    /// Reads the data from before the guest's closing, as far as the host's end accepts it.
    fn drain(&mut self, queues: &mut PortQueues<'_>, backend: &mut dyn Backend) -> Progress {
        // A driver that keeps sending must not be able to keep it open.
        let mut chains = self.draining.unwrap_or(queues.transmit.size());
        let mut left = BUDGET;
        self.port.begin_turn();
        if self.state == State::Open
            && let Err(error) = self.port.wake(backend)
        {
            self.hang_up(&error, backend);
        }
        while !self.broken {
            let waits = self.state == State::Open && self.port.waits_for_turn();
            if !waits && chains == 0 {
                break;
            }
            if waits || left == 0 {
                self.draining = Some(chains);
                return Progress::More;
            }
            let step = if self.state == State::Open && self.port.wants_input() {
                self.transmit(queues, backend)
            } else {
                discard(queues)
            };
            match step {
                Ok(0) => break,
                Ok(moved) => left = left.saturating_sub(moved.max(STEP_COST)),
                Err(error) => self.break_off(error, backend),
            }
            chains -= u16::from(!queues.transmit.in_progress());
        }
        Progress::Done
    }

    /// The guest broke the port's protocol: the host hangs up until the guest has closed, too.
    fn hang_up(&mut self, error: &PortError, backend: &mut dyn Backend) {
        self.faults.protocol += 1;
        let cause = error
            .source()
            .map_or(String::new(), |cause| format!(": {cause}"));
        self.complain(&format!("the guest broke the protocol: {error}{cause}"));
        self.port.closed(backend);
        self.state = State::HungUp;
        self.pending.open = true;
    }

    /// Gives up a queue that has become unusable.
    fn break_off(&mut self, error: QueueError, backend: &mut dyn Backend) {
        self.faults.queue += 1;
        self.complain(&format!("not served before the next reset: {error}"));
        self.broken = true;
        if self.state == State::Open {
            self.port.closed(backend);
        }
        self.state = State::HungUp;
        self.pending.open = true;
    }

    /// Logs only the first problem: a hostile guest must not be able to fill the log.
    fn complain(&mut self, what: &str) {
        if !std::mem::replace(&mut self.complained, true) {
            log::warn!(
                "virtio-console port {} ({}): {what}",
                self.number,
                self.title()
            );
        }
    }
}

/// Returns the next chain unread; returns its number of bytes.
fn discard(queues: &mut PortQueues<'_>) -> Result<usize, QueueError> {
    let (queue, memory) = (&mut *queues.transmit, queues.memory);
    if !queue.begin(memory, Direction::ToDevice)? {
        return Ok(0);
    }
    let bytes = queue.remaining();
    queue.finish(memory)?;
    Ok(bytes)
}
