//! What the pcs page says of the data, sentence by sentence, against a running guest.

use std::collections::BTreeMap;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{
    BUF_INCR, Format, Ledger, MERGE_TICKS, Msample, PCS_FLUSH, PCS_SETBSIZE, PCS_SETFORMAT,
    PCS_STOP, PROF_ALL, PROF_KERNEL, Record, UNUSED_BOUND, kind,
};
use kvmprof_demo_guest::function_at;
use kvmprof_tests::{Boot, Guest, Pcs, Recorded, errno_of, on_kvm};

/// With so much room no sample is lost, however late the reader.
const ROOM: i64 = 65_536;

fn guest(options: &[&str]) -> Guest {
    Guest::start(Boot::Demo, [&["--hz", "1000"], options].concat())
}

/// "Pcs internally works in terms of standard UNIX buffers, BSIZE bytes in size. Basically, such a
/// buffer consists of a header and several data records ... a record is never split across
/// buffers. For this reason, one entry in the header identifies the number of unused bytes at the
/// end of the buffer. The unused count should be a small number (less than 12) for all blocks."
#[test]
fn buffers_are_full_of_records() {
    on_kvm(|| {
        let guest = guest(&["--cpus", "2"]);
        for (format, size) in [
            (Format::Native, 1024),
            (Format::Classic, 1024),
            (Format::Native, 4096),
            (Format::Classic, 2048),
        ] {
            let mut pcs = guest.open();
            pcs.ioctl(PCS_SETFORMAT, format.number().into());
            pcs.ioctl(PCS_SETBSIZE, i64::try_from(size).unwrap());
            pcs.ioctl(PROF_ALL, 0);
            let fits = format.samples_per_buffer(size);
            pcs.read_until("three buffers were read", |ledger| {
                ledger.recorded + ledger.merged > 3 * u64::try_from(fits).unwrap()
            });
            let blocks = pcs.blocks();
            assert!(!blocks.is_empty());
            for block in blocks {
                let unused = block.header.unused;
                assert!(unused < UNUSED_BOUND);
                assert_eq!(usize::from(unused), format.wasted_per_buffer(size));
                assert_eq!(block.records.len(), fits, "{format:?} {size}");
            }
            drop(pcs);
        }
        guest.stop();
    });
}

/// "Reads from pcs may be for an arbitrary number of bytes"; a read goes on where the last one
/// stopped.
#[test]
fn reads_are_of_any_length() {
    on_kvm(|| {
        let guest = guest(&[]);
        let pcs = guest.open();
        pcs.ioctl(PROF_ALL, 0);
        let lengths = [1, 7, 8, 15, 16, 17, 1023, 1024, 1025, 3000];
        let mut bytes = Vec::new();
        for length in lengths.into_iter().cycle() {
            let data = pcs.device.read(length).unwrap();
            assert!((1..=length).contains(&data.len()));
            bytes.extend(data);
            if bytes.len() > 6 * 1024 {
                break;
            }
        }
        pcs.ioctl(PCS_STOP, 0);
        loop {
            let data = pcs.device.read(13).unwrap();
            if data.is_empty() {
                break;
            }
            bytes.extend(data);
        }
        let status = pcs.status();
        let blocks = kvmprof_tests::decode_blocks(Format::Native, 1024, &bytes);
        let records = blocks.iter().flat_map(|block| &block.records);
        let ticks: u64 = records.map(Record::ticks).sum();
        assert_eq!(ticks, status.ledger.recorded + status.ledger.merged);
        assert_eq!(status.ledger.pending, 0);
        assert_eq!(
            pcs.device.read(13).unwrap(),
            [0; 0],
            "the end stays the end"
        );
        assert_eq!(pcs.device.read(0).unwrap(), [0; 0]);
        drop(pcs);
        guest.stop();
    });
}

/// "... although, in general, partial buffers are not made available to the user until filled with
/// sample points." A read blocks until then, O_NONBLOCK: EAGAIN; it can be interrupted with
/// nothing lost.
#[test]
fn reads_wait_for_a_full_buffer() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "100"]);
        let pcs = guest.open();
        pcs.ioctl(PROF_ALL, 0);
        assert_eq!(errno_of(pcs.device.try_read(1)), Errno::EAGAIN);
        let cancelled = pcs.device.start_read(100).unwrap();
        let waiting = pcs.device.start_read(16).unwrap();
        pcs.connection.cancel(cancelled.tag()).unwrap();
        assert_eq!(errno_of(cancelled.wait()), Errno::EINTR);
        let before = pcs.status().ledger;
        assert_eq!(before.recorded + before.merged, 0);
        assert_eq!(waiting.wait().unwrap().len(), 16);
        let after = pcs.status().ledger;
        assert!(
            after.recorded + after.merged + after.pending >= 63,
            "{after:?}"
        );
        let first = pcs.device.read(1 << 20).unwrap();
        assert_eq!(first.len() % 1024, 1024 - 16, "the rest of that buffer");
        drop(pcs);
        guest.stop();
    });
}

