//! Readiness: answers polls, and wakes up those who wait.

use kvmprof_abi::wire::{NONBLOCKING, Request as WireRequest};

use super::super::readiness;
use super::{Call, Environment, Forwarder, Pending, PollInterest, Watch};
use crate::cuse::protocol::{self, Operation};

impl Forwarder {
    pub(super) fn poll(
        &mut self,
        call: Call,
        operation: Operation<'_>,
        environment: &mut impl Environment,
    ) {
        let Operation::Poll {
            file,
            kernel_handle,
            notify,
            events,
        } = operation
        else {
            return;
        };
        let Ok(handle) = self.handle(file) else {
            environment.answer(call.node, &protocol::polled(call.unique, readiness::LOST));
            return;
        };
        let events = readiness::to_wire(events);
        let pending = Pending::Poll {
            call,
            file,
            kernel_handle,
            notify,
            events,
        };
        let request = WireRequest::Poll {
            handle,
            events,
            flags: NONBLOCKING,
        };
        self.send(pending, &request, environment);
    }

    /// Asks kvmprof to report when the file is ready, for those who wait.
    pub(super) fn watch(
        &mut self,
        number: u64,
        interest: PollInterest,
        environment: &mut impl Environment,
    ) {
        let PollInterest {
            mut events,
            kernel_handle,
        } = interest;
        let Some(file) = self.files.get_mut(&number) else {
            return;
        };
        let Some(handle) = file.handle else {
            environment.answer(file.node, &protocol::wake_up(kernel_handle));
            return;
        };
        if let Some(watch) = &mut file.watch {
            watch.kernel_handle = kernel_handle;
            events |= watch.events;
            if events == watch.events {
                return;
            }
            let tag = watch.tag;
            self.send(Pending::Nothing, &WireRequest::Cancel { tag }, environment);
        }
        let request = WireRequest::Poll {
            handle,
            events,
            flags: 0,
        };
        let tag = self.send(Pending::Watch(number), &request, environment);
        if let Some(file) = self.files.get_mut(&number) {
            file.watch = Some(Watch {
                tag,
                events,
                kernel_handle,
            });
        }
    }

    /// Notes a poll that found the file ready. The poller may continue to wait until the file becomes ready again. Tables of prf are always
    /// ready.
    pub(super) fn watch_after_read(&mut self, number: u64, interest: PollInterest) {
        let Some(node) = self.files.get(&number).map(|file| file.node) else {
            return;
        };
        let is_prf = self.is_prf(node);
        if let Some(file) = self.files.get_mut(&number).filter(|_| !is_prf) {
            file.next_edge = Some(interest);
        }
    }

    /// Notes that the file was read: those who wait for it are woken up when there is more.
    pub(super) fn watch_next(&mut self, number: u64, environment: &mut impl Environment) {
        let file = self.files.get_mut(&number);
        if let Some(interest) = file.and_then(|file| file.next_edge.take()) {
            self.watch(number, interest, environment);
        }
    }

    /// Wakes up those who wait for a file, because it is ready, or because its readiness can't be reported any more.
    pub(super) fn wake_up(&mut self, tag: u32, number: u64, environment: &mut impl Environment) {
        let Some(file) = self.files.get_mut(&number) else {
            return;
        };
        // A watch that was replaced causes no wake-up.
        if let Some(watch) = file.watch.take_if(|watch| watch.tag == tag) {
            environment.answer(file.node, &protocol::wake_up(watch.kernel_handle));
        }
    }
}
