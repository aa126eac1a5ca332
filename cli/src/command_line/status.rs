//! The exit statuses of both programs.

use std::process::ExitCode;

/// A program's exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitStatus(u8);

impl ExitStatus {
    /// The command succeeded, or its output was closed.
    pub const SUCCESS: Self = Self(0);
    /// Something failed.
    pub const FAILURE: Self = Self(1);
    /// The arguments are wrong.
    pub const USAGE: Self = Self(2);
    /// The host has no usable KVM.
    pub const NO_KVM: Self = Self(2);
    /// No vCPU of the guest could continue: triple fault, emulation failure.
    pub const GUEST_FAILURE: Self = Self(3);
    /// The guest's kernel panicked.
    pub const GUEST_PANIC: Self = Self(4);
    /// A thread of the program itself panicked.
    pub const FAULT: Self = Self(5);

    /// The exit status of a command that this program has run, as this program's own.
    #[must_use]
    pub const fn of_command(status: u8) -> Self {
        Self(status)
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.0)
    }
}

impl From<ExitStatus> for i32 {
    fn from(status: ExitStatus) -> Self {
        status.0.into()
    }
}
