//! Messages of the control queues (section 5.3.6.2), and what is yet to be told to the driver.

/// Bytes of a message without what follows it.
pub(super) const MESSAGE_SIZE: usize = 8;

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Driver: it is ready to hear of ports (1), or failed (0).
    DeviceReady,
    /// Device: there is such a port.
    PortAdd,
    /// Driver: the port can be used (1), or failed (0).
    PortReady,
    /// Device: this port is a console.
    ConsolePort,
    /// Device: the console has a new size; followed by columns and rows.
    Resize,
    /// Both: somebody has opened (1) or closed (0) the port on this side.
    PortOpen,
    /// Device: the port has a name, which follows.
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

    /// One of those that a driver may send.
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
    /// None: of no meaning here.
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

/// What the driver hasn't been told yet of one port. Flags, not a queue of messages: a driver that
/// asks again and again and takes no answer must not make it grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Untold {
    pub add: bool,
    pub console: bool,
    pub size: bool,
    pub name: bool,
    pub open: bool,
}

impl Untold {
    /// The first of them, in the order in which the driver has to hear them.
    pub fn first(self) -> Option<Event> {
        [
            (self.add, Event::PortAdd),
            (self.console, Event::ConsolePort),
            (self.size, Event::Resize),
            // Before the name: who waits for that to appear may use the port at once.
            (self.open, Event::PortOpen),
            (self.name, Event::PortName),
        ]
        .into_iter()
        .find_map(|(untold, event)| untold.then_some(event))
    }

    /// That one has been told.
    pub fn told(&mut self, event: Event) {
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
