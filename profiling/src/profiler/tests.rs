//! Tests of clients of the host and of the guest, with the whole profiler. The vCPUs have no threads.

use std::task::Poll;

use kvmprof_abi::pcs::{PCS_SETHZ, PROF_ALL};
use kvmprof_abi::pmc::{Call, CounterId, Function, PMC_ACCOUNT, PMC_CALL};
use kvmprof_abi::recorder::{REC_EVENT, REC_START, STACK_KERNEL};
use kvmprof_abi::wire::device;
use kvmprof_devices::endpoint::{Backend, Client, GuestAccess, Handle, IoctlReply};
use kvmprof_recording::{EventKind, SamplingEvent};

use super::*;
use crate::clock::TickSource;
use crate::profiler::consumers::documents::MAX_DOCUMENT_BYTES;
use crate::profiler::testing::profiler_without_threads;
use crate::profiler::texts::MAX_TEXT_BYTES;
use kvmprof_machine::MachineDevices;
use kvmprof_machine::console::{ConsoleOutput, SerialConsole};

const HZ: u32 = 100;
const GUEST: Client = Client::Guest(GuestAccess::All);

fn profiler() -> Profiler {
    // A kick signals this thread, which acts as the vCPU's.
    crate::signals::block().unwrap();
    let serial = SerialConsole::new(ConsoleOutput::discard()).unwrap();
    let devices = Arc::new(MachineDevices::new(serial, None, Vec::new()));
    profiler_without_threads(1, HZ, Some(devices)).0
}

fn now<T>(poll: Poll<T>) -> T {
    match poll {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("no vCPU has a thread that could be waited for"),
    }
}

impl Profiler {
    fn opened_for(&mut self, client: Client, number: u16) -> Handle {
        let handle = self.open(client, number, 0).unwrap();
        now(self.opened(handle)).unwrap();
        handle
    }

    fn do_ioctl(&mut self, handle: Handle, command: u32, argument: i64) -> Result<i64, Errno> {
        now(self.ioctl(handle, command, argument, &[])).map(|reply| reply.value)
    }

    /// A call of pmc about counter `id` of process 7, or of the kernel.
    fn pmc(
        &mut self,
        handle: Handle,
        function: Function,
        id: CounterId,
    ) -> Result<IoctlReply, Errno> {
        let number = i32::try_from(id.number()).unwrap();
        let call = Call {
            event: number.cast_unsigned(),
            reset_value: 1,
            ..Call::new(function, 7, number)
        };
        now(self.ioctl(handle, PMC_CALL, 0, &call.encode()))
    }

    /// Opens pmc as a client of the host, which counts for all processes.
    fn account(&mut self) -> Handle {
        let handle = self.opened_for(Client::Host, device::PMC);
        let counters = CounterId::PortWrites.bit().into();
        self.do_ioctl(handle, PMC_ACCOUNT, counters).unwrap();
        handle
    }

    fn source(&self) -> Option<TickSource> {
        self.clocks.setting().source
    }
}

/// Every event of this kind makes a tick.
fn event(kind: EventKind) -> Option<TickSource> {
    SamplingEvent::new(kind, 1).map(TickSource::Event)
}

/// The guest counts by a slow clock first. The host's clients can count as if the guest counted nothing.
#[test]
fn the_guest_does_not_choose_the_clock_of_the_hosts_counters() {
    let mut profiler = profiler();
    let pcs = profiler.opened_for(GUEST, device::PCS);
    profiler.do_ioctl(pcs, PCS_SETHZ, 10).unwrap();
    profiler.do_ioctl(pcs, PROF_ALL, 0).unwrap();
    let pmc = profiler.opened_for(GUEST, device::PMC);
    for function in [Function::Configure, Function::Enable] {
        profiler.pmc(pmc, function, CounterId::PortReads).unwrap();
    }
    assert_eq!(profiler.source(), TickSource::clock(10));
    let account = profiler.account();
    assert_eq!(profiler.source(), TickSource::clock(HZ));
    // A later consumer counts as the first one does.
    let recorder = profiler.opened_for(Client::Host, device::RECORDER);
    let started = profiler.do_ioctl(recorder, REC_START, STACK_KERNEL);
    started.unwrap();
    for handle in [recorder, account] {
        assert_eq!(profiler.source(), TickSource::clock(HZ));
        now(profiler.close(handle));
    }
    // The guest's process still has its counter.
    assert_eq!(profiler.source(), TickSource::clock(10));
}

#[test]
fn the_guests_source_of_ticks_yields_to_the_hosts_counters() {
    let mut profiler = profiler();
    let guest = profiler.opened_for(GUEST, device::PMC);
    let (start, stop) = (Function::StartProfiling, Function::StopProfiling);
    profiler.pmc(guest, start, CounterId::PortReads).unwrap();
    assert_eq!(profiler.source(), event(EventKind::PortRead));
    let account = profiler.account();
    assert_eq!(profiler.source(), TickSource::clock(HZ));
    let stopped = profiler.pmc(guest, stop, CounterId::PortReads);
    assert_eq!(stopped.unwrap_err(), Errno::ENXIO);
    now(profiler.close(account));
    assert_eq!(profiler.source(), None);
}

