//! The pcs page, sentence by sentence, against the live socket of a running guest: open, close and
//! ioctl. `demo_pcs_data.rs` has what it says of the data.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{
    BUF_INCR, Format, PCS_FLUSH, PCS_GETHZ, PCS_SETBSIZE, PCS_SETFORMAT, PCS_SETHZ, PCS_STOP,
    PROF_ALL, PROF_GROUP, PROF_KERNEL, PROF_LIST, kind,
};
use kvmprof_abi::wire::device;
use kvmprof_tests::{Accounts, Boot, Guest, Pcs, errno_of, on_kvm, ticks_by_kind, until};

/// Enough for every row of the demo guest to be met many times.
const TICKS: u64 = 800;
/// With so much room no sample is lost, however late the reader.
const ROOM: i64 = 65_536;

fn guest() -> Guest {
    Guest::start(Boot::Demo, ["--hz", "1000"])
}

fn types(recorded: &kvmprof_tests::Recorded) -> Vec<u8> {
    ticks_by_kind(recorded.records()).into_keys().collect()
}

/// The pids of all samples, each once.
fn pids(recorded: &kvmprof_tests::Recorded) -> Vec<i32> {
    let pids: std::collections::BTreeSet<i32> =
        recorded.samples().map(|sample| sample.pid).collect();
    pids.into_iter().collect()
}

/// "An open of pcs obtains exclusive use of the profiling device and starts the profiling clock."
#[test]
fn open_is_exclusive_and_starts_the_clock() {
    on_kvm(|| {
        let guest = guest();
        let other = guest.connect();
        assert!(!Accounts::of(&other).running);
        let pcs = guest.open();
        assert!(Accounts::of(&other).running);
        assert_eq!(errno_of(other.open(device::PCS, 0)), Errno::EBUSY);
        assert_eq!(errno_of(pcs.connection.open(device::PCS, 0)), Errno::EBUSY);
        assert_eq!(errno_of(other.open(device::PCS, 1)), Errno::ENXIO);
        pcs.stall_until("the clock ticks", |ledger| ledger.ticks > 0);
        pcs.device.close().unwrap();
        assert!(!Accounts::of(&other).running);
        let again = Pcs::open(other).unwrap();
        assert_eq!(again.status().modes, 0, "nothing is left over");
        assert_eq!(again.status().buffers, 3);
        drop((again, pcs));
        guest.stop();
    });
}

/// No clock configured: ENXIO.
#[test]
fn without_a_clock_there_is_no_pcs() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "0"]);
        let client = guest.connect();
        assert_eq!(errno_of(client.open(device::PCS, 0)), Errno::ENXIO);
        assert_eq!(client.hello().hz, 0);
        assert_eq!(Accounts::of(&client).clock.ticks, 0);
        guest.stop();
    });
}

/// "Thereafter, it is necessary to do an ioctl function to start gathering data."
#[test]
fn nothing_is_gathered_before_an_ioctl() {
    on_kvm(|| {
        let guest = guest();
        let pcs = guest.open();
        pcs.ioctl(BUF_INCR, 2);
        pcs.stall_until("ticks pass", |ledger| ledger.ungathered >= 300);
        let ledger = pcs.status().ledger;
        assert_eq!(
            ledger.ticks,
            ledger.ungathered + ledger.stolen + ledger.lost,
            "{ledger:?}"
        );
        assert_eq!(errno_of(pcs.device.try_read(1)), Errno::EAGAIN);
        let recorded = pcs.stop();
        assert!(recorded.blocks.is_empty());
        guest.stop();
    });
}

