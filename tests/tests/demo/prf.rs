//! What the prf page says, sentence by sentence, against a running guest.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::prf::{ALL_VCPUS, MAX_ADDRESSES, PRF_GETMAX, STATUS_LOADED, STATUS_ON, read_size};
use kvmprof_abi::wire::{MAX_DATA, device};
use kvmprof_client::Readiness;
use kvmprof_tests::{Boot, Guest, Prf, errno_of, on_kvm, run, table};

/// A table that is as good as any.
const ANY: [u64; 4] = [0, 0x20_0000, 0x20_0000, 0x30_0000];

fn guest(options: &[&str]) -> Guest {
    Guest::start(Boot::Demo, options)
}

/// "If a prf special file with minor device number 255 is opened, all processors will be profiled
/// together. ... other than 255 ... the processor with id equal to the minor device number is
/// profiled ... any other minor device number is illegal": ENXIO. "For the open and close system
/// calls, user visible functionality is the same as for an ordinary disk file": not exclusive.
#[test]
fn each_vcpu_has_a_minor_and_255_stands_for_all() {
    on_kvm(|| {
        let guest = guest(&["--cpus", "2"]);
        let connection = guest.connect();
        let mut opened = Vec::new();
        for minor in [0, 1, ALL_VCPUS, 0, ALL_VCPUS] {
            opened.push(Prf::open(&connection, minor).unwrap());
        }
        for minor in [2, 3, 64, 254, 256, u16::MAX] {
            let refused = errno_of(connection.open(device::PRF, minor));
            assert_eq!(refused, Errno::ENXIO, "{minor}");
        }
        // Each has its own table and state.
        opened[0].load(&ANY);
        let loaded: Vec<_> = opened.iter().map(Prf::size).collect();
        assert_eq!(loaded, [4, 0, 0, 4, 0]);
        opened[2].load(&[1, 2, 3]);
        opened[2].set(1);
        let states: Vec<_> = opened.iter().map(Prf::status).collect();
        let on = STATUS_ON | STATUS_LOADED;
        assert_eq!(states, [STATUS_LOADED, 0, on, STATUS_LOADED, on]);
        drop(opened);
        guest.stop();
    });
}

/// "ENOSPC ... more kernel addresses than the implementation defined maximum ... E2BIG ... fewer
/// than 3 kernel addresses, or the size modulo the size of an address is not zero ... EBUSY The
/// profiler is currently ON. ... The state of the profiler is left unchanged. EINVAL ... not in
/// ascending numerical order. The profiler is left in the state of not containing a valid set"
#[test]
fn writes_are_checked_in_the_order_of_the_page() {
    on_kvm(|| {
        let guest = guest(&["--prf-addresses", "5"]);
        let connection = guest.connect();
        let prf = Prf::open(&connection, 0).unwrap();
        let too_many = table(&[1, 2, 3, 4, 5, 6]);
        let odd = [&too_many[..40], &[0]].concat();
        let few = table(&[1, 2]);
        let falling = table(&[1, 3, 2]);
        let wrong = [
            (&too_many[..], Errno::ENOSPC),
            (&odd, Errno::E2BIG),
            (&few, Errno::E2BIG),
            (b"", Errno::E2BIG),
        ];
        for (bytes, errno) in wrong {
            assert_eq!((prf.refused(bytes), prf.status()), (errno, 0));
        }
        assert_eq!(prf.refused(&falling), Errno::EINVAL);
        assert_eq!((prf.status(), prf.size()), (0, 0));
        // Without a table there is nothing to read, which a read of nothing doesn't ask.
        let error = prf.device.read(8).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::ENXIO));
        assert_eq!(prf.device.read(0).unwrap(), [0; 0]);
        prf.load(&ANY);
        for (bytes, errno) in wrong {
            assert_eq!(prf.refused(bytes), errno);
            assert_eq!((prf.status(), prf.size()), (STATUS_LOADED, 4));
        }
        prf.set(1);
        for (bytes, errno) in wrong {
            assert_eq!(prf.refused(bytes), errno);
        }
        for busy in [&falling, &table(&ANY)] {
            assert_eq!(prf.refused(busy), Errno::EBUSY);
            assert_eq!((prf.status(), prf.size()), (STATUS_ON | STATUS_LOADED, 4));
        }
        prf.set(0);
        assert_eq!(prf.refused(&falling), Errno::EINVAL);
        assert_eq!((prf.status(), prf.size()), (0, 0));
        drop(prf);
        guest.stop();
    });
}

