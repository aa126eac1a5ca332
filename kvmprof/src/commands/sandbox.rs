//! The sandbox of the program, for the commands that run a guest.

use std::env;
use std::ffi::{CStr, OsString};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use kvmprof_machine::connector::{AllowedSockets, SocketConnector};
use kvmprof_machine::console::restore_terminal;
use kvmprof_machine::network::NetworkConfig;
use kvmprof_machine::share::{ShareHelper, ShareOptions};
use kvmprof_machine::vsock::VsockConfig;
use kvmprof_profiling::EventOpener;
use kvmprof_profiling::clock::ClockSource;
use kvmprof_profiling::kernel_capture::CaptureHelper;
use kvmprof_profiling::kernel_events::is_counted_tracepoint;
use kvmprof_sandbox::user::{self, User};
use kvmprof_sandbox::{Mode, filters, process};
use kvmprof_vmm::vm::{sockets_of_devices, sockets_of_ports};

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
#[derive(Clone, Default)]
pub struct Helpers {
    /// Starts virtiofsd.
    pub shares: Option<Arc<ShareHelper>>,
    /// Connects to the sockets to which a guest's socket device leads.
    pub ports: Option<Arc<SocketConnector>>,
    /// Connects to programs that serve folders already, and to the other ends of networks.
    pub sockets: Option<Arc<SocketConnector>>,
    /// Opens perf events for threads that may not.
    _events: Option<Arc<EventOpener>>,
    /// Has the host's kernel take samples of vCPUs' threads, which may not.
    _captures: Option<Arc<CaptureHelper>>,
}

impl SandboxMode {
    fn is_on(self) -> bool {
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

    /// Whether to restrict access to the files that the guest can need. These restrictions have no mode that only reports.
    pub fn restricts_paths(self) -> bool {
        self.mode == Mode::On
    }
}

impl SandboxOptions {
    /// Puts this process into the sandbox. The process must have opened no files except those that are `kept`, by their
    /// numbers, and must have started no threads yet. Parts that the host's kernel lacks are left out with a warning.
    /// Returns the processes that serve these folders, networks, socket device and `source` of ticks for it.
    ///
    /// # Errors
    /// The system refuses a part that it supports.
    pub fn start(
        &self,
        source: ClockSource,
        shares: &[ShareOptions],
        networks: &[NetworkConfig],
        vsock: Option<&VsockConfig>,
        user: Option<&User>,
        kept: &[RawFd],
    ) -> anyhow::Result<Helpers> {
        let mut helpers = Helpers::default();
        self.mode.close_inherited(kept);
        if self.mode.is_on() || user.is_some() {
            // Before this process gives up rights that they need.
            helpers = Helpers {
                _events: event_opener(user.is_some())?.map(Arc::new),
                _captures: capture_helper(source)?.map(Arc::new),
                ..helpers
            };
            let devices = sockets_of_devices(shares, networks);
            helpers.sockets = connector(c"kvmprof-socket", &devices, None)?.map(Arc::new);
            // The connections of the guest are made with the rights of the user.
            let ports = sockets_of_ports(vsock);
            helpers.ports = connector(c"kvmprof-vsock", &ports, user)?.map(Arc::new);
            if self.share_helper.is_none() {
                helpers.shares = starter(shares)?.map(Arc::new);
            }
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

fn event_opener(is_another_user: bool) -> anyhow::Result<Option<EventOpener>> {
    // SAFETY: the command has started no thread yet.
    let opener = unsafe { EventOpener::fork(is_another_user, is_counted_tracepoint) };
    opener.context("Cannot start the process that opens perf events")
}

fn capture_helper(source: ClockSource) -> anyhow::Result<Option<CaptureHelper>> {
    // SAFETY: the command has started no thread yet.
    let fork = || unsafe { CaptureHelper::fork() };
    let helper = (source == ClockSource::Kernel).then(fork).transpose();
    helper.context("Cannot start the process that has the host's kernel take samples")
}

fn connector(
    name: &CStr,
    allowed: &AllowedSockets,
    user: Option<&User>,
) -> anyhow::Result<Option<SocketConnector>> {
    // SAFETY: the command has started no thread yet.
    let connector = unsafe { SocketConnector::fork(name, allowed, user) };
    connector.context("Cannot start the process that connects to sockets")
}

fn starter(shares: &[ShareOptions]) -> anyhow::Result<Option<ShareHelper>> {
    // SAFETY: the command has started no thread yet.
    let starter = unsafe { ShareHelper::fork(shares) };
    starter.context("Cannot start the process that starts virtiofsd")
}
