//! The kernel profiler, `prf(7)`, as a plain state machine: ticks and requests in, bytes and error
//! numbers out.
//!
//! The manual page is the specification. It leaves some details open, which this device defines:
//!
//! - **Minors.** Each vCPU has one, and 255 stands for all together; others are ENXIO. Each has a table, a state and
//!   counters of its own. Opening isn't exclusive, and changes nothing here.
//! - **Counting** is at 100 Hz on each vCPU at any rate of the clock: of a faster clock every n-th tick of a vCPU
//!   counts, where idle, stolen and lost ticks are ticks too. All minors count the same ticks, so that over the same
//!   time the counters of 255 are the sums of those of the vCPUs. A minor can't be turned on (EINVAL) with a rate that
//!   isn't a multiple of 100, or without a clock.
//! - **Counters.** A kernel or interrupt tick counts at the last address at or below its program counter (a function's
//!   first instruction belongs to it), or at the first address if all are above. Of equal addresses the last one
//!   counts. A user tick counts in the counter after the last address, an idle one in the next.
//! - **Writing** checks in the order ENOSPC, E2BIG, EBUSY, which change nothing, then EINVAL, which
//!   leaves no valid table. ENOSPC also stands for more memory than all minors may take together.
//! - **Reading** always gives the table from its start, in any length; there is no end of file. ENXIO without a valid
//!   table. All counters are of the same moment.
//! - **Turning on** keeps the counters, and does nothing without a valid table. The minor stays on when the client has
//!   gone.
//! - **The ledger** starts when a minor is turned on, and stops when it is turned off. Ticks in counters are
//!   `recorded`, ticks between the n-th ones `ungathered`, and n-th ticks without a sample `stolen` or `lost`.

mod index;
mod minor;
mod phases;
mod table;

use std::collections::BTreeMap;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::prf::{
    ALL_VCPUS, MAX_ADDRESSES, MIN_ADDRESSES, PRF_GETMAX, PRF_GETSIZE, PRF_GETSTATUS, PRF_SETSTATE,
    WORD_SIZE,
};

use self::minor::Minor;
use self::phases::Phases;
use self::table::Table;
use crate::endpoint::IoctlReply;
use kvmprof_recording::{ConsumerLedger, Ticks};

/// Maximum memory of the tables of all minors together, in bytes: enough for 65,536 addresses on each of 64 vCPUs and
/// on 255 (some 70 MB), and for the largest table on 30 of them. Guests may load tables too.
pub const MAX_MEMORY: usize = 128 << 20;

/// What a request does to a minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// Turns it on.
    On,
    /// Turns it off.
    Off,
}

/// A minor for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinorReport {
    /// Its number.
    pub minor: u16,
    /// Whether it is on.
    pub on: bool,
    /// Addresses in the table.
    pub addresses: usize,
    /// Its ledger since it was last turned on.
    pub ledger: ConsumerLedger,
}

/// The device, with all its minors.
#[derive(Debug)]
pub struct Prf {
    vcpus: u16,
    max_addresses: usize,
    max_memory: usize,
    phases: Phases,
    // Only minors that have been written to.
    minors: BTreeMap<u16, Minor>,
    has_ended: bool,
}

impl Prf {
    /// The device of a guest with `vcpus` vCPUs. `max_addresses` limits the addresses of a table; it is adjusted to 3
    /// to [`MAX_ADDRESSES`].
    pub fn new(vcpus: u16, max_addresses: usize) -> Self {
        Self {
            vcpus,
            max_addresses: max_addresses.clamp(MIN_ADDRESSES, MAX_ADDRESSES),
            max_memory: MAX_MEMORY,
            phases: Phases::new(vcpus),
            minors: BTreeMap::new(),
            has_ended: false,
        }
    }

    /// Checks that `minor` exists and can be opened.
    ///
    /// # Errors
    /// ENXIO if there is no such minor.
    pub fn check_minor(&self, minor: u16) -> Result<(), Errno> {
        if minor < self.vcpus || minor == ALL_VCPUS {
            return Ok(());
        }
        Err(Errno::ENXIO)
    }

