//! Every sentence of the pcs page that promises something, as a case. What the page says of
//! the node itself (its path, its mode) and of the clock's hardware is tested elsewhere.

mod support;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{
    BUF_INCR, DEF_BUFNO, Format, MAX_BUFS, MAX_LIST, PCS_SETFORMAT, PROF_ALL, PROF_GROUP,
    PROF_KERNEL, PROF_LIST, PROF_MASK, Record, UNUSED_BOUND, kind,
};
use kvmprof_devices::profiling::{Mode, Pcs, Ticks};
use support::{Client, kinds, tick, words};

fn idle(ticks: u64) -> Ticks {
    Ticks {
        idle: ticks,
        ..Ticks::default()
    }
}

/// One tick each of user (pids 70, 71, 80), kernel and interrupt, and an idle one.
fn one_of_each(client: &mut Client) {
    for pid in [70, 71, 80] {
        client.feed(1, &tick(0, Mode::User, pid));
    }
    client.feed(1, &tick(0, Mode::Kernel, 70));
    client.feed(1, &tick(0, Mode::Interrupt, 70));
    client.feed(1, &idle(1));
}

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

/// "PROF_KERNEL requests that sample points for the unix kernel be output."
#[test]
fn prof_kernel_outputs_the_kernel() {
    let mut client = Client::open(1);
    client.ioctl(PROF_KERNEL, 0).unwrap();
    one_of_each(&mut client);
    let expected = [
        (kind::KERNEL, 1),
        (kind::KERNELI, 1),
        (kind::IDLE, 1),
        (kind::MUSER, 3),
    ];
    assert_eq!(kinds(&client.rest()), expected);
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
    one_of_each(&mut client);
    let expected = [
        (kind::USER, 1),
        (kind::USER, 1),
        (kind::USER, 1),
        (kind::KERNEL, 1),
        (kind::KERNELI, 1),
        (kind::IDLE, 1),
    ];
    assert_eq!(kinds(&client.rest()), expected);
}

/// "PROF_LIST requests that sample points for the user level processes specified by the list
/// argument be output."
#[test]
fn prof_list_outputs_the_listed_processes() {
    let mut client = Client::open(1);
    client.list(&[2, 71, 80]).unwrap();
    one_of_each(&mut client);
    let records = client.rest();
    let expected = [
        (kind::USER, 1),
        (kind::USER, 1),
        (kind::IDLE, 1),
        (kind::MKERNEL, 1),
        (kind::MKERNELI, 1),
        (kind::MUSER, 1),
    ];
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
    one_of_each(&mut client);
    let users = kinds(&client.rest())
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
}

/// "PROF_GROUP requests that sample points be output for all of the processes in process group
/// groupid."
#[test]
fn prof_group_outputs_the_group() {
    let mut client = Client::open(1);
    assert!(!client.pcs.wants_process_group());
    client.ioctl(PROF_GROUP, 7).unwrap();
    assert!(client.pcs.wants_process_group());
    one_of_each(&mut client);
    let expected = [
        (kind::USER, 1),
        (kind::USER, 1),
        (kind::IDLE, 1),
        (kind::MKERNEL, 1),
        (kind::MKERNELI, 1),
        (kind::MUSER, 1),
    ];
    assert_eq!(kinds(&client.rest()), expected);
    assert_eq!(
        Client::open(1).ioctl(PROF_GROUP, 1 << 32),
        Err(Errno::EINVAL)
    );
}

/// The commands are flags under PROF_MASK, and d_flag is the "type of profiling being done":
/// they add up, and a new list or group takes the place of the old.
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
    one_of_each(&mut client);
    let expected = [
        (kind::USER, 1),
        (kind::USER, 1),
        (kind::KERNEL, 1),
        (kind::KERNELI, 1),
        (kind::IDLE, 1),
        (kind::MUSER, 1),
    ];
    assert_eq!(kinds(&client.rest()), expected);
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

