//! A recorder of the guest behind a socket, for the commands that read one.

use anyhow::Context;
use kvmprof_abi::errno::Errno;
use kvmprof_abi::recorder::{REC_PIDS, REC_START, STACK_KERNEL, STACK_USER};
use kvmprof_client::RemoteDevice;

use kvmprof_recording::StackParts;

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

/// Starts `recorder`, with these parts of call stacks.
///
/// # Errors
/// The guest has no clock; or another error, with `otherwise` as its context.
pub fn start(
    recorder: &RemoteDevice,
    stacks: StackParts,
    otherwise: &'static str,
) -> anyhow::Result<()> {
    let part = |wanted, part| if wanted { part } else { 0 };
    let parts = part(stacks.kernel, STACK_KERNEL) | part(stacks.user, STACK_USER);
    if let Err(error) = recorder.ioctl(REC_START, parts) {
        let no_clock = error.errno() == Some(Errno::EINVAL);
        return Err(error).context(if no_clock {
            "The guest's clock is off: start the guest with another --hz than 0"
        } else {
            otherwise
        });
    }
    Ok(())
}
