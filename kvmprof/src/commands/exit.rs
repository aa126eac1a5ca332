//! The exit statuses for a guest's start and end.

use kvmprof_cli::command_line::{ExitStatus, WithStatus};
use kvmprof_machine::MachineError;
use kvmprof_vmm::vm::{VmEnd, VmError};

/// `error` with the exit status of a guest that couldn't be started: the status of wrong options, or of a host without
/// a usable KVM.
pub fn start_error(error: VmError) -> anyhow::Error {
    match &error {
        VmError::Machine(machine) => match status_of_machine_error(machine) {
            ExitStatus::FAILURE => error.into(),
            status => with_status(error, status),
        },
        _ => error.into(),
    }
}

/// As [`start_error`], for an error that only prevents building the machine.
pub fn machine_error(error: MachineError) -> anyhow::Error {
    start_error(error.into())
}

fn with_status(error: VmError, status: ExitStatus) -> anyhow::Error {
    let message = format!("{:#}", anyhow::Error::from(error));
    WithStatus { message, status }.into()
}

fn status_of_machine_error(error: &MachineError) -> ExitStatus {
    match error {
        MachineError::NoKvm
        | MachineError::KvmPermission
        | MachineError::OpenKvm(_)
        | MachineError::KvmVersion(_)
        | MachineError::MissingCapability(_) => ExitStatus::NO_KVM,
        // These are wrong on any host.
        MachineError::TooLittleMemory { .. }
        | MachineError::UnalignedMemory(_)
        | MachineError::CommandLineCharacters => ExitStatus::USAGE,
        _ => ExitStatus::FAILURE,
    }
}

/// The exit status for a guest's end. An abnormal end is an error with a description.
pub fn status_of_guest(end: VmEnd) -> anyhow::Result<ExitStatus> {
    let (status, message) = match end {
        VmEnd::Stopped | VmEnd::PowerOff | VmEnd::Reset => return Ok(ExitStatus::SUCCESS),
        VmEnd::Panic(Some(message)) => (
            ExitStatus::GUEST_PANIC,
            format!("The guest panicked: {message}"),
        ),
        VmEnd::Panic(None) => (
            ExitStatus::GUEST_PANIC,
            "The guest panicked; its console may say why".to_owned(),
        ),
        VmEnd::GuestFailure(failure) => (ExitStatus::GUEST_FAILURE, failure.to_string()),
        VmEnd::HostFailure(error) => (
            ExitStatus::FAILURE,
            format!("KVM failed to run a vCPU: {error}"),
        ),
    };
    Err(WithStatus { message, status }.into())
}
