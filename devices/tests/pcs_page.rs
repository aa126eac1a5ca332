//! The sentences of the pcs page. Records, counts and losses by ticks and reads are those of a plain model (`pcs_properties.rs`); other tests
//! check the node itself (its path, its mode) and the clock's hardware.

use crate::support::{Client, idle, kinds, tick, words};
use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{
    BUF_INCR, DEF_BUFNO, Format, MAX_BUFS, MAX_LIST, PROF_ALL, PROF_GROUP, PROF_KERNEL, PROF_LIST,
    PROF_MASK, Record, kind,
};
use kvmprof_devices::profiling::Pcs;
use kvmprof_recording::Mode;

/// "An open of pcs obtains exclusive use of the profiling device and starts the profiling clock"; there may be none (NO_CLOCK)
#[test]
fn open_is_exclusive_and_starts_the_clock() {
    let mut pcs = Pcs::new(1);
    assert_eq!(pcs.open(0), Err(Errno::ENXIO));
    assert!(!pcs.wants_ticks());
    assert_eq!(pcs.open(100), Ok(()));
    assert_eq!(pcs.open(100), Err(Errno::EBUSY));
    assert!(pcs.wants_ticks());
    pcs.close();
    assert!(!pcs.wants_ticks());
    assert_eq!(pcs.open(100), Ok(()));
}

/// "Thereafter, it is necessary to do an ioctl function to start gathering data."
#[test]
fn nothing_is_gathered_before_an_ioctl() {
    let mut client = Client::open(1);
    client.ioctl(BUF_INCR, 1).unwrap();
    client.feed(100, &tick(0, Mode::User, 70));
    client.feed(1, &idle(500));
    assert!(!client.pcs.is_gathering());
    let ledger = client.pcs.ledger();
    assert_eq!((ledger.ungathered, ledger.pending), (600, 0));
    assert!(client.rest().is_empty());
}

/// A sample, or a count of 1, of each type.
const KERNEL: (u8, u64) = (kind::KERNEL, 1);
const USER: (u8, u64) = (kind::USER, 1);
const IDLE: (u8, u64) = (kind::IDLE, 1);
const MKERNEL: (u8, u64) = (kind::MKERNEL, 1);
const MUSER: (u8, u64) = (kind::MUSER, 1);
const KERNELI: (u8, u64) = (kind::KERNELI, 1);
const MKERNELI: (u8, u64) = (kind::MKERNELI, 1);

/// "PROF_KERNEL requests that sample points for the unix kernel be output." "PROF_ALL requests that sample points be generated whenever any
/// user or kernel process is interrupted." "PROF_LIST requests that sample points for the user level processes specified by the list argument
/// be output." Of a list "the first element is the number of processes to be sampled, and the remaining values are their process ids."
/// "PROF_GROUP requests that sample points be output for all of the processes in process group groupid." The commands are flags under
/// PROF_MASK, which add up, and a new list or group replaces the old one. The others' ticks are counts.
#[test]
fn each_command_outputs_its_processes() {
    let masked = [PROF_KERNEL, PROF_ALL, PROF_GROUP, PROF_LIST].map(|c| c & PROF_MASK);
    assert_eq!(masked, [2, 4, 8, 16]);
    let kernel = (PROF_KERNEL, 0, &[][..]);
    let all = (PROF_ALL, 0, &[][..]);
    let group = |group| (PROF_GROUP, group, &[][..]);
    let list = |pids: &'static [i32]| (PROF_LIST, 0, pids);
    let [two, three] = [2, 3].map(|count| (kind::MUSER, count));
    // Ticks: user (pids 70, 71, 80; the groups 7 and 8), kernel, interrupt, idle.
    for (calls, modes, expected) in [
        (&[kernel][..], 2, &[KERNEL, KERNELI, IDLE, three][..]),
        (&[all], 4, &[USER, USER, USER, KERNEL, KERNELI, IDLE]),
        (
            &[list(&[2, 71, 80])],
            16,
            &[USER, USER, IDLE, MKERNEL, MKERNELI, MUSER],
        ),
        (
            &[list(&[1, 80, 70, 71])],
            16,
            &[USER, IDLE, MKERNEL, MKERNELI, two],
        ),
        (
            &[group(7)],
            8,
            &[USER, USER, IDLE, MKERNEL, MKERNELI, MUSER],
        ),
        // The processes of group 0 are those of an init without a session; these aren't.
        (&[group(0)], 8, &[IDLE, MKERNEL, MKERNELI, three]),
        (
            &[list(&[1, 70]), list(&[1, 71]), group(7), group(8), kernel],
            0o32,
            &[USER, USER, KERNEL, KERNELI, IDLE, MUSER],
        ),
    ] {
        let mut client = Client::open(1);
        for (command, argument, data) in calls {
            client.pcs.ioctl(*command, *argument, &words(data)).unwrap();
        }
        assert_eq!(client.status().modes, modes, "{calls:x?}");
        let of_groups = modes & PROF_GROUP != 0;
        assert_eq!(client.pcs.wants_process_group(), of_groups, "{calls:x?}");
        client.feed_one_of_each();
        assert_eq!(kinds(&client.rest()), expected, "{calls:x?}");
    }
}

