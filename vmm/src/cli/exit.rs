//! Exit statuses, and how errors are told.

use std::process::ExitCode;

use crate::machine::MachineError;
use crate::vm::{VmEnd, VmError};

/// Something failed.
pub const FAILURE: u8 = 1;
/// There is no KVM that can be used. Wrong arguments end with the same status (clap's).
pub const NO_KVM: u8 = 2;
/// No vCPU of the guest could go on: triple fault, emulation failure.
pub const GUEST_FAILURE: u8 = 3;
/// The guest's kernel panicked.
pub const GUEST_PANIC: u8 = 4;

/// An exit status that goes with an error.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct WithStatus {
    /// What is shown.
    pub message: String,
    /// The program's exit status.
    pub status: u8,
}

/// Tells the error, if it is one, on one line behind the name that the program was called by, and gives
/// the status that goes with it.
pub fn status_of(result: anyhow::Result<ExitCode>, program: &str) -> ExitCode {
    match result {
        Ok(status) => status,
        Err(error) => {
            let chain: Vec<String> = error.chain().map(ToString::to_string).collect();
            eprintln!("{program}: {}", chain.join(": "));
            ExitCode::from(status_of_error(&error))
        }
    }
}

fn status_of_error(error: &anyhow::Error) -> u8 {
    if let Some(with_status) = error.downcast_ref::<WithStatus>() {
        return with_status.status;
    }
    let machine = match error.downcast_ref::<VmError>() {
        Some(VmError::Machine(machine)) => Some(machine),
        _ => error.downcast_ref::<MachineError>(),
    };
    match machine {
        Some(
            MachineError::NoKvm
            | MachineError::KvmPermission
            | MachineError::OpenKvm(_)
            | MachineError::KvmVersion(_)
            | MachineError::MissingCapability(_),
        ) => NO_KVM,
        _ => FAILURE,
    }
}

/// The exit status of a guest's end; what isn't a normal end is told.
pub fn status_of_guest(end: VmEnd) -> anyhow::Result<ExitCode> {
    let (status, message) = match end {
        VmEnd::Stopped | VmEnd::PowerOff | VmEnd::Reset => return Ok(ExitCode::SUCCESS),
        VmEnd::Panic(Some(message)) => (GUEST_PANIC, format!("The guest panicked: {message}")),
        VmEnd::Panic(None) => (
            GUEST_PANIC,
            "The guest panicked; its console may say why".to_owned(),
        ),
        VmEnd::GuestFailure(failure) => (GUEST_FAILURE, failure.to_string()),
        VmEnd::HostFailure(error) => (FAILURE, format!("KVM failed to run a vCPU: {error}")),
    };
    Err(WithStatus { message, status }.into())
}
