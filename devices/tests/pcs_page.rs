//! Tests of every sentence of the pcs page about open, close and ioctl; `pcs_page_data.rs` has those about data. Other
//! tests check the node itself (its path, its mode) and the clock's hardware.

use crate::support::{Client, idle, kinds, tick, words};
use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{
    BUF_INCR, DEF_BUFNO, MAX_BUFS, MAX_LIST, PROF_ALL, PROF_GROUP, PROF_KERNEL, PROF_LIST,
    PROF_MASK, Record, kind,
};
use kvmprof_devices::profiling::Pcs;
use kvmprof_recording::Mode;

/// "An open of pcs obtains exclusive use of the profiling device"
#[test]
fn open_is_exclusive() {
    let mut pcs = Pcs::new(1);
    assert_eq!(pcs.open(100), Ok(()));
    assert_eq!(pcs.open(100), Err(Errno::EBUSY));
    pcs.close();
    assert_eq!(pcs.open(100), Ok(()));
}

/// "... and starts the profiling clock"; there may be none (NO_CLOCK)
#[test]
fn open_starts_the_clock() {
    let mut pcs = Pcs::new(1);
    assert!(!pcs.wants_ticks());
    assert_eq!(pcs.open(0), Err(Errno::ENXIO));
    assert!(!pcs.wants_ticks());
    pcs.open(100).unwrap();
    assert!(pcs.wants_ticks());
    pcs.close();
    assert!(!pcs.wants_ticks());
}