/// "The third argument is unused." "Again, the third argument is unused."
#[test]
fn the_third_argument_is_unused() {
    for command in [PROF_KERNEL, PROF_ALL] {
        let mut client = Client::open(1);
        for argument in [i64::MIN, -1, 1, i64::MAX] {
            assert!(client.ioctl(command, argument).is_ok());
        }
        assert!(client.pcs.ioctl(command, 0, &[0xff; 3]).is_ok());
    }
}

/// "The number of processes in the list is bounded by the number MAX_LIST in pcs.h."
#[test]
fn lists_and_groups_are_checked() {
    assert_eq!(MAX_LIST, 5);
    let mut client = Client::open(1);
    for data in [&[][..], &[1, 0, 0], &words(&[2, 1])] {
        let refused = client.pcs.ioctl(PROF_LIST, 0, data);
        assert_eq!(refused, Err(Errno::EFAULT), "{data:?}");
    }
    for count in [0, -1, 6, i32::MIN, i32::MAX] {
        let refused = client.list(&[count, 1, 2, 3, 4, 5, 6]);
        assert_eq!(refused, Err(Errno::EINVAL), "{count}");
    }
    for pid in [0, -1, i32::MIN] {
        assert_eq!(client.list(&[2, 1, pid]), Err(Errno::EINVAL), "{pid}");
        assert_eq!(client.list(&[1, pid]), Err(Errno::EINVAL), "{pid}");
    }
    for none in [-1, i64::from(i32::MIN), 1 << 32] {
        let refused = client.ioctl(PROF_GROUP, none);
        assert_eq!(refused, Err(Errno::EINVAL), "{none}");
    }
    assert!(!client.pcs.is_gathering());
    assert!(client.list(&[5, 1, 2, 3, 4, 5]).is_ok());
    // Only as many as the first element says.
    assert!(client.list(&[1, 7, -8]).is_ok());
}

/// "By default, DEF_BUFNO buffers are assigned to the device." Of BUF_INCR, "incr must be positive, and small enough so that no more than
/// MAX_BUFS are be allocated to the device."
#[test]
fn buf_incr_is_bounded() {
    assert_eq!((DEF_BUFNO, MAX_BUFS), (3, 10));
    let mut client = Client::open(1);
    for incr in [0, -1, 8, i64::MIN, i64::MAX] {
        assert_eq!(client.ioctl(BUF_INCR, incr), Err(Errno::EINVAL), "{incr}");
        assert_eq!(client.status().buffers, 3, "nothing has changed");
    }
    client.ioctl(BUF_INCR, 7).unwrap();
    assert_eq!(client.ioctl(BUF_INCR, 1), Err(Errno::EINVAL));
    assert_eq!(client.status().buffers, 10);
}

/// "Pcs supports the following ioctl requests": no others
#[test]
fn unknown_commands_are_refused() {
    let mut client = Client::open(1);
    for command in [
        0,
        1,
        0x5000,
        0x5003,
        0x5020,
        0x5080,
        0x5088,
        0x1_5004,
        u32::MAX,
    ] {
        assert_eq!(client.ioctl(command, 0), Err(Errno::EINVAL), "{command:#x}");
    }
    assert!(!client.pcs.is_gathering());
}

/// "... although, in general, partial buffers are not made available to the user until filled
/// with sample points."
#[test]
fn partial_buffers_are_not_available() {
    let mut client = Client::open(1);
    client.ioctl(PROF_ALL, 0).unwrap();
    client.feed(62, &tick(0, Mode::User, 70));
    assert!(!client.pcs.readable());
    assert_eq!(client.pcs.read(16, &mut Vec::new()), Err(Errno::EAGAIN));
    client.feed(1, &tick(0, Mode::User, 70));
    assert!(client.pcs.readable());
    assert_eq!(client.pcs.read(16, &mut Vec::new()), Ok(16));
}

/// "... all system idle counts are stored internally and output every 100 clock cycles." "The same technique is used to gather unmasked-for
/// kernel and user data. This data is stored internally and also output every 100 clock cycles as MKERNEL, MKERNELI or MUSER type of sample."
#[test]
fn counts_are_emitted_every_hundred_ticks() {
    let mut client = Client::open(1);
    client.list(&[1, 1]).unwrap();
    for mode in [Mode::User, Mode::Kernel, Mode::Interrupt, Mode::Idle].repeat(50) {
        client.feed(1, &tick(0, mode, 70));
    }
    let each = [kind::IDLE, kind::MKERNEL, kind::MKERNELI, kind::MUSER].map(|kind| (kind, 25));
    assert_eq!(kinds(&client.rest()), each.repeat(2));
}

/// "At the end of sampling, any data that remains in a system buffer is thrown away."
#[test]
fn nothing_is_left_over_after_a_close() {
    let mut client = Client::open(1);
    client.ioctl(PROF_ALL, 0).unwrap();
    client.feed(3 * 63, &tick(0, Mode::User, 70));
    client.pcs.close();
    client.pcs.open(100).unwrap();
    assert_eq!(client.pcs.ledger().ticks, 0);
    assert!(!client.pcs.is_gathering() && client.rest().is_empty());
}

/// "The pc driver never generates records of types START, STOP, or IOCTL": tests decode records of the device, which knows no others
#[test]
fn the_device_generates_no_start_stop_or_ioctl() {
    for kind in [kind::START, kind::STOP, kind::IOCTL] {
        assert_eq!(Record::decode(Format::Native, &[kind; 16]), None);
    }
}
