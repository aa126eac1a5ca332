//! The consoles of a guest: their output can end the guest, and one of them has standard input.

use std::sync::Arc;

use vmm_sys_util::eventfd::EventFd;

use super::launch::another;
use super::{VmConfig, VmError};
use kvmprof_machine::MachineDevices;
use kvmprof_machine::console::{Console, ConsoleInput, HvcConsole, InputTarget, TextWatch};

/// The virtio console, if the configuration has one.
pub(super) fn hvc_console(
    config: &VmConfig,
    stop_request: &EventFd,
) -> Result<Option<Arc<HvcConsole>>, VmError> {
    if config.console != Console::Hvc {
        return Ok(None);
    }
    let output = config.console.open_output()?;
    let hvc = HvcConsole::new(output.watched(text_watch(config, stop_request)?));
    let hvc = hvc.map_err(VmError::host("what the console needs"))?;
    Ok(Some(Arc::new(hvc)))
}

/// The watch that ends the guest when a console prints the text of `--until`, if there is one.
pub(super) fn text_watch(
    config: &VmConfig,
    stop_request: &EventFd,
) -> Result<Option<TextWatch>, VmError> {
    let Some(text) = &config.until else {
        return Ok(None);
    };
    let stop = Arc::new(another(stop_request)?);
    // `said` comes first: it has to be written before the guest's end.
    let found = config.said.iter().cloned().chain([stop]);
    Ok(Some(TextWatch::new(text, found.collect())))
}

/// Connects standard input to the guest's console. The escape key ends the guest.
pub(super) fn console_input(
    hvc: Option<&Arc<HvcConsole>>,
    devices: &MachineDevices,
    stop_request: &EventFd,
) -> Result<ConsoleInput, VmError> {
    let target: Arc<dyn InputTarget> = match hvc {
        Some(hvc) => hvc.clone(),
        None => devices.serial().clone(),
    };
    let stop_request = stop_request
        .try_clone()
        .map_err(VmError::host("standard input"))?;
    let quit = move || {
        // If the counter is full, the request has been made already.
        let _ = stop_request.write(1);
    };
    ConsoleInput::stdin(target, Box::new(quit)).map_err(VmError::host("standard input"))
}