/// "Thereafter, it is necessary to do an ioctl function to start gathering data."
#[test]
fn nothing_is_gathered_before_an_ioctl() {
    let mut client = Client::open(1);
    client.ioctl(BUF_INCR, 1).unwrap();
    client.feed(100, &tick(0, Mode::User, 70));
    client.feed(1, &idle(500));
    assert!(!client.pcs.is_gathering());
    assert_eq!(client.pcs.ledger().ungathered, 600);
    assert_eq!(client.pcs.ledger().pending, 0);
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

/// The output for one tick of each kind.
fn output_of_each(client: &mut Client) -> Vec<(u8, u64)> {
    client.feed_one_of_each();
    kinds(&client.rest())
}

/// "PROF_KERNEL requests that sample points for the unix kernel be output."
#[test]
fn prof_kernel_outputs_the_kernel() {
    let mut client = Client::open(1);
    client.ioctl(PROF_KERNEL, 0).unwrap();
    let expected = [KERNEL, KERNELI, IDLE, (kind::MUSER, 3)];
    assert_eq!(output_of_each(&mut client), expected);
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

/// "PROF_ALL requests that sample points be generated whenever any user or kernel process is
/// interrupted."
#[test]
fn prof_all_outputs_every_process() {
    let mut client = Client::open(1);
    client.ioctl(PROF_ALL, 0).unwrap();
    let expected = [USER, USER, USER, KERNEL, KERNELI, IDLE];
    assert_eq!(output_of_each(&mut client), expected);
}

/// "PROF_LIST requests that sample points for the user level processes specified by the list
/// argument be output."
#[test]
fn prof_list_outputs_the_listed_processes() {
    let mut client = Client::open(1);
    client.list(&[2, 71, 80]).unwrap();
    client.feed_one_of_each();
    let records = client.rest();
    let expected = [USER, USER, IDLE, MKERNEL, MKERNELI, MUSER];
    assert_eq!(kinds(&records), expected);
    let pids = records.iter().filter_map(|record| match record {
        Record::Sample(sample) => Some(sample.pid),
        Record::Merged(_) => None,
    });
    assert_eq!(pids.collect::<Vec<_>>(), [71, 80]);
}

/// "The list argument points to an array of integers; the first element is the number of
/// processes to be sampled, and the remaining values are their process ids."
#[test]
fn a_list_is_a_count_and_process_ids() {
    let mut client = Client::open(1);
    client.list(&[1, 80, 70, 71]).unwrap();
    let users = output_of_each(&mut client)
        .iter()
        .filter(|(kind, _)| *kind == kind::USER)
        .count();
    assert_eq!(users, 1, "only as many as the first element says");

    let mut client = Client::open(1);
    let pcs = &mut client.pcs;
    assert_eq!(pcs.ioctl(PROF_LIST, 0, &[]), Err(Errno::EFAULT), "NULL");
    assert_eq!(pcs.ioctl(PROF_LIST, 0, &words(&[2, 1])), Err(Errno::EFAULT));
    assert!(!pcs.is_gathering());
}

/// "The number of processes in the list is bounded by the number MAX_LIST in pcs.h."
#[test]
fn a_list_is_bounded() {
    assert_eq!(MAX_LIST, 5);
    let mut client = Client::open(1);
    assert!(client.list(&[5, 1, 2, 3, 4, 5]).is_ok());
    assert_eq!(client.list(&[6, 1, 2, 3, 4, 5, 6]), Err(Errno::EINVAL));
    for count in [0, -1, i32::MIN, i32::MAX] {
        assert_eq!(client.list(&[count, 1]), Err(Errno::EINVAL), "{count}");
    }
    for pid in [0, -1, i32::MIN] {
        assert_eq!(client.list(&[2, 1, pid]), Err(Errno::EINVAL), "{pid}");
        assert_eq!(client.list(&[1, pid]), Err(Errno::EINVAL), "{pid}");
    }
}

/// "PROF_GROUP requests that sample points be output for all of the processes in process group
/// groupid."
#[test]
fn prof_group_outputs_the_group() {
    let mut client = Client::open(1);
    assert!(!client.pcs.wants_process_group());
    client.ioctl(PROF_GROUP, 7).unwrap();
    assert!(client.pcs.wants_process_group());
    let expected = [USER, USER, IDLE, MKERNEL, MKERNELI, MUSER];
    assert_eq!(output_of_each(&mut client), expected);
    // The processes of group 0 are those of an init without a session; these aren't.
    let mut client = Client::open(1);
    client.ioctl(PROF_GROUP, 0).unwrap();
    assert!(
        output_of_each(&mut client)
            .iter()
            .all(|(kind, _)| *kind != kind::USER)
    );
    for none in [-1, i64::from(i32::MIN), 1 << 32] {
        let refused = Client::open(1).ioctl(PROF_GROUP, none);
        assert_eq!(refused, Err(Errno::EINVAL), "{none}");
    }
}

/// The commands are flags under PROF_MASK, and d_flag is the "type of profiling being done": they add up, and a new
/// list or group replaces the old one.
#[test]
fn modes_add_up() {
    assert_eq!(
        [PROF_KERNEL, PROF_ALL, PROF_GROUP, PROF_LIST].map(|c| c & PROF_MASK),
        [2, 4, 8, 16]
    );
    let mut client = Client::open(1);
    client.list(&[1, 70]).unwrap();
    client.list(&[1, 71]).unwrap();
    client.ioctl(PROF_GROUP, 7).unwrap();
    client.ioctl(PROF_GROUP, 8).unwrap();
    client.ioctl(PROF_KERNEL, 0).unwrap();
    assert_eq!(client.status().modes, 0o32);
    let expected = [USER, USER, KERNEL, KERNELI, IDLE, MUSER];
    assert_eq!(output_of_each(&mut client), expected);
}

/// "By default, DEF_BUFNO buffers are assigned to the device."
#[test]
fn three_buffers_by_default() {
    assert_eq!(DEF_BUFNO, 3);
    let mut client = Client::open(1);
    client.ioctl(PROF_ALL, 0).unwrap();
    client.feed(3 * 63 + 5, &tick(0, Mode::User, 70));
    assert_eq!(client.drain().len(), 3);
    assert_eq!(client.pcs.ledger().lost, 5);
}

/// "BUF_INCR requests that incr more system buffers be allocated for the collection of data."
#[test]
fn buf_incr_adds_buffers() {
    let mut client = Client::open(1);
    client.ioctl(PROF_ALL, 0).unwrap();
    client.ioctl(BUF_INCR, 2).unwrap();
    client.feed(5 * 63 + 1, &tick(0, Mode::User, 70));
    assert_eq!(client.drain().len(), 5);
    client.ioctl(BUF_INCR, 1).unwrap();
    client.feed(6 * 63, &tick(0, Mode::User, 70));
    assert_eq!(client.drain().len(), 6, "while gathering, too");
}

/// "Incr must be positive, and small enough so that no more than MAX_BUFS are be allocated to
/// the device."
#[test]
fn buf_incr_is_bounded() {
    assert_eq!(MAX_BUFS, 10);
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
