//! getpc as a command.

use std::io;
use std::path::Path;

use kvmprof_abi::pcs::NODE;

use super::names::{fetch_names, own_names};
use super::{Arguments, GetpcError, OutputError, Summary, open_output, run};
use crate::device::{Access, DeviceError, DeviceKind, Node, Remote, connect};
use crate::interrupt::Interrupt;

/// Why getpc failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The arguments don't go together.
    #[error("{0}")]
    Usage(String),
    /// There is nowhere to write to.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The device can't be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The run failed.
    #[error(transparent)]
    Run(#[from] GetpcError),
    /// Signals can't be caught.
    #[error("Cannot catch signals")]
    Signals(#[source] io::Error),
}

impl Arguments {
    /// Runs getpc: on the socket that the arguments name, else on the guest's node. SIGINT and
    /// SIGTERM end it cleanly. Says on standard error what was lost.
    ///
    /// # Errors
    /// What kept it from gathering or writing.
    pub fn execute(&self) -> Result<Summary, CommandError> {
        let plan = self.plan().map_err(CommandError::Usage)?;
        if self.output.is_none() {
            // A terminal is refused before the device is taken from anybody else.
            drop(open_output(None)?);
        }
        let interrupt = Interrupt::on_signals().map_err(CommandError::Signals)?;
        let output = || open_output(self.output.as_deref());
        let summary = match &self.socket {
            Some(path) => {
                let connection = connect(path)?;
                let device = Remote::pcs(&connection)?;
                let names = &mut || fetch_names(&connection);
                run(&device, &plan, &mut *output()?, interrupt, names)?
            }
            None => {
                let device = Node::open(DeviceKind::Pcs, Path::new(NODE), Access::Read)?;
                run(&device, &plan, &mut *output()?, interrupt, &mut own_names)?
            }
        };
        if summary.lost > 0 {
            let lost = summary.lost;
            eprintln!(
                "getpc: {lost} samples were lost: there was no free buffer (more --buffers or a larger \
                 --buffer-size help), or the host was too slow for the clock's rate"
            );
        }
        Ok(summary)
    }
}
