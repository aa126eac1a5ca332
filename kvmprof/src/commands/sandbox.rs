//! The sandbox of the program, for the commands that run a guest.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use kvmprof_machine::connector::{PortConnector, SocketConnector};
use kvmprof_machine::console::restore_terminal;
use kvmprof_machine::output_names::OutputNames;
use kvmprof_machine::share::ShareHelper;
use kvmprof_machine::vsock::VsockConfig;
use kvmprof_profiling::EventOpener;
use kvmprof_profiling::clock::ClockSource;
use kvmprof_profiling::kernel_capture::CaptureHelper;
use kvmprof_profiling::kernel_events::is_counted_tracepoint;
use kvmprof_sandbox::user::{self, User};
use kvmprof_sandbox::{Mode, filters, process};
use kvmprof_vmm::vm::{VmConfig, sockets_of_devices, sockets_to_make};

/// Whether there is one.
#[derive(Clone, Copy, Debug, Args)]
pub struct SandboxMode {
    /// Contain kvmprof, so that a fault in it gives a guest as little as possible: on, log (calls that would end kvmprof are reported
    /// and made) or off
    #[arg(long = "sandbox", value_name = "MODE", default_value_t)]
    mode: Mode,
}

/// Options about it.
#[derive(Clone, Debug, Args)]
pub struct SandboxOptions {
    #[command(flatten)]
    mode: SandboxMode,
    /// Keep other programs of the same user from tracing kvmprof and from reading its memory. Neither list nor attach of that user sees the guest
    /// then
    #[arg(long, overrides_with = "no_trace")]
    no_trace: bool,
    /// The connection to what starts virtiofsd outside of a jail, by the number of a file
    #[arg(long, value_name = "FILE", hide = true, value_parser = parse_inherited)]
    share_helper: Option<i32>,
}

/// The form of the name of an inherited file, which stays open (`kvmprof_sandbox::process::close_inherited`).
const INHERITED: &str = "/dev/fd/";

/// The options of [`SandboxOptions`] that a jail adds. kvmprof in the jail inherits the file `share_helper`.
pub(crate) fn options_of_jail(share_helper: Option<i32>) -> Vec<OsString> {
    let mut options = vec!["--no-trace".into()];
    if let Some(number) = share_helper {
        options.push("--share-helper".into());
        options.push(format!("{INHERITED}{number}").into());
    }
    options
}

fn parse_inherited(word: &str) -> Result<i32, String> {
    let number = word.strip_prefix(INHERITED).and_then(|it| it.parse().ok());
    number.ok_or_else(|| format!("'{word}' isn't {INHERITED} and a number"))
}

/// Processes that do what a process in the sandbox may not do. They end when this is dropped. So it has to live until the guest
/// has ended, on a thread that may wait for them.
#[derive(Default)]
pub struct Helpers {
    /// Starts virtiofsd.
    shares: Option<Arc<ShareHelper>>,
    /// Connects to the sockets to which a guest's socket device leads.
    ports: Option<Arc<PortConnector>>,
    /// Connects to programs that serve folders already, and to the other ends of networks.
    sockets: Option<Arc<SocketConnector>>,
    /// Makes sockets and the recording's file, renames and removes them.
    names: Option<Arc<OutputNames>>,
    /// Opens perf events for threads that may not.
    _events: Option<EventOpener>,
    /// Has the host's kernel take samples of vCPUs' threads, which may not.
    captures: Option<Arc<CaptureHelper>>,
}

impl Helpers {
    /// Forks the processes that the guest of `config` needs, before this process gives up rights that they need; but that which starts virtiofsd only if
    /// `shares` is asked for.
    fn fork(config: &VmConfig, user: Option<&User>, shares: bool) -> anyhow::Result<Self> {
        let is_kernel = config.profiling.source == ClockSource::Kernel;
        // SAFETY: the command has started no thread yet.
        let events = unsafe { EventOpener::fork(user.is_some(), is_counted_tracepoint) };
        // SAFETY: as above.
        let captures = is_kernel.then(|| unsafe { CaptureHelper::fork() });
        // SAFETY: as above.
        let sockets = unsafe { SocketConnector::fork(sockets_of_devices(config)) };
        // What the guest connects to, and what is made, is so with the rights of the user.
        // SAFETY: as above.
        let connect = |vsock: &VsockConfig| unsafe { PortConnector::fork(&vsock.path, user) };
        let ports = config.vsock.as_ref().map(connect);
        let recording = config.profiling.record.as_ref();
        let recording = recording.map(|plan| plan.path.as_path());
        // SAFETY: as above.
        let names = unsafe { OutputNames::fork(sockets_to_make(config), recording, user) };
        // SAFETY: as above.
        let shares = shares.then(|| unsafe { ShareHelper::fork(&config.shares) });
        Ok(Self {
            _events: events.context("Cannot start the process that opens perf events")?,
            captures: (captures.transpose())
                .context("Cannot start the process that has the host's kernel take samples")?
                .map(Arc::new),
            sockets: (sockets.context("Cannot start the process that connects to sockets")?)
                .map(Arc::new),
            ports: (ports.transpose())
                .context("Cannot start the process that connects the guest to sockets")?
                .map(Arc::new),
            names: (names.context("Cannot start the process that makes files and sockets")?)
                .map(Arc::new),
            shares: (shares.transpose())
                .context("Cannot start the process that starts virtiofsd")?
                .flatten()
                .map(Arc::new),
        })
    }

