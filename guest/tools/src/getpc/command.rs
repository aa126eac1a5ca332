//! getpc as a command.

use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use kvmprof_abi::pcs::NODE;
use kvmprof_recording::file::create_in_place;

use super::names::{fetch_names, own_names};
use super::{Arguments, Summary, run};
use crate::device::{Access, DeviceKind, Node, Remote, connect};
use kvmprof_cli::command_line::{Command, Console, ExitStatus, PipeWriter, usage};
use kvmprof_cli::interrupt::Interrupt;

/// What getpc writes, and what to do with it, for people who have no file for it.
const WHAT: &str = "the stream";
const INSTEAD: &str = "write to a file with -o FILE, or pipe it into pcstat";

impl Command for Arguments {
    /// Runs getpc on the socket of the arguments, or on the guest's node. SIGINT and SIGTERM end it cleanly. Warns of
    /// lost samples.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let plan = self.plan().map_err(usage)?;
        let path = self
            .output
            .as_deref()
            .filter(|path| *path != Path::new("-"));
        // Check this before the exclusive device is opened.
        if path.is_none() {
            console.binary(WHAT, INSTEAD)?;
        }
        let interrupt = Interrupt::on_signals().context("Cannot catch signals")?;
        let summary = match connect(&self.socket)? {
            Some(connection) => {
                let device = Remote::pcs(&connection)?;
                let names = &mut || fetch_names(&connection);
                let mut output = open_output(path, console)?;
                run(&device, &plan, &mut *output, interrupt, names)?
            }
            None => {
                let device = Node::open(DeviceKind::Pcs, Path::new(NODE), Access::Read)?;
                let mut output = open_output(path, console)?;
                run(&device, &plan, &mut *output, interrupt, &mut own_names)?
            }
        };
        warn_of_loss(&summary, console);
        Ok(ExitStatus::SUCCESS)
    }
}

/// Opens the file at `path`, else standard output.
fn open_output<'a>(
    path: Option<&Path>,
    console: &'a mut Console<'_>,
) -> anyhow::Result<Box<dyn Write + 'a>> {
    let Some(path) = path else {
        return Ok(Box::new(console.binary(WHAT, INSTEAD)?));
    };
    let file =
        create_in_place(path).with_context(|| format!("Cannot write to {}", path.display()))?;
    Ok(Box::new(BufWriter::new(PipeWriter(file))))
}

fn warn_of_loss(summary: &Summary, console: &mut Console<'_>) {
    if summary.lost > 0 {
        console.warn(format_args!(
            "{} samples were lost: there was no free buffer (more --buffers or a larger --buffer-size help), or the \
             host was too slow for the clock's rate",
            summary.lost
        ));
    }
}
