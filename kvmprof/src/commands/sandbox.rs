//! What contains the program, for the commands that run a guest.

use std::env;
use std::io;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use kvmprof_sandbox::user::{self, User};
use kvmprof_sandbox::{Mode, filters, process};
use kvmprof_vmm::console::restore_terminal;
use kvmprof_vmm::network::{NetworkConfig, TapOpener};
use kvmprof_vmm::share::{ShareHelper, ShareOptions};

/// Options about it.
#[derive(Clone, Debug, Args)]
pub struct SandboxOptions {
    /// Contain kvmprof, so that a fault in it gives a guest as little as possible: on, log (calls that would end kvmprof are reported
    /// and made) or off
    #[arg(long = "sandbox", value_name = "MODE", default_value_t)]
    mode: Mode,
}

/// Processes that do what a contained one may not. They end when this is dropped, in the order of the fields; so it has to live until the
/// guest has ended, on a thread that may wait for them.
#[derive(Clone, Default)]
pub struct Helpers {
    /// Starts virtiofsd.
    pub shares: Option<Arc<ShareHelper>>,
    /// Opens taps that come again.
    pub taps: Option<Arc<TapOpener>>,
}

impl SandboxOptions {
    /// Contains this process, which has opened no files and started no threads yet. What the host's kernel doesn't have is left out with a
    /// warning. Returns what serves these folders and networks in its place.
    ///
    /// # Errors
    /// The system refuses what it has.
    pub fn start(
        &self,
        shares: &[ShareOptions],
        networks: &[NetworkConfig],
        user: Option<&User>,
    ) -> anyhow::Result<Helpers> {
        let mut helpers = Helpers::default();
        let is_on = self.mode != Mode::Off;
        if is_on {
            without(
                "the closing of inherited files",
                process::close_inherited(env::args_os()),
            );
        }
        if is_on || user.is_some() {
            // Before it gives up what they need.
            helpers = start_helpers(shares, networks)?;
        }
        if is_on {
            process::give_up().context("Cannot give up what a guest doesn't need")?;
            let filters = filters::prepare(self.mode, restore_terminal);
            without("filters of system calls (seccomp)", filters);
        }
        if let Some(user) = user {
            user::choose(user.clone()).context("--user can't be had")?;
        }
        Ok(helpers)
    }

    /// Whether files are to be restricted to what the guest can need. There are no restrictions that only report.
    pub fn restricts_paths(&self) -> bool {
        self.mode == Mode::On
    }
}

/// Warns of a part that the host doesn't have.
fn without(part: &str, result: io::Result<()>) {
    if let Err(error) = result {
        log::warn!("The sandbox lacks {part}: {error}");
    }
}

fn start_helpers(shares: &[ShareOptions], networks: &[NetworkConfig]) -> anyhow::Result<Helpers> {
    // A process has the connections to those that were forked before it, and these see their end only after its own: the last one ends first.
    // SAFETY: the command has started no thread yet.
    let opener = unsafe { TapOpener::fork(networks) };
    let opener = opener.context("Cannot start the process that opens taps again")?;
    // SAFETY: as above.
    let starter = unsafe { ShareHelper::fork(shares) };
    let starter = starter.context("Cannot start the process that starts virtiofsd")?;
    Ok(Helpers {
        shares: starter.map(Arc::new),
        taps: opener.map(Arc::new),
    })
}
