//! Messages of the control queues (section 5.3.6.2), and the events that are still to be sent.

/// Bytes of a message's header.
pub(super) const MESSAGE_SIZE: usize = 8;

/// The event of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Driver: it is ready for ports (1), or failed (0).
    DeviceReady,
    /// Device: the port exists.
    PortAdd,
    /// Driver: the port can be used (1), or failed (0).
    PortReady,
    /// Device: this port is a console.
    ConsolePort,
    /// Device: the console has a new size; followed by columns and rows.
    Resize,
    /// Both: the port was opened (1) or closed (0) on this side.
    PortOpen,
    /// Device: the port's name follows.
    PortName,
}

impl Event {
    fn number(self) -> u16 {
        match self {
            Self::DeviceReady => 0,
            Self::PortAdd => 1,
            Self::PortReady => 3,
            Self::ConsolePort => 4,
            Self::Resize => 5,
            Self::PortOpen => 6,
            Self::PortName => 7,
        }
    }

    /// The event with this number, if a driver may send it.
    fn from_driver(number: u16) -> Option<Self> {
        [Self::DeviceReady, Self::PortReady, Self::PortOpen]
            .into_iter()
            .find(|event| event.number() == number)
    }
}

/// A message that the driver has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FromDriver {
    pub port: u32,
    /// `None`: unknown.
    pub event: Option<Event>,
    pub value: u16,
}

impl FromDriver {
    pub fn decode(bytes: [u8; MESSAGE_SIZE]) -> Self {
        let [p0, p1, p2, p3, e0, e1, v0, v1] = bytes;
        Self {
            port: u32::from_le_bytes([p0, p1, p2, p3]),
            event: Event::from_driver(u16::from_le_bytes([e0, e1])),
            value: u16::from_le_bytes([v0, v1]),
        }
    }
}

/// The bytes of a message to the driver.
pub(super) fn encode(port: u32, event: Event, value: u16, rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MESSAGE_SIZE + rest.len());
    bytes.extend(port.to_le_bytes());
    bytes.extend(event.number().to_le_bytes());
    bytes.extend(value.to_le_bytes());
    bytes.extend(rest);
    bytes
}

/// The events of one port that are still to be sent to the driver. Flags, not a queue of messages: a driver that asks
/// repeatedly without taking answers must not make it grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PendingEvents {
    pub add: bool,
    pub console: bool,
    pub size: bool,
    pub name: bool,
    pub open: bool,
}

impl PendingEvents {
    /// The first of them, in the order for the driver.
    pub fn first(self) -> Option<Event> {
        [
            (self.add, Event::PortAdd),
            (self.console, Event::ConsolePort),
            (self.size, Event::Resize),
            // This comes before the name: programs may use the port as soon as its name appears.
            (self.open, Event::PortOpen),
            (self.name, Event::PortName),
        ]
        .into_iter()
        .find_map(|(pending, event)| pending.then_some(event))
    }

    /// Clears `event`, which has been sent.
    pub fn clear(&mut self, event: Event) {
        match event {
            Event::PortAdd => self.add = false,
            Event::ConsolePort => self.console = false,
            Event::Resize => self.size = false,
            Event::PortName => self.name = false,
            Event::PortOpen => self.open = false,
            Event::DeviceReady | Event::PortReady => {}
        }
    }
}
