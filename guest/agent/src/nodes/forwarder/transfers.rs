//! Reads and writes. The kernel splits long calls into pieces; a call to prf is one request to kvmprof.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::{MAX_DATA, NONBLOCKING, Request as WireRequest};

use super::super::fragments::{Continuation, Owner};
use super::super::{Inspection, InspectionResult};
use super::inspections::{BegunOperation, UninspectedCall};
use super::{Call, Environment, Forwarder, Pending, fail};
use crate::cuse::protocol::{self, LAST_FRAGMENT, MAX_FRAGMENT};

/// A first piece of at most this many bytes is the whole read: the kernel splits a call after 32 pages, each of which may be used in part
/// if the caller's memory is in several pieces.
const SINGLE_READ: usize = MAX_FRAGMENT / 2;

/// A piece of a read.
struct ReadPiece {
    /// Bytes that the kernel asks for.
    size: usize,
    /// Bytes that are read.
    limit: usize,
    nonblocking: bool,
    /// Whether the caller has had an earlier piece.
    continued: bool,
}

impl Forwarder {
    /// Writes staged calls whose last piece couldn't be recognised. Nobody waits for the result.
    pub(super) fn finish_staged(&mut self, file: u64, environment: &mut impl Environment) {
        for data in self.fragments.take_staged(file) {
            if let Ok(handle) = self.handle(file) {
                let request = write_request(handle, &data);
                self.send(Pending::Nothing, &request, environment);
            }
        }
    }

    /// Reads the first piece of a call, of `size` bytes. For prf, this reads the rest of the call too.
    pub(super) fn read(
        &mut self,
        call: Call,
        owner: Owner,
        size: usize,
        flags: u32,
        environment: &mut impl Environment,
    ) {
        self.fragments.end(owner);
        let goes_on = self.is_prf(call.node) && size > SINGLE_READ;
        let limit = if goes_on { MAX_DATA } else { size };
        let nonblocking = flags & u32::try_from(libc::O_NONBLOCK).unwrap_or(0) != 0;
        let piece = ReadPiece {
            size,
            limit,
            nonblocking,
            continued: false,
        };
        self.start_read(call, owner, piece, environment);
    }

    fn start_read(
        &mut self,
        call: Call,
        owner: Owner,
        piece: ReadPiece,
        environment: &mut impl Environment,
    ) {
        let ReadPiece {
            size,
            limit,
            nonblocking,
            continued,
        } = piece;
        let handle = match self.handle(owner.file) {
            Ok(handle) => handle,
            Err(errno) => return fail(call, errno, environment),
        };
        let request = WireRequest::Read {
            handle,
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
            flags: if nonblocking { NONBLOCKING } else { 0 },
        };
        let pending = Pending::Read {
            call,
            owner,
            size,
            continued,
        };
        let tag = self.send(pending, &request, environment);
        self.waiting.insert(call, tag);
    }

    /// Continues a read of which the kernel has had a piece.
    pub(super) fn continue_read(
        &mut self,
        call: Call,
        owner: Owner,
        offset: u64,
        size: usize,
        environment: &mut impl Environment,
    ) {
        if self.is_prf(call.node) {
            let data = self.fragments.continue_read(owner, offset, size);
            environment.answer(call.node, &protocol::read(call.unique, &data));
        } else {
            // The call has something to return, so it doesn't wait for more.
            let piece = ReadPiece {
                size,
                limit: size,
                nonblocking: true,
                continued: true,
            };
            self.start_read(call, owner, piece, environment);
        }
    }

    /// Starts a write. For prf, an inspection of the caller first finds out the whole call.
    pub(super) fn begin_write(
        &mut self,
        call: Call,
        owner: Owner,
        piece: &[u8],
        environment: &mut impl Environment,
    ) {
        if !self.is_prf(call.node) {
            return self.write(call, owner, piece, piece.len(), 0, environment);
        }
        self.fragments.end(owner);
        let beginning = UninspectedCall {
            call,
            operation: BegunOperation::Write {
                owner,
                piece: piece.to_vec(),
            },
        };
        let thread = owner.thread;
        let inspection = Inspection::WholeWrite { thread };
        self.inspect(beginning, None, inspection, environment);
    }

    /// Writes `data`, which ends with the piece of `piece` bytes that the kernel has passed last and `ahead` bytes that follow it.
    fn write(
        &mut self,
        call: Call,
        owner: Owner,
        data: &[u8],
        piece: usize,
        ahead: u64,
        environment: &mut impl Environment,
    ) {
        let handle = match self.handle(owner.file) {
            Ok(handle) => handle,
            Err(errno) => return fail(call, errno, environment),
        };
        let pending = Pending::Write {
            call,
            owner,
            piece,
            ahead,
        };
        self.send(pending, &write_request(handle, data), environment);
    }

    /// Writes the whole of a call of which the kernel has passed the first piece, so that the result is that of the whole call.
    pub(super) fn write_whole(
        &mut self,
        call: Call,
        owner: Owner,
        piece: &[u8],
        whole: InspectionResult,
        environment: &mut impl Environment,
    ) {
        match whole {
            Some(Ok(data)) if data.starts_with(piece) => {
                let ahead = data.len().saturating_sub(piece.len()) as u64;
                self.write(call, owner, &data, piece.len(), ahead, environment);
            }
            Some(Err(errno)) => fail(call, errno, environment),
            // The caller is changing its memory, or this isn't the call, or the memory may not be read.
            _ => self.stage(call, owner, Vec::new(), piece, environment),
        }
    }

    /// Continues a write of which the kernel has passed a piece.
    pub(super) fn continue_write(
        &mut self,
        call: Call,
        owner: Owner,
        offset: u64,
        data: &[u8],
        environment: &mut impl Environment,
    ) {
        match self.fragments.continue_write(owner, offset, data.len()) {
            Continuation::Done => {
                environment.answer(call.node, &protocol::written(call.unique, data.len()));
            }
            Continuation::Staged(staged) => self.stage(call, owner, staged, data, environment),
            Continuation::Unknown => fail(call, Errno::EIO, environment),
        }
    }

    /// Adds a piece to the staged ones; writes them if it is the last one.
    fn stage(
        &mut self,
        call: Call,
        owner: Owner,
        mut staged: Vec<u8>,
        piece: &[u8],
        environment: &mut impl Environment,
    ) {
        if staged.len() + piece.len() > MAX_DATA {
            return fail(call, Errno::ENOSPC, environment);
        }
        staged.extend_from_slice(piece);
        if piece.len() > LAST_FRAGMENT {
            self.fragments.stage(owner, staged);
            environment.answer(call.node, &protocol::written(call.unique, piece.len()));
        } else {
            self.write(call, owner, &staged, piece.len(), 0, environment);
        }
    }
}

fn write_request(handle: u32, data: &[u8]) -> WireRequest<'_> {
    WireRequest::Write {
        handle,
        flags: 0,
        data,
    }
}
