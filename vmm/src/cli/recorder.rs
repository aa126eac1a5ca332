//! A recorder of the guest behind a socket, for the commands that read one.

use anyhow::Context;
use kvmprof_abi::errno::Errno;
use kvmprof_abi::recorder::{REC_PIDS, REC_START, STACK_KERNEL, STACK_USER};
use kvmprof_tools::client::RemoteDevice;

use crate::introspection::StackWish;

/// Has `recorder` record these processes and no others, once it is started; none: all of them.
///
/// # Errors
/// The recorder doesn't know how; there are too many.
pub fn choose(recorder: &RemoteDevice, pids: &[i32]) -> anyhow::Result<()> {
    if pids.is_empty() {
        return Ok(());
    }
    let data: Vec<u8> = pids.iter().flat_map(|pid| pid.to_le_bytes()).collect();
    recorder
        .ioctl_with(REC_PIDS, 0, &data, 0)
        .context("The guest's recorder doesn't take these processes")?;
    Ok(())
}

/// Has `recorder` record these parts of stacks from now on.
///
/// # Errors
/// The guest has no clock; or `otherwise`, and why.
pub fn start(
    recorder: &RemoteDevice,
    stacks: StackWish,
    otherwise: &'static str,
) -> anyhow::Result<()> {
    let part = |wanted, part| if wanted { part } else { 0 };
    let parts = part(stacks.kernel, STACK_KERNEL) | part(stacks.user, STACK_USER);
    if let Err(error) = recorder.ioctl(REC_START, parts) {
        let no_clock = error.errno() == Some(Errno::EINVAL);
        return Err(error).context(if no_clock {
            "The guest's clock is off: start it with run --hz"
        } else {
            otherwise
        });
    }
    Ok(())
}
