//! Events of the guest that can make ticks instead of the clock.

use std::fmt;
use std::str::FromStr;

use kvmprof_abi::recorder::{
    EVENT_BRANCH_MISSES, EVENT_BRANCHES, EVENT_CACHE_MISSES, EVENT_CACHE_REFERENCES, EVENT_CYCLES,
    EVENT_EXITS, EVENT_GUEST_TIME, EVENT_HALT, EVENT_INSTRUCTIONS, EVENT_KVM_EXITS, EVENT_MMIO,
    EVENT_MMIO_READ, EVENT_MMIO_WRITE, EVENT_PAGE_FAULTS, EVENT_PORT, EVENT_PORT_READ,
    EVENT_PORT_WRITE, MAX_PERIOD, MIN_CYCLES, MIN_GUEST_TIME,
};
use serde::{Deserialize, Serialize};

/// What is counted. The numbers are those of `REC_EVENT`.
///
/// kvmprof counts the exits that come to it, the first seven. The others are counted by the host's kernel, which not
/// every host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum EventKind {
    /// All exits of the guest from KVM to kvmprof.
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
    /// Processor time of the vCPU's thread, in ns: of the guest, and of its exits.
    GuestTime = EVENT_GUEST_TIME,
    /// Halts that an interrupt has ended.
    Halt = EVENT_HALT,
    /// Faults of guest memory that KVM has handled.
    PageFaults = EVENT_PAGE_FAULTS,
    /// All exits of the guest to KVM, also those that it answers itself.
    KvmExits = EVENT_KVM_EXITS,
    /// Processor cycles in the guest.
    Cycles = EVENT_CYCLES,
    /// Instructions in the guest.
    Instructions = EVENT_INSTRUCTIONS,
    /// Branches in the guest.
    Branches = EVENT_BRANCHES,
    /// Branches in the guest that were mispredicted.
    BranchMisses = EVENT_BRANCH_MISSES,
    /// Cache accesses in the guest.
    CacheReferences = EVENT_CACHE_REFERENCES,
    /// Cache misses in the guest.
    CacheMisses = EVENT_CACHE_MISSES,
}

impl EventKind {
    /// All kinds, by their numbers, which begin with 1.
    pub const ALL: [Self; 17] = [
        Self::Exits,
        Self::Port,
        Self::PortRead,
        Self::PortWrite,
        Self::Mmio,
        Self::MmioRead,
        Self::MmioWrite,
        Self::GuestTime,
        Self::Halt,
        Self::PageFaults,
        Self::KvmExits,
        Self::Cycles,
        Self::Instructions,
        Self::Branches,
        Self::BranchMisses,
        Self::CacheReferences,
        Self::CacheMisses,
    ];

    /// Its number in `REC_EVENT`.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The kind with this number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Its name on the command line and in exports.
    pub const fn name(self) -> &'static str {
        self.words().0
    }

    /// The word for one event.
    pub const fn singular(self) -> &'static str {
        self.words().1
    }

    /// What is counted, in words.
    pub const fn plural(self) -> &'static str {
        self.words().2
    }

    /// Its name, and the words for one event and for several.
    const fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Exits => ("exits", "exit", "exits"),
            Self::Port => ("port", "port access", "port accesses"),
            Self::PortRead => ("port-read", "port read", "port reads"),
            Self::PortWrite => ("port-write", "port write", "port writes"),
            Self::Mmio => ("mmio", "MMIO access", "MMIO accesses"),
            Self::MmioRead => ("mmio-read", "MMIO read", "MMIO reads"),
            Self::MmioWrite => ("mmio-write", "MMIO write", "MMIO writes"),
            Self::GuestTime => ("guest-time", "ns of guest time", "ns of guest time"),
            Self::Halt => ("halt", "halt", "halts"),
            Self::PageFaults => ("page-faults", "guest memory fault", "guest memory faults"),
            Self::KvmExits => ("kvm-exits", "exit to KVM", "exits to KVM"),
            Self::Cycles => ("cycles", "cycle", "cycles"),
            Self::Instructions => ("instructions", "instruction", "instructions"),
            Self::Branches => ("branches", "branch", "branches"),
            Self::BranchMisses => (
                "branch-misses",
                "mispredicted branch",
                "mispredicted branches",
            ),
            Self::CacheReferences => ("cache-references", "cache access", "cache accesses"),
            Self::CacheMisses => ("cache-misses", "cache miss", "cache misses"),
        }
    }

    /// The least period of such an event.
    pub const fn least_period(self) -> u64 {
        match self {
            Self::GuestTime => MIN_GUEST_TIME,
            Self::Cycles => MIN_CYCLES,
            _ => 1,
        }
    }

    /// Whether the host's kernel counts it: then the last one of each period makes the tick. kvmprof itself chooses
    /// one at random.
    pub const fn is_counted_by_kernel(self) -> bool {
        self.number() > Self::MmioWrite.number()
    }
}

