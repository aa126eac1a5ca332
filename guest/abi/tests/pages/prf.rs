//! PRF.md.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::prf;
use kvmprof_abi::wire::device;

use super::{compare, says, says_numbers};

const PRF: &str = include_str!("../../PRF.md");

#[test]
fn numbers_of_prf() {
    let errnos = [Errno::ENOSPC, Errno::E2BIG, Errno::EBUSY, Errno::EINVAL];
    says_numbers(PRF, device::PRF, &errnos);
    let (least, most) = (prf::MIN_ADDRESSES, prf::MAX_ADDRESSES);
    says(PRF, &format!("{least} to `PRF_GETMAX` addresses"));
    says(PRF, &format!("fewer than {least} addresses"));
    says(PRF, &format!("may have {most} addresses"));
    says(PRF, &format!("and {} bytes long", prf::WORD_SIZE));
    says(PRF, &format!("{}, `{}`", prf::ALL_VCPUS, prf::NODE));
    says(PRF, &format!("{} times a second", prf::RATE_HZ));
    assert_eq!((prf::STATUS_ON, prf::STATUS_LOADED), (1, 2));
    let (each, more) = (prf::read_size(1) - prf::read_size(0), prf::read_size(0));
    let size = format!("{each} bytes for each address and {more} more");
    says(PRF, &size);
}

#[test]
fn dump_of_a_read() {
    let addresses = [0, 0xffff_ffff_8100_0000, 0xffff_ffff_8100_1240];
    let words = [&addresses[..], &[0, 7, 300, 1000, 16]].concat();
    let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    assert_eq!(prf::read_size(3), bytes.len());
    compare(PRF, &[("read-3-addresses", bytes)]);
}
