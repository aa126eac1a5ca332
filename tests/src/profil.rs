//! A client's open profil.

use std::collections::BTreeMap;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::profil::{Call, Function, PROFIL_CALL, PROFIL_GETSTAT, Range, State, Status};
use kvmprof_abi::wire::{MAX_DATA, device};
use kvmprof_client::{ClientError, Connection, RemoteDevice};

use crate::{errno_of, until};

/// An open profil.
pub struct Profil(pub RemoteDevice);

/// A call of `function` for process `pid`, whose other members are 0.
pub fn profil_call(function: Function, pid: i32) -> Call {
    Call {
        function,
        flags: 0,
        pid,
        ranges: 0,
        buffer: 0,
        size: 0,
        offset: 0,
        scale: 0,
        time: u64::MAX,
        program: [0; 16],
    }
}

/// The `call`, with a buffer that the device keeps.
pub fn kept(call: Call) -> Call {
    Call {
        flags: call.flags | Call::KEEP,
        ..call
    }
}

impl Profil {
    /// Opens profil.
    ///
    /// # Panics
    /// If this fails.
    pub fn open(connection: &Connection) -> Self {
        Self(connection.open(device::PROFIL, 0).unwrap())
    }

    fn try_call(&self, call: &Call, ranges: &[Range]) -> Result<i64, ClientError> {
        let call = Call {
            ranges: u32::try_from(ranges.len()).unwrap(),
            ..*call
        };
        let mut data = call.encode().to_vec();
        for range in ranges {
            data.extend_from_slice(&range.encode());
        }
        self.0
            .ioctl_with(PROFIL_CALL, 0, &data, 0)
            .map(|(value, _)| value)
    }

    /// Makes `call`, with its `ranges`; returns what the function returns.
    ///
    /// # Panics
    /// If it fails.
    pub fn call(&self, call: &Call, ranges: &[Range]) -> i64 {
        self.try_call(call, ranges).unwrap()
    }

    /// Makes a call that has to fail. Returns its errno.
    ///
    /// # Panics
    /// If it succeeds.
    pub fn refused(&self, call: &Call, ranges: &[Range]) -> Errno {
        errno_of(self.try_call(call, ranges))
    }

    /// The state and the account of the last call's process.
    ///
    /// # Panics
    /// If this fails, or if the account doesn't balance.
    pub fn status(&self) -> Status {
        let (_, data) = self
            .0
            .ioctl_with(PROFIL_GETSTAT, 0, &[], Status::SIZE)
            .unwrap();
        let status = Status::decode(&data).unwrap();
        let parts = status.stored + status.outside + status.waiting + status.lost;
        assert_eq!(status.ticks, parts, "{status:?}");
        status
    }

    /// Waits until `count` ticks of the last call's process were stored, or storing has stopped.
    pub fn until_stored(&self, count: u64) -> Status {
        until("ticks were stored", || {
            let status = self.status();
            let is_enough = status.stored >= count || status.state != State::On;
            is_enough.then_some(status)
        })
    }

    /// The counts of a kept histogram.
    ///
    /// # Panics
    /// If there is none.
    pub fn counts(&self) -> Vec<u16> {
        let bytes = self.0.read(MAX_DATA).unwrap();
        let counts = bytes.as_chunks::<2>().0.iter();
        counts.map(|count| u16::from_le_bytes(*count)).collect()
    }
}

/// The table of a process that `kvmprof profil` and `kvmprof pcsample` print.
#[derive(Debug)]
pub struct ProfilTable {
    /// Each row's count, and its words.
    pub rows: Vec<(u64, Vec<String>)>,
    /// The account below it: ticks of the process, and those of each kind.
    pub ticks: u64,
    kinds: BTreeMap<String, u64>,
}

impl ProfilTable {
    /// Reads the output.
    ///
    /// # Panics
    /// If it isn't such a table.
    pub fn parse(text: &str) -> Self {
        let rows = text.lines().filter(|line| line.starts_with("  0x"));
        let rows = rows.map(|row| {
            let words: Vec<String> = row.split_whitespace().map(str::to_owned).collect();
            (words[1].parse().unwrap(), words)
        });
        let mut lines = text.lines();
        let account = lines.find(|line| line.contains(" ticks of process "));
        let account = account.unwrap_or_else(|| panic!("no account: {text}"));
        // 50 ticks of process 101 in user mode = 48 stored + 2 lost
        let (all, kinds) = account.split_once(" = ").unwrap();
        let kinds = kinds.split(" + ").map(|kind| {
            let (count, kind) = kind.split_once(' ').unwrap();
            (kind.to_owned(), count.parse().unwrap())
        });
        let ticks = all.split(' ').next().unwrap().parse().unwrap();
        Self {
            rows: rows.collect(),
            ticks,
            kinds: kinds.collect(),
        }
    }

    /// Ticks of the kind `stored`.
    pub fn stored(&self) -> u64 {
        self.kinds.get("stored").copied().unwrap_or_default()
    }

    /// All counts of the rows.
    pub fn sum(&self) -> u64 {
        self.rows.iter().map(|(count, _)| count).sum()
    }

    /// The counts of a function's rows.
    pub fn of(&self, function: &str) -> u64 {
        let its = self
            .rows
            .iter()
            .filter(|(_, words)| words.last().is_some_and(|it| it == function));
        its.map(|(count, _)| count).sum()
    }
}
