//! The file system device (section 5.11) as its driver sees it. Another program serves the queues, which have FUSE requests
//! (vhost-user). This module does the rest: identification, features and the set-up of the queues. When the other program has
//! ended, this module refuses requests.

mod refusal;

pub use refusal::RefusalCounts;

use refusal::Refusal;

use super::{MmioTransport, QUEUE_FEATURES, QueueLayout, VirtioDevice};

/// Device ID of a file system (section 5).
const VIRTIO_ID_FS: u32 = 26;

/// Longest name of a file system, in bytes (section 5.11.4).
pub const TAG_MAX: usize = 36;

/// Queues: one for requests with priority, such as FORGET and INTERRUPT, and one for all others (section 5.11.2).
pub const QUEUES: usize = 2;
/// The value of `num_request_queues` in the configuration.
const REQUEST_QUEUES: u32 = 1;
const QUEUE_SIZE: u16 = 256;

/// A file system device.
#[derive(Debug)]
pub struct FileSystem {
    tag: [u8; TAG_MAX],
    features: u64,
    accepted: u64,
    refusal: Refusal,
}

/// The queues of a device that its driver runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningQueues {
    /// The number of resets before this run. It differs for each run.
    pub resets: u64,
    /// The features that the driver has accepted.
    pub features: u64,
    /// The queues that are set up, by their index; all of their parts lie in guest memory.
    pub queues: Vec<Option<QueueLayout>>,
}

impl FileSystem {
    /// A file system named `tag`, which is cut to [`TAG_MAX`] bytes. It offers the features among [`QUEUE_FEATURES`] that the program
    /// which serves the queues supports.
    #[must_use]
    pub fn new(tag: &str, features: u64) -> Self {
        let mut bytes = [0; TAG_MAX];
        for (byte, given) in bytes.iter_mut().zip(tag.bytes()) {
            *byte = given;
        }
        Self {
            tag: bytes,
            features: features & QUEUE_FEATURES,
            accepted: 0,
            refusal: Refusal::default(),
        }
    }
}

impl VirtioDevice for FileSystem {
    fn device_id(&self) -> u32 {
        VIRTIO_ID_FS
    }

    fn features(&self) -> u64 {
        self.features
    }

    fn queue_count(&self) -> usize {
        QUEUES
    }

    fn queue_size_max(&self) -> u16 {
        QUEUE_SIZE
    }

    fn configuration(&self) -> Vec<u8> {
        let mut configuration = self.tag.to_vec();
        configuration.extend(REQUEST_QUEUES.to_le_bytes());
        configuration
    }

    fn driver_ok(&mut self, features: u64) {
        self.accepted = features;
    }

    fn reset(&mut self) {
        self.accepted = 0;
        self.refusal.reset();
    }
}

impl MmioTransport<FileSystem> {
    /// The queues that are to be served now; `None` if the driver doesn't run the device.
    pub fn running_queues(&mut self) -> Option<RunningQueues> {
        let resets = self.counts().resets;
        let (device, queues) = self.running()?;
        Some(RunningQueues {
            resets,
            features: device.accepted,
            queues: queues.iter().map(super::Virtqueue::layout).collect(),
        })
    }
}
