//! Documents that clients read piece by piece, and a limit for their memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvmprof_abi::errno::Errno;
use kvmprof_devices::endpoint::Handle;
use kvmprof_recording::{QueueBudget, Share};

/// Maximum size in bytes of all documents of pmc that have been begun and aren't read to their last byte. The guest alone, with its handles
/// of two ports, can't have so many.
pub const MAX_DOCUMENT_BYTES: usize = 32 << 20;

/// The documents that are being read, by their handles.
#[derive(Debug)]
pub struct Documents {
    begun: BTreeMap<Handle, Document>,
    room: Arc<QueueBudget>,
}

#[derive(Debug)]
struct Document {
    bytes: Vec<u8>,
    /// The number of bytes that have been read.
    read: usize,
    share: Share,
}

impl Default for Documents {
    fn default() -> Self {
        Self {
            begun: BTreeMap::new(),
            room: Arc::new(QueueBudget::new(MAX_DOCUMENT_BYTES)),
        }
    }
}

impl Documents {
    /// Whether `handle` has begun a document, of which at least the end of file is left.
    pub fn has(&self, handle: Handle) -> bool {
        self.begun.contains_key(&handle)
    }

    /// Begins a document for `handle`.
    ///
    /// # Errors
    /// ENOMEM if all documents together would exceed [`MAX_DOCUMENT_BYTES`].
    pub fn begin(&mut self, handle: Handle, mut bytes: Vec<u8>) -> Result<(), Errno> {
        let mut share = Share::new(&self.room, 0);
        if !share.resize(bytes.len()) {
            return Err(Errno::ENOMEM);
        }
        // The capacity may be twice the length, and isn't counted.
        bytes.shrink_to_fit();
        let document = Document {
            bytes,
            read: 0,
            share,
        };
        self.begun.insert(handle, document);
        Ok(())
    }

    /// Reads the next bytes of the document of `handle`, `limit` at most. An empty result is its end, and removes the document.
    pub fn read(&mut self, handle: Handle, limit: usize) -> Vec<u8> {
        let Some(document) = self.begun.get_mut(&handle) else {
            return Vec::new();
        };
        let rest = document.bytes.get(document.read..).unwrap_or_default();
        let bytes = rest.get(..limit).unwrap_or(rest).to_vec();
        document.read += bytes.len();
        if document.read == document.bytes.len() {
            // Only the end of file is left.
            (document.bytes, document.read) = (Vec::new(), 0);
            let _ = document.share.resize(0);
        }
        if bytes.is_empty() && limit > 0 {
            self.begun.remove(&handle);
        }
        bytes
    }

    /// Removes the document of `handle`.
    pub fn forget(&mut self, handle: Handle) {
        self.begun.remove(&handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_read_in_pieces_to_its_end() {
        let mut documents = Documents::default();
        let handle = Handle(7);
        documents.begin(handle, b"abcde".to_vec()).unwrap();
        assert_eq!(documents.room.left(), MAX_DOCUMENT_BYTES - 5);
        assert_eq!(documents.read(handle, 0), b"");
        assert_eq!(documents.read(handle, 3), b"abc");
        assert_eq!(documents.read(handle, 3), b"de");
        // A document that has been read takes no memory, even if its end hasn't been read.
        assert_eq!(documents.room.left(), MAX_DOCUMENT_BYTES);
        assert!(documents.has(handle));
        assert_eq!(documents.read(handle, 0), b"");
        assert!(documents.has(handle));
        assert_eq!(documents.read(handle, 3), b"");
        assert!(!documents.has(handle));
    }

    #[test]
    fn documents_stay_within_their_memory_limit() {
        let mut documents = Documents::default();
        let mut bytes = Vec::with_capacity(1 << 20);
        bytes.extend_from_slice(b"abcde");
        documents.begin(Handle(7), bytes).unwrap();
        let capacity = documents.begun[&Handle(7)].bytes.capacity();
        assert!(capacity < 1 << 10, "{capacity}");
    }

    #[test]
    fn documents_share_one_limit() {
        let mut documents = Documents::default();
        let half = vec![0; MAX_DOCUMENT_BYTES / 2];
        for number in [1, 2] {
            documents.begin(Handle(number), half.clone()).unwrap();
        }
        assert_eq!(documents.begin(Handle(3), vec![0]), Err(Errno::ENOMEM));
        assert!(!documents.has(Handle(3)));
        documents.forget(Handle(1));
        documents.begin(Handle(3), half).unwrap();
    }
}
