//! The state of a shared folder while the guest runs.

use std::sync::{Arc, Mutex, OnceLock};

use kvmprof_devices::virtio::TransportCounts;
use kvmprof_devices::virtio::fs::{FileSystem, RefusalCounts};

use super::options::{ShareOptions, ShareSource};
use crate::lock::lock;
use crate::virtio::VirtioMmio;

/// The state of a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShareState {
    /// The guest's driver doesn't use the device.
    #[default]
    Waiting,
    /// A program serves the folder.
    Serving,
    /// No program serves the folder until the guest's driver resets the device.
    Failed,
}

impl ShareState {
    /// Its name in the status document.
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Serving => "serving",
            Self::Failed => "failed",
        }
    }
}

/// The state of the programs that serve a folder, and the number of times that they failed or were started again.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub state: ShareState,
    pub failure: Option<String>,
    pub failures: u64,
    pub restarts: u64,
}

/// The state and the counts of a folder.
#[derive(Clone, Debug, Default)]
pub struct ShareRecord {
    /// Its state.
    pub state: ShareState,
    /// The reason for the last failure. `None` if there was none.
    pub failure: Option<String>,
    /// Number of failures.
    pub failures: u64,
    /// Number of programs that were started for it after the first one.
    pub restarts: u64,
    /// Requests that were refused while no program served the folder.
    pub refusals: RefusalCounts,
    /// Resets of the device by the guest's driver, and what was wrong with its queues.
    pub transport: TransportCounts,
}

/// A shared folder of a machine, for other threads. They never wait for the program that serves it.
#[derive(Clone)]
pub struct ShareMonitor(Arc<Shown>);

struct Shown {
    options: ShareOptions,
    history: Mutex<History>,
    device: OnceLock<Arc<VirtioMmio<FileSystem>>>,
}

impl ShareMonitor {
    pub(super) fn new(options: &ShareOptions) -> Self {
        Self(Arc::new(Shown {
            options: options.clone(),
            history: Mutex::default(),
            device: OnceLock::new(),
        }))
    }

    pub(super) fn show(&self, device: &Arc<VirtioMmio<FileSystem>>) {
        // It is called once.
        let _ = self.0.device.set(Arc::clone(device));
    }

    pub(super) fn note(&self, change: impl FnOnce(&mut History)) {
        change(&mut lock(&self.0.history));
    }

    /// Its name in the guest.
    pub fn tag(&self) -> &str {
        &self.0.options.tag
    }

    /// The folder's path, or `socket=PATH`.
    pub fn source(&self) -> String {
        match &self.0.options.source {
            ShareSource::Folder { path, .. } => path.display().to_string(),
            ShareSource::Socket(path) => format!("socket={}", path.display()),
        }
    }

    /// Whether the guest can't change the folder.
    pub fn is_readonly(&self) -> bool {
        matches!(
            self.0.options.source,
            ShareSource::Folder { readonly: true, .. }
        )
    }

    /// The present state and counts.
    pub fn record(&self) -> ShareRecord {
        let history = lock(&self.0.history).clone();
        let device = self.0.device.get();
        let (refusals, transport) = device.map_or_else(Default::default, |device| {
            device.with(|transport, _| (transport.device().refusals(), transport.counts()))
        });
        ShareRecord {
            state: history.state,
            failure: history.failure,
            failures: history.failures,
            restarts: history.restarts,
            refusals,
            transport,
        }
    }
}
