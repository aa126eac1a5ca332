//! The state of a shared folder while the guest runs.

use std::sync::{Arc, Mutex, OnceLock};

use kvmprof_devices::virtio::fs::FileSystem;
use kvmprof_recording::status::{FolderStatus, MachineStatus};

use super::options::{ShareOptions, ShareSource};
use crate::lock::lock;
use crate::virtio::{DeviceMonitor, VirtioMmio};

/// The state of a folder whose device the guest's driver doesn't use.
pub(super) const WAITING: &str = "waiting";
/// The state of a folder that a program serves.
pub(super) const SERVING: &str = "serving";
/// The state of a folder that no program serves until the guest's driver resets the device.
pub(super) const FAILED: &str = "failed";

/// A shared folder of a machine, for other threads. They never wait for the program that serves it.
pub(super) struct ShareMonitor {
    /// All but what the device counts.
    status: Mutex<FolderStatus>,
    device: OnceLock<Arc<VirtioMmio<FileSystem>>>,
}

impl ShareMonitor {
    pub fn new(options: &ShareOptions) -> Self {
        let (source, readonly) = match &options.source {
            ShareSource::Folder { path, readonly } => (path.display().to_string(), *readonly),
            ShareSource::Socket(path) => (format!("socket={}", path.display()), false),
        };
        Self {
            status: Mutex::new(FolderStatus {
                tag: options.tag.clone(),
                source,
                readonly,
                state: WAITING.to_owned(),
                ..FolderStatus::default()
            }),
            device: OnceLock::new(),
        }
    }

    pub fn show(&self, device: &Arc<VirtioMmio<FileSystem>>) {
        // It is called once.
        let _ = self.device.set(Arc::clone(device));
    }

    pub fn note(&self, change: impl FnOnce(&mut FolderStatus)) {
        change(&mut lock(&self.status));
    }

    /// Notes that the folder is in this state.
    pub fn set_state(&self, state: &str) {
        self.note(|status| state.clone_into(&mut status.state));
    }

    /// The present state and counts.
    pub fn status(&self) -> FolderStatus {
        let mut status = lock(&self.status).clone();
        if let Some(device) = self.device.get() {
            device.with(|transport, _| {
                let (refusals, driver) = (transport.device().refusals(), transport.counts());
                status.refused_requests = refusals.refused;
                status.queue_faults = refusals.queue_faults;
                status.refused_queues = driver.refused_queues;
                status.resets = driver.resets;
            });
        }
        status
    }
}

impl DeviceMonitor for ShareMonitor {
    fn enter(&self, machine: &mut MachineStatus) {
        machine.folders.push(self.status());
    }
}
