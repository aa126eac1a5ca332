//! The exit statuses of both programs.

use std::process::ExitCode;

/// How a program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitStatus(u8);

impl ExitStatus {
    /// The command did what it was asked for, or nobody reads its output any more.
    pub const SUCCESS: Self = Self(0);
    /// Something failed.
    pub const FAILURE: Self = Self(1);
    /// The arguments are wrong.
    pub const USAGE: Self = Self(2);
    /// The host has no KVM that can be used.
    pub const NO_KVM: Self = Self(2);
    /// No vCPU of the guest could go on: triple fault, emulation failure.
    pub const GUEST_FAILURE: Self = Self(3);
    /// The guest's kernel panicked.
    pub const GUEST_PANIC: Self = Self(4);
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.0)
    }
}