/// "... the header also identifies the number of records lost since the last buffer was sent ...
/// For high volume data ... this count may be non-zero, and although the data is lost, a count of
/// lost data is provided."
#[test]
fn a_reader_that_stalls_is_told_what_was_lost() {
    on_kvm(|| {
        let guest = guest(&[]);
        for format in [Format::Native, Format::Classic] {
            let mut pcs = guest.open();
            pcs.ioctl(PCS_SETFORMAT, format.number().into());
            pcs.ioctl(PROF_ALL, 0);
            let room = u64::try_from(3 * format.samples_per_buffer(1024)).unwrap();
            pcs.stall_until("no buffer is free", |ledger| ledger.pending >= room);
            let clock = pcs.status().ledger.lost;
            pcs.stall_until("samples are lost", |ledger| ledger.lost > clock + 200);
            pcs.read_ticks(500);
            let recorded = pcs.stop();
            // Their sum has been compared with the account.
            assert!(recorded.lost_by_headers() > 200, "{format:?}");
            // The first three had room.
            let later = &recorded.blocks[3..];
            assert!(
                later.iter().any(|block| block.header.lost > 0),
                "{format:?}"
            );
        }
        guest.stop();
    });
}

/// "For streams whose records are generated more slowly than the reading process' ability to
/// consume them, this count should be 0."
#[test]
fn a_reader_with_room_loses_nothing() {
    on_kvm(|| {
        let guest = guest(&["--cpus", "2"]);
        let mut pcs = guest.open();
        pcs.ioctl(BUF_INCR, 7);
        pcs.ioctl(PCS_SETBSIZE, ROOM);
        pcs.ioctl(PROF_ALL, 0);
        pcs.read_ticks(2000);
        let recorded = pcs.stop();
        // No buffer was ever full, so that only the clock can have lost any, some of them before PROF_ALL.
        assert!(
            recorded.status.ledger.lost <= recorded.accounts.clock.lost,
            "{recorded:?}"
        );
        guest.stop();
    });
}

fn merged(recorded: &Recorded) -> Vec<Msample> {
    recorded
        .records()
        .filter_map(|record| match record {
            Record::Merged(merged) => Some(*merged),
            Record::Sample(_) => None,
        })
        .collect()
}

/// What is put out together, by vCPU: within it the types come in their order.
fn groups(merged: &[Msample]) -> BTreeMap<u16, Vec<u64>> {
    const ORDER: [u8; 4] = [kind::IDLE, kind::MKERNEL, kind::MKERNELI, kind::MUSER];
    let place = |kind| ORDER.iter().position(|other| *other == kind).unwrap();
    let mut groups: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
    let mut last: Option<(u16, usize)> = None;
    for record in merged {
        let this = (record.cpu, place(record.kind));
        let sums = groups.entry(record.cpu).or_default();
        match sums.last_mut() {
            Some(sum) if last.is_some_and(|last| last.0 == this.0 && last.1 < this.1) => {
                *sum += u64::from(record.count);
            }
            _ => sums.push(record.count.into()),
        }
        last = Some(this);
    }
    groups
}

/// "... all system idle counts are stored internally and output every 100 clock cycles ... The
/// same technique is used to gather unmasked-for kernel and user data." "count is the actual number
/// of hits that were recorded for this type of sample"
#[test]
fn counts_come_every_hundred_ticks_of_a_vcpu() {
    on_kvm(|| {
        for cpus in ["1", "2"] {
            let guest = guest(&["--cpus", cpus]);
            let mut pcs = guest.open();
            pcs.ioctl(PCS_SETBSIZE, ROOM);
            // Asks for a process that isn't there, so that every tick is counted.
            pcs.list(&[1, 7]).unwrap();
            pcs.read_ticks(2050);
            let recorded = pcs.stop();
            let Ledger { stolen, lost, .. } = recorded.status.ledger;
            let groups = groups(&merged(&recorded));
            assert_eq!(groups.len().to_string(), cpus);
            let mut missing = 0;
            for sums in groups.values() {
                // The last one was handed over by the stop.
                let (_, whole) = sums.split_last().unwrap();
                assert!(whole.len() >= 5, "{sums:?}");
                for sum in whole {
                    assert!(*sum <= MERGE_TICKS, "{sums:?}");
                    missing += MERGE_TICKS - sum;
                }
            }
            // Stolen and lost ticks are part of the hundred, and of no count.
            assert!(
                missing <= stolen + lost,
                "{missing} {stolen} {lost} {groups:?}"
            );
            assert_eq!(recorded.samples().count(), 0);
            guest.stop();
        }
    });
}

