//! A recorder of the guest at a socket, for the commands that read recordings from it.

use std::sync::mpsc::SyncSender;

use anyhow::{Context, bail};
use kvmprof_abi::errno::Errno;
use kvmprof_abi::recorder::{
    REC_EVENT, REC_HZ, REC_PIDS, REC_START, REC_TASKS, STACK_KERNEL, STACK_USER,
};
use kvmprof_client::{ClientError, Connection, RemoteDevice};

use super::pmc::read_counters;
use kvmprof_recording::{SamplingEvent, StackParts};

/// Bytes of the stream that are read at once.
const PIECE: usize = 256 << 10;

/// Guests of other programs have no counters.
const OTHERS: &str = "The guest is another program's: besides the clock it has kvm-exits and page-faults, if kvmprof attach has --capture kernel and the host's KVM passes its \
                      tracepoints (kvmprof exits says why not)";
const NO_CLOCK: &str = "The guest's clock is off: start the guest with another --hz than 0";

/// Limits `recorder`, which isn't started yet, to these processes; an empty list means all processes.
///
/// # Errors
/// The recorder's release doesn't support this, or there are too many processes.
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

/// Makes `recorder`, which isn't started yet, look at the guest's tasks after each `ticks` ticks.
///
/// # Errors
/// The guest's tasks can't be looked at, or the recorder's release doesn't support this.
pub fn choose_tasks(recorder: &RemoteDevice, ticks: u32) -> anyhow::Result<()> {
    let Err(error) = recorder.ioctl(REC_TASKS, ticks.into()) else {
        return Ok(());
    };
    let words = match error.errno() {
        Some(Errno::ENODEV) => {
            "--tasks is for Linux guests whose kernel describes its tasks (BTF): record this one without it"
        }
        _ => {
            "The guest's recorder doesn't know --tasks: use the kvmprof of the release that runs the guest, or record without it"
        }
    };
    Err(error).context(words)
}

/// Makes the clock the source of ticks for `recorder`, which isn't started yet, with `hz` ticks a second.
///
/// # Errors
/// The guest has no clock, or the recorder's release doesn't support this.
pub fn choose_rate(
    connection: &Connection,
    recorder: &RemoteDevice,
    hz: u32,
) -> anyhow::Result<()> {
    let Err(error) = recorder.ioctl(REC_HZ, hz.into()) else {
        return Ok(());
    };
    let words = match connection.hello().hz {
        0 => NO_CLOCK,
        _ => {
            "The guest's recorder doesn't know --hz: use the kvmprof of the release that runs the guest, or record without it"
        }
    };
    Err(error).context(words)
}

/// Starts `recorder`, which was opened by `connection`, with these parts of call stacks. Without `event`, the ticks
/// come from the present source, or else from the clock.
///
/// # Errors
/// The guest has no clock, the host doesn't count the event, or the guest is sampled by another source; or another
/// error, with `otherwise` as its context.
pub fn start(
    connection: &Connection,
    recorder: &RemoteDevice,
    stacks: StackParts,
    event: Option<SamplingEvent>,
    otherwise: &'static str,
) -> anyhow::Result<()> {
    if let Some(event) = event {
        choose_event(connection, recorder, event)?;
    }
    let part = |wanted, part| if wanted { part } else { 0 };
    let parts = part(stacks.kernel, STACK_KERNEL) | part(stacks.user, STACK_USER);
    if let Err(error) = recorder.ioctl(REC_START, parts) {
        let words = match (error.errno(), event) {
            (Some(Errno::EINVAL), None) => NO_CLOCK,
            (Some(Errno::EBUSY), None) => {
                "The guest is being sampled at another rate, or by an event: wait until other recordings have ended, \
                 close pcs, turn prf and profil off (kvmprof status tells who counts), or leave --hz out"
            }
            (Some(Errno::EBUSY), Some(_)) => {
                "The guest is being sampled by the clock, or by another event: wait until other recordings have \
                 ended, close pcs, turn prf and profil off (kvmprof status tells who counts), or give the same --event"
            }
            _ => otherwise,
        };
        return Err(error).context(words);
    }
    Ok(())
}

fn choose_event(
    connection: &Connection,
    recorder: &RemoteDevice,
    event: SamplingEvent,
) -> anyhow::Result<()> {
    let (kind, period) = (event.kind(), i64::try_from(event.period())?);
    let chosen = recorder.ioctl_with(REC_EVENT, period, &kind.number().to_le_bytes(), 0);
    let Err(error) = chosen else {
        return Ok(());
    };
    if error.errno() == Some(Errno::ENODEV) {
        let Ok(counters) = read_counters(connection) else {
            return Err(error).context(OTHERS);
        };
        let mut events = counters.events.into_iter();
        let event = events.find(|event| event.name == kind.name());
        if let Some(why) = event.and_then(|event| event.missing) {
            bail!("The guest can't be sampled by {}: {why}", kind.name());
        }
    }
    Err(error).context("The guest's recorder doesn't know this event: use the kvmprof of the release that runs the guest")
}

/// Closes the connection when it is dropped, also after a panic, so that [`read`] doesn't wait any longer.
pub struct Disconnect<'a>(pub &'a Connection);

impl Drop for Disconnect<'_> {
    fn drop(&mut self) {
        self.0.disconnect();
    }
}

/// Sends the whole stream to `sender`, up to the recording's end.
pub fn read(recorder: &RemoteDevice, sender: &SyncSender<Result<Vec<u8>, ClientError>>) {
    loop {
        let result = recorder.read(PIECE);
        let (is_end, has_failed) = (result.as_ref().is_ok_and(Vec::is_empty), result.is_err());
        // The receiver is gone after the command has ended.
        if is_end || sender.send(result).is_err() || has_failed {
            return;
        }
    }
}
