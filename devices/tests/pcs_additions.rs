//! Tests of this project's additions to the page: the `PCS_*` commands, and the details that it defines. What a flush and a stop deliver is
//! that of a plain model (`pcs_properties.rs`).

use crate::support::{Client, idle, kinds, tick};
use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{
    BUF_INCR, Format, PCS_FLUSH, PCS_GETHZ, PCS_SETBSIZE, PCS_SETFORMAT, PCS_SETHZ, PCS_STOP,
    PROF_ALL, PROF_GROUP, PROF_KERNEL, kind,
};
use kvmprof_devices::profiling::Pcs;
use kvmprof_recording::{Mode, Ticks};

#[test]
fn flush_delivers_the_partly_filled_buffer() {
    let mut client = Client::open(1);
    client.ioctl(PCS_FLUSH, 0).unwrap();
    client.ioctl(PROF_ALL, 0).unwrap();
    client.ioctl(PCS_FLUSH, 0).unwrap();
    assert!(!client.pcs.readable(), "there is nothing");
    client.feed(5, &tick(0, Mode::User, 70));
    client.feed(1, &idle(5));
    client.ioctl(PCS_FLUSH, 0).unwrap();
    let lost = Ticks {
        lost: 7,
        ..Ticks::default()
    };
    client.feed(1, &lost);
    client.ioctl(PCS_FLUSH, 0).unwrap();
    let blocks = client.drain();
    let headers = blocks.iter().map(|it| (it.header.lost, it.header.unused));
    assert!(headers.eq([(0, 1024 - 8 - 5 * 16), (7, 1016)]));
    // Counts wait for their hundred.
    assert_eq!(kinds(&blocks[0].records), [(kind::USER, 1); 5]);
}

#[test]
fn the_format_can_change_until_data_is_asked_for() {
    let mut client = Client::open(1);
    for format in [2, -1, 1 << 32] {
        let refused = client.ioctl(PCS_SETFORMAT, format);
        assert_eq!(refused, Err(Errno::EINVAL), "{format}");
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
        let refused = client.ioctl(PCS_SETBSIZE, size);
        assert_eq!(refused, Err(Errno::EINVAL), "{size}");
    }
    for size in (10..=16).map(|shift| 1_i64 << shift) {
        let mut client = Client::open(1);
        client.ioctl(PCS_SETBSIZE, size).unwrap();
        client.size = usize::try_from(size).unwrap();
        client.ioctl(PROF_ALL, 0).unwrap();
        assert_eq!(client.ioctl(PCS_SETBSIZE, 1024), Err(Errno::EBUSY));
        let fits = Format::Native.samples_per_buffer(client.size);
        client.feed(fits, &tick(0, Mode::User, 70));
        let blocks = client.drain();
        assert_eq!((blocks.len(), blocks[0].records.len()), (1, fits));
    }
}

#[test]
fn the_end_of_the_machine_is_a_stop() {
    let mut client = Client::open(1);
    client.ioctl(PROF_ALL, 0).unwrap();
    client.feed(3, &tick(0, Mode::User, 70));
    client.pcs.stop();
    assert!(!client.pcs.wants_ticks());
    assert_eq!(client.records().len(), 3);
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
        let refused = client.ioctl(command, argument);
        assert_eq!(refused, Err(Errno::EINVAL), "{command:#x}");
    }
    assert_eq!(client.list(&[1, 70]), Err(Errno::EINVAL));
    assert!(client.ioctl(PCS_FLUSH, 0).is_ok());
    assert_eq!(client.ioctl(PCS_GETHZ, 0).unwrap().value, 100);
}

/// With an event as the source of ticks, pcs opens as with a clock, except for the rate.
#[test]
fn an_event_has_no_rate() {
    let mut pcs = Pcs::new(1);
    pcs.open_by_event().unwrap();
    assert_eq!(pcs.open_by_event(), Err(Errno::EBUSY));
    assert_eq!(pcs.open(100), Err(Errno::EBUSY));
    assert!(pcs.is_open() && pcs.wants_ticks());
    assert_eq!(pcs.ioctl(PCS_GETHZ, 0, &[]).unwrap().value, 0);
    pcs.feed(&tick(0, Mode::User, 70));
    assert_eq!(pcs.ledger().ticks, 1);
}