/// "Reads from pcs may be for an arbitrary number of bytes"
#[test]
fn reads_are_of_any_length() {
    let whole = |limits: &mut dyn FnMut() -> usize| {
        let mut client = Client::open(1);
        client.ioctl(PROF_ALL, 0).unwrap();
        for pid in 0..3 * 63 {
            client.feed(1, &tick(0, Mode::User, pid));
        }
        let mut bytes = Vec::new();
        while let Ok(count @ 1..) = client.pcs.read(limits(), &mut bytes) {
            assert!(count > 0 && client.pcs.ledger().balances());
        }
        bytes
    };
    let at_once = whole(&mut || usize::MAX);
    assert_eq!(at_once.len(), 3 * 1024);
    assert_eq!(whole(&mut || 1), at_once);
    assert_eq!(whole(&mut || 1500), at_once);
    let mut next = 0;
    assert_eq!(
        whole(&mut || {
            next = (next + 7) % 97 + 1;
            next
        }),
        at_once
    );
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

/// "Pcs internally works in terms of standard UNIX buffers, BSIZE bytes in size."
/// "Basically, such a buffer consists of a header and several data records."
/// "The unused count should be a small number (less than 12) for all blocks."
#[test]
fn buffers_are_bsize_bytes_with_little_unused() {
    for (format, records) in [(Format::Native, 63), (Format::Classic, 127)] {
        let mut client = Client::open(1);
        client.ioctl(PCS_SETFORMAT, format.number().into()).unwrap();
        client.format = format;
        client.ioctl(PROF_ALL, 0).unwrap();
        client.feed(2 * records, &tick(0, Mode::User, 70));
        let mut bytes = Vec::new();
        assert_eq!(client.pcs.read(1 << 20, &mut bytes), Ok(2048));
        for block in support::blocks(format, 1024, &bytes) {
            assert!(block.header.unused < UNUSED_BOUND);
            assert_eq!(block.records.len(), records);
        }
    }
}

/// "A record is constrained to be no larger than one buffer (minus a buffer header), and in
/// fact, a record is never split across buffers." The unused count is exact.
#[test]
fn records_are_never_split() {
    for format in [Format::Native, Format::Classic] {
        for size in [1024, 4096, 65536] {
            let fits = format.samples_per_buffer(size);
            let wasted = format.wasted_per_buffer(size);
            assert_eq!(
                format.header_size() + fits * format.record_size() + wasted,
                size
            );
            assert!(wasted < format.record_size());
        }
    }
}

/// "... the header also identifies the number of records lost since the last buffer was sent."
/// "For high volume data ... this count may be non-zero, and although the data is lost, a count
/// of lost data is provided."
#[test]
fn headers_count_lost_records() {
    let mut client = Client::open(1);
    client.ioctl(PROF_ALL, 0).unwrap();
    client.feed(3 * 63 + 40, &tick(0, Mode::User, 70));
    let lost = |blocks: Vec<support::Block>| -> Vec<u32> {
        blocks.iter().map(|block| block.header.lost).collect()
    };
    assert_eq!(lost(client.drain()), [0, 0, 0]);
    client.feed(2 * 63, &tick(0, Mode::User, 70));
    assert_eq!(lost(client.drain()), [40, 0]);
    assert_eq!(client.pcs.ledger().lost, 40);
}

/// "For streams whose records are generated more slowly than the reading process' ability to
/// consume them, this count should be 0."
#[test]
fn a_quick_reader_loses_nothing() {
    let mut client = Client::open(1);
    client.ioctl(PROF_ALL, 0).unwrap();
    for _ in 0..100 {
        client.feed(50, &tick(0, Mode::User, 70));
        assert!(client.drain().iter().all(|block| block.header.lost == 0));
    }
    assert_eq!(client.pcs.ledger().lost, 0);
}

/// "... all system idle counts are stored internally and output every 100 clock cycles. The
/// idle data is identified by sample type IDLE."
#[test]
fn idle_counts_come_every_hundred_ticks() {
    let mut client = Client::open(1);
    client.ioctl(PROF_ALL, 0).unwrap();
    client.feed(99, &tick(0, Mode::Idle, 0));
    client.feed(1, &tick(0, Mode::User, 70));
    client.feed(100, &idle(1));
    client.feed(1, &idle(50));
    let expected = [
        (kind::USER, 1),
        (kind::IDLE, 99),
        (kind::IDLE, 100),
        (kind::IDLE, 50),
    ];
    assert_eq!(kinds(&client.rest()), expected);
}

/// "The same technique is used to gather unmasked-for kernel and user data. This data is stored
/// internally and also output every 100 clock cycles as MKERNEL, MKERNELI or MUSER type of
/// sample."
#[test]
fn unmasked_for_data_comes_every_hundred_ticks() {
    let mut client = Client::open(1);
    client.list(&[1, 1]).unwrap();
    for mode in [Mode::User, Mode::Kernel, Mode::Interrupt, Mode::Idle].repeat(50) {
        client.feed(1, &tick(0, mode, 70));
    }
    let hundred = [
        (kind::IDLE, 25),
        (kind::MKERNEL, 25),
        (kind::MKERNELI, 25),
        (kind::MUSER, 25),
    ];
    assert_eq!(kinds(&client.rest()), hundred.repeat(2));
}

/// "If the profiling clock interrupted the processor when it was servicing an interrupt, this
/// data will be output as KERNELI data or it may be stored internally and output every 100
/// clock cycles as MKERNELI samples."
#[test]
fn interrupts_are_kerneli_or_mkerneli() {
    let mut client = Client::open(1);
    client.ioctl(PROF_KERNEL, 0).unwrap();
    client.feed(2, &tick(0, Mode::Interrupt, 70));
    assert_eq!(kinds(&client.rest()), [(kind::KERNELI, 1); 2]);
    let mut client = Client::open(1);
    client.list(&[1, 70]).unwrap();
    client.feed(100, &tick(0, Mode::Interrupt, 70));
    assert_eq!(kinds(&client.rest()), [(kind::MKERNELI, 100)]);
}

/// "At the end of sampling, any data that remains in a system buffer is thrown away. This means
/// that as many as three buffers worth of data may be lost when the close routine is called."
#[test]
fn close_throws_away_what_is_left() {
    let mut client = Client::open(1);
    client.ioctl(PROF_ALL, 0).unwrap();
    client.feed(3 * 63, &tick(0, Mode::User, 70));
    client.feed(1, &idle(30));
    client.pcs.read(24, &mut Vec::new()).unwrap();
    client.pcs.close();
    let ledger = client.pcs.ledger();
    assert!(ledger.balances());
    assert_eq!(
        (ledger.recorded, ledger.discarded, ledger.pending),
        (1, 3 * 63 - 1 + 30, 0)
    );
    client.pcs.open(100).unwrap();
    assert_eq!(client.pcs.ledger().ticks, 0);
    assert!(
        !client.pcs.is_gathering() && client.rest().is_empty(),
        "nothing is left over"
    );
}

/// "For PSAMPLE data, the pid field gives the process id of the interrupted process, and pc the
/// value of its program counter. Also given is the type of sample, kernel or user"; "the cpu
/// interrupt priority level is included in the high 4 bits of sspace which again is only
/// meaningful for kernel samples."
#[test]
fn samples_tell_process_program_counter_and_priority() {
    let mut client = Client::open(2);
    client.ioctl(PROF_ALL, 0).unwrap();
    for (mode, ipl) in [(Mode::User, 15), (Mode::Kernel, 2), (Mode::Interrupt, 15)] {
        let mut ticks = tick(1, mode, 70);
        if let Some(sample) = &mut ticks.sample {
            sample.ipl = ipl;
        }
        client.feed(1, &ticks);
    }
    let samples: Vec<_> = client
        .rest()
        .iter()
        .map(|record| match record {
            Record::Sample(s) => (s.kind, s.sspace, s.cpu, s.pid, s.pc),
            Record::Merged(_) => panic!("not a sample"),
        })
        .collect();
    let expected = [
        (kind::USER, 0x00, 1, 70, 0x40_0046),
        (kind::KERNEL, 0x20, 1, 70, 0x40_0046),
        (kind::KERNELI, 0xf0, 1, 70, 0x40_0046),
    ];
    assert_eq!(samples, expected);
}

/// "MSAMPLE records are MKERNEL, MKERNELI, MUSER and IDLE data, type identifies the type of data
/// in the sample and count is the actual number of hits that were recorded for this type of
/// sample." "number of type of misc. records merged since last such count"
#[test]
fn merged_records_count_hits_of_their_vcpu() {
    let mut client = Client::open(2);
    client.list(&[1, 1]).unwrap();
    client.feed(60, &tick(0, Mode::User, 70));
    client.feed(100, &tick(1, Mode::User, 70));
    client.feed(40, &tick(0, Mode::Kernel, 70));
    let counts: Vec<_> = client
        .rest()
        .iter()
        .map(|record| match record {
            Record::Merged(m) => (m.kind, m.cpu, m.count),
            Record::Sample(_) => panic!("not merged"),
        })
        .collect();
    let expected = [
        (kind::MUSER, 1, 100),
        (kind::MKERNEL, 0, 40),
        (kind::MUSER, 0, 60),
    ];
    assert_eq!(counts, expected);
}

/// "The pc driver never generates records of types START, STOP, or IOCTL"
#[test]
fn the_device_generates_no_start_stop_or_ioctl() {
    let mut client = Client::open(1);
    client.ioctl(PROF_ALL, 0).unwrap();
    one_of_each(&mut client);
    // Decoding knows the device's own types only.
    assert_eq!(client.rest().len(), 6);
    for kind in [kind::START, kind::STOP, kind::IOCTL] {
        assert_eq!(Record::decode(Format::Native, &[kind; 16]), None);
    }
}

/// The numbers of pcs.h
#[test]
fn numbers_are_those_of_the_header() {
    let kinds = [
        kind::KERNEL,
        kind::USER,
        kind::IDLE,
        kind::MKERNEL,
        kind::MUSER,
        kind::START,
        kind::STOP,
        kind::IOCTL,
        kind::KERNELI,
        kind::MKERNELI,
    ];
    assert!(kinds.into_iter().eq(1..=10));
    assert_eq!([BUF_INCR, PROF_KERNEL, PROF_ALL], [0x5001, 0x5002, 0x5004]);
    assert_eq!([PROF_GROUP, PROF_LIST, PROF_MASK], [0x5008, 0x5010, 0x7f]);
}
