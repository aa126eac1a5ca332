//! PMC.md.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pmc::{self, CounterId, CounterSource};
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
    says_numbers(PMC, device::PMC, &[of_calls, of_counters].concat());
    let device = wire::device::PMC;
    says(PMC, &format!("(device {device}, minor 0)"));
    says(PMC, &format!("`{}`", pmc::NODE));
    says(PMC, &format!("{} bytes, little-endian", pmc::Call::SIZE));
    says(PMC, &format!("(returns {})", pmc::COUNTERS));
    for source in [
        CounterSource::Kvmprof,
        CounterSource::Kvm,
        CounterSource::Processor,
    ] {
        let own = CounterId::ALL
            .iter()
            .filter(|counter| counter.source() == source);
        let counters = own.map(|counter| format!("{} {}", counter.number(), counter.name()));
        let counters = counters.collect::<Vec<_>>().join(", ");
        says(PMC, &format!("- {}: {counters}", source.name()));
    }
    for function in pmc::Function::ALL {
        says(PMC, &format!(" {} `", function as u32));
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
