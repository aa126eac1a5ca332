//! The texts that clients open, and the memory that open texts take.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::device;
use kvmprof_recording::{QueueBudget, Share};

use super::Profiler;

/// Maximum size in bytes of all texts of open handles of `status`, `processes` and `process list`. Each handle has its own text, made at its open.
pub const MAX_TEXT_BYTES: usize = 32 << 20;

/// A text is used again for this many times the time that it took to make.
const PAUSES: u32 = 4;
/// The list of processes is used again for this time at most.
const MAX_AGE_OF_LIST: Duration = Duration::from_secs(1);

/// A text that clients may request constantly: it is used again for a while, so that making it takes a part of the time at most.
#[derive(Debug)]
pub(super) struct PacedText {
    /// The text.
    pub bytes: Arc<[u8]>,
    /// The time until which it is used.
    pub good_until: Instant,
}

impl PacedText {
    /// The text `bytes`, whose making began at `begun`. It is used for `max_age` at most.
    pub fn new(bytes: Vec<u8>, begun: Instant, max_age: Duration) -> Self {
        let made = Instant::now();
        let pause = made.saturating_duration_since(begun) * PAUSES;
        Self {
            bytes: bytes.into(),
            good_until: made + pause.min(max_age),
        }
    }

    /// Whether it is used still.
    pub fn is_good(&self) -> bool {
        Instant::now() < self.good_until
    }
}

/// A text that is being read.
#[derive(Debug)]
pub(super) struct Text {
    bytes: Arc<[u8]>,
    /// Number of bytes that have been read.
    read: usize,
    /// The part of the budget for the bytes that only this handle keeps.
    _share: Share,
}

impl Text {
    /// Reads the next bytes, `limit` at most. The result is empty at the end.
    pub fn read(&mut self, limit: usize) -> Vec<u8> {
        let rest = self.bytes.get(self.read..).unwrap_or_default();
        let bytes = rest.get(..limit).unwrap_or(rest).to_vec();
        self.read += bytes.len();
        bytes
    }
}

/// The memory of all texts together, for the bytes that only one handle keeps.
#[derive(Debug)]
pub(super) struct TextBudget(Arc<QueueBudget>);

impl Default for TextBudget {
    fn default() -> Self {
        Self(Arc::new(QueueBudget::new(MAX_TEXT_BYTES)))
    }
}

impl TextBudget {
    /// Checks that there may be room for the text of a handle of device `number`, which has `least` bytes at least. Call this before the
    /// text is made.
    ///
    /// # Errors
    /// ENOMEM if there is no room.
    pub fn check(&self, number: u16, least: usize) -> Result<(), Errno> {
        let fits = own_bytes(number, least) <= self.0.left();
        fits.then_some(()).ok_or(Errno::ENOMEM)
    }

    /// Makes the text of a handle of device `number`. Its part of the budget is free again when it is dropped.
    ///
    /// # Errors
    /// ENOMEM if all texts together would exceed [`MAX_TEXT_BYTES`].
    pub fn keep(&self, number: u16, bytes: Arc<[u8]>) -> Result<Text, Errno> {
        let mut share = Share::new(&self.0, 0);
        let fits = share.resize(own_bytes(number, bytes.len()));
        let text = fits.then_some(Text {
            bytes,
            read: 0,
            _share: share,
        });
        text.ok_or(Errno::ENOMEM)
    }

    #[cfg(test)]
    pub fn used(&self) -> usize {
        MAX_TEXT_BYTES - self.0.left()
    }
}

/// The number of a text's `bytes` that only one handle keeps.
fn own_bytes(number: u16, bytes: usize) -> usize {
    match number {
        // All handles share the text of the symbols.
        device::KALLSYMS => 0,
        _ => bytes,
    }
}

impl Profiler {
    /// Minimum length of the text of device `number` in bytes.
    pub(super) fn least_text(&self, number: u16) -> usize {
        match number {
            device::PROCESSES => self.names.least_bytes(),
            _ => 1,
        }
    }

    /// The present text of device `number`.
    pub(super) fn text(&mut self, number: u16) -> Result<Arc<[u8]>, Errno> {
        match number {
            device::STATUS => {
                let document = serde_json::to_vec(&self.status());
                document.map(Arc::from).map_err(|_| Errno::EIO)
            }
            device::PROCESSES => {
                self.drain();
                Ok(self.names.text())
            }
            device::PROCESS_LIST => self.process_list(),
            _ => {
                let text = self.kernel_text.whole(&self.info.knowledge);
                text.ok_or(Errno::ENXIO)
            }
        }
    }