/// "The data is arranged as an array of N addresses followed by N+2 counter values ... The file
/// pointer is ignored by the profiler; each call to read transfers information into the caller's
/// buffer starting at the beginning ... and continuing up through the last counter value or to the
/// end of the user's buffer. If the profiler state does not indicate that it contains a valid set
/// of kernel addresses, the "read" system call returns the error ENXIO"
#[test]
fn reads_give_the_table_from_its_start() {
    on_kvm(|| {
        let guest = guest(&[]);
        let connection = guest.connect();
        let prf = Prf::open(&connection, 0).unwrap();
        assert_eq!(errno_of(prf.device.read(100)), Errno::ENXIO);
        prf.load(&ANY);
        let whole = [table(&ANY), vec![0; 6 * 8]].concat();
        for _ in 0..2 {
            for length in [1, 7, 8, 9, 32, 33, 79, 80, 81, MAX_DATA] {
                let expected = &whole[..length.min(read_size(4))];
                assert_eq!(prf.device.read(length).unwrap(), expected);
                assert_eq!(prf.device.try_read(length).unwrap(), expected);
            }
        }
        assert_eq!(prf.refused(&table(&[3, 2, 1])), Errno::EINVAL);
        assert_eq!(errno_of(prf.device.read(100)), Errno::ENXIO);
        drop(prf);
        guest.stop();
    });
}

/// "PRF_GETSTATUS ... PRF_GETSIZE ... PRF_SETSTATE The low-order bit of "arg" ... If the profiler
/// does not contain a valid set of addresses, this command has no effect. PRF_GETMAX ... If
/// "command" is other than those listed above, the error EINVAL is returned. select always returns
/// READY for both read and write operations."
#[test]
fn ioctls_do_what_the_page_says() {
    on_kvm(|| {
        let guest = guest(&["--cpus", "2"]);
        let connection = guest.connect();
        for minor in [0, 1, ALL_VCPUS] {
            let prf = Prf::open(&connection, minor).unwrap();
            assert_eq!(usize::try_from(prf.max()).unwrap(), MAX_ADDRESSES);
            for command in [0, 1, 2, 0x4600, 0x4605, 0x1_4601, 0x5002, u32::MAX] {
                let refused = prf.device.ioctl_with(command, 0, &[0; 4], 4);
                assert_eq!(errno_of(refused), Errno::EINVAL, "{command:#x}");
            }
            for argument in [0, 1, 2, 3, -1] {
                prf.set(argument);
                assert_eq!((prf.status(), prf.size()), (0, 0));
            }
            prf.load(&ANY);
            for (argument, state) in [(1, 3), (1, 3), (2, 2), (2, 2), (3, 3), (0, 2), (-1, 3)] {
                prf.set(argument);
                assert_eq!((prf.status(), prf.size()), (state, 4), "{argument}");
            }
            prf.set(0);
            let both = Readiness {
                readable: true,
                writable: true,
                hang_up: false,
            };
            assert_eq!(prf.device.readiness(both).unwrap(), both);
            assert_eq!(prf.device.poll(both).unwrap(), both);
            // Room for nothing cuts off what is stored.
            let (value, data) = prf.device.ioctl_with(PRF_GETMAX, 0, &[], 0).unwrap();
            assert_eq!((value, data.len()), (0, 0));
        }
        guest.stop();
    });
}

/// "prf(7)" leaves the maximum to the implementation: the largest table there can be goes through
/// the socket in one piece, both ways.
#[test]
fn the_largest_table_is_written_and_read_in_one_piece() {
    on_kvm(|| {
        let guest = guest(&[]);
        let connection = guest.connect();
        let prf = Prf::open(&connection, ALL_VCPUS).unwrap();
        let mut addresses: Vec<u64> = (0..).step_by(16).take(MAX_ADDRESSES).collect();
        prf.load(&addresses);
        let counts = prf.counts();
        assert_eq!(counts.addresses, addresses);
        assert_eq!(counts.sum(), 0);
        addresses.push(u64::MAX);
        assert_eq!(prf.refused(&table(&addresses)), Errno::ENOSPC);
        assert_eq!(usize::try_from(prf.size()).unwrap(), MAX_ADDRESSES);
        drop(prf);
        guest.stop();
    });
}

/// The option's bounds.
#[test]
fn the_maximum_is_an_option() {
    for wrong in ["2", "262144", "-1", "many", ""] {
        let ran = run([
            "run",
            "--kernel",
            "none",
            &format!("--prf-addresses={wrong}"),
        ]);
        assert_eq!(ran.status, 2, "{ran:?}");
        assert!(ran.stderr.contains("3 to 262143"), "{ran:?}");
    }
    on_kvm(|| {
        for addresses in ["3", "65536"] {
            let guest = guest(&["--prf-addresses", addresses]);
            let prf = Prf::open(&guest.connect(), 0).unwrap();
            assert_eq!(prf.max().to_string(), addresses);
            drop(prf);
            guest.stop();
        }
    });
}