#[test]
fn the_hosts_profiling_takes_precedence_over_the_guests() {
    let mut profiler = profiler();
    let guest = profiler.opened_for(GUEST, device::PMC);
    let host = profiler.opened_for(Client::Host, device::PMC);
    let (start, stop) = (Function::StartProfiling, Function::StopProfiling);
    profiler.pmc(guest, start, CounterId::PortReads).unwrap();
    // A call that fails changes nothing.
    let refused = profiler.pmc(host, start, CounterId::Ticks);
    assert_eq!(refused.unwrap_err(), Errno::ENODEV);
    assert_eq!(profiler.source(), event(EventKind::PortRead));
    profiler.pmc(host, start, CounterId::PortWrites).unwrap();
    assert_eq!(profiler.source(), event(EventKind::PortWrite));
    for (function, id) in [(stop, CounterId::PortWrites), (start, CounterId::PortReads)] {
        let refused = profiler.pmc(guest, function, id);
        assert_eq!(refused.unwrap_err(), Errno::EBUSY);
    }
    assert_eq!(profiler.source(), event(EventKind::PortWrite));
    profiler.pmc(host, stop, CounterId::PortWrites).unwrap();
    assert_eq!(profiler.source(), None);
}

/// Nobody else sees its exits.
#[test]
fn a_guest_of_another_program_is_sampled_by_what_the_hosts_kernel_sees() {
    crate::signals::block().unwrap();
    let chosen = |events: &[EventKind], kind: EventKind| {
        let mut profiler = profiler_without_threads(1, HZ, None).0;
        profiler.info.events = events.to_vec();
        let recorder = profiler.opened_for(Client::Host, device::RECORDER);
        let number = kind.number().to_le_bytes();
        now(profiler.ioctl(recorder, REC_EVENT, 1, &number))?;
        profiler.do_ioctl(recorder, REC_START, STACK_KERNEL)?;
        Ok(profiler.source())
    };
    let exits = EventKind::KvmExits;
    assert_eq!(chosen(&[exits], exits), Ok(event(exits)));
    assert_eq!(chosen(&[], exits), Err(Errno::ENODEV));
    for others in [EventKind::Exits, EventKind::PageFaults] {
        assert_eq!(chosen(&[exits], others), Err(Errno::ENODEV));
    }
}

/// A text that would be discarded isn't made: a client can request it repeatedly.
#[test]
fn a_text_beyond_the_limit_is_not_made() {
    let mut profiler = profiler();
    let whole: Arc<[u8]> = vec![0; MAX_TEXT_BYTES].into();
    let kept = profiler.handles.keep(device::PROCESSES, whole).unwrap();
    for (pid, expected) in [(1, Err(Errno::ENOMEM)), (2, Err(Errno::ENOMEM))] {
        profiler
            .names
            .note_main_thread(pid, *b"0123456789abcdef", 0);
        let handle = profiler.open(Client::Host, device::PROCESSES, 0).unwrap();
        assert_eq!(now(profiler.opened(handle)), expected);
        assert!(!profiler.names.has_table());
    }
    drop(kept);
    profiler.opened_for(Client::Host, device::PROCESSES);
    assert!(profiler.names.has_table());
}

/// A closed handle takes no memory.
#[test]
fn a_closed_text_frees_its_memory() {
    let mut profiler = profiler();
    profiler.names.note_main_thread(1, *b"0123456789abcdef", 0);
    for number in [device::STATUS, device::PROCESSES] {
        let handle = profiler.opened_for(Client::Host, number);
        assert!(profiler.handles.text_bytes() > 0);
        now(profiler.close(handle));
        assert_eq!(profiler.handles.text_bytes(), 0);
    }
}

/// Each handle has its own document from the first read on, until all of them together are too large.
#[test]
fn documents_that_are_begun_are_bounded_all_together() {
    // No document is shorter.
    const LEAST: usize = 1000;
    let mut profiler = profiler();
    let mut begun = Vec::new();
    let refused = (0..=MAX_DOCUMENT_BYTES / LEAST).find_map(|_| {
        let handle = profiler.opened_for(Client::Host, device::PMC);
        let read = now(profiler.read(handle, 1));
        begun.push(handle);
        read.err()
    });
    assert_eq!(refused, Some(Errno::ENOMEM));
    let last = begun.pop().unwrap();
    // Two documents are read for one, because their lengths may differ.
    for handle in &begun[..2] {
        let rest = now(profiler.read(*handle, MAX_DOCUMENT_BYTES)).unwrap();
        assert!(rest.len() >= LEAST, "{}", rest.len());
    }
    assert_eq!(now(profiler.read(last, 1)).unwrap().len(), 1);
    for handle in &begun[2..4] {
        now(profiler.close(*handle));
    }
    let more = profiler.opened_for(Client::Host, device::PMC);
    assert_eq!(now(profiler.read(more, 1)).unwrap().len(), 1);
}
