//! A client's open prf.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::Ledger;
use kvmprof_abi::prf::{
    EXTRA_COUNTERS, PRF_GETMAX, PRF_GETSIZE, PRF_GETSTATUS, PRF_SETSTATE, WORD_SIZE, read_size,
};
use kvmprof_abi::wire::{MAX_DATA, device};
use kvmprof_client::{ClientError, Connection, RemoteDevice};

use crate::status::status_of;
use crate::{errno_of, until};

/// An open minor of prf.
pub struct Prf {
    /// The device itself.
    pub device: RemoteDevice,
}

/// The result of a read of prf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// The table.
    pub addresses: Vec<u64>,
    /// A counter for each address.
    pub counters: Vec<u64>,
    /// Ticks in user mode.
    pub user: u64,
    /// Idle ticks.
    pub idle: u64,
}

/// A minor of prf in the status document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrfAccount {
    /// Whether it counts.
    pub on: bool,
    /// Its account since it was turned on.
    pub ledger: Ledger,
}

impl Counts {
    /// All counters together.
    pub fn sum(&self) -> u64 {
        self.kernel() + self.user + self.idle
    }

    /// The counters of all addresses together.
    pub fn kernel(&self) -> u64 {
        self.counters.iter().sum()
    }

    fn decode(bytes: &[u8]) -> Self {
        let words: Vec<u64> = bytes
            .as_chunks::<WORD_SIZE>()
            .0
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .collect();
        let (table, extra) = words.split_at(words.len() - EXTRA_COUNTERS);
        let (addresses, counters) = table.split_at(table.len() / 2);
        assert_eq!(bytes.len(), read_size(addresses.len()));
        Self {
            addresses: addresses.to_vec(),
            counters: counters.to_vec(),
            user: extra[0],
            idle: extra[1],
        }
    }
}

impl PrfAccount {
    /// The account of `minor`, if it is loaded.
    ///
    /// # Panics
    /// If it doesn't balance.
    pub fn of(connection: &Connection, minor: u16) -> Option<Self> {
        let status = status_of(connection);
        // The entry for the guest's own clients has the same number, and another name.
        let name = format!("prf {minor}");
        let this = status.prf().find(|prf| prf.name == name)?;
        assert_eq!(this.minor, minor);
        assert!(this.loaded && this.ledger.balances(), "{this:?}");
        Some(Self {
            on: this.on,
            ledger: this.ledger,
        })
    }
}

/// Addresses in the form in which a table is written.
pub fn table(addresses: &[u64]) -> Vec<u8> {
    addresses
        .iter()
        .flat_map(|address| address.to_le_bytes())
        .collect()
}

impl Prf {
    /// Opens `minor` on `connection`.
    ///
    /// # Errors
    /// If it can't be opened.
    pub fn open(connection: &Connection, minor: u16) -> Result<Self, ClientError> {
        Ok(Self {
            device: connection.open(device::PRF, minor)?,
        })
    }

    /// Loads a table, which must succeed.
    ///
    /// # Panics
    /// If it is refused.
    #[track_caller]
    pub fn load(&self, addresses: &[u64]) {
        let bytes = table(addresses);
        assert_eq!(self.device.write(&bytes).unwrap(), bytes.len());
    }

    /// The errno with which a table is refused.
    ///
    /// # Panics
    /// If it isn't refused.
    #[track_caller]
    pub fn refused(&self, bytes: &[u8]) -> Errno {
        errno_of(self.device.write(bytes))
    }

    #[track_caller]
    fn stored(&self, command: u32) -> u32 {
        let (value, data) = self.device.ioctl_with(command, 0, &[], 4).unwrap();
        assert_eq!(value, 0);
        u32::from_le_bytes(data.try_into().unwrap())
    }

    /// `PRF_GETSTATUS`.
    ///
    /// # Panics
    /// If it is refused.
    #[track_caller]
    pub fn status(&self) -> u32 {
        self.stored(PRF_GETSTATUS)
    }

    /// `PRF_GETSIZE`.
    ///
    /// # Panics
    /// If it is refused.
    #[track_caller]
    pub fn size(&self) -> u32 {
        self.stored(PRF_GETSIZE)
    }

    /// `PRF_GETMAX`.
    ///
    /// # Panics
    /// If it is refused.
    #[track_caller]
    pub fn max(&self) -> u32 {
        self.stored(PRF_GETMAX)
    }

    /// `PRF_SETSTATE`, which must succeed.
    ///
    /// # Panics
    /// If it is refused.
    #[track_caller]
    pub fn set(&self, argument: i64) {
        assert_eq!(self.device.ioctl(PRF_SETSTATE, argument).unwrap(), 0);
    }

    /// The table with all counters.
    ///
    /// # Panics
    /// If it can't be read.
    #[track_caller]
    pub fn counts(&self) -> Counts {
        Counts::decode(&self.device.read(MAX_DATA).unwrap())
    }

    /// Waits until it has counted this many further ticks, of all kinds.
    pub fn until_counted(&self, more: u64) -> Counts {
        let before = self.counts().sum();
        until("prf has counted", || {
            let counts = self.counts();
            (counts.sum() >= before + more).then_some(counts)
        })
    }
}
