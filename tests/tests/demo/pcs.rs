//! pcs with a running guest, over its socket. devices/tests has each sentence of the page.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{PCS_SETBSIZE, PROF_ALL, kind};
use kvmprof_abi::wire::device;
use kvmprof_demo_guest::function_at;
use kvmprof_tests::{Accounts, Boot, Guest, Pcs, errno_of, on_kvm};

/// "If the profiling clock interrupted the processor when it was servicing an interrupt, this data
/// will be output as KERNELI data or ... as MKERNELI samples." "the pid field gives the process id
/// of the interrupted process, and pc the value of its program counter ... the cpu interrupt
/// priority level is included in the high 4 bits of sspace"
#[test]
fn samples_have_type_program_counter_and_priority() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "1000"]);
        let mut pcs = guest.open();
        // With this many bytes in a buffer no sample is lost, however late the reader.
        pcs.ioctl(PCS_SETBSIZE, 65_536);
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

/// "An open of pcs obtains exclusive use of the profiling device and starts the profiling clock."
#[test]
fn open_is_exclusive_and_starts_the_clock() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "1000"]);
        let other = guest.connect();
        assert!(!Accounts::of(&other).running);
        let pcs = guest.open();
        assert!(Accounts::of(&other).running);
        assert_eq!(errno_of(other.open(device::PCS, 0)), Errno::EBUSY);
        assert_eq!(errno_of(other.open(device::PCS, 1)), Errno::ENXIO);
        pcs.stall_until("the clock ticks", |ledger| ledger.ticks > 0);
        pcs.device.close().unwrap();
        assert!(!Accounts::of(&other).running);
        drop(Pcs::open(other).unwrap());
        guest.stop();
    });
}
