//! `prf.h`: the kernel profiler as its clients see it.
//!
//! A client writes a table of kernel addresses in ascending order, turns the profiler on, and reads
//! back the addresses and a counter for each, which tell how often the program counter was there or
//! beyond, up to the next address. Two more counters stand for user mode and for idle time. All
//! numbers are little-endian; addresses and counters have [`WORD_SIZE`] bytes.
//!
//! Names in capitals are those of the manual page `prf(7)`.

const fn command(number: u32) -> u32 {
    ((b'F' as u32) << 8) | number
}

/// `PRF_GETSTATUS`: stores the state, [`STATUS_ON`] and [`STATUS_LOADED`], as a 32-bit integer where
/// the argument points to.
pub const PRF_GETSTATUS: u32 = command(1);
/// `PRF_GETSIZE`: stores the number of addresses in the table, as a 32-bit integer, where the argument
/// points to; 0 without a valid table.
pub const PRF_GETSIZE: u32 = command(2);
/// `PRF_SETSTATE`: turns the profiler on or off by the argument's lowest bit (an integer). Without a
/// valid table it has no effect. EINVAL for on when the clock's rate is no multiple of
/// [`RATE_HZ`].
pub const PRF_SETSTATE: u32 = command(3);
/// `PRF_GETMAX`: stores the number of addresses that a table can have, as a 32-bit integer, where the
/// argument points to.
pub const PRF_GETMAX: u32 = command(4);

/// In [`PRF_GETSTATUS`]: samples are being counted.
pub const STATUS_ON: u32 = 1;
/// In [`PRF_GETSTATUS`]: there is a valid table.
pub const STATUS_LOADED: u32 = 2;

/// The minor number that stands for all vCPUs together; every other one is a vCPU's.
pub const ALL_VCPUS: u16 = 255;
/// How often the program counter is counted, in Hz, whatever the clock's rate.
pub const RATE_HZ: u32 = 100;
/// Bytes of an address and of a counter.
pub const WORD_SIZE: usize = 8;
/// The fewest addresses that a table may have.
pub const MIN_ADDRESSES: usize = 3;
/// The most addresses that a table may have on any kvmprof: what fits into one reply of the wire
/// together with its counters. The device may be set to less, see [`PRF_GETMAX`].
pub const MAX_ADDRESSES: usize = crate::wire::MAX_DATA / (2 * WORD_SIZE) - 1;
/// Counters beyond those of the addresses: user mode, then idle.
pub const EXTRA_COUNTERS: usize = 2;
/// Where the node of all vCPUs is in a guest; those of single vCPUs have their number appended.
pub const NODE: &str = "/dev/prf";

/// Bytes of all that a read of a table of `addresses` addresses gives: the addresses, their counters,
/// and the two counters of user mode and idle.
pub const fn read_size(addresses: usize) -> usize {
    (2 * addresses + EXTRA_COUNTERS) * WORD_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_table_fits_into_one_reply() {
        assert!(read_size(MAX_ADDRESSES) <= crate::wire::MAX_DATA);
        assert!(read_size(MAX_ADDRESSES + 1) > crate::wire::MAX_DATA);
    }
}
