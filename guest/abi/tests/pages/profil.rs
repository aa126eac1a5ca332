//! PROFIL.md.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::profil::{self, Call, Function, State, Status};
use kvmprof_abi::wire;
use kvmprof_abi::wire::device;

use super::{compare, says, says_numbers};

const PROFIL: &str = include_str!("../../PROFIL.md");

#[test]
fn numbers_of_profil() {
    let errnos = [Errno::ENXIO, Errno::EFAULT, Errno::EINVAL, Errno::ENOSPC];
    says_numbers(PROFIL, device::PROFIL, &errnos);
    let device = wire::device::PROFIL;
    says(PROFIL, &format!("(device {device}, minor 0)"));
    says(PROFIL, &format!("`{}`", profil::NODE));
    says(PROFIL, &format!("{} times a second", profil::RATE_HZ));
    says(PROFIL, &format!("{} bytes, little-endian", Call::SIZE));
    let range = profil::Range::SIZE;
    says(PROFIL, &format!("function 3, {range} bytes"));
    says(PROFIL, &format!("stores {} bytes", Status::SIZE));
    says(PROFIL, &format!("more than {}", profil::MAX_RANGES));
    says(PROFIL, &format!("would pass {}", profil::SOLARIS_MAX_COUNT));
    let kept = profil::MAX_KEPT >> 20;
    says(PROFIL, &format!("longer than {kept} MiB"));
    for (number, function) in [
        (1, Function::Profil),
        (2, Function::AixProfil),
        (3, Function::AixRanges),
        (4, Function::Pcsample),
    ] {
        assert_eq!(Function::from_number(number), Some(function));
    }
    for state in State::ALL {
        let (number, what) = (state as u32, state.describe());
        says(PROFIL, &format!("{number} {what}"));
    }
}

#[test]
fn dumps_of_profil() {
    let call = Call {
        flags: Call::KEEP,
        size: 0x8_0000,
        offset: 0x60_0000,
        scale: 0x4000,
        ..Call::new(Function::Profil, 101)
    };
    let status = Status {
        state: State::On,
        ticks: 120,
        stored: 100,
        outside: 15,
        waiting: 5,
        lost: 0,
    };
    let (call_bytes, status_bytes) = (call.encode().to_vec(), status.encode().to_vec());
    assert_eq!(Call::decode(&call_bytes), Some(call));
    assert_eq!(Call::decode(&call_bytes[1..]), None);
    assert_eq!(Status::decode(&status_bytes), Some(status));
    let expected = [("call-profil-101", call_bytes), ("state", status_bytes)];
    compare(PROFIL, &expected);
}
