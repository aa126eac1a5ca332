//! Errors with an exit status of their own.

use std::fmt::Display;

use super::ExitStatus;

/// Wrong arguments that were found after parsing. The program ends with [`ExitStatus::USAGE`] and refers to the help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// An error about wrong arguments.
pub fn usage(message: impl Display) -> anyhow::Error {
    UsageError(message.to_string()).into()
}

/// An error with an exit status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct WithStatus {
    /// The message to print.
    pub message: String,
    /// The program's exit status.
    pub status: ExitStatus,
}

/// The exit status for `error`.
pub(super) fn status_of(error: &anyhow::Error) -> ExitStatus {
    if error.is::<UsageError>() {
        return ExitStatus::USAGE;
    }
    error
        .downcast_ref::<WithStatus>()
        .map_or(ExitStatus::FAILURE, |error| error.status)
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn an_error_with_context_keeps_its_exit_status() {
        let failure = || WithStatus {
            message: "The guest panicked".to_owned(),
            status: ExitStatus::GUEST_PANIC,
        };
        let failed: anyhow::Result<()> = Err(failure().into());
        assert_eq!(
            status_of(&failed.context("Cannot go on").unwrap_err()),
            ExitStatus::GUEST_PANIC
        );
        assert_eq!(status_of(&usage("no")), ExitStatus::USAGE);
        assert_eq!(status_of(&anyhow::anyhow!("no")), ExitStatus::FAILURE);
    }
}
