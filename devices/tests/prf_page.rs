//! Tests of the sentences of the prf page, on the device alone.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::prf::{
    ALL_VCPUS, MAX_ADDRESSES, PRF_GETMAX, PRF_GETSIZE, PRF_GETSTATUS, PRF_SETSTATE, STATUS_LOADED,
    STATUS_ON, read_size,
};
use kvmprof_devices::profiling::{Prf, Switch};
use kvmprof_recording::{Mode, Sample, Ticks};

const BOTH: u32 = STATUS_ON | STATUS_LOADED;

fn table(addresses: &[u64]) -> Vec<u8> {
    addresses
        .iter()
        .flat_map(|address| address.to_le_bytes())
        .collect()
}

/// A device at 100 Hz with `addresses` in minor 0, which is on.
fn counting(addresses: &[u64]) -> Prf {
    let mut prf = Prf::new(1, MAX_ADDRESSES);
    prf.set_hz(100);
    prf.write(0, &table(addresses)).unwrap();
    prf.ioctl(0, PRF_SETSTATE, 1).unwrap();
    prf
}

fn sampled(vcpu: u16, mode: Mode, pc: u64) -> Ticks {
    Ticks {
        vcpu,
        sample: Some(Sample {
            vcpu,
            mode,
            pc,
            ..Sample::default()
        }),
        ..Ticks::default()
    }
}

fn stored(prf: &mut Prf, minor: u16, command: u32) -> u32 {
    let reply = prf.ioctl(minor, command, 0).unwrap();
    assert_eq!(reply.value, 0);
    u32::from_le_bytes(reply.data.try_into().unwrap())
}

fn status(prf: &mut Prf, minor: u16) -> u32 {
    stored(prf, minor, PRF_GETSTATUS)
}

/// The counters after the addresses.
fn counters(prf: &Prf, minor: u16) -> Vec<u64> {
    let mut bytes = Vec::new();
    prf.read(minor, usize::MAX, &mut bytes).unwrap();
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
        .collect();
    words[(words.len() - 2) / 2..].to_vec()
}

#[test]
fn a_program_counter_belongs_to_the_last_address_that_is_not_above_it() {
    let mut prf = counting(&[0x100, 0x200, 0x200, 0x300]);
    for (pc, at) in [
        (0, 0),
        (0xff, 0),
        (0x100, 0),
        (0x1ff, 0),
        (0x200, 2),
        (0x2ff, 2),
        (0x300, 3),
        (u64::MAX, 3),
    ] {
        for mode in [Mode::Kernel, Mode::Interrupt] {
            let mut expected = counters(&prf, 0);
            expected[at] += 1;
            prf.feed(&sampled(0, mode, pc));
            assert_eq!(counters(&prf, 0), expected, "{pc:#x}");
        }
    }
    assert_eq!(counters(&prf, 0), [8, 0, 4, 4, 0, 0]);
}

#[test]
fn user_mode_then_idle_come_after_the_last_address() {
    let mut prf = counting(&[1, 2, 3]);
    prf.feed(&sampled(0, Mode::User, 2));
    prf.feed(&sampled(0, Mode::Idle, 2));
    prf.feed(&Ticks {
        idle: 5,
        ..Ticks::default()
    });
    assert_eq!(counters(&prf, 0), [0, 0, 0, 1, 6]);
}

#[test]
fn writes_are_checked_in_order() {
    let mut prf = Prf::new(1, 5);
    prf.set_hz(100);
    let too_many = table(&[9, 8, 7, 6, 5, 4]);
    for on in [false, true] {
        for (bytes, errno) in [
            (&too_many[..], Errno::ENOSPC),
            // The maximum number of addresses, and a part of one more.
            (&too_many[..47], Errno::E2BIG),
            (&too_many[..25], Errno::E2BIG),
            (&too_many[..16], Errno::E2BIG),
            (&[], Errno::E2BIG),
        ] {
            let before = status(&mut prf, 0);
            assert_eq!(prf.write(0, bytes), Err(errno), "{}", bytes.len());
            assert_eq!(status(&mut prf, 0), before);
        }
        let falling = prf.write(0, &too_many[..24]);
        if on {
            assert_eq!(falling, Err(Errno::EBUSY));
            assert_eq!(counters(&prf, 0).len(), 5);
        } else {
            assert_eq!(falling, Err(Errno::EINVAL));
        }
        prf.ioctl(0, PRF_SETSTATE, 0).unwrap();
        assert_eq!(prf.write(0, &table(&[1, 1, 1])), Ok(24));
        prf.ioctl(0, PRF_SETSTATE, 1).unwrap();
    }
}

