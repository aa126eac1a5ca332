//! Calls that the kernel splits. A table of prf is one read or one write of its caller, and arrives here in pieces of some 128 KiB.

use std::collections::VecDeque;

use kvmprof_abi::wire::MAX_DATA;

/// Maximum number of remembered calls; beyond this, the oldest one is forgotten.
const CALLS_MAX: usize = 256;
/// Maximum number of remembered bytes of all calls together.
const BYTES_MAX: usize = 8 * MAX_DATA;

/// The owner of a call: a thread has one call at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// The open file.
    pub file: u64,
    /// The thread.
    pub thread: u32,
}

/// The rest of a call.
#[derive(Debug)]
enum Remainder {
    /// Bytes that were read, but not given to the caller yet.
    Read(Vec<u8>),
    /// The whole call was written with the first piece; it has `total` bytes.
    Written { total: u64 },
    /// The bytes that the caller has passed so far.
    Staged(Vec<u8>),
}

#[derive(Debug)]
struct Call {
    owner: Owner,
    /// The start of the next piece, in bytes from the start of the call.
    next: u64,
    rest: Remainder,
}

impl Call {
    fn bytes(&self) -> usize {
        match &self.rest {
            Remainder::Read(data) | Remainder::Staged(data) => data.len(),
            Remainder::Written { .. } => 0,
        }
    }
}

/// How a further piece of a write is handled.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Continuation {
    /// The piece has been written before.
    Done,
    /// The call's bytes so far. With this piece they have to be written, or staged again.
    Staged(Vec<u8>),
    /// The start of the call isn't known.
    Unknown,
}

/// The calls whose first piece was seen, oldest first.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    calls: VecDeque<Call>,
    bytes: usize,
}

impl Fragments {
    /// Keeps the bytes that were read beyond the first piece of `given` bytes.
    pub fn keep_read(&mut self, owner: Owner, given: usize, rest: &[u8]) {
        self.begin(owner, given, Remainder::Read(rest.to_vec()));
    }

    /// Notes that a call of `total` bytes was written with its first piece of `given` bytes.
    pub fn keep_written(&mut self, owner: Owner, given: usize, total: u64) {
        self.begin(owner, given, Remainder::Written { total });
    }

    /// Keeps the start of a call whose length isn't known.
    pub fn stage(&mut self, owner: Owner, data: Vec<u8>) {
        self.begin(owner, data.len(), Remainder::Staged(data));
    }

    fn begin(&mut self, owner: Owner, next: usize, rest: Remainder) {
        self.take(owner);
        let call = Call {
            owner,
            next: next as u64,
            rest,
        };
        self.bytes += call.bytes();
        self.calls.push_back(call);
        while self.calls.len() > CALLS_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.calls.pop_front() else {
                break;
            };
            self.bytes -= oldest.bytes();
        }
    }

    /// Forgets the owner's call, because another one begins.
    pub fn end(&mut self, owner: Owner) {
        self.take(owner);
    }

    /// Removes and returns the owner's call.
    fn take(&mut self, owner: Owner) -> Option<Call> {
        let index = self.calls.iter().position(|call| call.owner == owner)?;
        let call = self.calls.remove(index)?;
        self.bytes -= call.bytes();
        Some(call)
    }

    /// The piece of a read that begins at `offset`. It is empty if the start of the call isn't known, so that no caller gets pieces of
    /// different tables.
    pub fn continue_read(&mut self, owner: Owner, offset: u64, size: usize) -> Vec<u8> {
        match self.take(owner) {
            Some(Call {
                next,
                rest: Remainder::Read(mut data),
                ..
            }) if next == offset => {
                let rest = data.split_off(size.min(data.len()));
                if !rest.is_empty() {
                    let next = offset.saturating_add(data.len() as u64);
                    let given = usize::try_from(next).unwrap_or(usize::MAX);
                    self.begin(owner, given, Remainder::Read(rest));
                }
                data
            }
            _ => Vec::new(),
        }
    }

    /// How to handle the piece of a write that begins at `offset`.
    pub fn continue_write(&mut self, owner: Owner, offset: u64, size: usize) -> Continuation {
        match self.take(owner) {
            Some(Call { next, rest, .. }) if next == offset => match rest {
                Remainder::Written { total } => {
                    let next = offset.saturating_add(size as u64);
                    if next < total {
                        let given = usize::try_from(next).unwrap_or(usize::MAX);
                        self.begin(owner, given, Remainder::Written { total });
                    }
                    Continuation::Done
                }
                Remainder::Staged(data) => Continuation::Staged(data),
                Remainder::Read(_) => Continuation::Unknown,
            },
            _ => Continuation::Unknown,
        }
    }

    /// Removes and returns the bytes of the calls on `file` whose end wasn't seen, to be written now.
    pub fn take_staged(&mut self, file: u64) -> Vec<Vec<u8>> {
        let is_staged =
            |call: &Call| call.owner.file == file && matches!(call.rest, Remainder::Staged(_));
        let mut staged = Vec::new();
        while let Some(index) = self.calls.iter().position(is_staged) {
            if let Some(call) = self.calls.remove(index) {
                self.bytes -= call.bytes();
                if let Remainder::Staged(data) = call.rest {
                    staged.push(data);
                }
            }
        }
        staged
    }

    /// Forgets the calls on `file`.
    pub fn forget(&mut self, file: u64) {
        self.calls.retain(|call| call.owner.file != file);
        self.bytes = self.calls.iter().map(Call::bytes).sum();
    }

    /// Forgets all calls.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner { file: 1, thread: 2 };

    fn other(thread: u32) -> Owner {
        Owner { file: 1, thread }
    }

    #[test]
    fn a_read_is_one_snapshot() {
        let mut fragments = Fragments::default();
        fragments.keep_read(OWNER, 4, b"efghij");
        fragments.keep_read(other(3), 4, b"EFGH");
        assert_eq!(fragments.continue_read(OWNER, 4, 4), b"efgh");
        assert_eq!(fragments.continue_read(OWNER, 8, 4), b"ij");
        assert!(fragments.continue_read(OWNER, 10, 4).is_empty());
        // A piece at another offset belongs to another call.
        assert!(fragments.continue_read(other(3), 8, 4).is_empty());
        assert!(fragments.continue_read(other(3), 4, 4).is_empty());
        assert_eq!(fragments.bytes, 0);
    }

    #[test]
    fn memory_is_bounded() {
        let mut fragments = Fragments::default();
        let rest = vec![0; MAX_DATA];
        for thread in 0..1000 {
            fragments.keep_read(other(thread), 4, &rest);
            assert!(fragments.bytes <= BYTES_MAX);
        }
        assert_eq!(fragments.calls.len(), BYTES_MAX / MAX_DATA);
        for thread in 0..1000 {
            fragments.keep_written(other(thread), 4, 100);
        }
        assert_eq!(fragments.calls.len(), CALLS_MAX);
        assert_eq!(fragments.bytes, 0);
        let newest = fragments.continue_write(other(999), 4, 4);
        assert_eq!(newest, Continuation::Done);
    }
}
