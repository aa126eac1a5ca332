//! What prf counts, and for how long, against a running guest.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{PCS_GETHZ, PCS_SETHZ, PCS_STOP, PROF_ALL};
use kvmprof_abi::prf::{ALL_VCPUS, PRF_SETSTATE, STATUS_LOADED, STATUS_ON};
use kvmprof_abi::wire::device;
use kvmprof_client::Connection;
use kvmprof_demo_guest::{Mode, Row, rows, symbol};
use kvmprof_tests::{
    Accounts, Boot, Clock, Counts, CpuPressure, Guest, Machine, Prf, PrfAccount, Sampled,
    assert_share, errno_of, is_kernel_clock_for_demo, on_kvm, sampling_rate, share, until,
};
use kvmprof_vmm::clock::ClockSource;
use rustix::process::Signal;

/// A table that is as good as any.
const ANY: [u64; 3] = [0, 0x20_0000, 0x30_0000];
/// The demo guest's kernel is some KiB long.
const MAX_SYMBOLS: usize = 1 << 20;
const BOTH: u32 = STATUS_ON | STATUS_LOADED;

fn guest(options: &[&str]) -> Guest {
    Guest::start(Boot::Demo, options)
}

/// Waits until `prf` has counted so many ticks more, of all kinds.
fn until_counted(prf: &Prf, more: u64) -> Counts {
    let before = prf.counts().sum();
    until("prf has counted", || {
        let counts = prf.counts();
        (counts.sum() >= before + more).then_some(counts)
    })
}

/// The kernel's functions as kallsyms has them, once the image has been read.
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

