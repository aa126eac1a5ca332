//! Reads and writes. The kernel shows long ones in pieces; those of prf are one to kvmprof.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::{MAX_DATA, NONBLOCKING, Request as WireRequest};

use super::super::fragments::{Continued, Owner};
use super::super::{Direction, WholeCall};
use super::{Beginning, Call, Forwarder, Outside, Pending, Transfer, fail};
use crate::cuse::protocol::{self, LAST_FRAGMENT};

impl Forwarder {
    /// Writes the calls whose end couldn't be told from their pieces. Nobody waits for the outcome.
    pub(super) fn finish_staged(&mut self, file: u64, outside: &mut impl Outside) {
        for data in self.fragments.take_staged(file) {
            if let Ok(handle) = self.handle(file) {
                let request = write_request(handle, &data);
                self.send(Pending::Nothing, &request, outside);
            }
        }
    }

    /// Starts the first piece of a read or write. Of prf's, the whole call has to be known.
    pub(super) fn begin(
        &mut self,
        call: Call,
        owner: Owner,
        transfer: Transfer,
        outside: &mut impl Outside,
    ) {
        if self.is_prf(call.node) {
            let (direction, shown) = match &transfer {
                Transfer::Read { size, .. } => (Direction::Read, *size),
                Transfer::Write(data) => (Direction::Write, data.len()),
            };
            self.last_look += 1;
            let beginning = Beginning {
                call,
                owner,
                transfer,
            };
            self.beginnings.insert(self.last_look, beginning);
            outside.look(self.last_look, owner.thread, direction, shown);
            return;
        }
        match transfer {
            Transfer::Read { size, flags } => {
                self.read(call, owner, (size, size, flags), outside);
            }
            Transfer::Write(data) => self.write(call, owner, (&data, data.len()), outside),
        }
    }

    /// Carries out a transfer of prf's, of which the whole is known, or can't be.
    pub(super) fn transfer(
        &mut self,
        beginning: Beginning,
        whole: Option<WholeCall>,
        outside: &mut impl Outside,
    ) {
        let Beginning {
            call,
            owner,
            transfer,
        } = beginning;
        match transfer {
            Transfer::Read { size, flags } => {
                let limit = whole.map_or(MAX_DATA, |whole| whole.total);
                let limit = limit.clamp(size.min(MAX_DATA), MAX_DATA);
                self.read(call, owner, (size, limit, flags), outside);
            }
            Transfer::Write(piece) => self.write_whole(call, owner, &piece, whole, outside),
        }
    }

    /// Reads at most `limit` bytes, of which the caller gets `size` now.
    fn read(
        &mut self,
        call: Call,
        owner: Owner,
        (size, limit, flags): (usize, usize, u32),
        outside: &mut impl Outside,
    ) {
        let nonblocking = flags & u32::try_from(libc::O_NONBLOCK).unwrap_or(0) != 0;
        self.start_read(call, owner, (size, limit, nonblocking, false), outside);
    }

    fn start_read(
        &mut self,
        call: Call,
        owner: Owner,
        (size, limit, nonblocking, continued): (usize, usize, bool, bool),
        outside: &mut impl Outside,
    ) {
        let handle = match self.handle(owner.file) {
            Ok(handle) => handle,
            Err(errno) => return fail(call, errno, outside),
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
        let tag = self.send(pending, &request, outside);
        self.waiting.insert(call, tag);
    }

    /// Goes on with a read of which the kernel has had a piece.
    pub(super) fn continue_read(
        &mut self,
        call: Call,
        owner: Owner,
        (offset, size): (u64, usize),
        outside: &mut impl Outside,
    ) {
        if self.is_prf(call.node) {
            let data = self.fragments.continue_read(owner, offset, size);
            outside.answer(call.node, &protocol::read(call.unique, &data));
        } else {
            // It has something to return, so it doesn't wait for more.
            self.start_read(call, owner, (size, size, true, true), outside);
        }
    }

    /// Writes `data`, of which the kernel has shown the first `piece` bytes.
    fn write(
        &mut self,
        call: Call,
        owner: Owner,
        (data, piece): (&[u8], usize),
        outside: &mut impl Outside,
    ) {
        let handle = match self.handle(owner.file) {
            Ok(handle) => handle,
            Err(errno) => return fail(call, errno, outside),
        };
        let pending = Pending::Write {
            call,
            owner,
            piece,
            ahead: data.len().saturating_sub(piece) as u64,
        };
        self.send(pending, &write_request(handle, data), outside);
    }

    /// Writes all of a call that the kernel has shown the first piece of, so that its outcome is that
    /// of the whole.
    fn write_whole(
        &mut self,
        call: Call,
        owner: Owner,
        piece: &[u8],
        whole: Option<WholeCall>,
        outside: &mut impl Outside,
    ) {
        match whole {
            Some(whole) if whole.total <= piece.len() => {
                self.write(call, owner, (piece, piece.len()), outside);
            }
            // More than any table may have.
            Some(whole) if whole.total > MAX_DATA => fail(call, Errno::ENOSPC, outside),
            Some(WholeCall {
                data: Some(Ok(data)),
                ..
            }) if data.starts_with(piece) => {
                self.write(call, owner, (&data, piece.len()), outside);
            }
            Some(WholeCall {
                data: Some(Err(Errno::EFAULT)),
                ..
            }) => fail(call, Errno::EFAULT, outside),
            // Somebody changes it just now, or this isn't the call, or it may not be known.
            _ => self.stage(call, owner, (Vec::new(), piece), outside),
        }
    }

    /// Goes on with a write of which the kernel has shown a piece.
    pub(super) fn continue_write(
        &mut self,
        call: Call,
        owner: Owner,
        (offset, data): (u64, &[u8]),
        outside: &mut impl Outside,
    ) {
        match self.fragments.continue_write(owner, offset, data.len()) {
            Continued::Done => {
                outside.answer(call.node, &protocol::written(call.unique, data.len()));
            }
            Continued::Staged(staged) => self.stage(call, owner, (staged, data), outside),
            Continued::Unknown => fail(call, Errno::EIO, outside),
        }
    }

    /// Adds a piece to what was staged; writes it if it is the last one.
    fn stage(
        &mut self,
        call: Call,
        owner: Owner,
        (mut staged, piece): (Vec<u8>, &[u8]),
        outside: &mut impl Outside,
    ) {
        if staged.len() + piece.len() > MAX_DATA {
            return fail(call, Errno::ENOSPC, outside);
        }
        let before = staged.len();
        staged.extend_from_slice(piece);
        if piece.len() > LAST_FRAGMENT {
            self.fragments.stage(owner, staged);
            outside.answer(call.node, &protocol::written(call.unique, piece.len()));
        } else if before == 0 {
            self.write(call, owner, (piece, piece.len()), outside);
        } else {
            let handle = match self.handle(owner.file) {
                Ok(handle) => handle,
                Err(errno) => return fail(call, errno, outside),
            };
            let pending = Pending::Write {
                call,
                owner,
                piece: piece.len(),
                ahead: 0,
            };
            self.send(pending, &write_request(handle, &staged), outside);
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
