//! Reads the demo's samples as a client of the host socket.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kvmprof_abi::pcs::{
    BSIZE, BUF_INCR, DEF_BUFNO, Format, MAX_BUFS, PCS_GETSTAT, PCS_STOP, PROF_ALL, Record,
    STATUS_SIZE, Status, kind,
};
use kvmprof_abi::wire::device;
use kvmprof_client::{Connection, RemoteDevice};
use kvmprof_demo_guest::{Mode, ROWS, row_of};
use kvmprof_tools::getpc::Deblocker;

/// The time between two checks of the clock while nothing can be read.
const POLL: Duration = Duration::from_millis(20);

/// A pcs device that collects all ticks.
pub struct Recording {
    device: RemoteDevice,
    counts: Counts,
}

/// The recorded ticks, after PCS_STOP.
pub struct Recorded {
    /// The final account.
    pub status: Status,
    /// Ticks of each row.
    pub observed: [u64; ROWS],
    /// Ticks that don't belong to any row.
    pub foreign: u64,
}

struct Counts {
    deblocker: Deblocker,
    rows: [u64; ROWS],
    foreign: u64,
}

impl Recording {
    /// Opens pcs and starts to collect, which also lets the guest run.
    pub fn start(connection: &Connection) -> anyhow::Result<Self> {
        let device = connection.open(device::PCS, 0)?;
        let more = i64::try_from(MAX_BUFS - DEF_BUFNO).unwrap_or(1);
        device.ioctl(BUF_INCR, more)?;
        device.ioctl(PROF_ALL, 0)?;
        Ok(Self {
            device,
            counts: Counts {
                deblocker: Deblocker::new(Format::Native, BSIZE),
                rows: [0; ROWS],
                foreign: 0,
            },
        })
    }

    /// Reads for `time`, or until the guest ends. Calls `meanwhile` repeatedly.
    pub fn gather(&mut self, time: Duration, mut meanwhile: impl FnMut()) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            meanwhile();
            match self.device.try_read(BSIZE * MAX_BUFS) {
                Ok(bytes) if bytes.is_empty() => bail!("The guest has ended by itself"),
                Ok(bytes) => self.counts.take(&bytes)?,
                Err(error) if error.errno() == Some(kvmprof_abi::errno::Errno::EAGAIN) => {
                    std::thread::sleep(POLL.min(end.saturating_duration_since(Instant::now())));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Stops collecting and reads the rest.
    pub fn finish(mut self) -> anyhow::Result<Recorded> {
        self.device.ioctl(PCS_STOP, 0)?;
        loop {
            let bytes = self.device.read(BSIZE * MAX_BUFS)?;
            if bytes.is_empty() {
                break;
            }
            self.counts.take(&bytes)?;
        }
        let (_, data) = self.device.ioctl_with(PCS_GETSTAT, 0, &[], STATUS_SIZE)?;
        let status = Status::decode(&data).context("PCS_GETSTAT makes no sense")?;
        Ok(Recorded {
            status,
            observed: self.counts.rows,
            foreign: self.counts.foreign,
        })
    }
}

impl Counts {
    /// Counts the records of all complete buffers in the bytes that have been read so far.
    fn take(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let mut records = Vec::new();
        self.deblocker.push(bytes, &mut records)?;
        for record in records.chunks_exact(Format::Native.record_size()) {
            let record = Record::decode(Format::Native, record)
                .context("pcs delivered a malformed record")?;
            self.count(&record);
        }
        Ok(())
    }

    fn count(&mut self, record: &Record) {
        let row = match record {
            Record::Sample(sample) => {
                let mode = match sample.kind {
                    kind::USER => Mode::User,
                    kind::KERNELI => Mode::Interrupt,
                    _ => Mode::Kernel,
                };
                row_of(mode, sample.pid, sample.pc)
            }
            // All ticks except idle ones have records of their own.
            Record::Merged(merged) if merged.kind == kind::IDLE => row_of(Mode::Idle, 0, 0),
            Record::Merged(_) => None,
        };
        match row.and_then(|row| self.rows.get_mut(row)) {
            Some(ticks) => *ticks += record.ticks(),
            None => self.foreign += record.ticks(),
        }
    }
}
