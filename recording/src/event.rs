//! Events of the guest that can take samples, instead of the clock.

use std::fmt;
use std::str::FromStr;

use kvmprof_abi::recorder::{
    EVENT_EXITS, EVENT_MMIO, EVENT_MMIO_READ, EVENT_MMIO_WRITE, EVENT_PORT, EVENT_PORT_READ,
    EVENT_PORT_WRITE, MAX_PERIOD,
};
use serde::{Deserialize, Serialize};

/// What is counted: exits of the guest from KVM to kvmprof. The numbers are those of `REC_EVENT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum EventKind {
    /// All of them.
    Exits = EVENT_EXITS,
    /// Reads and writes of I/O ports.
    Port = EVENT_PORT,
    /// Reads of I/O ports.
    PortRead = EVENT_PORT_READ,
    /// Writes of I/O ports.
    PortWrite = EVENT_PORT_WRITE,
    /// Reads and writes of addresses without memory.
    Mmio = EVENT_MMIO,
    /// Reads of addresses without memory.
    MmioRead = EVENT_MMIO_READ,
    /// Writes to addresses without memory.
    MmioWrite = EVENT_MMIO_WRITE,
}

impl EventKind {
    /// All kinds, by their numbers, which begin with 1.
    pub const ALL: [Self; 7] = [
        Self::Exits,
        Self::Port,
        Self::PortRead,
        Self::PortWrite,
        Self::Mmio,
        Self::MmioRead,
        Self::MmioWrite,
    ];

    /// Its number in `REC_EVENT`.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The kind with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// Its name on the command line and in exports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exits => "exits",
            Self::Port => "port",
            Self::PortRead => "port-read",
            Self::PortWrite => "port-write",
            Self::Mmio => "mmio",
            Self::MmioRead => "mmio-read",
            Self::MmioWrite => "mmio-write",
        }
    }

    /// What is counted, in words.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Exits => "exits",
            Self::Port => "port accesses",
            Self::PortRead => "port reads",
            Self::PortWrite => "port writes",
            Self::Mmio => "MMIO accesses",
            Self::MmioRead => "MMIO reads",
            Self::MmioWrite => "MMIO writes",
        }
    }

    /// One of what is counted, in words.
    pub const fn singular(self) -> &'static str {
        match self {
            Self::Exits => "exit",
            Self::Port => "port access",
            Self::PortRead => "port read",
            Self::PortWrite => "port write",
            Self::Mmio => "MMIO access",
            Self::MmioRead => "MMIO read",
            Self::MmioWrite => "MMIO write",
        }
    }
}

/// An event that takes samples: each vCPU counts it for itself, and of every `period` one is a tick, chosen at random so
/// that ticks aren't in step with what the guest does again and again.
///
/// ```
/// use kvmprof_recording::{EventKind, SamplingEvent};
///
/// let event: SamplingEvent = "exits:100".parse().unwrap();
/// assert_eq!((event.kind(), event.period()), (EventKind::Exits, 100));
/// assert_eq!(event.to_string(), "exits:100");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SamplingEvent {
    kind: EventKind,
    period: u32,
}

impl SamplingEvent {
    /// One of every `period` events of this kind; `None` unless `period` is 1 to [`MAX_PERIOD`].
    pub fn new(kind: EventKind, period: u32) -> Option<Self> {
        (1..=MAX_PERIOD)
            .contains(&period)
            .then_some(Self { kind, period })
    }

    /// What is counted.
    pub fn kind(self) -> EventKind {
        self.kind
    }

    /// How many of them there are to a tick, 1 to [`MAX_PERIOD`].
    pub fn period(self) -> u32 {
        self.period
    }

    /// What makes a tick, in words: `every exit`, `one of every 100 exits`.
    pub fn describe(self) -> String {
        match self.period {
            1 => format!("every {}", self.kind.singular()),
            period => format!("one of every {period} {}", self.kind.plural()),
        }
    }
}

impl fmt::Display for SamplingEvent {
    /// As it is parsed.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.kind.name(), self.period)
    }
}

impl From<SamplingEvent> for String {
    fn from(event: SamplingEvent) -> Self {
        event.to_string()
    }
}