    /// Whether there is a list of processes that needn't be read again.
    pub(super) fn has_process_list(&self) -> bool {
        self.process_list.as_ref().is_some_and(PacedText::is_good)
    }

    /// The guest's processes, which were just read, as a JSON object.
    fn process_list(&mut self) -> Result<Arc<[u8]>, Errno> {
        if let Some(list) = self.process_list.as_ref().filter(|list| list.is_good()) {
            return Ok(Arc::clone(&list.bytes));
        }
        let linux = self.info.knowledge.linux().ok_or(Errno::ENXIO)?;
        // The thread that was asked may not have answered in time: the last list is another request's then.
        let is_new = |age: Duration| age <= MAX_AGE_OF_LIST;
        let read = linux.read_processes();
        let read = read.filter(|read| is_new(read.ended.elapsed()));
        let read = read.ok_or(Errno::ENXIO)?;
        let text = serde_json::to_vec(&read.list).map_err(|_| Errno::EIO)?;
        let made = PacedText::new(text, read.begun, MAX_AGE_OF_LIST);
        let bytes = Arc::clone(&made.bytes);
        self.process_list = Some(made);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_devices::endpoint::Endpoint;
    use kvmprof_recording::file::{ClientSink, Sink};

    use super::*;

    const WIRE: &str = include_str!("../../../guest/abi/WIRE.md");

    #[test]
    fn texts_are_limited_and_freed() {
        let budget = TextBudget::default();
        let half: Arc<[u8]> = vec![0; MAX_TEXT_BYTES / 2].into();
        let keep = || budget.keep(device::STATUS, Arc::clone(&half));
        let (first, _second) = (keep().unwrap(), keep().unwrap());
        let one: Arc<[u8]> = [0].into();
        let refused = budget.keep(device::PROCESSES, Arc::clone(&one));
        assert_eq!(refused.map(drop), Err(Errno::ENOMEM));
        assert_eq!(budget.check(device::PROCESSES, 1), Err(Errno::ENOMEM));
        assert_eq!(budget.check(device::KALLSYMS, 1), Ok(()));
        // All handles share the symbols.
        budget.keep(device::KALLSYMS, Arc::clone(&half)).unwrap();
        drop(first);
        budget.keep(device::PROCESSES, one).unwrap();
    }

    /// The page for clients has the real limits.
    #[test]
    fn the_page_has_the_limits() {
        let limits = WIRE.split("## Limits and pace").nth(1).unwrap();
        let limits = limits.split("\n## ").next().unwrap();
        let clients = crate::host_socket::MAX_CONNECTIONS;
        let recordings = kvmprof_abi::recorder::MAX_RECORDINGS;
        let samples = kvmprof_recording::file::MAX_WAITING >> 20;
        let all = <ClientSink as Sink>::CAPACITY >> 20;
        let turn = kvmprof_devices::endpoint::REQUESTS_PER_TURN;
        let turn_time = kvmprof_devices::endpoint::TURN_TIME.as_millis();
        let texts = MAX_TEXT_BYTES >> 20;
        let documents = super::super::consumers::documents::MAX_DOCUMENT_BYTES >> 20;
        let places = clients + crate::host_socket::MAX_STATUS_CONNECTIONS;
        let own = places * Endpoint::OWN_BYTES + recordings * ClientSink::OWN_BYTES;
        let together = (crate::host_socket::MAX_WAITING + own) >> 20;
        let own = [Endpoint::OWN_BYTES, ClientSink::OWN_BYTES].map(|bytes| bytes >> 20);
        for row in [
            format!("- clients of the socket: {clients}."),
            format!("- recordings at once: {recordings}."),
            format!(
                "- bytes that wait for a client that records: {samples} MiB of samples, {all} MiB in all."
            ),
            format!("- bytes that wait of all clients and recordings together: {together} MiB."),
            format!(
                "- those for which there is room in any case: {} MiB of a client, {} MiB of a recording.",
                own[0], own[1]
            ),
            format!(
                "- texts of `status`, `processes` and `process list` that are open, all together: {texts} MiB."
            ),
            format!("- documents of `pmc` that are being read, all together: {documents} MiB."),
            format!(
                "- requests of a client that are served before others have their turn: {turn}."
            ),
            format!("- their time, the last one aside: {turn_time} ms."),
        ] {
            assert!(limits.contains(&row), "{row} isn't in {limits}");
        }
    }
}