/// An event that makes ticks: each vCPU counts it separately, and one of every `period` events is a tick. If kvmprof counts
/// them, a random one of these is the tick, so that ticks aren't in step with what the guest does again and again. If the
/// host's kernel counts them, it is the last one.
///
/// ```
/// use kvmprof_recording::{EventKind, SamplingEvent};
///
/// let event: SamplingEvent = "exits:100".parse().unwrap();
/// assert_eq!((event.kind(), event.period()), (EventKind::Exits, 100));
/// assert_eq!(event.to_string(), "exits:100");
/// let event: SamplingEvent = "guest-time:1500us".parse().unwrap();
/// assert_eq!((event.kind(), event.period()), (EventKind::GuestTime, 1_500_000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SamplingEvent {
    kind: EventKind,
    period: u64,
}

/// Units of time, the largest first, in ns.
const UNITS: [(&str, u64); 4] = [
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1000),
    ("ns", 1),
];

impl SamplingEvent {
    /// One of every `period` events of this kind; `None` unless `period` is [`EventKind::least_period`] to [`MAX_PERIOD`].
    pub fn new(kind: EventKind, period: u64) -> Option<Self> {
        (kind.least_period()..=MAX_PERIOD)
            .contains(&period)
            .then_some(Self { kind, period })
    }

    /// What is counted.
    pub fn kind(self) -> EventKind {
        self.kind
    }

    /// The number of events per tick, 1 to [`MAX_PERIOD`]; for guest time in ns.
    pub fn period(self) -> u64 {
        self.period
    }

    /// What makes a tick, in words: `every exit`, `one of every 100 exits`, `the last of every 10 halts`, `every 1 ms of guest time`.
    pub fn describe(self) -> String {
        let Self { kind, period } = self;
        if kind == EventKind::GuestTime {
            let (number, unit) = in_units(period);
            return format!("every {number} {unit} of guest time");
        }
        match period {
            1 => format!("every {}", kind.singular()),
            _ if kind.is_counted_by_kernel() => {
                format!("the last of every {period} {}", kind.plural())
            }
            _ => format!("one of every {period} {}", kind.plural()),
        }
    }
}

/// A time in ns as a whole number of the largest possible unit.
fn in_units(time: u64) -> (u64, &'static str) {
    let mut units = UNITS.into_iter();
    let unit = units.find(|(_, unit)| time.is_multiple_of(*unit));
    unit.map_or((time, "ns"), |(name, unit)| (time / unit, name))
}

impl fmt::Display for SamplingEvent {
    /// Writes the form that is parsed.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.kind.name();
        if self.kind == EventKind::GuestTime {
            let (number, unit) = in_units(self.period);
            return write!(formatter, "{name}:{number}{unit}");
        }
        write!(formatter, "{name}:{}", self.period)
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
    /// The period is missing.
    #[error(
        "How many to a sample? Write '{0}:1' to sample every one, or '{0}:100' for one of every 100"
    )]
    NoPeriod(&'static str),
    /// The time is missing.
    #[error("How long between two samples? Write 'guest-time:1ms'")]
    NoTime,
    /// The period is out of range, or no number.
    #[error("'{text}' is no number of {plural} from {least} to {MAX_PERIOD}", plural = kind.plural(), least = kind.least_period())]
    Period {
        /// The kind of the event.
        kind: EventKind,
        /// The text of the period.
        text: String,
    },
    /// The time is out of range, or none.
    #[error(
        "'{0}' is no time from 100us to 10s: write a whole number of ns, us, ms or s, such as 1ms"
    )]
    Time(String),
    /// The kind is unknown.
    #[error("'{0}' is no event: use {names}", names = names())]
    Unknown(String),
}

/// All names, in a sentence.
fn names() -> String {
    let names = EventKind::ALL.map(EventKind::name);
    let [first @ .., last] = names.as_slice() else {
        return String::new();
    };
    format!("{} or {last}", first.join(", "))
}

impl FromStr for SamplingEvent {
    type Err = EventError;

