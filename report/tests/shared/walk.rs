//! Recordings of a guest with two vCPUs with random activity: processes of several threads, recurring and truncated stacks,
//! idle, stolen and lost ticks.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::path::Path;

use kvmprof_recording::file::{Account, Block, Kind, RecordingInfo, SamplesEncoder, header};
use kvmprof_recording::{Mode, Sample, StackEnd, StackParts, Ticks, comm_of};

use super::random::Random;
use super::recordings::stack_of;

/// The start, in ns.
pub const BEGAN: u64 = 7_000_000_000;
/// The clock's rate.
const HZ: u32 = 250;
const PERIOD: u64 = 1_000_000_000 / HZ as u64;
const VCPUS: u16 = 2;
/// Number of runs of ticks in a block.
const BLOCK: u64 = 100;
const PIDS: [i32; 4] = [-1, 31, 32, 33];
const KERNEL: u64 = 0xffff_ffff_8100_0000;
const FUNCTION: u64 = 0x100;
const FUNCTIONS: [&str; 6] = [
    "entry",
    "sys_read",
    "copy_page",
    "schedule",
    "timer",
    "walk_tree",
];

impl Random {
    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }
}

/// Writes a recording of about `ticks` ticks to `path`. The same `seed` gives the same one.
pub fn write(path: &Path, seed: u64, ticks: u64) {
    let mut random = Random(seed.max(1));
    let info = RecordingInfo {
        program: "0.1.0".to_owned(),
        kernel: "walk".to_owned(),
        vcpus: VCPUS.into(),
        hz: HZ,
        clock: "thread".to_owned(),
        began_monotonic_ns: BEGAN,
        stacks: StackParts {
            kernel: true,
            user: true,
        },
        ..RecordingInfo::default()
    };
    let symbols = (0..).zip(FUNCTIONS);
    let symbols =
        symbols.map(|(number, name)| format!("{:x} T {name}\n", KERNEL + number * FUNCTION));
    let symbols = Block::encode(Kind::Symbols, symbols.collect::<String>().as_bytes()).unwrap();
    let mut bytes = [&header()[..], &info.to_block().unwrap(), &symbols].concat();
    let mut encoder = SamplesEncoder::default();
    let mut account = Account::default();
    let mut times = [BEGAN; VCPUS as usize];
    for number in 0..ticks {
        let vcpu = u16::try_from(number % u64::from(VCPUS)).unwrap();
        let (ticks, frames) = run(&mut random, vcpu, &mut times[usize::from(vcpu)]);
        account.enter(&ticks);
        encoder.push(&ticks, &frames);
        if number % BLOCK == BLOCK - 1 {
            bytes.extend(encoder.take().to_blocks().unwrap());
        }
    }
    bytes.extend(encoder.take().to_blocks().unwrap());
    bytes.extend(account.to_block().unwrap());
    std::fs::write(path, bytes).unwrap();
}

/// The next run of a vCPU's ticks, and the frames of its sample.
fn run(random: &mut Random, vcpu: u16, time: &mut u64) -> (Ticks, Vec<u64>) {
    let mut few = |most: u64| match random.below(8) {
        0 => random.below(most),
        _ => 0,
    };
    let mut ticks = Ticks {
        vcpu,
        idle: few(90),
        stolen: few(5),
        lost: few(4),
        ungathered: few(3),
        sample: None,
    };
    // The clock isn't exact.
    *time += PERIOD * ticks.total() + random.below(2 * PERIOD);
    if random.below(20) == 0 {
        return (ticks, Vec::new());
    }
    let (sample, frames) = sample(random, vcpu, *time);
    ticks.sample = Some(sample);
    (ticks, frames)
}

fn sample(random: &mut Random, vcpu: u16, time: u64) -> (Sample, Vec<u64>) {
    let pid = random.pick(&PIDS);
    let tid = match pid {
        ..0 => pid,
        _ => pid + 100 * random.pick(&[0, 1, 2]),
    };
    let mode = random.pick(&[&[Mode::User][..], &Mode::ALL].concat());
    let (pid, tid) = match mode {
        Mode::Idle => (0, 0),
        _ => (pid, tid),
    };
    let depth = |random: &mut Random| random.below(6);
    let kernel = match mode {
        Mode::User => 0,
        _ => 1 + depth(random),
    };
    let user = match mode {
        Mode::Idle => 0,
        _ => depth(random) + u64::from(mode == Mode::User),
    };
    let mut frames: Vec<u64> = Vec::new();
    for _ in 0..kernel {
        frames.push(KERNEL + random.below(FUNCTIONS.len() as u64) * FUNCTION + random.below(4));
    }
    for _ in 0..user {
        frames.push(0x40_0000 + 0x40 * random.below(7));
    }
    let end = match user {
        0 => StackEnd::Absent,
        _ => random.pick(&[StackEnd::Complete, StackEnd::Complete, StackEnd::Broken]),
    };
    let [kernel, user] = [kernel, user].map(|frames| usize::try_from(frames).unwrap());
    let sample = Sample {
        time,
        vcpu,
        pid,
        tid,
        mode,
        comm: comm_of(&format!("walker {tid}")),
        pc: frames[0],
        stack: stack_of(kernel, user, end),
        ..Sample::default()
    };
    (sample, frames)
}