    /// Loads the table in `bytes` and clears its counters; returns the number of bytes.
    ///
    /// # Errors
    /// ENOSPC for too many addresses, E2BIG for too few or an incomplete one, EBUSY while `minor` is on: nothing has
    /// changed then. EINVAL if they don't ascend: there is no valid table then. ENXIO if there is no such minor.
    pub fn write(&mut self, minor: u16, bytes: &[u8]) -> Result<usize, Errno> {
        self.check_minor(minor)?;
        let addresses = bytes.len() / WORD_SIZE;
        if addresses > self.max_addresses || !self.has_room(minor, addresses) {
            return Err(Errno::ENOSPC);
        }
        if addresses < MIN_ADDRESSES || !bytes.len().is_multiple_of(WORD_SIZE) {
            return Err(Errno::E2BIG);
        }
        let minor = self.minors.entry(minor).or_default();
        if minor.is_on() {
            return Err(Errno::EBUSY);
        }
        let table = Table::parse(bytes);
        let valid = table.is_some();
        minor.load(table);
        if valid {
            Ok(bytes.len())
        } else {
            Err(Errno::EINVAL)
        }
    }

    /// True if there is memory for a table of `addresses` addresses instead of `minor`'s.
    fn has_room(&self, minor: u16, addresses: usize) -> bool {
        let others = self.minors.iter().filter(|(other, _)| **other != minor);
        let taken: usize = others
            .map(|(_, other)| Table::memory(other.addresses()))
            .sum();
        taken + Table::memory(addresses) <= self.max_memory
    }

    /// Appends at most `limit` bytes of the table and its counters, from the start, to `out`, and returns their number.
    ///
    /// # Errors
    /// ENXIO without a valid table.
    pub fn read(&self, minor: u16, limit: usize, out: &mut Vec<u8>) -> Result<usize, Errno> {
        let table = self.minors.get(&minor).and_then(Minor::table);
        Ok(table.ok_or(Errno::ENXIO)?.read(limit, out))
    }

    /// Executes `command`; see `kvmprof_abi::prf` for its argument. The reply's data is what the command stores, and
    /// its value is 0.
    ///
    /// # Errors
    /// EINVAL for an unknown command, and for turning `minor` on if the clock's rate isn't a multiple of 100 Hz; ENXIO
    /// for turning it on after the guest's end.
    pub fn ioctl(&mut self, minor: u16, command: u32, argument: i64) -> Result<IoctlReply, Errno> {
        let known = self.minors.get(&minor);
        let value = match command {
            PRF_GETSTATUS => known.map_or(0, Minor::status),
            PRF_GETSIZE => length(known.map_or(0, Minor::addresses)),
            PRF_GETMAX => length(self.max_addresses),
            PRF_SETSTATE => {
                self.set_state(minor, argument)?;
                return Ok(IoctlReply::default());
            }
            _ => return Err(Errno::EINVAL),
        };
        Ok(IoctlReply {
            value: 0,
            data: value.to_le_bytes().to_vec(),
        })
    }

    fn set_state(&mut self, minor: u16, argument: i64) -> Result<(), Errno> {
        let switch = self.switch(minor, PRF_SETSTATE, argument);
        if switch == Some(Switch::On) {
            if self.has_ended {
                return Err(Errno::ENXIO);
            }
            if !self.phases.is_countable() {
                return Err(Errno::EINVAL);
            }
        }
        if let (Some(switch), Some(minor)) = (switch, self.minors.get_mut(&minor)) {
            minor.turn(switch == Switch::On);
        }
        Ok(())
    }

    /// Whether this ioctl would turn `minor` on or off. If so, the caller must first feed all ticks up to now, and for
    /// turning on call [`Prf::set_hz`].
    pub fn switch(&self, minor: u16, command: u32, argument: i64) -> Option<Switch> {
        let minor = self.minors.get(&minor)?;
        minor.table()?;
        match (command, argument & 1 != 0, minor.is_on()) {
            (PRF_SETSTATE, true, false) => Some(Switch::On),
            (PRF_SETSTATE, false, true) => Some(Switch::Off),
            _ => None,
        }
    }

