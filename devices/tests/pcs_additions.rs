//! Tests of this project's additions to the page: the `PCS_*` commands, and the details that it defines.

use crate::support::{Client, idle, kinds, tick};
use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{
    BUF_INCR, Format, PCS_FLUSH, PCS_GETHZ, PCS_SETBSIZE, PCS_SETFORMAT, PCS_SETHZ, PCS_STOP,
    PROF_ALL, PROF_GROUP, PROF_KERNEL, kind,
};
use kvmprof_recording::{Mode, Ticks};

#[test]
fn flush_delivers_the_partly_filled_buffer() {
    let mut client = Client::open(1);
    client.ioctl(PROF_ALL, 0).unwrap();
    client.feed(5, &tick(0, Mode::User, 70));
    client.feed(1, &idle(5));
    client.ioctl(PCS_FLUSH, 0).unwrap();
    let blocks = client.drain();
    assert_eq!(blocks.len(), 1);
    assert_eq!(blocks[0].header.unused, 1024 - 8 - 5 * 16);
    assert_eq!(
        kinds(&blocks[0].records),
        [(kind::USER, 1); 5],
        "counts wait for their hundred"
    );
}

#[test]
fn flush_of_nothing_does_nothing() {
    let mut client = Client::open(1);
    client.ioctl(PCS_FLUSH, 0).unwrap();
    client.ioctl(PROF_ALL, 0).unwrap();
    client.ioctl(PCS_FLUSH, 0).unwrap();
    assert!(!client.pcs.readable());
}

#[test]
fn flush_reports_lost_samples_without_a_record() {
    let mut client = Client::open(1);
    client.ioctl(PROF_ALL, 0).unwrap();
    client.feed(
        1,
        &Ticks {
            lost: 7,
            ..Ticks::default()
        },
    );
    client.ioctl(PCS_FLUSH, 0).unwrap();
    let blocks = client.drain();
    assert_eq!(blocks.len(), 1);
    assert_eq!((blocks[0].header.lost, blocks[0].header.unused), (7, 1016));
}

#[test]
fn the_format_can_change_until_data_is_asked_for() {
    let mut client = Client::open(1);
    for format in [2, -1, 1 << 32] {
        assert_eq!(
            client.ioctl(PCS_SETFORMAT, format),
            Err(Errno::EINVAL),
            "{format}"
        );
    }
    client.ioctl(PCS_SETFORMAT, 0).unwrap();
    client.ioctl(PCS_SETFORMAT, 1).unwrap();
    assert_eq!(client.status().format, Format::Classic);
    client.ioctl(PROF_KERNEL, 0).unwrap();
    assert_eq!(client.ioctl(PCS_SETFORMAT, 0), Err(Errno::EBUSY));
    assert_eq!(client.status().format, Format::Classic);
}

#[test]
fn the_buffer_size_is_a_power_of_two_within_bounds() {
    let mut client = Client::open(1);
    for size in [0, -1, 512, 1000, 1025, 3072, 131_072, i64::MAX] {
        assert_eq!(
            client.ioctl(PCS_SETBSIZE, size),
            Err(Errno::EINVAL),
            "{size}"
        );
    }
    for size in (10..=16).map(|shift| 1_usize << shift) {
        let mut client = Client::open(1);
        client
            .ioctl(PCS_SETBSIZE, i64::try_from(size).unwrap())
            .unwrap();
        client.size = size;
        client.ioctl(PROF_ALL, 0).unwrap();
        assert_eq!(client.ioctl(PCS_SETBSIZE, 1024), Err(Errno::EBUSY));
        let fits = Format::Native.samples_per_buffer(size);
        client.feed(fits, &tick(0, Mode::User, 70));
        let blocks = client.drain();
        assert_eq!((blocks.len(), blocks[0].records.len()), (1, fits));
    }
}

#[test]
fn stop_delivers_everything_and_ends_the_file() {
    let mut client = Client::open(1);
    client.ioctl(PROF_KERNEL, 0).unwrap();
    client.feed(10, &tick(0, Mode::Kernel, 70));
    client.feed(10, &tick(0, Mode::User, 70));
    client.feed(
        1,
        &Ticks {
            stolen: 3,
            lost: 2,
            ..idle(20)
        },
    );
    client.ioctl(PCS_STOP, 0).unwrap();
    assert!(!client.pcs.wants_ticks() && !client.pcs.is_gathering());
    client.feed(10, &tick(0, Mode::Kernel, 70));
    let blocks = client.drain();
    assert_eq!(blocks.len(), 1);
    assert_eq!(blocks[0].header.lost, 2);
    let expected = [
        [(kind::KERNEL, 1); 10].as_slice(),
        &[(kind::IDLE, 20), (kind::MUSER, 10)],
    ];
    assert_eq!(kinds(&blocks[0].records), expected.concat());
    assert_eq!(client.pcs.read(100, &mut Vec::new()), Ok(0));
    assert!(
        client.pcs.readable(),
        "the end of file can be read again and again"
    );
    let ledger = client.status().ledger;
    assert_eq!((ledger.ticks, ledger.recorded, ledger.merged), (45, 10, 30));
    assert_eq!((ledger.stolen, ledger.lost, ledger.pending), (3, 2, 0));
}

