//! A recording like a busy guest's: the symbols of a distribution kernel, many processes, and repeated stacks, some
//! more frequent than others.

#[path = "../../tests/shared/random.rs"]
mod random;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use kvmprof_recording::file::{Account, Block, Kind, RecordingInfo, SamplesEncoder, header};
use kvmprof_recording::{COMM_LENGTH, Mode, Sample, StackEnd, StackSummary, Ticks};

use super::Result;
use random::Random;

/// Functions of the kernel, and their bytes.
const FUNCTIONS: u64 = 100_000;
const FUNCTION: u64 = 256;
const KERNEL: u64 = 0xffff_ffff_8100_0000;
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
        let kernel = if random.below(3) == 0 {
            0
        } else {
            2 + random.below(12)
        };
        let user = 1 + random.below(10);
        let mut frames: Vec<u64> = (0..kernel)
            .map(|_| KERNEL + random.skewed(FUNCTIONS) * FUNCTION + random.below(FUNCTION))
            .collect();
        frames.extend((0..user).map(|_| 0x40_0000 + random.skewed(1 << 16)));
        let mut comm = [0; COMM_LENGTH];
        let name = format!("process {pid}");
        comm[..name.len()].copy_from_slice(name.as_bytes());
        let sample = Sample {
            pc: frames[0],
            pid,
            tid: pid,
            comm,
            mode: if kernel == 0 {
                Mode::User
            } else {
                Mode::Kernel
            },
            address_space: u64::from(pid.unsigned_abs()) << 13,
            stack: StackSummary {
                kernel: u16::try_from(kernel).unwrap_or_default(),
                user: u16::try_from(user).unwrap_or_default(),
                host: 0,
                kernel_end: if kernel == 0 {
                    StackEnd::Absent
                } else {
                    StackEnd::Complete
                },
                user_end: StackEnd::Complete,
            },
            ..Sample::default()
        };
        Self { sample, frames }
    }
}

/// Writes a recording of `samples` samples to `path`; returns the average number of frames.
pub fn write(path: &Path, samples: u64) -> Result<f64> {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let templates: Vec<Template> = (0..STACKS).map(|_| Template::new(&mut random)).collect();
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&header())?;
    let mut add = |kind, contents: &[u8]| -> Result<()> {
        let block = Block::encode(kind, contents).ok_or("a block is too long")?;
        Ok(file.write_all(&block)?)
    };
    let info = RecordingInfo {
        hz: HZ,
        vcpus: VCPUS.into(),
        ..RecordingInfo::default()
    };
    add(Kind::Info, &serde_json::to_vec(&info)?)?;
    add(Kind::Symbols, symbols().as_bytes())?;
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
        let ticks = Ticks {
            vcpu,
            sample: Some(sample),
            ..Ticks::default()
        };
        encoder.push(&ticks, &template.frames);
        frames += template.frames.len() as u64;
        if encoder.is_full() {
            add_block(&mut add, &mut encoder)?;
        }
    }
    add_block(&mut add, &mut encoder)?;
    let account = Account {
        ticks: samples,
        samples,
        ..Account::default()
    };
    add(Kind::End, &serde_json::to_vec(&account)?)?;
    file.flush()?;
    Ok(frames as f64 / samples.max(1) as f64)
}

/// Adds the data of the encoder.
fn add_block(
    add: &mut impl FnMut(Kind, &[u8]) -> Result<()>,
    encoder: &mut SamplesEncoder,
) -> Result<()> {
    let block = encoder.take();
    add(Kind::Times, &block.times)?;
    add(Kind::Samples, &block.bytes)
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