    fn from_str(text: &str) -> Result<Self, EventError> {
        let (name, period) = match text.split_once(':') {
            Some((name, period)) => (name, Some(period)),
            None => (text, None),
        };
        let kind =
            EventKind::from_name(name).ok_or_else(|| EventError::Unknown(name.to_owned()))?;
        if kind == EventKind::GuestTime {
            let time = period.ok_or(EventError::NoTime)?;
            let event = parse_time(time).and_then(|time| Self::new(kind, time));
            return event.ok_or_else(|| EventError::Time(time.to_owned()));
        }
        let period = period.ok_or(EventError::NoPeriod(kind.name()))?;
        let event = parse_number(period).and_then(|number| Self::new(kind, number));
        event.ok_or_else(|| EventError::Period {
            kind,
            text: period.to_owned(),
        })
    }
}

/// Parses digits: u64's own parser takes a sign, too.
fn parse_number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// A whole number and a unit, in ns.
fn parse_time(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let (_, unit) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
    parse_number(number)?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_convert_back_to_kinds() {
        for (number, kind) in (1..).zip(EventKind::ALL) {
            assert_eq!(kind.number(), number);
            assert_eq!(EventKind::from_number(number), Some(kind));
            assert_eq!(EventKind::from_name(kind.name()), Some(kind));
            for period in [kind.least_period(), 1_234_567, MAX_PERIOD] {
                let event = SamplingEvent::new(kind, period).unwrap();
                assert_eq!(event.to_string().parse(), Ok(event));
            }
            assert_eq!(SamplingEvent::new(kind, kind.least_period() - 1), None);
            assert_eq!(SamplingEvent::new(kind, MAX_PERIOD + 1), None);
        }
        assert_eq!(EventKind::from_number(0), None);
        assert_eq!(EventKind::from_number(18), None);
    }

    #[test]
    fn invalid_events_are_explained() {
        let parsed = |text: &str| text.parse::<SamplingEvent>().unwrap_err();
        assert_eq!(parsed("exits"), EventError::NoPeriod("exits"));
        assert_eq!(parsed("guest-time"), EventError::NoTime);
        for text in ["", "exit:1", "cycle:1000", ":5", "EXITS:1", " exits:1"] {
            assert!(matches!(parsed(text), EventError::Unknown(_)), "{text}");
        }
        let wrong = ",0,-1,+1,1.5,1k,1ms,10000000001,99999999999999999999,1 ,1:1";
        for period in wrong.split(',') {
            let expected = EventError::Period {
                kind: EventKind::Mmio,
                text: period.to_owned(),
            };
            assert_eq!(parsed(&format!("mmio:{period}")), expected);
        }
        let words = parsed("cycles:9999").to_string();
        let expected = "'9999' is no number of cycles from 10000 to 10000000000";
        assert_eq!(words, expected);
        let all = parsed("x:1").to_string();
        assert!(all.ends_with("cache-references or cache-misses"), "{all}");
    }

    #[test]
    fn guest_time_has_a_unit() {
        let period = |text: &str| text.parse().map(SamplingEvent::period);
        assert_eq!(period("guest-time:100us"), Ok(100_000));
        assert_eq!(period("guest-time:250000ns"), Ok(250_000));
        assert_eq!(period("guest-time:10s"), Ok(10_000_000_000));
        let wrong = ",1,1000000,ms,-1ms,1 ms,1.5ms,99us,11s,1m,18446744073709551615s";
        for time in wrong.split(',') {
            let refused = period(&format!("guest-time:{time}"));
            assert_eq!(refused, Err(EventError::Time(time.to_owned())));
        }
        let text = |text: &str| text.parse().map(|event: SamplingEvent| event.to_string());
        assert_eq!(text("guest-time:2000us").unwrap(), "guest-time:2ms");
    }

    #[test]
    fn texts_describe_the_source_of_ticks() {
        let words = |text: &str| text.parse::<SamplingEvent>().unwrap().describe();
        assert_eq!(words("exits:100"), "one of every 100 exits");
        assert_eq!(words("mmio-read:1"), "every MMIO read");
        assert_eq!(words("halt:10"), "the last of every 10 halts");
        assert_eq!(words("kvm-exits:1"), "every exit to KVM");
        assert_eq!(words("guest-time:1500us"), "every 1500 us of guest time");
    }

    #[test]
    fn documents_have_the_event_as_it_is_written() {
        let event: SamplingEvent = "port-write:20".parse().unwrap();
        let json = serde_json::to_string(&event).unwrap();
        assert_eq!(json, "\"port-write:20\"");
        assert_eq!(serde_json::from_str::<SamplingEvent>(&json).unwrap(), event);
        assert!(serde_json::from_str::<SamplingEvent>("\"halts:1\"").is_err());
    }
}
