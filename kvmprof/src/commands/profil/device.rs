//! profil and pcsample of a process, with a buffer in the guest's kvmprof.

use anyhow::{Context, anyhow};
use kvmprof_abi::errno::Errno;
use kvmprof_abi::profil::{Call, Function, MAX_KEPT, PROFIL_CALL, PROFIL_GETSTAT, RATE_HZ, Status};
use kvmprof_abi::wire::device;
use kvmprof_client::{Connection, RemoteDevice};

/// Maximum number of times that a histogram is read again because a tick came meanwhile.
const MAX_LOOKS: usize = 1000;

const OTHER_RELEASE: &str =
    "The guest's profil cannot be understood: use the kvmprof of the release that runs the guest";

/// A call for process `pid` that stores nothing. In others, the guest's kvmprof keeps the buffer, too.
pub fn off(pid: i32) -> Call {
    Call {
        function: Function::Profil,
        flags: Call::KEEP,
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

/// The profile of a process's program. It isn't started at first, and later runs until this is dropped. Its state shows
/// from the start when the process ends or executes another program.
pub struct ProcessProfile(RemoteDevice);

impl ProcessProfile {
    /// The profile of process `pid`, which stores nothing yet.
    ///
    /// # Errors
    /// The guest has ended, or too many profiles exist already.
    pub fn open(connection: &Connection, pid: i32) -> anyhow::Result<Self> {
        let device = connection.open(device::PROFIL, 0).map_err(|error| {
            let is_unknown = error.errno() == Some(Errno::ENODEV);
            let error = anyhow::Error::from(error);
            if is_unknown {
                error.context(OTHER_RELEASE)
            } else {
                error
            }
        })?;
        let opened = Self(device);
        opened.start(&off(pid))?;
        Ok(opened)
    }

    /// Starts the profile of `call`.
    ///
    /// # Errors
    /// The clock's rate doesn't allow the profile, there is no memory for it, or the guest has ended.
    pub fn start(&self, call: &Call) -> anyhow::Result<()> {
        let started = self.0.ioctl_with(PROFIL_CALL, 0, &call.encode(), 0);
        started.map_err(|error| match error.errno() {
            // The clock runs for a recorder, so the error is about its rate.
            Some(Errno::EINVAL) => anyhow!(
                "The rate of the guest's clock is no multiple of {RATE_HZ} Hz: give --every-tick, or start the guest with \
                 another --hz"
            ),
            Some(Errno::ENOSPC) => anyhow!(
                "The guest's kvmprof keeps no more histograms (ENOSPC): end another profil or pcsample, or choose a \
                 smaller one"
            ),
            _ => anyhow::Error::from(error).context("Cannot profile the process"),
        })?;
        Ok(())
    }

    /// The profile's state and its account.
    ///
    /// # Errors
    /// The guest's kvmprof is gone.
    pub fn status(&self) -> anyhow::Result<Status> {
        let (_, bytes) = self.0.ioctl_with(PROFIL_GETSTAT, 0, &[], Status::SIZE)?;
        Status::decode(&bytes).context(OTHER_RELEASE)
    }

    /// The counts of its histogram.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub fn counts(&self) -> anyhow::Result<Vec<u16>> {
        let bytes = self.read()?;
        let (counts, _) = bytes.as_chunks();
        Ok(counts.iter().copied().map(u16::from_le_bytes).collect())
    }

    /// The stored program counters.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub fn samples(&self) -> anyhow::Result<Vec<u64>> {
        let bytes = self.read()?;
        let (samples, _) = bytes.as_chunks();
        Ok(samples.iter().copied().map(u64::from_le_bytes).collect())
    }

    /// The result of `read`, with the account at the same time, because ticks continue to be stored between two requests.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub fn at_once<T>(
        &self,
        read: impl Fn(&Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<(Status, T)> {
        let mut before = self.status()?;
        for _ in 0..MAX_LOOKS {
            let result = read(self)?;
            let after = self.status()?;
            if after == before {
                return Ok((after, result));
            }
            before = after;
        }
        // With a fast clock and a slow guest, they differ by a tick or two.
        Ok((before, read(self)?))
    }

    fn read(&self) -> anyhow::Result<Vec<u8>> {
        let most = usize::try_from(MAX_KEPT).unwrap_or(usize::MAX);
        Ok(self.0.read(most)?)
    }
}
