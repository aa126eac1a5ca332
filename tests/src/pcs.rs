//! A client's open pcs.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{
    Ledger, PCS_GETSTAT, PCS_STOP, PROF_LIST, Psample, Record, STATUS_SIZE, Status,
};
use kvmprof_abi::wire::{MAX_DATA, device};
use kvmprof_client::{ClientError, Connection, RemoteDevice};

use crate::stream::{Block, decode_blocks};
use crate::{Accounts, until};

/// An open pcs, and the bytes that have been read from it.
pub struct Pcs {
    /// The device itself.
    pub device: RemoteDevice,
    /// The connection on which it is open.
    pub connection: Connection,
    bytes: Vec<u8>,
}

/// The results of one open of pcs, up to the end of file.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The buffers.
    pub blocks: Vec<Block>,
    /// The account after the end of file.
    pub status: Status,
    /// Both sides' accounts after the end of file.
    pub accounts: Accounts,
}

/// The errno with which a request was refused.
///
/// # Panics
/// If it wasn't refused.
#[track_caller]
pub fn errno_of<T>(result: Result<T, ClientError>) -> Errno {
    match result {
        Ok(_) => panic!("not refused"),
        Err(ClientError::Refused { errno, .. }) => errno,
        Err(error) => panic!("not answered: {error}"),
    }
}

impl Pcs {
    /// Opens pcs on `connection`.
    ///
    /// # Errors
    /// If pcs can't be opened.
    pub fn open(connection: Connection) -> Result<Self, ClientError> {
        Ok(Self {
            device: connection.open(device::PCS, 0)?,
            connection,
            bytes: Vec::new(),
        })
    }

    /// Executes a command with a number, which must succeed.
    ///
    /// # Panics
    /// If it is refused.
    #[track_caller]
    pub fn ioctl(&self, command: u32, argument: i64) -> i64 {
        self.device.ioctl(command, argument).unwrap()
    }

    /// The errno with which a command is refused.
    ///
    /// # Panics
    /// If it isn't refused.
    #[track_caller]
    pub fn refused(&self, command: u32, argument: i64) -> Errno {
        errno_of(self.device.ioctl(command, argument))
    }

    /// `PROF_LIST`, whose pointer points to these words.
    ///
    /// # Errors
    /// If it is refused.
    pub fn list(&self, words: &[i32]) -> Result<(), ClientError> {
        let data: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.device.ioctl_with(PROF_LIST, 0, &data, 0)?;
        Ok(())
    }

    /// `PCS_GETSTAT`, whose ledger must balance.
    ///
    /// # Panics
    /// If it doesn't.
    #[track_caller]
    pub fn status(&self) -> Status {
        let reply = self.device.ioctl_with(PCS_GETSTAT, 0, &[], STATUS_SIZE);
        let status = Status::decode(&reply.unwrap().1).unwrap();
        assert!(status.ledger.balances(), "{status:?}");
        status
    }

    /// Keeps the bytes that can be read at once.
    ///
    /// # Panics
    /// If reading fails.
    pub fn read_available(&mut self) {
        loop {
            match self.device.try_read(MAX_DATA) {
                Ok(data) if data.is_empty() => return,
                Ok(data) => self.bytes.extend(data),
                Err(error) if error.errno() == Some(Errno::EAGAIN) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Reads on until the account satisfies `enough`; `what` describes that.
    ///
    /// # Panics
    /// If that never happens.
    pub fn read_until(&mut self, what: &str, mut enough: impl FnMut(&Ledger) -> bool) {
        until(what, || {
            self.read_available();
            enough(&self.status().ledger).then_some(())
        });
    }

    /// Reads on until `ticks` ticks were taken, as samples or idle counts. Stolen and lost ticks don't show what the guest did.
    pub fn read_ticks(&mut self, ticks: u64) {
        self.read_until("there are enough ticks", |ledger| observed(ledger) >= ticks);
    }

    /// Waits, without reading, until the account satisfies `enough`.
    ///
    /// # Panics
    /// If that never happens.
    pub fn stall_until(&self, what: &str, mut enough: impl FnMut(&Ledger) -> bool) {
        until(what, || enough(&self.status().ledger).then_some(()));
    }

    /// The complete buffers read so far; an incomplete one is kept.
    pub fn blocks(&mut self) -> Vec<Block> {
        let status = self.status();
        let size = usize::try_from(status.buffer_size).unwrap();
        let whole = self.bytes.len() - self.bytes.len() % size;
        let rest = self.bytes.split_off(whole);
        let blocks = std::mem::replace(&mut self.bytes, rest);
        decode_blocks(status.format, size, &blocks)
    }

    /// Stops gathering and reads to the end of file.
    pub fn stop(self) -> Recorded {
        self.ioctl(PCS_STOP, 0);
        self.drain()
    }

    /// Reads to the end of file, which must come without a stop, and checks that records and accounts agree.
    ///
    /// # Panics
    /// If they don't.
    pub fn drain(mut self) -> Recorded {
        loop {
            let data = self.device.read(MAX_DATA).unwrap();
            if data.is_empty() {
                break;
            }
            self.bytes.extend(data);
        }
        let status = self.status();
        let size = usize::try_from(status.buffer_size).unwrap();
        let recorded = Recorded {
            blocks: decode_blocks(status.format, size, &self.bytes),
            status,
            accounts: Accounts::of(&self.connection),
        };
        recorded.check();
        recorded
    }
}

/// The ticks of the account that show what the guest did.
fn observed(ledger: &Ledger) -> u64 {
    ledger.recorded + ledger.merged + ledger.pending
}

impl Recorded {
    /// All records.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.blocks.iter().flat_map(|block| &block.records)
    }

    /// The records that are samples.
    pub fn samples(&self) -> impl Iterator<Item = &Psample> {
        self.records().filter_map(|record| match record {
            Record::Sample(sample) => Some(sample),
            Record::Merged(_) => None,
        })
    }

    /// The number of lost samples by the buffers' headers.
    pub fn lost_by_headers(&self) -> u64 {
        self.blocks
            .iter()
            .map(|block| u64::from(block.header.lost))
            .sum()
    }

    /// Ticks in all records.
    pub fn ticks(&self) -> u64 {
        self.records().map(Record::ticks).sum()
    }

    fn check(&self) {
        self.accounts.check();
        let ledger = &self.status.ledger;
        assert_eq!(*ledger, self.accounts.pcs);
        assert_eq!((ledger.pending, ledger.discarded), (0, 0), "{ledger:?}");
        let samples = u64::try_from(self.samples().count()).unwrap();
        assert_eq!(ledger.recorded, samples);
        assert_eq!(ledger.merged, self.ticks() - samples);
        assert_eq!(self.lost_by_headers(), ledger.lost, "{ledger:?}");
    }
}
