//! A run's requests to the device.

use std::time::Duration;

use kvmprof_abi::pcs::{
    BUF_INCR, Format, MAX_LIST, PCS_SETBSIZE, PCS_SETFORMAT, PCS_SETHZ, PROF_ALL, PROF_GROUP,
    PROF_KERNEL, PROF_LIST,
};
use kvmprof_abi::stream::Isample;

/// A run's requests to the device, and its duration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Sample the kernel.
    pub kernel: bool,
    /// Sample everything.
    pub all: bool,
    /// Sample these processes; at most `MAX_LIST`.
    pub pids: Vec<i32>,
    /// Sample this process group.
    pub group: Option<i32>,
    /// Buffers beyond the device's default.
    pub more_buffers: usize,
    /// Bytes in a buffer, if not the default.
    pub buffer_size: Option<u32>,
    /// The form of the records.
    pub format: Format,
    /// The clock's rate in Hz, if it is to change.
    pub hz: Option<u32>,
    /// The duration; `None` is until interrupted.
    pub duration: Option<Duration>,
}

/// An ioctl of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) command: u32,
    pub(super) argument: i64,
    pub(super) data: Vec<u8>,
    /// The purpose, for the error message "Cannot ...".
    pub(super) purpose: String,
    record: [i32; MAX_LIST],
}

impl Call {
    fn new(command: u32, argument: i64, purpose: impl Into<String>) -> Self {
        let mut record = [0; MAX_LIST];
        record[0] = i32::try_from(argument).unwrap_or_default();
        Self {
            command,
            argument,
            data: Vec::new(),
            purpose: purpose.into(),
            record,
        }
    }

    fn list(pids: &[i32]) -> Self {
        let mut call = Self::new(PROF_LIST, 0, "ask for a list of processes");
        let count = i32::try_from(pids.len()).unwrap_or(i32::MAX);
        for word in [count].iter().chain(pids) {
            call.data.extend_from_slice(&word.to_le_bytes());
        }
        for (to, pid) in call.record.iter_mut().zip(pids) {
            *to = *pid;
        }
        call
    }

    /// Its record in the stream.
    pub(super) fn record(&self) -> Isample {
        Isample {
            command: self.command,
            data: self.record,
        }
    }
}

impl Plan {
    /// The calls that set the device up, in the required order: those that start the gathering come last.
    pub(super) fn calls(&self) -> Vec<Call> {
        let mut calls = Vec::new();
        if self.format != Format::default() {
            let number = self.format.number().into();
            calls.push(Call::new(PCS_SETFORMAT, number, "choose the format"));
        }
        if let Some(size) = self.buffer_size {
            let purpose = format!("set the buffer size to {size} bytes");
            calls.push(Call::new(PCS_SETBSIZE, size.into(), purpose));
        }
        if let Some(hz) = self.hz {
            let purpose = format!("set the clock to {hz} Hz");
            calls.push(Call::new(PCS_SETHZ, hz.into(), purpose));
        }
        if let more @ 1.. = i64::try_from(self.more_buffers).unwrap_or(i64::MAX) {
            let purpose = format!("get {more} more buffers");
            calls.push(Call::new(BUF_INCR, more, purpose));
        }
        if !self.pids.is_empty() {
            calls.push(Call::list(&self.pids));
        }
        if let Some(group) = self.group {
            let purpose = format!("ask for process group {group}");
            calls.push(Call::new(PROF_GROUP, group.into(), purpose));
        }
        if self.kernel {
            calls.push(Call::new(PROF_KERNEL, 0, "ask for the kernel"));
        }
        if self.all {
            calls.push(Call::new(PROF_ALL, 0, "ask for all processes"));
        }
        calls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathering_starts_after_the_setup() {
        let plan = Plan {
            kernel: true,
            all: true,
            pids: vec![7, 8],
            group: Some(3),
            more_buffers: 2,
            buffer_size: Some(4096),
            format: Format::Classic,
            hz: Some(500),
            duration: None,
        };
        let calls = plan.calls();
        let commands: Vec<u32> = calls.iter().map(|call| call.command).collect();
        let (setup, begin) = commands.split_at(4);
        assert_eq!(setup, [PCS_SETFORMAT, PCS_SETBSIZE, PCS_SETHZ, BUF_INCR]);
        assert_eq!(begin, [PROF_LIST, PROF_GROUP, PROF_KERNEL, PROF_ALL]);
        assert_eq!(calls[3].record().data, [2, 0, 0, 0, 0]);
        assert_eq!(calls[4].data, [2, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0]);
        assert_eq!(calls[4].record().data, [7, 8, 0, 0, 0]);
    }

    #[test]
    fn only_settings_that_differ_from_the_default_need_calls() {
        let plan = Plan {
            all: true,
            ..Plan::default()
        };
        let commands: Vec<u32> = plan.calls().iter().map(|call| call.command).collect();
        assert_eq!(commands, [PROF_ALL]);
    }
}
