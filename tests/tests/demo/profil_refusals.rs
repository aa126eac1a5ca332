//! What profil refuses, and when its clock runs.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::profil::{Call, Function, Range, State};
use kvmprof_abi::wire::device;
use kvmprof_tests::{Boot, Guest, Profil, errno_of, kept, on_kvm, profil_call, until};
use rustix::process::Signal;

/// All code of user mode, with a count for each 8 bytes.
fn histogram(pid: i32) -> Call {
    Call {
        size: 0x8_0000,
        offset: 0x60_0000,
        scale: 0x4000,
        ..profil_call(Function::Profil, pid)
    }
}

/// The clock runs only while ticks are stored, and what ends by itself stops it.
#[test]
fn the_clock_stops_with_the_last_profile() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "100"]);
        let is_running = || guest.status().clock.running;
        let profil = Profil::open(&guest.connect());
        let three = Call {
            size: 3,
            ..profil_call(Function::Pcsample, 101)
        };
        profil.call(&kept(three), &[]);
        assert!(is_running());
        assert_eq!(profil.until_stored(3).state, State::Full);
        until("the clock stands still", || (!is_running()).then_some(()));
        assert_eq!(profil.samples().len(), 3);
        profil.call(
            &kept(Call {
                size: 1000,
                ..three
            }),
            &[],
        );
        assert!(is_running());
        // A kept buffer ends with its handle.
        profil.0.close().unwrap();
        assert!(!is_running());
        guest.stop();
    });
}

/// What can't be right is refused, and changes nothing.
#[test]
fn wrong_calls_are_refused() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "100"]);
        let connection = guest.connect();
        assert_eq!(errno_of(connection.open(device::PROFIL, 1)), Errno::ENXIO);
        let profil = Profil::open(&connection);
        let good = histogram(101);
        for wrong in [
            Call { pid: 0, ..good },
            Call { pid: -1, ..good },
            // Kept, with an address, too long, or with ranges.
            kept(Call { buffer: 8, ..good }),
            kept(Call {
                size: (4 << 20) + 1,
                ..good
            }),
            kept(profil_call(Function::AixRanges, 101)),
            Call {
                size: u64::MAX,
                ..profil_call(Function::Pcsample, 101)
            },
        ] {
            assert_eq!(profil.refused(&wrong, &[]), Errno::EINVAL, "{wrong:?}");
        }
        let range = Range {
            low: 0,
            high: 8,
            buffer: 0,
            size: 8,
            scale: 2,
        };
        let ranges = profil_call(Function::AixRanges, 101);
        assert_eq!(profil.refused(&ranges, &[range, range]), Errno::EINVAL);
        let too_many = vec![range; 257];
        assert_eq!(profil.refused(&ranges, &too_many), Errno::EINVAL);
        assert_eq!(errno_of(profil.0.read(8)), Errno::EINVAL);
        assert_eq!(errno_of(profil.0.ioctl(0x5503, 0)), Errno::EINVAL);
        let short = profil
            .0
            .ioctl_with(kvmprof_abi::profil::PROFIL_CALL, 0, &[0; 71], 0);
        assert_eq!(errno_of(short), Errno::EFAULT);
        assert!(!guest.status().clock.running);
        // 64 MiB of buffers are kept, no more.
        let longest = kept(Call {
            size: 4 << 20,
            ..good
        });
        let sixteen: Vec<Profil> = (0..16).map(|_| Profil::open(&connection)).collect();
        for profil in &sixteen {
            profil.call(&longest, &[]);
        }
        assert_eq!(profil.refused(&longest, &[]), Errno::ENOSPC);
        sixteen[0].call(&longest, &[]);
        guest.stop();
    });
}

/// 100 ticks a second can't be told from a clock whose rate 100 doesn't divide; every tick can.
#[test]
fn the_rate_has_to_be_a_multiple_of_100() {
    on_kvm(|| {
        let mut guest = Guest::start(Boot::Demo, ["--hz", "250"]);
        let profil = Profil::open(&guest.connect());
        let call = kept(histogram(101));
        assert_eq!(profil.refused(&call, &[]), Errno::EINVAL);
        let off = Call { scale: 0, ..call };
        assert_eq!(profil.call(&off, &[]), 0);
        let every = Call {
            flags: call.flags | Call::EVERY_TICK,
            ..call
        };
        assert_eq!(profil.call(&every, &[]), 0);
        profil.until_stored(5);
        guest.signal(Signal::TERM);
        let ran = guest.wait();
        assert_eq!(ran.status, 0);
        assert!(ran.stderr.contains("a multiple of 100"), "{}", ran.stderr);
    });
}