/// "PROF_KERNEL requests that sample points for the unix kernel be output. The third argument is
/// unused."
#[test]
fn prof_kernel_outputs_the_kernel() {
    on_kvm(|| {
        let guest = guest();
        let mut pcs = guest.open();
        pcs.ioctl(PCS_SETBSIZE, ROOM);
        pcs.ioctl(PROF_KERNEL, i64::MIN);
        pcs.read_ticks(TICKS);
        let recorded = pcs.stop();
        let expected = [kind::IDLE, kind::KERNEL, kind::KERNELI, kind::MUSER];
        let mut seen = types(&recorded);
        seen.sort_by_key(|kind| expected.iter().position(|other| other == kind));
        assert_eq!(seen, expected);
        guest.stop();
    });
}

/// "PROF_ALL requests that sample points be generated whenever any user or kernel process is
/// interrupted. Again, the third argument is unused."
#[test]
fn prof_all_outputs_every_process() {
    on_kvm(|| {
        let guest = guest();
        let mut pcs = guest.open();
        pcs.ioctl(PCS_SETBSIZE, ROOM);
        pcs.ioctl(PROF_ALL, -1);
        pcs.read_ticks(TICKS);
        let recorded = pcs.stop();
        assert_eq!(
            types(&recorded),
            [kind::KERNEL, kind::USER, kind::IDLE, kind::KERNELI]
        );
        let mut users: Vec<i32> = recorded
            .samples()
            .filter(|sample| sample.kind == kind::USER)
            .map(|sample| sample.pid)
            .collect();
        users.sort_unstable();
        users.dedup();
        assert_eq!(users, [101, 102, 103, 201]);
        guest.stop();
    });
}

/// "PROF_LIST requests that sample points for the user level processes specified by the list
/// argument be output. The list argument points to an array of integers; the first element is the
/// number of processes to be sampled, and the remaining values are their process ids." "...
/// unmasked-for kernel and user data ... output ... as MKERNEL, MKERNELI or MUSER"
#[test]
fn prof_list_outputs_the_listed_processes() {
    on_kvm(|| {
        let guest = guest();
        let mut pcs = guest.open();
        pcs.ioctl(PCS_SETBSIZE, ROOM);
        // A new list takes the place of the old one; what is beyond the count counts for nothing.
        pcs.list(&[1, 102]).unwrap();
        pcs.list(&[2, 101, 201, 103]).unwrap();
        pcs.read_ticks(TICKS);
        let recorded = pcs.stop();
        let expected = [
            kind::USER,
            kind::IDLE,
            kind::MKERNEL,
            kind::MUSER,
            kind::MKERNELI,
        ];
        assert_eq!(types(&recorded), expected);
        let strangers = recorded
            .samples()
            .filter(|sample| sample.pid == 102)
            .count();
        // The first list was in force for less than a tick or two.
        assert!(strangers < 20, "{strangers}");
        assert!(
            pids(&recorded)
                .iter()
                .all(|pid| [101, 102, 201].contains(pid))
        );
        assert!([101, 201].iter().all(|pid| pids(&recorded).contains(pid)));
        guest.stop();
    });
}

/// "The number of processes in the list is bounded by the number MAX_LIST in pcs.h." A bad
/// pointer: EFAULT.
#[test]
fn a_list_is_bounded_and_must_be_readable() {
    on_kvm(|| {
        let guest = guest();
        let pcs = guest.open();
        for wrong in [
            &[0][..],
            &[-1],
            &[i32::MIN],
            &[i32::MAX],
            &[6, 1, 2, 3, 4, 5, 6],
            &[1, 0],
            &[2, 101, -1],
        ] {
            assert_eq!(errno_of(pcs.list(wrong)), Errno::EINVAL, "{wrong:?}");
        }
        assert_eq!(errno_of(pcs.list(&[])), Errno::EFAULT);
        assert_eq!(errno_of(pcs.list(&[2, 101])), Errno::EFAULT);
        assert_eq!(pcs.refused(PROF_LIST, 0x1000), Errno::EFAULT);
        assert_eq!(pcs.status().modes, 0, "nothing has changed");
        for count in 1..=5 {
            pcs.list(&[count, 1, 2, 3, 4, 5]).unwrap();
        }
        assert_eq!(pcs.status().modes, 0o20);
        drop(pcs);
        guest.stop();
    });
}