/// kallsyms has the functions where they are, by address, without a clock or a sample; minor 0
/// alone.
#[test]
fn the_guests_symbols_are_known() {
    on_kvm(|| {
        let guest = guest(&["--hz", "0"]);
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
fn counters_tell_where_the_time_went() {
    on_kvm(|| {
        check_counters(Clock {
            hz: sampling_rate(1000),
            source: ClockSource::Thread,
            // The guest's own timer would run in step.
            jitter: true,
        });
        if is_kernel_clock_for_demo() {
            check_counters(Clock {
                hz: sampling_rate(700),
                source: ClockSource::Kernel,
                jitter: false,
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
    until_counted(&prf, 1000);
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
        let shares = (
            share(counted, counts.sum()),
            share(own, cycles.iter().sum()),
        );
        assert_share(what, shares, sampled);
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

/// "every 100th of a second", whatever the clock's rate: of a faster clock every n-th tick of each
/// vCPU counts, and the account says so of every one.
#[test]
fn a_faster_clock_is_counted_at_100_hz() {
    on_kvm(|| {
        for (hz, cpus) in [(100, 1), (1000, 1), (1000, 2), (10_000, 2)] {
            let guest = guest(&["--hz", &hz.to_string(), "--cpus", &cpus.to_string()]);
            let connection = guest.connect();
            let prf = Prf::open(&connection, ALL_VCPUS).unwrap();
            prf.load(&ANY);
            prf.set(1);
            // Whatever became of them: in emulation the fastest clock loses nearly all.
            until("ticks were counted", || {
                let ledger = PrfAccount::of(&connection, ALL_VCPUS).unwrap().ledger;
                (ledger.recorded + ledger.stolen + ledger.lost >= 50).then_some(())
            });
            prf.set(0);
            let account = PrfAccount::of(&connection, ALL_VCPUS).unwrap();
            let ledger = account.ledger;
            assert!(!account.on);
            assert_eq!(ledger.recorded, prf.counts().sum());
            let counted = ledger.recorded + ledger.stolen + ledger.lost;
            assert_eq!(ledger.ungathered, ledger.ticks - counted);
            // The clock started with it, so that each vCPU's first period began there.
            let period = hz / 100;
            let missing = ledger.ticks - counted * period;
            assert!(
                missing <= cpus * (period - 1),
                "{hz} Hz, {cpus}: {ledger:?}"
            );
            let accounts = Accounts::of(&connection);
            accounts.check();
            assert_eq!(accounts.clock.ticks, ledger.ticks);
            guest.stop();
        }
    });
}

/// "each processor may be independently profiled, or all processors may be profiled together ...
/// The total of all counters on a dual processor, for example, will be twice that of a single
/// processor."
#[test]
fn minors_of_vcpus_add_up_to_255() {
    on_kvm(|| {
        let guest = guest(&["--hz", "1000", "--cpus", "2"]);
        let connection = guest.connect();
        let open = |minor| {
            let prf = Prf::open(&connection, minor).unwrap();
            prf.load(&ANY);
            prf
        };
        let [first, second, all] = [0, 1, ALL_VCPUS].map(open);
        // 255's time lies within that of both others.
        for prf in [&first, &second, &all] {
            prf.set(1);
        }
        until_counted(&all, 100);
        for prf in [&all, &first, &second] {
            prf.set(0);
        }
        let ticks = |minor| PrfAccount::of(&connection, minor).unwrap().ledger.ticks;
        let outside = ticks(0) + ticks(1) - ticks(ALL_VCPUS);
        let [first, second, all] = [first, second, all].map(|prf| prf.counts());
        let mut more = 0;
        let pairs = first.counters.iter().zip(&second.counters);
        let pairs = pairs.zip(&all.counters).map(|((a, b), all)| (a + b, *all));
        let extra = [
            (first.user + second.user, all.user),
            (first.idle + second.idle, all.idle),
        ];
        for (single, together) in pairs.chain(extra) {
            assert!(single >= together, "{first:?} {second:?} {all:?}");
            more += single - together;
        }
        assert!(more <= outside, "{more} {outside}");
        assert!(first.sum() > 0 && second.sum() > 0);
        guest.stop();
    });
}

/// ON survives the close, and the end of the client; everybody sees one state; turning it on and
/// off keeps the counts, only a write zeroes them.
#[test]
fn the_state_outlives_its_client_and_is_everybodys() {
    on_kvm(|| {
        let guest = guest(&[]);
        {
            let connection = guest.connect();
            let prf = Prf::open(&connection, 0).unwrap();
            prf.load(&ANY);
            prf.set(1);
        }
        let (one, other) = (guest.connect(), guest.connect());
        let [one, other] = [&one, &other].map(|connection| Prf::open(connection, 0).unwrap());
        assert_eq!((one.status(), other.status()), (BOTH, BOTH));
        until_counted(&one, 20);
        until_counted(&other, 20);
        one.set(0);
        assert_eq!(other.status(), STATUS_LOADED);
        let counts = one.counts();
        assert_eq!(other.counts(), counts);
        assert!(counts.sum() >= 40);
        other.set(1);
        let later = until_counted(&one, 20);
        assert!(later.sum() >= counts.sum() + 20);
        assert_eq!(
            one.device.write(&[0; 24]).map_err(|error| error.errno()),
            Err(Some(Errno::EBUSY))
        );
        one.set(0);
        other.load(&ANY);
        assert_eq!(one.counts().sum(), 0);
        assert!(!Accounts::of(&guest.connect()).running);
        drop((one, other));
        guest.stop();
    });
}

/// Idle ticks of a halted vCPU, which isn't woken up for them, are counted when somebody reads.
#[test]
fn a_halted_guest_is_idle() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Test("workload=halt"), ["--cpus", "2"]);
        let connection = guest.connect();
        let prf = Prf::open(&connection, ALL_VCPUS).unwrap();
        prf.load(&ANY);
        prf.set(1);
        let counts = until_counted(&prf, 200);
        assert!(counts.idle > counts.sum() / 2, "{counts:?}");
        prf.set(0);
        let ledger = PrfAccount::of(&connection, ALL_VCPUS).unwrap().ledger;
        assert_eq!(ledger.recorded, prf.counts().sum());
        assert_eq!(ledger.ticks, Accounts::of(&connection).clock.ticks);
        let ran = guest.command("status", &[]);
        assert!(
            ran.stdout.contains("prf 255    off, 3 addresses"),
            "{ran:?}"
        );
        prf.set(1);
        let ran = guest.command("status", &[]);
        assert!(ran.stdout.contains("prf 255    on, 3 addresses"), "{ran:?}");
        drop(prf);
        guest.stop();
    });
}

/// Each consumer's account begins and ends where the clock's does, whichever comes and goes first.
#[test]
fn pcs_and_prf_share_the_clock() {
    on_kvm(|| {
        let guest = guest(&["--hz", "1000", "--cpus", "2"]);
        let connection = guest.connect();
        let prf = Prf::open(&connection, ALL_VCPUS).unwrap();
        prf.load(&ANY);
        let look = || {
            let accounts = Accounts::of(&connection);
            accounts.check();
            let prf = PrfAccount::of(&connection, ALL_VCPUS).unwrap();
            (accounts, prf.ledger)
        };
        // prf stays longer on both sides.
        prf.set(1);
        until_counted(&prf, 5);
        let mut pcs = guest.open();
        pcs.ioctl(PROF_ALL, 0);
        pcs.read_ticks(100);
        pcs.device.close().unwrap();
        assert!(look().0.running);
        until_counted(&prf, 5);
        prf.set(0);
        let (first, ledger) = look();
        assert!(!first.running);
        assert_eq!(first.clock.ticks, ledger.ticks);
        assert!(first.pcs.ticks < ledger.ticks);

        // pcs does.
        let mut pcs = guest.open();
        pcs.ioctl(PROF_ALL, 0);
        pcs.read_ticks(100);
        prf.set(1);
        until_counted(&prf, 5);
        prf.set(0);
        pcs.read_ticks(100);
        pcs.ioctl(PCS_STOP, 0);
        let (second, ledger) = look();
        assert!(!second.running);
        let clock = second.clock.since(&first.clock);
        assert_eq!(clock.ticks, second.pcs.ticks);
        assert!(ledger.ticks < clock.ticks);

        // An open pcs that has stopped is no consumer; then one comes before the other goes.
        prf.set(1);
        until_counted(&prf, 5);
        pcs.device.close().unwrap();
        let (third, _) = look();
        assert_eq!((third.running, third.pcs.ticks), (true, second.pcs.ticks));
        let pcs = guest.open();
        pcs.ioctl(PROF_ALL, 0);
        prf.set(0);
        assert!(look().0.running);
        pcs.ioctl(PCS_STOP, 0);
        let (last, ledger) = look();
        assert!(!last.running);
        let clock = last.clock.since(&second.clock);
        let (first, then) = (ledger.ticks, last.pcs.ticks);
        assert!(first.max(then) <= clock.ticks, "{clock:?} {first} {then}");
        assert!(first + then >= clock.ticks, "{clock:?} {first} {then}");
        drop((pcs, prf));
        guest.stop();
    });
}

/// The rate is nobody's to change while prf is on; one that 100 doesn't divide can't be counted:
/// EINVAL, and a line in the log that says why.
#[test]
fn prf_needs_a_rate_that_100_divides() {
    on_kvm(|| {
        let mut guest = guest(&["--hz", "200"]);
        let connection = guest.connect();
        let prf = Prf::open(&connection, 0).unwrap();
        prf.load(&ANY);
        let pcs = guest.open();
        for hz in [99, 101, 250, 1] {
            pcs.ioctl(PCS_SETHZ, hz);
            for _ in 0..2 {
                assert_eq!(errno_of(prf.device.ioctl(PRF_SETSTATE, 1)), Errno::EINVAL);
            }
            assert_eq!(prf.status(), STATUS_LOADED);
        }
        pcs.ioctl(PCS_SETHZ, 300);
        prf.set(1);
        assert_eq!(pcs.refused(PCS_SETHZ, 400), Errno::EBUSY);
        assert_eq!(pcs.refused(PCS_SETHZ, 0), Errno::EINVAL);
        assert_eq!(pcs.ioctl(PCS_GETHZ, 0), 300);
        pcs.device.close().unwrap();
        // It goes on as it was, for the next client too.
        let pcs = guest.open();
        assert_eq!(pcs.ioctl(PCS_GETHZ, 0), 300);
        until_counted(&prf, 5);
        prf.set(0);
        pcs.ioctl(PCS_SETHZ, 400);
        pcs.device.close().unwrap();
        prf.set(1);
        let pcs = guest.open();
        assert_eq!(pcs.ioctl(PCS_GETHZ, 0), 200, "the rate of the start");
        drop((pcs, prf, connection));
        guest.signal(Signal::TERM);
        let ran = guest.wait();
        assert_eq!(ran.status, 0);
        let lines: Vec<_> = ran.stderr.lines().collect();
        assert_eq!(lines.len(), 4, "one for each rate: {lines:?}");
        for (line, hz) in lines.iter().zip([99, 101, 250, 1]) {
            assert!(line.contains(&format!("at {hz} Hz")), "{line}");
        }
    });
}

/// Without a clock there is a table, but nothing to count.
#[test]
fn without_a_clock_prf_cannot_be_turned_on() {
    on_kvm(|| {
        let mut guest = guest(&["--hz", "0"]);
        let connection = guest.connect();
        let prf = Prf::open(&connection, 0).unwrap();
        prf.set(1);
        prf.load(&ANY);
        assert_eq!(errno_of(prf.device.ioctl(PRF_SETSTATE, 1)), Errno::EINVAL);
        prf.set(0);
        assert_eq!((prf.status(), prf.counts().sum()), (STATUS_LOADED, 0));
        drop((prf, connection));
        guest.signal(Signal::TERM);
        assert!(guest.wait().stderr.contains("at 0 Hz"));
    });
}

/// `--wait` holds the guest until prf is turned on, whichever minor; neither an open nor a table
/// does it.
#[test]
fn turning_on_lets_a_held_guest_start() {
    on_kvm(|| {
        let guest = guest(&["--wait", "--cpus", "2"]);
        let connection = guest.connect();
        let prf = Prf::open(&connection, 1).unwrap();
        prf.set(1);
        prf.load(&ANY);
        assert!(Accounts::of(&connection).held);
        prf.set(1);
        assert!(!Accounts::of(&connection).held);
        until_counted(&prf, 5);
        drop((prf, connection));
        guest.stop();
    });
}

/// The counts can be read after the guest's end.
#[test]
fn the_end_of_the_guest_leaves_the_counts() {
    on_kvm(|| {
        let mut guest = guest(&[]);
        let connection = guest.connect();
        let prf = Prf::open(&connection, 0).unwrap();
        prf.load(&ANY);
        prf.set(1);
        until_counted(&prf, 10);
        guest.signal(Signal::TERM);
        let ended = until("the guest has ended", || {
            let running = Accounts::of(&connection).running;
            (!running).then(|| prf.counts())
        });
        assert!(ended.sum() >= 10);
        assert_eq!(prf.counts(), ended);
        // It is off, and stays so.
        assert_eq!(prf.status(), STATUS_LOADED);
        prf.set(0);
        assert_eq!(errno_of(prf.device.ioctl(PRF_SETSTATE, 1)), Errno::ENXIO);
        assert_eq!(prf.counts(), ended);
        // A last record of them can be made.
        let log = guest.folder().join("log");
        let ran = guest.command("prfsnap", &["-f", "0", log.to_str().unwrap()]);
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
        assert!(log.exists());
        drop((prf, connection));
        assert_eq!(guest.wait().status, 0);
    });
}
