//! prf with a running guest, over its socket. devices/tests has each sentence of the page.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::PCS_SETHZ;
use kvmprof_abi::prf::ALL_VCPUS;
use kvmprof_abi::wire::device;
use kvmprof_client::Connection;
use kvmprof_demo_guest::{Mode, Row, rows, symbol};
use kvmprof_profiling::clock::ClockSource;
use kvmprof_tests::{
    Accounts, Boot, Clock, CpuPressure, Guest, Machine, Prf, PrfAccount, Sampled, assert_share,
    errno_of, is_kernel_clock_for_demo, on_kvm, run, sampling_rate, share, until,
};

/// Any valid table.
const ANY: [u64; 3] = [0, 0x20_0000, 0x30_0000];
/// The demo guest's kernel has some KiB.
const MAX_SYMBOLS: usize = 1 << 20;

/// The kernel's functions in kallsyms, once the image has been read.
fn kallsyms(connection: &Connection) -> Vec<(u64, String)> {
    let text = until("the kernel's symbols are known", || {
        match connection.snapshot(device::KALLSYMS, MAX_SYMBOLS) {
            Ok(text) => Some(text),
            Err(error) => {
                assert_eq!(error.errno(), Some(Errno::ENXIO));
                None
            }
        }
    });
    let line = |line: &str| {
        let (address, rest) = line.split_at(16);
        // Ends of functions are among them.
        let name = rest.strip_prefix(" t ").or(rest.strip_prefix(" ? "));
        let name = name.unwrap();
        (u64::from_str_radix(address, 16).unwrap(), name.to_owned())
    };
    String::from_utf8(text).unwrap().lines().map(line).collect()
}

/// kallsyms has the functions by address, without a clock or a sample; minor 0 only.
#[test]
fn the_guests_symbols_are_known() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "0"]);
        let connection = guest.connect();
        let symbols = kallsyms(&connection);
        assert!(symbols.is_sorted_by_key(|(address, _)| *address));
        for name in ["compute", "resume_user"] {
            let expected = (symbol(name).unwrap().address, name.to_owned());
            assert!(symbols.contains(&expected), "{name}");
        }
        assert_eq!(errno_of(connection.open(device::KALLSYMS, 1)), Errno::ENXIO);
        guest.stop();
    });
}

/// "if the processor was executing in kernel code, a counter associated with the largest address
/// less than the PC is incremented. ... the counter after the last kernel address records the
/// number of times the PC was at a user address, and the counter after that ... that the system was
/// idle." Each has the share that the guest itself says, on all vCPUs together, at the clock's 1
/// kHz.
#[test]
fn counters_agree_with_the_guests_times() {
    on_kvm(|| {
        check_counters(Clock::jittered(sampling_rate(1000)));
        if is_kernel_clock_for_demo() {
            check_counters(Clock {
                source: ClockSource::Kernel,
                ..Clock::at(sampling_rate(700))
            });
        }
    });
}

fn check_counters(clock: Clock) {
    let machine = Machine::start(Boot::Demo, 2, clock);
    let connection = machine.connect();
    let symbols = kallsyms(&connection);
    let mut addresses: Vec<u64> = symbols.iter().map(|(address, _)| *address).collect();
    addresses.insert(0, 0);
    let prf = Prf::open(&connection, ALL_VCPUS).unwrap();
    prf.load(&addresses);
    prf.set(1);
    machine.truth();
    // Only a write zeroes the counters.
    prf.set(0);
    prf.load(&addresses);
    let pressure = CpuPressure::begin();
    let before = machine.truth();
    prf.set(1);
    prf.until_counted(1000);
    let after = machine.truth();
    prf.set(0);
    let cycles = after.cycles_since(&before);
    let counts = prf.counts();
    let account = PrfAccount::of(&connection, ALL_VCPUS).unwrap();
    assert_eq!(account.ledger.recorded, counts.sum());

    let ledger = account.ledger;
    let sampled = Sampled::new(counts.sum(), ledger.stolen, ledger.lost, &pressure);
    let expect = |what: &str, counted: u64, belongs: &dyn Fn(&Row) -> bool| {
        let rows = rows().iter().zip(cycles);
        let own: u64 = rows
            .filter(|(row, _)| belongs(row))
            .map(|(_, cycles)| cycles)
            .sum();
        let (observed, expected) = (
            share(counted, counts.sum()),
            share(own, cycles.iter().sum()),
        );
        assert_share(what, observed, expected, sampled);
    };
    expect("user", counts.user, &|row| row.mode == Mode::User);
    expect("idle", counts.idle, &|row| row.mode == Mode::Idle);
    expect("kernel", counts.kernel(), &|row| {
        matches!(row.mode, Mode::Kernel | Mode::Interrupt)
    });
    let in_functions = |names: &[&str]| {
        let counters = counts.counters[1..].iter().zip(&symbols);
        counters
            .filter(|(_, (_, name))| names.contains(&name.as_str()))
            .map(|(counter, _)| counter)
            .sum()
    };
    for row in rows().iter().filter(|row| !row.functions.is_empty()) {
        let counted = in_functions(row.functions);
        expect(row.name, counted, &|other| other.name == row.name);
    }
    machine.stop();
}

/// Idle ticks of a halted vCPU, which isn't woken up for them, are counted at a read.
#[test]
fn a_halted_guest_is_idle() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Test("workload=halt"), ["--cpus", "2"]);
        let connection = guest.connect();
        let prf = Prf::open(&connection, ALL_VCPUS).unwrap();
        prf.load(&ANY);
        prf.set(1);
        let pcs = guest.open();
        assert_eq!(pcs.refused(PCS_SETHZ, 1000), Errno::EBUSY);
        pcs.device.close().unwrap();
        let counts = prf.until_counted(200);
        assert!(counts.idle > counts.sum() / 2, "{counts:?}");
        prf.set(0);
        let ledger = PrfAccount::of(&connection, ALL_VCPUS).unwrap().ledger;
        assert_eq!(ledger.recorded, prf.counts().sum());
        assert_eq!(ledger.ticks, Accounts::of(&connection).clock.ticks);
        for (state, said) in [(0, "off"), (1, "on")] {
            prf.set(state);
            let ran = guest.command("status", &[]);
            let said = format!("prf 255    {said}, 3 addresses");
            assert!(ran.stdout.contains(&said), "{ran:?}");
        }
        drop(prf);
        guest.stop();
    });
}

/// The option's limits.
#[test]
fn the_maximum_is_an_option() {
    for wrong in ["2", "262144", "-1", "many", ""] {
        let option = format!("--prf-addresses={wrong}");
        let ran = run(["run", "--kernel", "none", &option]);
        assert_eq!(ran.status, 2, "{ran:?}");
        assert!(ran.stderr.contains("3 to 262143"), "{ran:?}");
    }
    on_kvm(|| {
        for addresses in ["3", "65536"] {
            let guest = Guest::start(Boot::Demo, ["--prf-addresses", addresses]);
            let prf = Prf::open(&guest.connect(), 0).unwrap();
            assert_eq!(prf.max().to_string(), addresses);
            drop(prf);
            guest.stop();
        }
    });
}
