//! A recording like a busy guest's: the symbols of a distribution kernel, many processes, and repeated stacks, some
//! more frequent than others.

#[path = "../../tests/shared/random.rs"]
mod random;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use kvmprof_recording::file::{Account, Block, Kind, RecordingInfo, SamplesEncoder, header};
use kvmprof_recording::{Mode, Sample, StackEnd, StackSummary, comm_of};

use super::Result;
use random::Random;

/// Functions of the kernel and of each program, and their bytes.
const FUNCTIONS: u64 = 100_000;
const USER_FUNCTIONS: u64 = 4_000;
const FUNCTION: u64 = 256;
const KERNEL: u64 = 0xffff_ffff_8100_0000;
const USER: u64 = 0x40_0000;
/// System calls and interrupts, or what a program's main function calls.
const ENTRIES: u64 = 300;
/// Functions that each other function calls.
const CALLEES: u64 = 4;
const PROCESSES: u64 = 200;
const STACKS: u64 = 20_000;
const VCPUS: u16 = 4;
const HZ: u32 = 1000;

impl Random {
    /// Low numbers come more often.
    fn skewed(&mut self, bound: u64) -> u64 {
        let below = self.below(bound) + 1;
        self.below(below)
    }
}

/// A process and stack that samples are taken from.
struct Template {
    sample: Sample,
    frames: Vec<u64>,
}

impl Template {
    fn new(random: &mut Random) -> Self {
        let pid = i32::try_from(100 + random.skewed(PROCESSES)).unwrap_or_default();
        let kernel = match random.below(3) {
            0 => 0,
            _ => 2 + random.below(12),
        };
        let user = 1 + random.below(10);
        let mut frames = calls(random, kernel, (KERNEL, FUNCTIONS));
        frames.extend(calls(random, user, (USER, USER_FUNCTIONS)));
        let sample = Sample {
            pc: frames[0],
            pid,
            tid: pid,
            comm: comm_of(&format!("process {pid}")),
            mode: match kernel {
                0 => Mode::User,
                _ => Mode::Kernel,
            },
            address_space: u64::from(pid.unsigned_abs()) << 13,
            stack: StackSummary {
                kernel: u16::try_from(kernel).unwrap_or_default(),
                user: u16::try_from(user).unwrap_or_default(),
                host: 0,
                kernel_end: match kernel {
                    0 => StackEnd::Absent,
                    _ => StackEnd::Complete,
                },
                user_end: StackEnd::Complete,
            },
            ..Sample::default()
        };
        Self { sample, frames }
    }
}

/// A stack of this depth, the innermost frame first, of functions from `begin` on.
fn calls(random: &mut Random, depth: u64, (begin, functions): (u64, u64)) -> Vec<u64> {
    let mut frames = Vec::new();
    let (mut function, mut callees) = (0, ENTRIES);
    for _ in 0..depth {
        let callee = random.skewed(callees);
        // Where it calls that.
        frames.insert(0, begin + function * FUNCTION + callee % FUNCTION);
        // Any number without a factor in common with theirs spreads callees over all functions.
        function = (function * 7919 + (callee + 1) * 104_729) % functions;
        callees = CALLEES;
    }
    frames
}

/// Writes a recording of `samples` samples to `path`; returns the average number of frames.
pub fn write(path: &Path, samples: u64) -> Result<f64> {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let templates: Vec<Template> = (0..STACKS).map(|_| Template::new(&mut random)).collect();
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&header())?;
    let mut add = |block: Option<Vec<u8>>| -> Result<()> {
        Ok(file.write_all(&block.ok_or("a block is too long")?)?)
    };
    let info = RecordingInfo {
        hz: HZ,
        vcpus: VCPUS.into(),
        ..RecordingInfo::default()
    };
    add(info.to_block())?;
    add(Block::encode(Kind::Symbols, symbols().as_bytes()))?;
    let (mut encoder, mut frames) = (SamplesEncoder::default(), 0);
    for number in 0..samples {
        let index = usize::try_from(random.skewed(STACKS))?;
        let template = &templates[index];
        let vcpu = u16::try_from(number % u64::from(VCPUS))?;
        let sample = Sample {
            vcpu,
            time: number / u64::from(VCPUS) * (1_000_000_000 / u64::from(HZ)),
            ..template.sample
        };
        encoder.push(&sample.into(), &template.frames);
        frames += template.frames.len() as u64;
        if encoder.is_full() {
            add(encoder.take().to_blocks())?;
        }
    }
    add(encoder.take().to_blocks())?;
    let account = Account {
        ticks: samples,
        samples,
        ..Account::default()
    };
    add(account.to_block())?;
    file.flush()?;
    Ok(frames as f64 / samples.max(1) as f64)
}

/// The duration of a recording of this many samples, in seconds.
pub fn seconds(samples: u64) -> u64 {
    samples / u64::from(VCPUS) / u64::from(HZ)
}

fn symbols() -> String {
    let mut text = String::new();
    for number in 0..FUNCTIONS {
        // Writing to a String cannot fail.
        let address = KERNEL + number * FUNCTION;
        let _ = writeln!(text, "{address:016x} t function_{number}");
    }
    text
}
