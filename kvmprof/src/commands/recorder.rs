//! A recorder of the guest behind a socket, for the commands that read one.

use std::sync::mpsc::SyncSender;

use anyhow::Context;
use kvmprof_abi::errno::Errno;
use kvmprof_abi::recorder::{REC_EVENT, REC_PIDS, REC_START, STACK_KERNEL, STACK_USER};
use kvmprof_client::{ClientError, Connection, RemoteDevice};

use kvmprof_recording::{SamplingEvent, StackParts};

/// Bytes of the stream that are read at a time.
const PIECE: usize = 256 << 10;

/// Limits `recorder`, which isn't started yet, to these processes; an empty list stands for all of them.
///
/// # Errors
/// The recorder is of a release that can't do it; there are too many.
pub fn choose(recorder: &RemoteDevice, pids: &[i32]) -> anyhow::Result<()> {
    if pids.is_empty() {
        return Ok(());
    }
    let data: Vec<u8> = pids.iter().flat_map(|pid| pid.to_le_bytes()).collect();
    recorder
        .ioctl_with(REC_PIDS, 0, &data, 0)
        .context("The guest's recorder refuses this list of processes: give fewer, or use the kvmprof of the release that runs the guest")?;
    Ok(())
}

/// Starts `recorder`, with these parts of call stacks, and with `event` in place of the clock if there is one.
///
/// # Errors
/// The guest has no clock, or is sampled by something else; or another error, with `otherwise` as its context.
pub fn start(
    recorder: &RemoteDevice,
    stacks: StackParts,
    event: Option<SamplingEvent>,
    otherwise: &'static str,
) -> anyhow::Result<()> {
    if let Some(event) = event {
        let kind = event.kind().number().to_le_bytes();
        recorder
            .ioctl_with(REC_EVENT, event.period().into(), &kind, 0)
            .context("The guest's recorder doesn't know this event: use the kvmprof of the release that runs the guest")?;
    }
    let part = |wanted, part| if wanted { part } else { 0 };
    let parts = part(stacks.kernel, STACK_KERNEL) | part(stacks.user, STACK_USER);
    if let Err(error) = recorder.ioctl(REC_START, parts) {
        let words = match (error.errno(), event) {
            (Some(Errno::EINVAL), None) => {
                "The guest's clock is off: start the guest with another --hz than 0"
            }
            (Some(Errno::EBUSY), None) => {
                "The guest is being sampled by an event, not by the clock: wait until that recording has ended, or \
                 give the same --event (kvmprof status tells it)"
            }
            (Some(Errno::EBUSY), Some(_)) => {
                "The guest is being sampled by the clock, or by another event: wait until other recordings have \
                 ended, close pcs and turn prf off (kvmprof status tells who counts)"
            }
            _ => otherwise,
        };
        return Err(error).context(words);
    }
    Ok(())
}

/// Ends the connection when it is dropped, also by a panic: [`read`] waits no longer then.
pub struct Disconnect<'a>(pub &'a Connection);

impl Drop for Disconnect<'_> {
    fn drop(&mut self) {
        self.0.disconnect();
    }
}

/// Hands on all that comes, to the recording's end.
pub fn read(recorder: &RemoteDevice, sender: &SyncSender<Result<Vec<u8>, ClientError>>) {
    loop {
        let result = recorder.read(PIECE);
        let (is_end, has_failed) = (result.as_ref().is_ok_and(Vec::is_empty), result.is_err());
        // Nobody takes it any more when the command has ended.
        if is_end || sender.send(result).is_err() || has_failed {
            return;
        }
    }
}
