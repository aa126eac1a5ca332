//! The response time of `kvmprof status` during attacks by a guest or clients: for each of them the median, the 99th percentile and
//! the maximum of many answers. Fails if a 99th percentile is over [`LIMIT`]; on a busy machine, run it again.

mod attached;
mod clients;
mod guests;
#[expect(clippy::unwrap_used, reason = "it is part of a test")]
#[path = "../../tests/demo/attach_hostile/memory.rs"]
mod memory;
#[expect(clippy::unwrap_used, reason = "it is part of a test")]
#[path = "../../tests/demo/attach_hostile/vcpu_thread.rs"]
mod vcpu_thread;
#[expect(clippy::unwrap_used, dead_code, reason = "it is part of a test")]
#[path = "../../tests/demo/attach_hostile/vmm.rs"]
mod vmm;

use std::thread::sleep;
use std::time::{Duration, Instant};

use kvmprof_abi::wire::device;
use kvmprof_client::Connection;
use kvmprof_tests::Guest;
use rustix::process::Signal;

/// The limit of the 99th percentile.
const LIMIT: Duration = Duration::from_millis(100);
/// Answers that are measured in each case, unless the environment says otherwise.
const ANSWERS: usize = 2000;
/// Overrides [`ANSWERS`].
const ANSWERS_VARIABLE: &str = "KVMPROF_BENCH_ANSWERS";
/// Time between an answer and the next request: many attacks end at some time, and later ones have to be measured as well.
const PAUSE: Duration = Duration::from_millis(1);
/// An argument of the VMM's process, which is this program again.
const VMM_ARGUMENT: &str = "attach_hostile::the_vmm";
/// More than the document has with all possible clients.
const MAX_STATUS: usize = 8 << 20;

/// A case: its description, and the function that measures the answers during it.
type Case = (&'static str, fn(usize) -> Times);

const CASES: [Case; 22] = [
    ("nobody disturbs", guests::at_rest),
    ("guest: hostile memory, recorded", guests::hostile_memory),
    ("guest: floods its port", guests::port_flood),
    ("guest: exits without an end", guests::exits),
    ("guest: 8 vCPUs, interrupts off", guests::interrupts_off),
    ("guest: attacks the console", guests::console_queues),
    ("guest: attacks network and entropy", guests::network_queues),
    ("guest: attacks a disk", guests::disk_queues),
    ("guest: sends frames without an end", guests::frames),
    ("guest: reads a disk without an end", guests::disk_load),
    ("guest: its sockets are flooded", guests::socket_device),
    ("guest: resets itself in a loop", guests::resets),
    (
        "clients: all recorders, none read",
        clients::stalled_recorders,
    ),
    (
        "clients: idle pmc and profil handles",
        clients::idle_handles,
    ),
    (
        "clients: start and close recorders",
        clients::recorders_in_a_loop,
    ),
    ("clients: open and close pcs", clients::opens),
    ("clients: ask and don't read", clients::unread_answers),
    ("clients: connect and send rubbish", clients::rubbish),
    ("clients: ask for all symbols", clients::symbols),
    ("clients: ask for all counters", clients::counters),
    ("attach: to a VMM that lies", attached::lying_vmm),
    ("attach: to a VMM that fights", attached::fighting_vmm),
];

/// Times of answers, the shortest first.
struct Times(Vec<Duration>);

impl Times {
    /// Asks `answers` times, over one connection.
    fn of(guest: &Guest, answers: usize) -> Self {
        Self::over(&guest.connect(), answers)
    }

    fn over(connection: &Connection, answers: usize) -> Self {
        let ask = || {
            sleep(PAUSE);
            let begun = Instant::now();
            connection
                .snapshot(device::STATUS, MAX_STATUS)
                .expect("a status document");
            begun.elapsed()
        };
        let mut times: Vec<_> = std::iter::repeat_with(ask).take(answers).collect();
        times.sort_unstable();
        Self(times)
    }

    /// The percentile of the answers' times.
    fn percentile(&self, percent: usize) -> Duration {
        let last = self.0.len() - 1;
        self.0[last * percent / 100]
    }
}

/// Ends a guest without an error. Its standard error may have messages about clients that disturbed it.
fn end(mut guest: Guest) {
    guest.signal(Signal::TERM);
    let ran = guest.wait();
    assert_eq!(ran.status, 0, "{ran:?}");
}

fn main() {
    // cargo test runs benches too, to see that they start.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    if std::env::args().any(|argument| argument == VMM_ARGUMENT) {
        return vmm::be_vmm();
    }
    let answers = std::env::var(ANSWERS_VARIABLE)
        .ok()
        .map_or(ANSWERS, |text| text.parse().expect(ANSWERS_VARIABLE));
    assert!(answers > 0, "{ANSWERS_VARIABLE} is at least 1");
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "{:<36} {:>9} {:>9} {:>9}",
        "answers of status, in ms", "median", "99 %", "longest"
    );
    let mut slow = Vec::new();
    for (name, measure) in CASES {
        let times = measure(answers);
        let [median, high, longest] = [50, 99, 100].map(|percent| times.percentile(percent));
        println!(
            "{name:<36} {:>9.2} {:>9.2} {:>9.2}",
            ms(median),
            ms(high),
            ms(longest)
        );
        if high > LIMIT {
            slow.push(name);
        }
    }
    assert!(
        slow.is_empty(),
        "the 99th percentile is over {} ms: {slow:?}",
        ms(LIMIT)
    );
    println!("every 99th percentile is at most {} ms", ms(LIMIT));
}