impl TryFrom<String> for SamplingEvent {
    type Error = EventError;

    fn try_from(text: String) -> Result<Self, EventError> {
        text.parse()
    }
}

/// Why a text is no event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// There is no period behind it.
    #[error(
        "How many to a sample? Write '{0}:1' to sample every one, or '{0}:100' for one of every 100"
    )]
    NoPeriod(String),
    /// The period is out of range, or no number.
    #[error("'{0}' is no number of events from 1 to {MAX_PERIOD}")]
    Period(String),
    /// The kind is unknown.
    #[error(
        "'{0}' is no event: use exits, port, port-read, port-write, mmio, mmio-read or mmio-write"
    )]
    Unknown(String),
    /// KVM tells nobody about halts.
    #[error(
        "Halts can't be counted: KVM answers HLT itself, without an exit to kvmprof. The clock tells how long vCPUs are halted"
    )]
    Halt,
    /// That is what the clock is for.
    #[error(
        "Guest time is no event: leave the event out to sample by the clock, whose rate is that of run --hz"
    )]
    Time,
}

impl FromStr for SamplingEvent {
    type Err = EventError;

    fn from_str(text: &str) -> Result<Self, EventError> {
        let (name, period) = match text.split_once(':') {
            Some((name, period)) => (name, Some(period)),
            None => (text, None),
        };
        let kind = match name {
            "halt" => return Err(EventError::Halt),
            "guest-time" => return Err(EventError::Time),
            _ => EventKind::ALL.into_iter().find(|kind| kind.name() == name),
        };
        let kind = kind.ok_or_else(|| EventError::Unknown(name.to_owned()))?;
        let period = period.ok_or_else(|| EventError::NoPeriod(name.to_owned()))?;
        // Only digits: u32's own parser takes a sign, too.
        let digits = period.bytes().all(|byte| byte.is_ascii_digit());
        let number = period.parse().ok().filter(|_| digits);
        number
            .and_then(|number| Self::new(kind, number))
            .ok_or_else(|| EventError::Period(period.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_lead_back_to_their_kinds() {
        for (number, kind) in (1..).zip(EventKind::ALL) {
            assert_eq!(kind.number(), number);
            assert_eq!(EventKind::from_number(number), Some(kind));
            for period in [1, 7, MAX_PERIOD] {
                let event = SamplingEvent::new(kind, period).unwrap();
                assert_eq!(event.to_string().parse(), Ok(event));
            }
        }
        assert_eq!(EventKind::from_number(0), None);
        assert_eq!(EventKind::from_number(8), None);
    }

    #[test]
    fn what_is_no_event_says_why() {
        let parsed = |text: &str| text.parse::<SamplingEvent>().unwrap_err();
        assert_eq!(parsed("exits"), EventError::NoPeriod("exits".to_owned()));
        assert_eq!(parsed("halt:1"), EventError::Halt);
        assert_eq!(parsed("guest-time:1ms"), EventError::Time);
        for text in ["", "exit:1", "cycles:1000", ":5", "EXITS:1", " exits:1"] {
            assert!(matches!(parsed(text), EventError::Unknown(_)), "{text}");
        }
        for period in [
            "",
            "0",
            "-1",
            "+1",
            "1.5",
            "1k",
            "10000001",
            "99999999999",
            "1 ",
            "1:1",
        ] {
            let expected = EventError::Period(period.to_owned());
            assert_eq!(parsed(&format!("mmio:{period}")), expected);
        }
    }

    #[test]
    fn words_say_what_makes_a_tick() {
        let words = |text: &str| text.parse::<SamplingEvent>().unwrap().describe();
        assert_eq!(words("exits:100"), "one of every 100 exits");
        assert_eq!(words("mmio-read:1"), "every MMIO read");
    }

    #[test]
    fn documents_have_it_as_it_is_written() {
        let event: SamplingEvent = "port-write:20".parse().unwrap();
        let json = serde_json::to_string(&event).unwrap();
        assert_eq!(json, "\"port-write:20\"");
        assert_eq!(serde_json::from_str::<SamplingEvent>(&json).unwrap(), event);
        assert!(serde_json::from_str::<SamplingEvent>("\"halt:1\"").is_err());
    }
}
