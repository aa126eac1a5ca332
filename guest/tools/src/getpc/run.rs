//! One run: set-up, sampling, stop, reading to the end, trailer.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};
use std::time::{Duration, Instant};

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{
    Format, Ledger, PCS_GETSTAT, PCS_SETHZ, PCS_STOP, Record, STATUS_SIZE, Status,
};
use kvmprof_abi::stream::{COMM_SIZE, Comm, Pstat, StreamRecord};
use rustix::time::{ClockId, clock_gettime};

use super::deblock::{BadBuffer, Deblocker};
use super::plan::{Call, Plan};
use crate::device::{Device, DeviceError};
use kvmprof_cli::interrupt::{Interrupt, WaitEnd};

/// Bytes requested in one read; the device gives what it has.
const READ_SIZE: usize = 65536;

/// Looks up the known names of the guest's present processes: pairs of process id and name, padded with NULs.
pub type Names<'a> = &'a mut dyn FnMut() -> Vec<(i32, [u8; COMM_SIZE])>;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum GetpcError {
    /// An ioctl of the set-up failed.
    #[error("Cannot {purpose}")]
    SetUp {
        /// The purpose.
        purpose: String,
        /// The device's error.
        source: DeviceError,
    },
    /// The clock's rate can't be changed.
    #[error(
        "Cannot {purpose}: another consumer runs on the same clock, or an event makes the ticks (EBUSY)"
    )]
    ClockInUse {
        /// The purpose.
        purpose: String,
    },
    /// A later operation of the device failed.
    #[error("Cannot {operation}; the stream ends before its time")]
    Device {
        /// The operation.
        operation: &'static str,
        /// The device's error.
        source: DeviceError,
    },
    /// The device sent an invalid buffer.
    #[error("Device sent a buffer that makes no sense: are getpc and kvmprof of one release?")]
    BadBuffer,
    /// The stream couldn't be written.
    #[error("Cannot write the stream")]
    Write(#[from] io::Error),
}

/// The results of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The account of all ticks at the end.
    pub ledger: Ledger,
    /// The sum of `h_numlost` over the buffers.
    pub lost: u64,
    /// The time from the device's open to its stop.
    pub span: Duration,
}

/// Gathers samples from `device`, which has just been opened, into `output`: until `plan.duration` has passed,
/// `interrupt` is raised or the guest has ended. Then reads the device's buffers to the end.
///
/// # Errors
/// An error of the device or the output. Even then the stream has a STOP record if it has a START record and can be
/// written to.
pub fn run(
    device: &dyn Device,
    plan: &Plan,
    output: &mut dyn Write,
    interrupt: Interrupt,
    names: Names<'_>,
) -> Result<Summary, GetpcError> {
    let opened = Instant::now();
    let started = unix_time();
    let calls = plan.calls();
    for call in &calls {
        make(device, call)?;
    }
    let status = status(device)?;
    let mut writer = StreamWriter::new(output, &status);
    writer.put(&StreamRecord::Start(started))?;
    for call in &calls {
        writer.put(&StreamRecord::Ioctl(call.record()))?;
    }
    writer.output.flush()?;
    writer.add_names(names());
    let gathered = gather(device, plan.duration, interrupt, &mut writer, names);
    let span = match &gathered {
        Ok(stopped) => stopped.duration_since(opened),
        Err(_) => opened.elapsed(),
    };
    if !matches!(gathered, Err(GetpcError::Write(_))) {
        writer.put(&StreamRecord::Stop(unix_time()))?;
        writer.output.flush()?;
    }
    gathered?;
    writer.add_names(names());
    writer.trailer(device, span)
}

fn unix_time() -> i64 {
    clock_gettime(ClockId::Realtime).tv_sec
}

fn make(device: &dyn Device, call: &Call) -> Result<(), GetpcError> {
    let result = device.ioctl(call.command, call.argument, &call.data, 0);
    let purpose = call.purpose.clone();
    match result {
        Ok(_) => Ok(()),
        Err(error) if call.command == PCS_SETHZ && error.errno() == Some(Errno::EBUSY) => {
            Err(GetpcError::ClockInUse { purpose })
        }
        Err(source) => Err(GetpcError::SetUp { purpose, source }),
    }
}

