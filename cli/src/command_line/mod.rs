//! Shared parts of the commands of `kvmprof` and `kvmprof-tools`: a trait, output and warnings, common options and
//! values, and the exit statuses.

mod console;
mod error;
mod output;
mod program;
mod socket;
mod status;
mod usage;
pub mod value;

pub use console::Console;
pub use error::{UsageError, WithStatus, usage};
pub use output::{PipeWriter, is_reader_gone};
pub use program::{Program, main};
pub use socket::SocketArgs;
pub use status::ExitStatus;
pub use usage::{TOOLS, is_called_as_tool, parse, program_name, usage_error};

/// A command with its arguments.
pub trait Command {
    /// Executes the command. Results go to the console's output, warnings to its messages.
    ///
    /// # Errors
    /// The reason for the failure. The program prints the error with its causes on one line, and ends with the status
    /// of the [`WithStatus`] or [`UsageError`] in it, else with [`ExitStatus::FAILURE`].
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus>;
}
