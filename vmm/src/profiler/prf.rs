//! The kernel profiler's minors and the clock.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::prf::RATE_HZ;
use kvmprof_devices::endpoint::IoctlReply;
use kvmprof_devices::profiling::Switch;

use super::Profiler;

impl Profiler {
    pub(super) fn read_prf(&mut self, minor: u16, limit: usize) -> Result<Vec<u8>, Errno> {
        if self.prf.is_on(minor) {
            // The idle counter has the ticks of halted vCPUs, too.
            self.settle();
        }
        let mut bytes = Vec::new();
        self.prf.read(minor, limit, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn ioctl_prf(
        &mut self,
        minor: u16,
        command: u32,
        argument: i64,
    ) -> Result<IoctlReply, Errno> {
        match self.prf.switch(minor, command, argument) {
            Some(Switch::On) => self.prepare_prf(),
            Some(Switch::Off) => {
                let minors = self.prf.reports();
                let others = minors.filter(|other| other.minor != minor).any(|m| m.on);
                self.settle_before_leaving(others || self.is_recording() || self.pcs.wants_ticks());
            }
            None => {}
        }
        let reply = self.prf.ioctl(minor, command, argument);
        self.follow_consumers(self.pcs.wants_process_group());
        reply
    }

    /// Before a minor is turned on: it starts with the ticks from now on, at the rate of whoever
    /// uses the clock already.
    fn prepare_prf(&mut self) {
        self.settle();
        self.rate = self.rate_for_another();
        self.prf.set_hz(self.rate);
        if (self.rate == 0 || !self.rate.is_multiple_of(RATE_HZ))
            && self.refused_rate.replace(self.rate) != Some(self.rate)
        {
            // Once for each rate: a guest may go on trying.
            log::warn!(
                "prf counts {RATE_HZ} times a second and can't be turned on with the clock at {} Hz: give \
                 run --hz (or pcs, if that has changed the rate) a multiple of {RATE_HZ}",
                self.rate
            );
        }
    }
}
