//! RECORDER.md.

use kvmprof_abi::pcs::{self, Format};
use kvmprof_abi::recorder;
use kvmprof_abi::wire::device;

use super::{says, says_numbers};

const RECORDER: &str = include_str!("../../RECORDER.md");

#[test]
fn numbers_of_the_recorder() {
    says_numbers(RECORDER, device::RECORDER, &[]);
    for (name, event) in [
        ("EVENT_EXITS", recorder::EVENT_EXITS),
        ("EVENT_PORT", recorder::EVENT_PORT),
        ("EVENT_PORT_READ", recorder::EVENT_PORT_READ),
        ("EVENT_PORT_WRITE", recorder::EVENT_PORT_WRITE),
        ("EVENT_MMIO", recorder::EVENT_MMIO),
        ("EVENT_MMIO_READ", recorder::EVENT_MMIO_READ),
        ("EVENT_MMIO_WRITE", recorder::EVENT_MMIO_WRITE),
        ("EVENT_GUEST_TIME", recorder::EVENT_GUEST_TIME),
        ("EVENT_HALT", recorder::EVENT_HALT),
        ("EVENT_PAGE_FAULTS", recorder::EVENT_PAGE_FAULTS),
        ("EVENT_KVM_EXITS", recorder::EVENT_KVM_EXITS),
        ("EVENT_CYCLES", recorder::EVENT_CYCLES),
        ("EVENT_INSTRUCTIONS", recorder::EVENT_INSTRUCTIONS),
        ("EVENT_BRANCHES", recorder::EVENT_BRANCHES),
        ("EVENT_BRANCH_MISSES", recorder::EVENT_BRANCH_MISSES),
        ("EVENT_CACHE_REFERENCES", recorder::EVENT_CACHE_REFERENCES),
        ("EVENT_CACHE_MISSES", recorder::EVENT_CACHE_MISSES),
    ] {
        says(RECORDER, &format!(" {event} {name} "));
    }
    says(RECORDER, &format!("1 to {}", recorder::MAX_PERIOD));
    says(RECORDER, &format!("{} at least", recorder::MIN_GUEST_TIME));
    says(RECORDER, &format!("{} at least", recorder::MIN_CYCLES));
    says(RECORDER, &format!("more than {}", recorder::MAX_PIDS));
    says(RECORDER, &format!("0 to {}", recorder::MAX_LOOK_TICKS));
    says(RECORDER, &format!("0 to {} s", recorder::MAX_INTERVAL));
    says(RECORDER, &format!("{} to {} Hz", pcs::MIN_HZ, pcs::MAX_HZ));
    let parts = [recorder::STACK_KERNEL, recorder::STACK_USER];
    let [kernel, user] = parts;
    let stacks = format!("{kernel}: the kernel's frames, {user}: the user's");
    says(RECORDER, &stacks);
}

#[test]
fn the_account_is_encoded_as_documented() {
    let ledger = pcs::Ledger {
        ticks: 0,
        recorded: 8,
        merged: 16,
        ungathered: 24,
        stolen: 32,
        lost: 40,
        pending: 48,
        discarded: 56,
    };
    let status = pcs::Status {
        ledger,
        hz: 64,
        vcpus: 68,
        format: Format::Classic,
        buffer_size: 76,
        buffers: 80,
        modes: 84,
    };
    // Every field holds its own offset, except the format.
    let bytes = status.encode().to_vec();
    assert_eq!(bytes.len(), pcs::STATUS_SIZE);
    assert_eq!(pcs::Status::decode(&bytes), Some(status));
    assert_eq!(pcs::Status::decode(&bytes[1..]), None);
    let (counts, settings) = (0..64, 64..pcs::STATUS_SIZE);
    for offset in counts.step_by(8).chain(settings.step_by(4)) {
        let expected = if offset == 72 { 1 } else { offset };
        assert_eq!(usize::from(bytes[offset]), expected);
    }
}
