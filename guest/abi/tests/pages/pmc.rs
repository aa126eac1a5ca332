//! PMC.md.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pmc::{self, CounterId};
use kvmprof_abi::wire;
use kvmprof_abi::wire::device;

use super::{compare, says, says_numbers};

const PMC: &str = include_str!("../../PMC.md");

#[test]
fn numbers_of_pmc() {
    let of_calls = [Errno::EPERM, Errno::ENXIO, Errno::ENOMEM, Errno::EFAULT];
    let of_counters = [
        Errno::EBUSY,
        Errno::ENODEV,
        Errno::EINVAL,
        Errno::EINPROGRESS,
    ];
    says_numbers(PMC, device::PMC, "`", &[of_calls, of_counters].concat());
    let device = wire::device::PMC;
    says(PMC, &format!("(device {device}, minor 0)"));
    says(PMC, &format!("`{}`", pmc::NODE));
    says(PMC, &format!("{} bytes, little-endian", pmc::Call::SIZE));
    says(PMC, &format!("returns {} |", pmc::COUNTERS));
    for counter in CounterId::ALL {
        let (number, name) = (counter.number(), counter.name());
        let (source, what) = (counter.source().name(), counter.description());
        says(PMC, &format!("| {number} | {name} | {source} | {what} |"));
    }
    for function in pmc::Function::ALL {
        says(PMC, &format!("| {} | `", function as u32));
    }
}

#[test]
fn dump_of_a_call_of_pmc() {
    let call = pmc::Call {
        flags: pmc::VALUE_FLAGS_CHILDREN,
        value: 42,
        ..pmc::Call::new(pmc::Function::Value, 101, 3)
    };
    compare(PMC, &[("call-value-101", call.encode().to_vec())]);
}
