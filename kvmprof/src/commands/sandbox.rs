//! What contains the program, for the commands that run a guest.

use std::env;
use std::io;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use kvmprof_sandbox::{Mode, filters, process};
use kvmprof_vmm::console::restore_terminal;
use kvmprof_vmm::share::{ShareHelper, ShareOptions, ShareSource};

/// Options about it.
#[derive(Clone, Debug, Args)]
pub struct SandboxOptions {
    /// Contain kvmprof, so that a fault in it gives a guest as little as possible: on, log (calls that would end kvmprof are reported
    /// and made) or off
    #[arg(long = "sandbox", value_name = "MODE", default_value_t)]
    mode: Mode,
}

impl SandboxOptions {
    /// Contains this process, which has opened no files and started no threads yet. What the host's kernel doesn't have is left out with a
    /// warning. Returns what starts virtiofsd for these folders, which a contained process may not do itself.
    ///
    /// # Errors
    /// The system refuses what it has.
    pub fn start(&self, shares: &[ShareOptions]) -> anyhow::Result<Option<Arc<ShareHelper>>> {
        if self.mode == Mode::Off {
            return Ok(None);
        }
        let without = |part: &str, result: io::Result<()>| {
            if let Err(error) = result {
                log::warn!("The sandbox lacks {part}: {error}");
            }
        };
        let closed = process::close_inherited(env::args_os());
        without("the closing of inherited files", closed);
        // Before it gives up what virtiofsd needs.
        let helper = share_helper(shares)?;
        process::give_up().context("Cannot give up what a guest doesn't need")?;
        let filters = filters::prepare(self.mode, restore_terminal);
        without("filters of system calls (seccomp)", filters);
        Ok(helper)
    }

    /// Whether files are to be restricted to what the guest can need. There are no restrictions that only report.
    pub fn restricts_paths(&self) -> bool {
        self.mode == Mode::On
    }
}

fn share_helper(shares: &[ShareOptions]) -> anyhow::Result<Option<Arc<ShareHelper>>> {
    let is_folder = |share: &ShareOptions| matches!(share.source, ShareSource::Folder { .. });
    if !shares.iter().any(is_folder) {
        return Ok(None);
    }
    // SAFETY: the command has started no thread yet.
    let helper = unsafe { ShareHelper::fork(shares) };
    let helper = helper.context("Cannot start the process that starts virtiofsd")?;
    Ok(Some(Arc::new(helper)))
}
