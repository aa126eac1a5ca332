//! The ioctl commands.

use kvmprof_abi::commands;
use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{
    BUF_INCR, Format, MAX_BSIZE, MAX_BUFS, MAX_HZ, MIN_BSIZE, MIN_HZ, PCS_FLUSH, PCS_GETHZ,
    PCS_GETSTAT, PCS_SETBSIZE, PCS_SETFORMAT, PCS_SETHZ, PCS_STOP, PROF_ALL, PROF_GROUP,
    PROF_KERNEL, PROF_LIST, Status,
};
use kvmprof_abi::wire::device;

use super::merge::Merges;
use super::selection::parse_list;
use super::session::Session;
use crate::endpoint::IoctlReply;

/// What the clock must do before the device executes an ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockRequest {
    /// Feed all ticks up to now, so that the ioctl acts at its own time.
    Flush,
    /// Feed all ticks up to now, then run at this many Hz per vCPU. EBUSY if another consumer uses the clock.
    Rate(u32),
}

impl Session {
    pub(super) fn clock_request(
        &self,
        command: u32,
        argument: i64,
    ) -> Result<Option<ClockRequest>, Errno> {
        match command {
            PCS_SETHZ => {
                let hz = parse_hz(argument)?;
                self.expect_running()?;
                Ok(Some(ClockRequest::Rate(hz)))
            }
            PROF_KERNEL | PROF_ALL | PROF_GROUP | PROF_LIST | PCS_FLUSH | PCS_STOP
            | PCS_GETSTAT
                if !self.stopped =>
            {
                Ok(Some(ClockRequest::Flush))
            }
            _ if commands::argument(device::PCS, command).is_some() => Ok(None),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(super) fn ioctl(
        &mut self,
        command: u32,
        argument: i64,
        data: &[u8],
    ) -> Result<IoctlReply, Errno> {
        match command {
            BUF_INCR => self.add_buffers(argument)?,
            PROF_KERNEL | PROF_ALL | PROF_GROUP | PROF_LIST => {
                self.select(command, argument, data)?;
            }
            PCS_SETFORMAT => self.set_format(argument)?,
            PCS_SETBSIZE => self.set_buffer_size(argument)?,
            PCS_SETHZ => {
                let hz = parse_hz(argument)?;
                self.expect_running()?;
                self.hz = hz;
            }
            PCS_FLUSH => {
                self.buffers.seal();
            }
            PCS_STOP => self.stop(),
            PCS_GETHZ => {
                return Ok(IoctlReply {
                    value: self.hz.into(),
                    data: Vec::new(),
                });
            }
            PCS_GETSTAT => {
                return Ok(IoctlReply {
                    value: 0,
                    data: self.status().encode().to_vec(),
                });
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(IoctlReply::default())
    }

    fn expect_running(&self) -> Result<(), Errno> {
        if self.stopped {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }

    /// Checks for settings that can't change after the first records.
    fn expect_not_started(&self) -> Result<(), Errno> {
        self.expect_running()?;
        if self.is_gathering() {
            return Err(Errno::EBUSY);
        }
        Ok(())
    }

    fn add_buffers(&mut self, argument: i64) -> Result<(), Errno> {
        let more = usize::try_from(argument).map_err(|_| Errno::EINVAL)?;
        if more == 0 || more > MAX_BUFS - self.buffers.total() {
            return Err(Errno::EINVAL);
        }
        self.expect_running()?;
        self.buffers.add(more);
        Ok(())
    }

    fn select(&mut self, command: u32, argument: i64, data: &[u8]) -> Result<(), Errno> {
        let mut selection = self.selection.clone();
        match command {
            PROF_KERNEL | PROF_ALL => selection.add(command),
            PROF_GROUP => {
                let group = i32::try_from(argument).map_err(|_| Errno::EINVAL)?;
                // Group 0 is that of an init without a session, and of what it starts.
                if group < 0 {
                    return Err(Errno::EINVAL);
                }
                selection.set_group(group);
            }
            _ => selection.set_list(parse_list(data)?),
        }
        self.expect_running()?;
        self.selection = selection;
        Ok(())
    }

    fn set_format(&mut self, argument: i64) -> Result<(), Errno> {
        let format = u32::try_from(argument)
            .ok()
            .and_then(Format::from_number)
            .ok_or(Errno::EINVAL)?;
        self.expect_not_started()?;
        self.buffers.set_format(format);
        self.merges = Merges::new(format, self.vcpus);
        Ok(())
    }

    fn set_buffer_size(&mut self, argument: i64) -> Result<(), Errno> {
        let size = usize::try_from(argument).map_err(|_| Errno::EINVAL)?;
        if !size.is_power_of_two() || !(MIN_BSIZE..=MAX_BSIZE).contains(&size) {
            return Err(Errno::EINVAL);
        }
        self.expect_not_started()?;
        self.buffers.set_buffer_size(size);
        Ok(())
    }

    fn status(&self) -> Status {
        Status {
            ledger: self.ledger,
            hz: self.hz,
            vcpus: self.vcpus.into(),
            format: self.buffers.format(),
            buffer_size: u32::try_from(self.buffers.buffer_size()).unwrap_or(u32::MAX),
            buffers: u32::try_from(self.buffers.total()).unwrap_or(u32::MAX),
            modes: self.selection.modes(),
        }
    }
}

fn parse_hz(argument: i64) -> Result<u32, Errno> {
    u32::try_from(argument)
        .ok()
        .filter(|hz| (MIN_HZ..=MAX_HZ).contains(hz))
        .ok_or(Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_checked_before_its_settings() {
        let mut session = Session::new(1, 100);
        let rate = Ok(Some(ClockRequest::Rate(1000)));
        assert_eq!(session.clock_request(PCS_SETHZ, 1000), rate);
        for hz in [0, -1, 10_001, i64::MAX] {
            assert_eq!(session.clock_request(PCS_SETHZ, hz), Err(Errno::EINVAL));
            assert_eq!(session.ioctl(PCS_SETHZ, hz, &[]), Err(Errno::EINVAL));
        }
        let flush = Ok(Some(ClockRequest::Flush));
        assert_eq!(session.clock_request(PCS_STOP, 0), flush);
        assert_eq!(session.clock_request(BUF_INCR, 1), Ok(None));
        assert_eq!(session.clock_request(0x5088, 0), Err(Errno::EINVAL));
        session.stop();
        assert_eq!(session.clock_request(PCS_STOP, 0), Ok(None));
        assert_eq!(session.clock_request(PCS_SETHZ, 1000), Err(Errno::EINVAL));
        assert_eq!(session.ioctl(PCS_SETHZ, 1000, &[]), Err(Errno::EINVAL));
    }

    #[test]
    fn gethz_and_getstat_return_a_new_rate() {
        let mut session = Session::new(2, 100);
        let set = session.ioctl(PCS_SETHZ, 250, &[]);
        assert_eq!(set, Ok(IoctlReply::default()));
        let rate = session.ioctl(PCS_GETHZ, 0, &[]).unwrap();
        assert_eq!(rate.value, 250);
        let reply = session.ioctl(PCS_GETSTAT, 0, &[]).unwrap();
        let status = Status::decode(&reply.data).unwrap();
        assert_eq!((status.hz, status.vcpus, status.buffers), (250, 2, 3));
    }
}
