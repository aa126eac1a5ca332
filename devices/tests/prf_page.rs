//! Tests of the sentences of the prf page, on the device alone. What is counted where and when, and which writes are refused, is that of a plain
//! model (`prf_properties.rs`).

use kvmprof_abi::errno::Errno;
use kvmprof_abi::prf::{
    ALL_VCPUS, MAX_ADDRESSES, PRF_GETMAX, PRF_GETSIZE, PRF_GETSTATUS, PRF_SETSTATE, STATUS_LOADED,
    STATUS_ON, read_size,
};
use kvmprof_devices::profiling::{Prf, Switch};
use kvmprof_recording::Mode;

use crate::support::tick;

const BOTH: u32 = STATUS_ON | STATUS_LOADED;

fn table(addresses: &[u64]) -> Vec<u8> {
    addresses.iter().flat_map(|a| a.to_le_bytes()).collect()
}

/// A device at 100 Hz with `addresses` in minor 0, which is on.
fn counting(addresses: &[u64]) -> Prf {
    let mut prf = Prf::new(1, MAX_ADDRESSES);
    prf.set_hz(100);
    prf.write(0, &table(addresses)).unwrap();
    prf.ioctl(0, PRF_SETSTATE, 1).unwrap();
    prf
}

fn stored(prf: &mut Prf, minor: u16, command: u32) -> u32 {
    let reply = prf.ioctl(minor, command, 0).unwrap();
    assert_eq!(reply.value, 0);
    u32::from_le_bytes(reply.data.try_into().unwrap())
}

fn status(prf: &mut Prf, minor: u16) -> u32 {
    stored(prf, minor, PRF_GETSTATUS)
}

#[test]
fn an_invalid_table_removes_the_previous_one() {
    let mut prf = counting(&[1, 2, 3]);
    prf.feed(&tick(0, Mode::User, 70));
    prf.ioctl(0, PRF_SETSTATE, 0).unwrap();
    assert_eq!(prf.write(0, &table(&[1, 3, 2])), Err(Errno::EINVAL));
    assert_eq!(status(&mut prf, 0), 0);
    assert_eq!(stored(&mut prf, 0, PRF_GETSIZE), 0);
    for limit in [0, 8] {
        assert_eq!(prf.read(0, limit, &mut Vec::new()), Err(Errno::ENXIO));
    }
    assert_eq!(prf.reports().count(), 0);
    // No effect, and no error.
    prf.ioctl(0, PRF_SETSTATE, 1).unwrap();
    assert_eq!((status(&mut prf, 0), prf.wants_ticks()), (0, false));
}

#[test]
fn reads_restart_and_split_anywhere() {
    let mut prf = counting(&[1, 2, 3]);
    prf.feed(&tick(0, Mode::Kernel, 70));
    let whole = table(&[1, 2, 3, 0, 0, 1, 0, 0]);
    assert_eq!(whole.len(), read_size(3));
    for limit in (0..80).chain([usize::MAX]) {
        let mut bytes = vec![0xaa];
        let count = prf.read(0, limit, &mut bytes).unwrap();
        assert_eq!(count, limit.min(whole.len()));
        assert_eq!(bytes[1..], whole[..count]);
    }
}

#[test]
fn commands_and_their_arguments() {
    let mut prf = Prf::new(2, 1000);
    prf.set_hz(100);
    for minor in [0, 1, ALL_VCPUS] {
        assert_eq!(stored(&mut prf, minor, PRF_GETMAX), 1000);
        for command in [0, 1, 0x4600, 0x4605, 0x1_4601, u32::MAX] {
            assert_eq!(prf.ioctl(minor, command, 1), Err(Errno::EINVAL));
        }
        prf.write(minor, &table(&[1, 2, 3])).unwrap();
        // Only the lowest bit counts.
        for (argument, state) in [(3, BOTH), (2, 2), (-1, BOTH), (i64::MIN, 2), (0x101, BOTH)] {
            prf.ioctl(minor, PRF_SETSTATE, argument).unwrap();
            assert_eq!(status(&mut prf, minor), state);
        }
        assert!(prf.is_on(minor) && prf.wants_ticks());
    }
}

#[test]
fn only_vcpus_and_all_of_them_have_minors() {
    let mut prf = Prf::new(2, 1000);
    for minor in [0, 1, ALL_VCPUS] {
        assert_eq!(prf.check_minor(minor), Ok(()));
    }
    for minor in [2, 254, 256, u16::MAX] {
        assert_eq!(prf.check_minor(minor), Err(Errno::ENXIO));
        assert_eq!(prf.write(minor, &table(&[1, 2, 3])), Err(Errno::ENXIO));
    }
    // An unknown vCPU.
    prf.feed(&tick(2, Mode::User, 70));
}

#[test]
fn only_some_rates_can_be_counted() {
    let mut prf = Prf::new(1, 1000);
    prf.write(0, &table(&[1, 2, 3])).unwrap();
    for hz in [0, 1, 50, 99, 101, 150, 9_999] {
        prf.set_hz(hz);
        assert_eq!(prf.ioctl(0, PRF_SETSTATE, 1), Err(Errno::EINVAL), "{hz}");
        assert_eq!(status(&mut prf, 0), STATUS_LOADED);
        prf.ioctl(0, PRF_SETSTATE, 0).unwrap();
    }
    for hz in [100, 200, 1_000, 10_000] {
        prf.set_hz(hz);
        prf.ioctl(0, PRF_SETSTATE, 1).unwrap();
        prf.ioctl(0, PRF_SETSTATE, 0).unwrap();
    }
}

/// The owner of the clock is informed before it is needed, and when it is no longer needed.
#[test]
fn a_switch_is_returned_before_it_takes_effect() {
    let mut prf = Prf::new(1, 1000);
    prf.set_hz(100);
    assert_eq!(prf.switch(0, PRF_SETSTATE, 1), None, "no table");
    prf.write(0, &table(&[1, 2, 3])).unwrap();
    assert_eq!(prf.switch(0, PRF_SETSTATE, 1), Some(Switch::On));
    assert_eq!(prf.switch(0, PRF_SETSTATE, 0), None);
    assert_eq!(prf.switch(0, PRF_GETSTATUS, 1), None);
    prf.ioctl(0, PRF_SETSTATE, 1).unwrap();
    assert_eq!(prf.switch(0, PRF_SETSTATE, 1), None);
    assert_eq!(prf.switch(0, PRF_SETSTATE, 0), Some(Switch::Off));
}