    /// Sets the clock's rate, now or at its start, in Hz per vCPU. It must not change while a minor is on.
    pub fn set_hz(&mut self, hz: u32) {
        self.phases.set_hz(hz);
    }

    /// Takes ticks of the clock.
    pub fn feed(&mut self, ticks: &Ticks) {
        let Some(counted) = self.phases.pick(ticks) else {
            return;
        };
        for minor in [ticks.vcpu, ALL_VCPUS] {
            if let Some(minor) = self.minors.get_mut(&minor) {
                minor.feed(&counted);
            }
        }
    }

    /// True after [`Prf::end`].
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Turns all minors off permanently, at the guest's end. Their counters can still be read.
    pub fn end(&mut self) {
        self.has_ended = true;
        self.turn_off();
    }

    /// Turns all minors off, as their ioctl does.
    pub fn turn_off(&mut self) {
        for minor in self.minors.values_mut() {
            minor.turn(false);
        }
    }

    /// True while `minor` is on.
    pub fn is_on(&self, minor: u16) -> bool {
        self.minors.get(&minor).is_some_and(Minor::is_on)
    }

    /// True while any minor is on, so that the clock must run.
    pub fn wants_ticks(&self) -> bool {
        self.minors.values().any(Minor::is_on)
    }

    /// All minors with a valid table, by number.
    pub fn reports(&self) -> impl Iterator<Item = MinorReport> {
        self.minors
            .iter()
            .filter(|(_, minor)| minor.table().is_some())
            .map(|(number, minor)| MinorReport {
                minor: *number,
                on: minor.is_on(),
                addresses: minor.addresses(),
                ledger: minor.ledger(),
            })
    }
}

/// A number of addresses in the type of the ioctls.
fn length(addresses: usize) -> u32 {
    u32::try_from(addresses).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(addresses: &[u64]) -> Vec<u8> {
        addresses.iter().flat_map(|a| a.to_le_bytes()).collect()
    }

    #[test]
    fn the_end_turns_all_minors_off_permanently() {
        let mut prf = Prf::new(2, 100);
        prf.set_hz(100);
        for minor in [0, 255] {
            assert_eq!(prf.write(minor, &bytes(&[0, 1, 2])), Ok(24));
            prf.ioctl(minor, PRF_SETSTATE, 1).unwrap();
        }
        prf.feed(&Ticks {
            idle: 3,
            ..Ticks::default()
        });
        prf.end();
        assert!(!prf.wants_ticks());
        assert_eq!(prf.ioctl(0, PRF_SETSTATE, 1), Err(Errno::ENXIO));
        let status = prf.ioctl(0, PRF_GETSTATUS, 0).unwrap().data;
        assert_eq!(status, kvmprof_abi::prf::STATUS_LOADED.to_le_bytes());
        let mut out = Vec::new();
        assert_eq!(prf.read(255, 1024, &mut out), Ok(out.len()));
        assert_eq!(out.last_chunk(), Some(&3_u64.to_le_bytes()));
    }

    #[test]
    fn all_tables_together_are_bounded() {
        let mut prf = Prf::new(2, 100);
        prf.max_memory = Table::memory(20) + Table::memory(3);
        let long = bytes(&[7; 20]);
        assert_eq!(prf.write(0, &long), Ok(long.len()));
        assert_eq!(prf.write(1, &bytes(&[1; 4])), Err(Errno::ENOSPC));
        assert_eq!(prf.write(1, &bytes(&[1; 3])), Ok(24));
        // The new table may use the old one's memory, and an invalid table uses none.
        assert_eq!(prf.write(0, &bytes(&[7; 21])), Err(Errno::ENOSPC));
        assert_eq!(prf.write(0, &long), Ok(long.len()));
        assert_eq!(prf.write(0, &bytes(&[3, 2, 1])), Err(Errno::EINVAL));
        assert_eq!(prf.write(255, &long), Ok(long.len()));
    }

    #[test]
    fn the_limit_fits_the_sizes_in_its_comment() {
        assert!(65 * Table::memory(65_536) < 72_000_000);
        assert_eq!(MAX_MEMORY / Table::memory(MAX_ADDRESSES), 30);
    }
}
