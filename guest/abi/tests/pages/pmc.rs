//! PMC.md.

use kvmprof_abi::commands::of_device;
use kvmprof_abi::errno::Errno;
use kvmprof_abi::pmc::{self, CounterId};
use kvmprof_abi::wire;
use kvmprof_abi::wire::device;

use super::{compare, says};

const PMC: &str = include_str!("../../PMC.md");

#[test]
fn numbers_of_pmc() {
    for command in of_device(device::PMC) {
        let (name, number) = (command.name, command.number);
        says(PMC, &format!("| `{name}` | {number:#06x} |"));
    }
    for errno in [
        Errno::EPERM,
        Errno::ENXIO,
        Errno::ENOMEM,
        Errno::EFAULT,
        Errno::EBUSY,
        Errno::ENODEV,
        Errno::EINVAL,
        Errno::EINPROGRESS,
    ] {
        let (name, _) = errno.describe().unwrap();
        says(PMC, &format!("| {} | {name} |", errno.0));
    }
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