/// "If the profiling clock interrupted the processor when it was servicing an interrupt, this data
/// will be output as KERNELI data or ... as MKERNELI samples." "the pid field gives the process id
/// of the interrupted process, and pc the value of its program counter ... the cpu interrupt
/// priority level is included in the high 4 bits of sspace"
#[test]
fn samples_tell_type_program_counter_and_priority() {
    on_kvm(|| {
        let guest = guest(&[]);
        let mut pcs = guest.open();
        pcs.ioctl(PCS_SETBSIZE, ROOM);
        pcs.ioctl(PROF_ALL, 0);
        pcs.read_ticks(2000);
        let recorded = pcs.stop();
        let mut met = [0; 4];
        for sample in recorded.samples() {
            let function = function_at(sample.pc).unwrap_or("nothing of the kernel's");
            assert_eq!(sample.sspace & 0xf, 0, "{sample:?}");
            let priority = sample.sspace >> 4;
            let case = (sample.kind, function);
            match case {
                (kind::USER, _) => {
                    assert_eq!(sample.sspace, 0, "{sample:?}");
                    met[0] += 1;
                }
                // Only a clock that can't be masked sees these at all.
                (kind::KERNEL, "stretch_with_interrupts_off") => {
                    assert_eq!((priority, sample.pid), (15, 103), "{sample:?}");
                    met[1] += 1;
                }
                (kind::KERNEL, "compute") => {
                    assert_eq!((priority, sample.pid), (0, 102), "{sample:?}");
                    met[2] += 1;
                }
                (kind::KERNELI, "service_interrupt") => {
                    assert_eq!((priority, sample.pid), (15, 101), "{sample:?}");
                    met[3] += 1;
                }
                (_, "stretch_with_interrupts_off" | "compute" | "service_interrupt") => {
                    panic!("{sample:?} in {function}")
                }
                _ => {}
            }
        }
        assert!(met.iter().all(|&count| count > 20), "{met:?}");
        guest.stop();
    });
}

/// Native samples and counts tell their vCPU; classic counts are sums over the vCPUs, and classic
/// records truncate.
#[test]
fn both_formats_describe_two_vcpus() {
    on_kvm(|| {
        let guest = guest(&["--cpus", "2"]);
        for format in [Format::Native, Format::Classic] {
            let mut pcs = guest.open();
            pcs.ioctl(PCS_SETFORMAT, format.number().into());
            pcs.ioctl(PCS_SETBSIZE, ROOM);
            pcs.ioctl(PROF_ALL, 0);
            pcs.read_ticks(2000);
            let recorded = pcs.stop();
            assert_eq!(recorded.status.vcpus, 2);
            let of_second = recorded.samples().filter(|sample| sample.cpu == 1).count();
            match format {
                Format::Native => assert!(of_second > 100, "{of_second}"),
                Format::Classic => {
                    assert_eq!(of_second, 0, "the form has no vCPU");
                    let counts = merged(&recorded);
                    assert!(counts.iter().all(|merged| merged.count <= 200));
                }
            }
            for sample in recorded
                .samples()
                .filter(|sample| sample.kind == kind::USER)
            {
                assert!([101, 102, 103, 201].contains(&sample.pid), "{sample:?}");
            }
        }
        guest.stop();
    });
}

/// PCS_FLUSH hands over the partly filled buffer, and h_unused tells.
#[test]
fn flush_hands_over_what_is_there() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Test("workload=spin"), ["--hz", "100"]);
        let mut pcs = guest.open();
        pcs.ioctl(PROF_ALL, 0);
        pcs.stall_until("there are records", |ledger| ledger.pending >= 5);
        assert_eq!(errno_of(pcs.device.try_read(1)), Errno::EAGAIN);
        pcs.ioctl(PCS_FLUSH, 0);
        pcs.read_available();
        let blocks = pcs.blocks();
        assert_eq!(blocks.len(), 1);
        let records = blocks[0].records.len();
        assert!((5..63).contains(&records), "{records}");
        assert_eq!(
            usize::from(blocks[0].header.unused),
            1024 - 8 - 16 * records
        );
        assert_eq!(errno_of(pcs.device.try_read(1)), Errno::EAGAIN);
        drop(pcs);
        guest.stop();
    });
}

/// PCS_STOP: nothing is gathered any more, all that was is handed over, then the end of file.
#[test]
fn stop_hands_everything_over() {
    on_kvm(|| {
        let guest = guest(&[]);
        let pcs = guest.open();
        pcs.ioctl(PROF_KERNEL, 0);
        pcs.stall_until("there are counts and records", |ledger| {
            ledger.pending >= 150
        });
        let recorded = pcs_stop_twice(pcs);
        let last = recorded.blocks.last().unwrap();
        assert!(matches!(last.records.last(), Some(Record::Merged(_))));
        assert!(recorded.ticks() >= 150);
        assert!(!recorded.accounts.running, "nobody wants ticks any more");
        guest.stop();
    });
}

fn pcs_stop_twice(pcs: Pcs) -> Recorded {
    pcs.ioctl(PCS_STOP, 0);
    let ticks = pcs.status().ledger.ticks;
    let recorded = pcs.stop();
    assert_eq!(
        recorded.status.ledger.ticks, ticks,
        "final after the first stop"
    );
    recorded
}
