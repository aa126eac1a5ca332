//! Streams and snapshots for tests.

use std::time::Duration;

use kvmprof_recording::{Mode, Sample, StackEnd, StackSummary, Ticks, comm_of};

use super::{Model, Snapshot};
use kvmprof_recording::file::{Account, Block, Kind, RecordingInfo, SamplesEncoder, header};

/// A recorder's stream.
pub struct Stream {
    encoder: SamplesEncoder,
}

pub fn stream() -> Stream {
    Stream {
        encoder: SamplesEncoder::default(),
    }
}

/// The begin of a recording of two vCPUs.
fn beginning(kernel: &str, symbols: &str) -> Vec<u8> {
    let info = RecordingInfo {
        kernel: kernel.to_owned(),
        vcpus: 2,
        hz: 100,
        ..RecordingInfo::default()
    };
    let symbols = Block::encode(Kind::Symbols, symbols.as_bytes()).unwrap();
    [&header()[..], &info.to_block().unwrap(), &symbols].concat()
}

impl Stream {
    pub fn begin(&self) -> Vec<u8> {
        let symbols = "1000 T do_syscall\n2000 t copy_page\n3000 t handle_irq\n";
        beginning("vmlinuz-6.1", symbols)
    }

    pub fn samples(&mut self, all: &[(Ticks, Vec<u64>)]) -> Vec<u8> {
        for (ticks, frames) in all {
            self.encoder.push(ticks, frames);
        }
        self.encoder.take().to_blocks().unwrap()
    }

    pub fn end(&self) -> Vec<u8> {
        Account::default().to_block().unwrap()
    }
}

fn sample(pid: i32, name: &str, mode: Mode, vcpu: u16, frames: &[u64]) -> (Ticks, Vec<u64>) {
    let kernel = frames.iter().filter(|frame| **frame < 0x10_0000).count();
    let stack = StackSummary {
        kernel: u16::try_from(kernel).unwrap(),
        user: u16::try_from(frames.len() - kernel).unwrap(),
        host: 0,
        kernel_end: StackEnd::Complete,
        user_end: StackEnd::Complete,
    };
    let sample = Sample {
        pid,
        tid: pid,
        comm: comm_of(name),
        mode,
        vcpu,
        pc: frames[0],
        stack,
        ..Sample::default()
    };
    (sample.into(), frames.to_vec())
}

/// A tick in the kernel.
pub fn process(pid: i32, frames: &[u64]) -> (Ticks, Vec<u64>) {
    sample(pid, "some", Mode::Kernel, 0, frames)
}

/// A second of two vCPUs: `worker` and `weaver` on one, an interrupt and idle time on the other.
pub fn model() -> Model {
    let mut all = Vec::new();
    let mut add = |count, ticks: (Ticks, Vec<u64>)| all.extend((0..count).map(|_| ticks.clone()));
    add(60, sample(7, "worker", Mode::User, 0, &[0x40_0100]));
    let call = [0x2004, 0x1008, 0x40_0200];
    add(30, sample(7, "worker", Mode::Kernel, 0, &call));
    add(10, sample(7, "worker", Mode::Interrupt, 1, &[0x3001]));
    add(10, sample(12, "weaver", Mode::User, 0, &[0x40_0100]));
    let gap = Ticks {
        vcpu: 1,
        idle: 50,
        stolen: 4,
        lost: 2,
        ..Ticks::default()
    };
    add(1, (gap, Vec::new()));
    let mut model = Model::new(Duration::from_secs(10), Duration::ZERO);
    let mut stream = stream();
    let bytes = [stream.begin(), stream.samples(&all)].concat();
    model.feed(&bytes, Duration::from_secs(1)).unwrap();
    model
}

pub fn snapshot() -> Snapshot {
    model().snapshot()
}

/// Characters that act on a terminal or mislead: an escape sequence, an 8-bit control character, a change of direction, and one
/// without width.
pub const HOSTILE: [char; 5] = ['\x1b', '\u{9b}', '\u{202e}', '\u{200b}', '\u{2066}'];

/// A guest whose kernel, functions and process have hostile names.
pub fn hostile_model() -> Model {
    let evil: String = HOSTILE.iter().flat_map(|evil| ['a', *evil]).collect();
    let symbols = format!("1000 T do_{evil}\n2000 t copy_{evil}\n");
    // As much as fits into its 16 bytes: three of them.
    let name = "n\x1b[2J\u{202e}\u{200b}";
    let samples = stream().samples(&[sample(7, name, Mode::Kernel, 0, &[0x2004, 0x1008])]);
    let bytes = [beginning(&format!("vmlinuz-{evil}"), &symbols), samples];
    let mut model = Model::new(Duration::from_secs(10), Duration::ZERO);
    model.feed(&bytes.concat(), Duration::from_secs(1)).unwrap();
    model
}
