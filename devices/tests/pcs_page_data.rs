//! Tests of every sentence of the pcs page about data.

use crate::support::{Client, idle, kinds, tick};
use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{Format, PCS_SETFORMAT, PROF_ALL, PROF_KERNEL, Record, UNUSED_BOUND, kind};
use kvmprof_recording::Mode;

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
        for block in crate::support::blocks(format, 1024, &bytes) {
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
    let lost = |blocks: Vec<crate::support::Block>| -> Vec<u32> {
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
fn a_fast_reader_loses_nothing() {
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
fn idle_counts_are_emitted_every_hundred_ticks() {
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
fn unmasked_counts_are_emitted_every_hundred_ticks() {
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
fn close_discards_unread_data() {
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
fn samples_have_process_program_counter_and_priority() {
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
    client.feed_one_of_each();
    // Decoding knows only the device's own types.
    assert_eq!(client.rest().len(), 6);
    for kind in [kind::START, kind::STOP, kind::IOCTL] {
        assert_eq!(Record::decode(Format::Native, &[kind; 16]), None);
    }
}