#[test]
fn stop_waits_for_the_reader_to_make_room() {
    let mut client = Client::open(1);
    client.ioctl(PROF_ALL, 0).unwrap();
    client.feed(3 * 63, &tick(0, Mode::User, 70));
    client.feed(1, &idle(70));
    client.ioctl(PCS_STOP, 0).unwrap();
    client.ioctl(PCS_STOP, 0).unwrap();
    assert_eq!(client.pcs.ledger().pending, 3 * 63 + 70);
    let blocks = client.drain();
    assert_eq!(blocks.len(), 4);
    assert_eq!(kinds(&blocks[3].records), [(kind::IDLE, 70)]);
    assert_eq!(client.pcs.ledger().pending, 0);
}

#[test]
fn the_end_of_the_machine_is_a_stop() {
    let mut client = Client::open(1);
    client.ioctl(PROF_ALL, 0).unwrap();
    client.feed(3, &tick(0, Mode::User, 70));
    client.pcs.stop();
    assert_eq!(client.records().len(), 3);
    assert_eq!(client.pcs.read(1, &mut Vec::new()), Ok(0));
}

#[test]
fn a_stop_before_any_data_is_the_end_of_file() {
    let mut client = Client::open(1);
    client.feed(
        1,
        &Ticks {
            lost: 5,
            ..Ticks::default()
        },
    );
    client.ioctl(PCS_STOP, 0).unwrap();
    assert_eq!(client.pcs.read(1, &mut Vec::new()), Ok(0));
}

#[test]
fn after_a_stop_settings_are_refused() {
    let mut client = Client::open(1);
    client.ioctl(PCS_STOP, 0).unwrap();
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
            client.ioctl(command, argument),
            Err(Errno::EINVAL),
            "{command:#x}"
        );
    }
    assert_eq!(client.list(&[1, 70]), Err(Errno::EINVAL));
    assert!(client.ioctl(PCS_FLUSH, 0).is_ok());
    assert_eq!(client.ioctl(PCS_GETHZ, 0).unwrap().value, 100);
}

#[test]
fn merged_counts_accumulate_while_no_buffer_is_free() {
    let mut client = Client::open(1);
    client.ioctl(PROF_ALL, 0).unwrap();
    client.feed(3 * 63 + 11, &tick(0, Mode::User, 70));
    client.feed(1, &idle(1_000_000));
    assert_eq!(
        client.pcs.ledger().lost,
        11,
        "samples are lost, counts are not"
    );
    assert_eq!(client.drain().len(), 3);
    client.feed(1, &idle(50));
    client.ioctl(PCS_FLUSH, 0).unwrap();
    assert!(client.drain().iter().all(|block| block.records.is_empty()));
    client.feed(1, &idle(50));
    client.ioctl(PCS_FLUSH, 0).unwrap();
    assert_eq!(kinds(&client.records()), [(kind::IDLE, 1_000_100)]);
}

#[test]
fn a_million_idle_ticks_are_emitted_by_the_hundred() {
    let mut client = Client::open(1);
    client.ioctl(PROF_ALL, 0).unwrap();
    client.feed(1, &idle(1_000_000));
    let records = client.records();
    assert_eq!(kinds(&records), [(kind::IDLE, 100)].repeat(3 * 63));
    let rest = client.rest();
    assert_eq!(kinds(&rest), [(kind::IDLE, 1_000_000 - 3 * 63 * 100)]);
}

#[test]
fn classic_sums_the_vcpus() {
    let mut client = Client::open(2);
    client.ioctl(PCS_SETFORMAT, 1).unwrap();
    client.format = Format::Classic;
    client.ioctl(PROF_ALL, 0).unwrap();
    for vcpu in [0, 1].repeat(100) {
        client.feed(1, &tick(vcpu, Mode::Idle, 0));
    }
    client.ioctl(PCS_FLUSH, 0).unwrap();
    assert_eq!(kinds(&client.records()), [(kind::IDLE, 200)]);
}

#[test]
fn stolen_and_lost_ticks_are_part_of_the_hundred() {
    let mut client = Client::open(1);
    client.ioctl(PROF_ALL, 0).unwrap();
    client.feed(1, &idle(10));
    client.feed(
        1,
        &Ticks {
            stolen: 60,
            lost: 30,
            ..Ticks::default()
        },
    );
    client.ioctl(PCS_FLUSH, 0).unwrap();
    assert_eq!(kinds(&client.records()), [(kind::IDLE, 10)]);
}

/// With an event as the source of ticks, pcs opens as with a clock, except for the rate.
#[test]
fn an_event_has_no_rate() {
    let mut pcs = kvmprof_devices::profiling::Pcs::new(1);
    pcs.open_by_event().unwrap();
    assert_eq!(pcs.open_by_event(), Err(Errno::EBUSY));
    assert_eq!(pcs.open(100), Err(Errno::EBUSY));
    assert!(pcs.is_open() && pcs.wants_ticks());
    assert_eq!(pcs.ioctl(PCS_GETHZ, 0, &[]).unwrap().value, 0);
    pcs.feed(&tick(0, Mode::User, 70));
    assert_eq!(pcs.ledger().ticks, 1);
}