#[test]
fn an_invalid_table_removes_the_previous_one() {
    let mut prf = counting(&[1, 2, 3]);
    prf.feed(&sampled(0, Mode::User, 0));
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
    prf.write(0, &table(&[1, 2, 3])).unwrap();
    assert_eq!(counters(&prf, 0), [0; 5]);
}

#[test]
fn reads_restart_and_split_anywhere() {
    let mut prf = counting(&[1, 2, 3]);
    prf.feed(&sampled(0, Mode::Kernel, 2));
    let whole = table(&[1, 2, 3, 0, 1, 0, 0, 0]);
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
    prf.feed(&sampled(2, Mode::User, 0));
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

#[test]
fn turning_it_on_keeps_the_counts_and_starts_a_new_account() {
    let mut prf = counting(&[1, 2, 3]);
    prf.feed(&sampled(0, Mode::User, 0));
    // It is already on: the ledger continues.
    prf.ioctl(0, PRF_SETSTATE, 1).unwrap();
    assert_eq!(prf.reports().next().unwrap().ledger.recorded, 1);
    prf.ioctl(0, PRF_SETSTATE, 0).unwrap();
    prf.feed(&sampled(0, Mode::User, 0));
    let off = prf.reports().next().unwrap();
    assert_eq!((off.on, off.ledger.ticks), (false, 1));
    prf.ioctl(0, PRF_SETSTATE, 1).unwrap();
    assert_eq!(prf.reports().next().unwrap().ledger.ticks, 0);
    prf.feed(&sampled(0, Mode::User, 0));
    assert_eq!(counters(&prf, 0), [0, 0, 0, 2, 0]);
}

/// At 1 kHz each tenth tick of a vCPU counts, whatever ticks are between.
#[test]
fn every_nth_tick_of_a_vcpu_is_counted() {
    let mut prf = Prf::new(2, 1000);
    prf.set_hz(1000);
    prf.write(0, &table(&[1, 2, 3])).unwrap();
    prf.ioctl(0, PRF_SETSTATE, 1).unwrap();
    for tick in 1..=30 {
        prf.feed(&sampled(0, Mode::User, 0));
        prf.feed(&sampled(1, Mode::User, 0));
        assert_eq!(counters(&prf, 0)[3], tick / 10);
    }
    // The 10th is lost, the 20th stolen, the 30th idle, the 40th a sample.
    prf.feed(&Ticks {
        lost: 15,
        ..Ticks::default()
    });
    prf.feed(&Ticks {
        stolen: 9,
        ..Ticks::default()
    });
    prf.feed(&Ticks {
        idle: 15,
        ..sampled(0, Mode::Kernel, 2)
    });
    let ledger = prf.reports().next().unwrap().ledger;
    assert!(ledger.balances());
    assert_eq!(counters(&prf, 0), [0, 1, 0, 3, 1]);
    assert_eq!(ledger.ticks, 70);
    let counted = (ledger.recorded, ledger.lost, ledger.stolen);
    assert_eq!((counted, ledger.ungathered), ((5, 1, 1), 63));
    assert_eq!((ledger.merged, ledger.pending, ledger.discarded), (0, 0, 0));
}

/// A change of the rate begins a new period; the same rate continues it.
#[test]
fn a_period_belongs_to_its_rate() {
    let mut prf = counting(&[1, 2, 3]);
    let ticks = |idle| Ticks {
        idle,
        ..Ticks::default()
    };
    prf.ioctl(0, PRF_SETSTATE, 0).unwrap();
    prf.set_hz(1000);
    prf.feed(&ticks(9));
    prf.set_hz(1000);
    prf.ioctl(0, PRF_SETSTATE, 1).unwrap();
    prf.feed(&ticks(1));
    assert_eq!(counters(&prf, 0)[4], 1);
    prf.ioctl(0, PRF_SETSTATE, 0).unwrap();
    prf.feed(&ticks(9));
    prf.set_hz(500);
    prf.ioctl(0, PRF_SETSTATE, 1).unwrap();
    prf.feed(&ticks(4));
    assert_eq!(counters(&prf, 0)[4], 1);
}
