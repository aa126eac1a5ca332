//! prf's operations.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::prf::{
    MAX_ADDRESSES, PRF_GETMAX, PRF_GETSIZE, PRF_GETSTATUS, PRF_SETSTATE, STATUS_LOADED, STATUS_ON,
    WORD_SIZE, read_size,
};

use super::PrfError;
use crate::device::{Device, DeviceError};

/// Number of tries of a read that another client's prfld interferes with.
const ATTEMPTS: usize = 5;

/// An open prf.
pub struct Profiler<'a>(&'a dyn Device);

/// The table and its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The addresses, ascending.
    pub addresses: Vec<u64>,
    /// A counter for each address, then those of user mode and idle.
    pub counters: Vec<u64>,
}

impl<'a> Profiler<'a> {
    /// The prf of `device`.
    pub fn new(device: &'a dyn Device) -> Self {
        Self(device)
    }

    /// The state: whether it is on, and whether a table is loaded.
    ///
    /// # Errors
    /// [`PrfError::Command`], [`PrfError::Nonsense`].
    pub fn state(&self) -> Result<(bool, bool), PrfError> {
        let status = self.number(PRF_GETSTATUS, "read the profiler's state")?;
        Ok((status & STATUS_ON != 0, status & STATUS_LOADED != 0))
    }

    /// The number of addresses in the table.
    ///
    /// # Errors
    /// [`PrfError::Command`], [`PrfError::Nonsense`].
    pub fn size(&self) -> Result<usize, PrfError> {
        let size = self.number(PRF_GETSIZE, "read the size of the table")?;
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        (size <= MAX_ADDRESSES)
            .then_some(size)
            .ok_or(PrfError::Nonsense)
    }

    /// The maximum number of addresses of a table.
    ///
    /// # Errors
    /// [`PrfError::Command`], [`PrfError::Nonsense`].
    pub fn max_addresses(&self) -> Result<usize, PrfError> {
        let most = self.number(PRF_GETMAX, "read the table's largest size")?;
        Ok(usize::try_from(most).unwrap_or(usize::MAX))
    }

    /// Turns counting on or off. Has no effect without a table.
    ///
    /// # Errors
    /// [`PrfError::Rate`], [`PrfError::Command`].
    pub fn turn(&self, on: bool) -> Result<(), PrfError> {
        let purpose = if on {
            "turn profiling on"
        } else {
            "turn profiling off"
        };
        match self.0.ioctl(PRF_SETSTATE, i64::from(on), &[], 0) {
            Ok(_) => Ok(()),
            Err(error) if on && error.errno() == Some(Errno::EINVAL) => Err(PrfError::Rate),
            Err(source) => Err(PrfError::Command { purpose, source }),
        }
    }

    /// Turns counting on.
    ///
    /// # Errors
    /// [`PrfError::NotLoaded`], and as [`turn`](Self::turn) and [`state`](Self::state).
    pub fn turn_on(&self) -> Result<(), PrfError> {
        self.turn(true)?;
        match self.state()? {
            (true, _) => Ok(()),
            (false, _) => Err(PrfError::NotLoaded),
        }
    }

    /// Loads a table in one write, and sets all counters to 0.
    ///
    /// # Errors
    /// [`PrfError::TooMany`], [`PrfError::NoRoom`], [`PrfError::TooFew`], [`PrfError::Enabled`], which leave the old table;
    /// [`PrfError::NotAscending`]; [`PrfError::ShortWrite`].
    pub fn load(&self, table: &[u64]) -> Result<(), PrfError> {
        let purpose = "load the table of addresses";
        let addresses = table.len();
        if addresses > MAX_ADDRESSES {
            // It doesn't fit into a frame of the wire, so the device can't answer.
            let most = self.max_addresses()?;
            return Err(PrfError::TooMany { addresses, most });
        }
        let bytes: Vec<u8> = table.iter().flat_map(|word| word.to_le_bytes()).collect();
        let size = bytes.len();
        match self.0.write(&bytes) {
            Ok(taken) if taken == size => Ok(()),
            Ok(taken) => Err(PrfError::ShortWrite { taken, size }),
            Err(source) => Err(match source.errno() {
                Some(Errno::ENOSPC) => match self.max_addresses()? {
                    most if addresses > most => PrfError::TooMany { addresses, most },
                    _ => PrfError::NoRoom { addresses },
                },
                Some(Errno::E2BIG) => PrfError::TooFew { addresses },
                Some(Errno::EBUSY) => PrfError::Enabled,
                Some(Errno::EINVAL) => PrfError::NotAscending,
                _ => PrfError::Command { purpose, source },
            }),
        }
    }

    /// True once the guest has ended: its counters can still be read for a moment.
    pub fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// The table and its counters.
    ///
    /// # Errors
    /// [`PrfError::NotLoaded`], [`PrfError::Unsteady`]; or the device's error.
    pub fn read(&self) -> Result<Counters, PrfError> {
        for _ in 0..ATTEMPTS {
            let addresses = self.size()?;
            let expected = read_size(addresses);
            // Room for one more word shows whether the table has grown meanwhile.
            let bytes = match self.0.read(expected + WORD_SIZE) {
                Ok(bytes) => bytes,
                Err(error) if error.errno() == Some(Errno::ENXIO) => {
                    return Err(PrfError::NotLoaded);
                }
                Err(source) => {
                    let purpose = "read the counters";
                    return Err(PrfError::Command { purpose, source });
                }
            };
            if bytes.len() == expected {
                let mut words = words(&bytes);
                return Ok(Counters {
                    addresses: words.by_ref().take(addresses).collect(),
                    counters: words.collect(),
                });
            }
        }
        Err(PrfError::Unsteady)
    }

    /// The 32-bit integer that `command` stores.
    fn number(&self, command: u32, purpose: &'static str) -> Result<u32, PrfError> {
        let limit = size_of::<u32>();
        let failed = |source: DeviceError| PrfError::Command { purpose, source };
        let (_, stored) = self.0.ioctl(command, 0, &[], limit).map_err(failed)?;
        let stored = stored.try_into().map_err(|_| PrfError::Nonsense)?;
        Ok(u32::from_le_bytes(stored))
    }
}

/// The 64-bit numbers in `bytes`.
pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (words, _) = bytes.as_chunks::<WORD_SIZE>();
    words.iter().copied().map(u64::from_le_bytes)
}
