//! Both sides of a channel, in one process.

use kvmprof_introspection::PhysicalMemory;
use vm_memory::GuestAddress;

use super::blocks::{BLOCK_BYTES, MAX_BLOCKS};
use super::shared::{DATA_BYTES, MESSAGE_WORDS};
use super::testing::{BYTES, PID, byte, served, slots};
use super::*;
use crate::tracer::TraceError;
use crate::{AttachError, Slot};

#[test]
fn only_guest_memory_is_read_in_any_length() {
    let served = served().unwrap();
    for (address, bytes) in [
        (BYTES, 1),
        (BYTES + 4095, 3),
        (BYTES, DATA_BYTES),
        (BYTES + 5, 2 * DATA_BYTES + 7),
    ] {
        let mut buffer = vec![0; bytes];
        let read = served
            .channel()
            .read_physical(GuestAddress(address), &mut buffer);
        assert_eq!(read, Some(()), "{address:#x} {bytes}");
        assert!(buffer.iter().zip(address..).all(|(it, at)| *it == byte(at)));
    }
    for (address, bytes) in [(0, 8), (BYTES - 1, 2), (2 * BYTES - 1, 2), (u64::MAX, 2)] {
        let mut buffer = vec![0; bytes];
        let read = served
            .channel()
            .read_physical(GuestAddress(address), &mut buffer);
        assert_eq!(read, None, "{address:#x}");
    }
}

/// The samples after the first one begin with what it has read.
#[test]
fn memory_for_a_sample_is_read_once_and_at_once() {
    let served = served().unwrap();
    let memory = served.channel();
    let requests = || served.shared.next_request(0, Duration::ZERO, Some(PAUSE));
    let read = |address| {
        let found: Option<[u8; 2]> = memory.read_array(GuestAddress(address));
        assert!(found.is_none_or(|found| found == [byte(address), byte(address + 1)]));
        found.is_some()
    };
    let block = BLOCK_BYTES as u64;
    let addresses = [BYTES + 8, BYTES + 16, BYTES + 9 * block - 1, BYTES - 2, 0];
    for expected in [5, 6] {
        memory.begin_sample();
        for _ in 0..2 {
            assert_eq!(addresses.map(read), [true, true, true, false, false]);
        }
        memory.end_sample();
        assert_eq!(requests(), Some(expected));
    }
    // One that reads nothing asks for nothing.
    memory.begin_sample();
    memory.end_sample();
    assert_eq!(requests(), Some(6));
    // It takes another block, and the next one has only that.
    for expected in [8, 9] {
        memory.begin_sample();
        assert!(read(BYTES + 100 * block));
        memory.end_sample();
        assert_eq!(requests(), Some(expected));
    }
    assert!(read(BYTES + 100 * block));
    assert_eq!(requests(), Some(10));
}

#[test]
fn changed_slots_are_sent_without_host_addresses() {
    let served = served().unwrap();
    let channel = served.channel();
    assert_eq!(channel.refresh().unwrap(), Some(3));
    assert!(channel.contains(GuestAddress(2 * BYTES - 1)));
    *served.memory.slots.lock().unwrap() = Arc::new(slots(BYTES / 2));
    assert!(channel.contains(GuestAddress(2 * BYTES - 1)));
    assert_eq!(channel.refresh().unwrap(), Some(3));
    assert!(!channel.contains(GuestAddress(2 * BYTES - 1)));
    let slots = channel.slots();
    let told: Vec<&Slot> = slots.iter().collect();
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].bytes, told[0].host_address), (BYTES / 2, 0));
    assert!(told[0].logs_writes && !told[0].is_read_only);
    served.memory.has_ended.store(true, Ordering::Relaxed);
    assert!(matches!(channel.refresh(), Err(AttachError::Ended(PID))));
}

/// A compromised process that asks can write any words.
#[test]
fn requests_that_kvmprof_never_makes_are_refused() {
    let mut served = served().unwrap();
    for request in [
        vec![],
        vec![9],
        // A vCPU that doesn't exist.
        vec![0, 0, 0, 0],
        vec![0, u64::MAX, u64::MAX, 0],
        // Too many blocks, and too long a read.
        vec![0, 0, 0, MAX_BLOCKS as u64 + 1],
        vec![3, BYTES, DATA_BYTES as u64 + 1],
        vec![3, 0, u64::MAX],
        // None is stopped.
        vec![1],
        vec![2],
        vec![5, 1],
    ] {
        // The bytes after a request are left from the one before.
        let mut whole = [u64::MAX; MESSAGE_WORDS];
        whole[..request.len()].copy_from_slice(&request);
        let answer = served.ask(&whole).unwrap();
        assert!(matches!(answer, Answer::Refused), "{request:?} {answer:?}");
    }
    assert_eq!(served.reads(), 0);
}

#[test]
fn waits_end_when_the_tracer_ends() {
    let shared = Arc::new(Shared::map().unwrap());
    let state = Arc::new(ChannelState::new(PID, &slots(BYTES)));
    // The read end of a pipe whose other end is closed is ready, like a process that has ended.
    let (ended, other) = io::pipe().unwrap();
    drop(other);
    state.is_traced_by(ended.into());
    let channel = Arc::new(Channel::new(state, shared));
    let read = channel.read_physical(GuestAddress(BYTES), &mut [0; BLOCK_BYTES]);
    assert_eq!(read, None);
    assert!(matches!(channel.refresh(), Err(AttachError::NoTracer(PID))));
    let mut vcpu = RemoteVcpu::new(channel, 0, 1, 2);
    assert!(matches!(vcpu.hold(), Err(TraceError::NoTracer)));
    assert!(matches!(vcpu.look(|_| Ok(())), Err(TraceError::NoTracer)));
    assert!(vcpu.has_thread());
}
