//! pcs with a running guest, over its socket. devices/tests has each sentence of the page.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{
    Format, PCS_FLUSH, PCS_SETBSIZE, PCS_SETFORMAT, PCS_STOP, PROF_ALL, PROF_KERNEL, Record,
    UNUSED_BOUND, kind,
};
use kvmprof_abi::wire::device;
use kvmprof_demo_guest::function_at;
use kvmprof_tests::{Accounts, Boot, Guest, Pcs, Recorded, errno_of, on_kvm};

/// With this many buffers no sample is lost, however late the reader.
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

/// "If the profiling clock interrupted the processor when it was servicing an interrupt, this data
/// will be output as KERNELI data or ... as MKERNELI samples." "the pid field gives the process id
/// of the interrupted process, and pc the value of its program counter ... the cpu interrupt
/// priority level is included in the high 4 bits of sspace"
#[test]
fn samples_have_type_program_counter_and_priority() {
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

/// PCS_FLUSH makes the partly filled buffer readable, and h_unused says how much of it is unused.
#[test]
fn flush_delivers_partly_filled_buffers() {
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

/// PCS_STOP: gathering stops, all gathered data is delivered, then the end of file.
#[test]
fn stop_delivers_everything() {
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
        assert!(!recorded.accounts.running, "there is no consumer");
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

/// "An open of pcs obtains exclusive use of the profiling device and starts the profiling clock."
#[test]
fn open_is_exclusive_and_starts_the_clock() {
    on_kvm(|| {
        let guest = guest(&[]);
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
        assert_eq!(again.status().modes, 0, "all ticks are accounted");
        assert_eq!(again.status().buffers, 3);
        drop((again, pcs));
        guest.stop();
    });
}