    /// Has the guest of `config` use them.
    fn serve(&self, config: &mut VmConfig) {
        config.share_helper.clone_from(&self.shares);
        config.socket_connector.clone_from(&self.sockets);
        config.port_connector.clone_from(&self.ports);
        config.capture_helper.clone_from(&self.captures);
        config.output_names.clone_from(&self.names);
    }
}

impl SandboxMode {
    /// Whether a process is contained, or its forbidden calls are reported.
    pub fn is_on(self) -> bool {
        self.mode != Mode::Off
    }

    /// Closes the files that the process has inherited, except those that its arguments and `kept` name. Call it before the process has opened any file.
    pub fn close_inherited(self, kept: &[RawFd]) {
        if self.is_on() {
            let kept = kept.iter().map(|number| format!("{INHERITED}{number}"));
            let named = env::args_os().chain(kept.map(OsString::from));
            without(
                "the closing of inherited files",
                process::close_inherited(named),
            );
        }
    }

    /// From now on this process has given up what it doesn't need, and threads can be contained. It must have started no threads yet. Parts that the host's kernel
    /// lacks are left out with a warning.
    ///
    /// # Errors
    /// The system refuses a part that it supports.
    pub fn contain(self) -> anyhow::Result<()> {
        if self.is_on() {
            process::give_up().context("Cannot give up what a guest doesn't need")?;
            let filters = filters::prepare(self.mode, restore_terminal);
            without("filters of system calls (seccomp)", filters);
        }
        Ok(())
    }

    /// The process that makes a command's `sockets` and its file at `record`, if this one is going to be contained.
    ///
    /// # Errors
    /// The host gives no process.
    ///
    /// # Safety
    /// As for [`OutputNames::fork`]: this process has started no thread yet.
    pub unsafe fn output_names(
        self,
        sockets: Vec<PathBuf>,
        record: Option<&Path>,
    ) -> anyhow::Result<Option<Arc<OutputNames>>> {
        if !self.is_on() {
            return Ok(None);
        }
        // SAFETY: by this function's own condition.
        let names = unsafe { OutputNames::fork(sockets, record, None) };
        let names = names.context("Cannot start the process that makes files and sockets")?;
        Ok(names.map(Arc::new))
    }

    /// Whether to restrict access to the files that the guest can need. These restrictions have no mode that only reports.
    pub fn restricts_paths(self) -> bool {
        self.mode == Mode::On
    }
}

impl SandboxOptions {
    /// Puts this process into the sandbox. It must have opened no files except those that `config` has, and must have started no threads yet. Parts that the
    /// host's kernel lacks are left out with a warning. The guest of `config` uses the processes that are returned.
    ///
    /// # Errors
    /// The system refuses a part that it supports.
    pub fn start(&self, config: &mut VmConfig, user: Option<&User>) -> anyhow::Result<Helpers> {
        let mut helpers = Helpers::default();
        let kept = config.said.iter().map(|said| said.as_raw_fd());
        self.mode.close_inherited(&kept.collect::<Vec<_>>());
        if self.mode.is_on() || user.is_some() {
            helpers = Helpers::fork(config, user, self.share_helper.is_none())?;
        }
        if let Some(number) = self.share_helper {
            // SAFETY: the jail has opened the file only for this purpose, and the command has opened no files with such
            // a number yet.
            let inherited = unsafe { ShareHelper::inherited(number) };
            helpers.shares = Some(Arc::new(inherited.context("--share-helper")?));
        }
        if self.no_trace {
            process::hide_from_own_user().context("--no-trace can't be had")?;
        }
        self.mode.contain()?;
        if let Some(user) = user {
            user::choose(user.clone()).context("--user can't be had")?;
        }
        helpers.serve(config);
        Ok(helpers)
    }

    /// Whether to restrict access to the files that the guest can need. These restrictions have no mode that only reports.
    pub fn restricts_paths(&self) -> bool {
        self.mode.restricts_paths()
    }
}

/// Warns about a part that the host lacks.
fn without(part: &str, result: io::Result<()>) {
    if let Err(error) = result {
        log::warn!("The sandbox lacks {part}: {error}");
    }
}