/// "PROF_GROUP requests that sample points be output for all of the processes in process group
/// groupid."
#[test]
fn prof_group_outputs_the_group() {
    on_kvm(|| {
        let guest = guest();
        for (group, expected) in [(100, &[101, 102, 103][..]), (200, &[201]), (7, &[])] {
            let mut pcs = guest.open();
            pcs.ioctl(PCS_SETBSIZE, ROOM);
            pcs.ioctl(PROF_GROUP, group);
            pcs.read_ticks(TICKS);
            let recorded = pcs.stop();
            assert_eq!(pids(&recorded), expected, "group {group}");
            assert!(recorded.samples().all(|sample| sample.kind == kind::USER));
        }
        let pcs = guest.open();
        assert_eq!(pcs.refused(PROF_GROUP, 1 << 32), Errno::EINVAL);
        drop(pcs);
        guest.stop();
    });
}

/// The commands are flags, and "type of profiling being done" is one word: they add up.
#[test]
fn modes_add_up() {
    on_kvm(|| {
        let guest = guest();
        let mut pcs = guest.open();
        pcs.ioctl(PCS_SETBSIZE, ROOM);
        pcs.ioctl(PROF_KERNEL, 0);
        pcs.list(&[1, 101]).unwrap();
        pcs.ioctl(PROF_GROUP, 200);
        assert_eq!(pcs.status().modes, 0o32);
        pcs.read_ticks(TICKS);
        let recorded = pcs.stop();
        let expected = [
            kind::KERNEL,
            kind::USER,
            kind::IDLE,
            kind::MUSER,
            kind::KERNELI,
        ];
        assert_eq!(types(&recorded), expected);
        let users = recorded
            .samples()
            .filter(|sample| sample.kind == kind::USER);
        assert!(
            users
                .map(|sample| sample.pid)
                .all(|pid| pid == 101 || pid == 201)
        );
        guest.stop();
    });
}

/// "BUF_INCR requests that incr more system buffers be allocated for the collection of data. By
/// default, DEF_BUFNO buffers are assigned to the device. Incr must be positive, and small enough
/// so that no more than MAX_BUFS are be allocated to the device."
#[test]
fn buf_incr_is_bounded() {
    on_kvm(|| {
        let guest = guest();
        let pcs = guest.open();
        for incr in [0, -1, 8, i64::MIN, i64::MAX, 1 << 32] {
            assert_eq!(pcs.refused(BUF_INCR, incr), Errno::EINVAL, "{incr}");
            assert_eq!(pcs.status().buffers, 3, "nothing has changed");
        }
        pcs.ioctl(BUF_INCR, 5);
        assert_eq!(pcs.refused(BUF_INCR, 3), Errno::EINVAL);
        pcs.ioctl(BUF_INCR, 2);
        assert_eq!(pcs.refused(BUF_INCR, 1), Errno::EINVAL);
        assert_eq!(pcs.status().buffers, 10);
        drop(pcs);
        guest.stop();
    });
}

/// "Pcs supports the following ioctl requests": any other is EINVAL. "a read-only pseudo device"
#[test]
fn unknown_commands_and_writes_are_refused() {
    on_kvm(|| {
        let guest = guest();
        let pcs = guest.open();
        for command in [
            0,
            1,
            0x5000,
            0x5003,
            0x5006,
            0x5020,
            0x5080,
            0x5088,
            0x1_5004,
            u32::MAX,
        ] {
            assert_eq!(pcs.refused(command, 0), Errno::EINVAL, "{command:#x}");
        }
        assert_eq!(errno_of(pcs.device.write(b"data")), Errno::EBADF);
        assert_eq!(pcs.status().modes, 0);
        drop(pcs);
        guest.stop();
    });
}