fn status(device: &dyn Device) -> Result<Status, GetpcError> {
    let operation = "read the device's status";
    let (_, data) = device
        .ioctl(PCS_GETSTAT, 0, &[], STATUS_SIZE)
        .map_err(|source| GetpcError::Device { operation, source })?;
    Status::decode(&data).ok_or(GetpcError::BadBuffer)
}

/// Reads to the end of file, which another thread causes in time. Returns the time when the sampling ended.
fn gather(
    device: &dyn Device,
    duration: Option<Duration>,
    interrupt: Interrupt,
    writer: &mut StreamWriter<'_>,
    names: Names<'_>,
) -> Result<Instant, GetpcError> {
    let over = interrupt.clone();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || match interrupt.wait(duration) {
            WaitEnd::Done => Ok(None),
            WaitEnd::Stop => device
                .ioctl(PCS_STOP, 0, &[], 0)
                .map(|_| Some(Instant::now())),
        });
        let read = read_to_end(device, writer, names);
        let ended = Instant::now();
        over.done();
        // Errors of the device also occur in the read.
        let stopped = waiting.join().ok().and_then(Result::ok).flatten();
        read.map(|()| stopped.unwrap_or(ended))
    })
}

fn read_to_end(
    device: &dyn Device,
    writer: &mut StreamWriter<'_>,
    names: Names<'_>,
) -> Result<(), GetpcError> {
    let operation = "read samples";
    loop {
        let bytes = device
            .read(READ_SIZE)
            .map_err(|source| GetpcError::Device { operation, source })?;
        if bytes.is_empty() {
            return match writer.deblocker.is_empty() {
                true => Ok(()),
                false => Err(GetpcError::BadBuffer),
            };
        }
        // A process may have ended when the run does.
        if writer.put_buffers(&bytes)? {
            writer.add_names(names());
        }
    }
}

/// Writes a stream, and collects data for its trailer.
struct StreamWriter<'a> {
    format: Format,
    output: &'a mut dyn Write,
    deblocker: Deblocker,
    /// The processes seen in samples.
    pids: BTreeSet<i32>,
    names: HashMap<i32, [u8; COMM_SIZE]>,
}

impl<'a> StreamWriter<'a> {
    fn new(output: &'a mut dyn Write, status: &Status) -> Self {
        let buffer_size = usize::try_from(status.buffer_size).unwrap_or(usize::MAX);
        Self {
            format: status.format,
            output,
            deblocker: Deblocker::new(status.format, buffer_size),
            pids: BTreeSet::new(),
            names: HashMap::new(),
        }
    }

    fn put(&mut self, record: &StreamRecord) -> io::Result<()> {
        self.output.write_all(&record.encode(self.format))
    }

    /// Writes what was read. Returns whether there is a process in it that hasn't been seen before and has no name yet.
    fn put_buffers(&mut self, bytes: &[u8]) -> Result<bool, GetpcError> {
        let mut records = Vec::new();
        let mut has_unnamed = false;
        self.deblocker
            .push(bytes, &mut records)
            .map_err(|BadBuffer| GetpcError::BadBuffer)?;
        for bytes in records.chunks_exact(self.format.record_size()) {
            match Record::decode(self.format, bytes) {
                Some(Record::Sample(sample)) => {
                    let is_new = self.pids.insert(sample.pid);
                    has_unnamed |= is_new && !self.names.contains_key(&sample.pid);
                }
                Some(Record::Merged(_)) => (),
                None => return Err(GetpcError::BadBuffer),
            }
        }
        self.output.write_all(&records)?;
        // Flush at once, so that a killed run leaves what it had.
        self.output.flush()?;
        Ok(has_unnamed)
    }

    /// Adds names; later ones replace earlier ones.
    fn add_names(&mut self, names: Vec<(i32, [u8; COMM_SIZE])>) {
        self.names.extend(names);
    }

    /// Writes the trailer with the run's account.
    fn trailer(mut self, device: &dyn Device, span: Duration) -> Result<Summary, GetpcError> {
        let status = status(device)?;
        let nanoseconds = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let pstat = Pstat {
            status,
            span: nanoseconds,
        };
        self.put(&StreamRecord::Pstat(pstat))?;
        for pid in std::mem::take(&mut self.pids) {
            if let Some(comm) = self.names.get(&pid).copied() {
                self.put(&StreamRecord::Comm(Comm { pid, comm }))?;
            }
        }
        self.output.flush()?;
        Ok(Summary {
            ledger: status.ledger,
            lost: self.deblocker.lost(),
            span,
        })
    }
}
