//! pmc(9): calls of processes and of the kernel, counts, and the ends of processes whose pids are used again.

use kvmprof_abi::pmc::{ALL_COUNTERS, COUNTERS, Call, CounterId, Function, KERNEL};
use kvmprof_devices::profiling::Pmc;
use kvmprof_devices::profiling::pmc::{Account, Counted, Parent, ProcessKey, Totals};
use kvmprof_recording::EventKind;

use crate::input::Input;

/// Steps of one input.
const MAX_STEPS: usize = 400;
/// Processes that have counters at most, as PMC.md has it.
const MAX_PROCESSES: usize = 1024;

/// What the host counts of the guest.
struct Host {
    counts: u32,
    total: u64,
}

impl Totals for Host {
    fn can_count(&self, counter: CounterId) -> bool {
        self.counts & counter.bit() != 0
    }

    fn can_sample(&self, kind: EventKind) -> bool {
        self.counts >> (kind as u32 % 32) & 1 != 0
    }

    fn total(&self, _counter: CounterId) -> u64 {
        self.total
    }
}

fn check(pmc: &Pmc) {
    assert!(pmc.processes().len() <= MAX_PROCESSES);
    assert_eq!(pmc.wanted() & !ALL_COUNTERS, 0);
    if pmc.profiling().is_some() {
        assert!(pmc.kernel_counters().next().is_some());
    }
}

/// What processes call, and what is counted of them.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut pmc = Pmc::default();
    let mut account = Account::new(input.u32() & ALL_COUNTERS);
    let mut host = Host {
        counts: u32::MAX,
        total: 0,
    };
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        match input.u8() % 8 {
            0 => {
                if let Some(call) = Call::decode(input.bytes(Call::SIZE)) {
                    let _refused = pmc.call(&call, &host);
                }
            }
            1 | 2 => {
                let function = Function::ALL[usize::from(input.u8()) % Function::ALL.len()];
                let counter = i32::from(input.u8() % 32);
                let call = Call {
                    parent: pid(&mut input),
                    event: input.u8().into(),
                    flags: u32::from(input.u8() % 3),
                    value: input.u64(),
                    ..Call::new(function, pid(&mut input), counter)
                };
                if pmc.call(&call, &host).is_ok() {
                    pmc.diverge(&call, call.value % 2 == 1);
                }
            }
            3 | 4 => {
                let counted = counted(&mut input);
                pmc.count(&counted);
                account.count(&counted);
            }
            5 => {
                let pid = pid(&mut input);
                let started = input.u8();
                pmc.end(pid, (started != 0).then(|| u64::from(started)));
            }
            6 => {
                // Totals go up, and what a host can count stays; here it may be another one.
                host.total = host.total.saturating_add(u64::from(input.u32()));
                host.counts = input.u32();
            }
            _ => pmc.stop_profiling(),
        }
        check(&pmc);
        assert_eq!(account.counters() & !ALL_COUNTERS, 0);
        account.rows().count();
    }
    pmc.end_all();
    assert_eq!((pmc.processes().len(), pmc.wanted()), (0, 0));
}

/// Few, so that they are met again; among them the kernel and what is no pid.
fn pid(input: &mut Input<'_>) -> i32 {
    match input.u8() % 8 {
        0 => KERNEL,
        1 => 0,
        2 => i32::MIN,
        number => i32::from(number),
    }
}

fn counted(input: &mut Input<'_>) -> Counted {
    let mut process = || ProcessKey {
        pid: pid(input),
        started: input.u8().into(),
    };
    let (process, parent) = (process(), process());
    let mut counts = [0; COUNTERS];
    // Nothing is counted 2^48 times at once.
    counts[usize::from(input.u8()) % COUNTERS] = input.u64() >> 16;
    Counted {
        process,
        parent: (parent.pid > 0).then_some(Parent {
            key: parent,
            may_have_adopted: parent.started % 2 == 1,
        }),
        comm: *b"fuzzed\0\0\0\0\0\0\0\0\0\0",
        counts,
    }
}

/// A process that counts, forks and ends, and the kernel's use of counters.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let call = |function, pid, counter: CounterId| {
        let number = i32::try_from(counter.number()).unwrap();
        [&[0][..], &Call::new(function, pid, number).encode()].concat()
    };
    // One of the counter's events, of process 3 that was started at 9, whose parent is 4.
    let counted = |counter: CounterId| {
        [
            &[3, 3, 9, 4, 8, u8::try_from(counter.number()).unwrap()][..],
            &(100_u64 << 16).to_le_bytes(),
        ]
        .concat()
    };
    let begin = ALL_COUNTERS.to_le_bytes().to_vec();
    let exits = CounterId::PortReads;
    let process = [
        begin.clone(),
        call(Function::Configure, 3, exits),
        call(Function::Enable, 3, exits),
        counted(exits),
        call(Function::Value, 3, exits),
        call(Function::Accumulate, 3, exits),
        call(Function::SaveContext, 3, exits),
        counted(exits),
        call(Function::RestoreContext, 3, exits),
        call(Function::Disable, 3, exits),
        vec![5, 3, 9],
        vec![5, 3, 0],
    ];
    let kernel = [
        begin,
        call(Function::NumCounters, KERNEL, exits),
        call(Function::CounterType, KERNEL, exits),
        call(Function::AllocKernel, KERNEL, exits),
        vec![6, 9, 0, 0, 0, 255, 255, 255, 255],
        call(Function::Value, KERNEL, exits),
        call(Function::FreeKernel, KERNEL, exits),
        call(Function::StartProfiling, KERNEL, exits),
        vec![7],
        call(Function::StopProfiling, KERNEL, exits),
    ];
    vec![("process", process.concat()), ("kernel", kernel.concat())]
}