/// This project's additions: what may be set, and until when.
#[test]
fn additions_have_their_bounds_and_their_time() {
    on_kvm(|| {
        let guest = guest();
        let pcs = guest.open();
        assert_eq!(pcs.ioctl(PCS_GETHZ, 0), 1000);
        for hz in [0, -1, 10_001, i64::MAX] {
            assert_eq!(pcs.refused(PCS_SETHZ, hz), Errno::EINVAL, "{hz}");
        }
        pcs.ioctl(PCS_SETHZ, 2000);
        assert_eq!((pcs.ioctl(PCS_GETHZ, 0), pcs.status().hz), (2000, 2000));
        for size in [0, -1, 512, 1000, 1025, 131_072, i64::MAX] {
            assert_eq!(pcs.refused(PCS_SETBSIZE, size), Errno::EINVAL, "{size}");
        }
        for format in [2, -1, 1 << 32] {
            assert_eq!(
                pcs.refused(PCS_SETFORMAT, format),
                Errno::EINVAL,
                "{format}"
            );
        }
        pcs.ioctl(PCS_SETBSIZE, 4096);
        pcs.ioctl(PCS_SETFORMAT, 1);
        pcs.ioctl(PROF_ALL, 0);
        assert_eq!(pcs.refused(PCS_SETBSIZE, 1024), Errno::EBUSY);
        assert_eq!(pcs.refused(PCS_SETFORMAT, 0), Errno::EBUSY);
        let status = pcs.status();
        assert_eq!((status.format, status.buffer_size), (Format::Classic, 4096));
        pcs.ioctl(PCS_STOP, 0);
        pcs.ioctl(PCS_STOP, 0);
        for (command, argument) in [
            (BUF_INCR, 1),
            (PROF_KERNEL, 0),
            (PROF_ALL, 0),
            (PROF_GROUP, 1),
            (PCS_SETFORMAT, 1),
            (PCS_SETBSIZE, 2048),
            (PCS_SETHZ, 50),
        ] {
            assert_eq!(
                pcs.refused(command, argument),
                Errno::EINVAL,
                "{command:#x}"
            );
        }
        assert_eq!(errno_of(pcs.list(&[1, 101])), Errno::EINVAL);
        pcs.ioctl(PCS_FLUSH, 0);
        pcs.drain();
        guest.stop();
    });
}

/// "At the end of sampling, any data that remains in a system buffer is thrown away. This means
/// that as many as three buffers worth of data may be lost when the close routine is called."
#[test]
fn close_throws_away_what_is_left() {
    on_kvm(|| {
        let guest = guest();
        let other = guest.connect();
        let pcs = guest.open();
        pcs.ioctl(PROF_ALL, 0);
        // Three buffers of 63 records.
        pcs.stall_until("no buffer is free", |ledger| ledger.pending >= 3 * 63);
        let data = pcs.device.read(8 + 16 * 10).unwrap();
        assert_eq!(data.len(), 8 + 16 * 10);
        pcs.device.close().unwrap();
        let accounts = Accounts::of(&other);
        accounts.check();
        let ledger = accounts.pcs;
        assert_eq!((accounts.open, ledger.pending), (false, 0));
        // Each record is a tick or more, and merged ones may be several.
        assert!(
            ledger.discarded + ledger.recorded + ledger.merged >= 3 * 63,
            "{ledger:?}"
        );
        assert!(ledger.recorded + ledger.merged >= 10, "{ledger:?}");
        // Nothing of it reaches the next.
        let next = Pcs::open(other).unwrap();
        assert_eq!(errno_of(next.device.try_read(1)), Errno::EAGAIN);
        assert_eq!(next.status().ledger.pending, 0);
        let status = until("the clock ticks", || {
            let status = next.status();
            (status.ledger.ticks > 0).then_some(status)
        });
        assert_eq!((status.ledger.discarded, status.ledger.recorded), (0, 0));
        drop(next);
        guest.stop();
    });
}
