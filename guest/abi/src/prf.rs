//! `prf.h`: the client's view of the kernel profiler.
//!
//! A client writes a table of kernel addresses in ascending order, turns the profiler on, and reads the addresses and a
//! counter for each: the number of times that the program counter was there or beyond, up to the next address. Two more
//! counters are for user mode and for idle time. All numbers are little-endian; addresses and counters have
//! [`WORD_SIZE`] bytes.
//!
//! Names in capitals are those of the manual page `prf(7)`.

const fn command(number: u32) -> u32 {
    ((b'F' as u32) << 8) | number
}

/// `PRF_GETSTATUS`: stores the state, [`STATUS_ON`] and [`STATUS_LOADED`], as a 32-bit integer at the argument.
pub const PRF_GETSTATUS: u32 = command(1);
/// `PRF_GETSIZE`: stores the number of addresses in the table, 0 without a valid one, as a 32-bit integer at the
/// argument.
pub const PRF_GETSIZE: u32 = command(2);
/// `PRF_SETSTATE`: turns the profiler on or off by the argument's lowest bit (an integer). Has no effect without a
/// valid table. Turning it on is EINVAL if the clock's rate is no multiple of [`RATE_HZ`].
pub const PRF_SETSTATE: u32 = command(3);
/// `PRF_GETMAX`: stores the maximum number of addresses of a table as a 32-bit integer at the argument.
pub const PRF_GETMAX: u32 = command(4);

/// In [`PRF_GETSTATUS`]: samples are being counted.
pub const STATUS_ON: u32 = 1;
/// In [`PRF_GETSTATUS`]: there is a valid table.
pub const STATUS_LOADED: u32 = 2;

/// The minor number of all vCPUs together; every other one is a vCPU's.
pub const ALL_VCPUS: u16 = 255;
/// The rate of counting in Hz, at any rate of the clock.
pub const RATE_HZ: u32 = 100;
/// Bytes of an address and of a counter.
pub const WORD_SIZE: usize = 8;
/// Minimum number of addresses of a table.
pub const MIN_ADDRESSES: usize = 3;
/// Maximum number of addresses of a table on any kvmprof: the table and its counters must fit into one reply of the
/// wire. A device may have a lower limit, see [`PRF_GETMAX`].
pub const MAX_ADDRESSES: usize = crate::wire::MAX_DATA / (2 * WORD_SIZE) - 1;
/// Counters after those of the addresses: user mode, then idle.
pub const EXTRA_COUNTERS: usize = 2;
/// The path of the node of all vCPUs in a guest; nodes of single vCPUs have their number appended.
pub const NODE: &str = "/dev/prf";

/// Bytes of a whole table of `addresses` addresses for a reader: the addresses, their counters, and the two counters of
/// user mode and idle.
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
