//! Recordings for tests, written like the recorder's.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]
#![allow(dead_code, reason = "each test uses a part")]

use std::path::Path;

use kvmprof_recording::file::{
    Account, Block, Kind, RecordingInfo, SampleBlock, SamplesEncoder, header,
};
use kvmprof_recording::{COMM_LENGTH, Mode, Sample, StackEnd, StackParts, StackSummary, Ticks};

/// The start of recordings, in ns.
const BEGAN: u64 = 5_000_000_000;
/// Time between two ticks, in ns.
const PERIOD: u64 = 1_000_000;

/// The properties of a stack with so many frames in the kernel and in user mode, which ends in user mode this way if it has such a part.
pub fn stack_of(kernel: usize, user: usize, user_end: StackEnd) -> StackSummary {
    let end = |frames, end| match frames {
        0 => StackEnd::Absent,
        _ => end,
    };
    StackSummary {
        kernel: kernel.try_into().unwrap(),
        user: user.try_into().unwrap(),
        host: 0,
        kernel_end: end(kernel, StackEnd::Complete),
        user_end: end(user, user_end),
    }
}

/// A recording that is being written.
pub struct Written {
    pub info: RecordingInfo,
    /// Further blocks, which come before those of samples.
    pub guest: Vec<Vec<u8>>,
    encoder: SamplesEncoder,
    blocks: Vec<SampleBlock>,
    account: Account,
    symbols: String,
    time: u64,
    user_end: StackEnd,
}

impl Written {
    /// A recording with these symbols of the kernel, in the form of `/proc/kallsyms`.
    pub fn with_symbols(symbols: &str) -> Self {
        let info = RecordingInfo {
            program: "0.1.0".to_owned(),
            kernel: "bzImage".to_owned(),
            vcpus: 1,
            hz: 1000,
            clock: "thread".to_owned(),
            jitter: true,
            memory_bytes: 256 << 20,
            began_ns: 1_700_000_000_000_000_000,
            began_monotonic_ns: BEGAN,
            stacks: StackParts::BOTH,
            ..RecordingInfo::default()
        };
        Self {
            info,
            guest: Vec::new(),
            encoder: SamplesEncoder::default(),
            blocks: Vec::new(),
            account: Account::default(),
            symbols: symbols.to_owned(),
            time: BEGAN,
            user_end: StackEnd::Complete,
        }
    }

    /// The end of the user part of the stacks added from now on, if they have one.
    pub fn user_parts_end(&mut self, end: StackEnd) {
        self.user_end = end;
    }

    /// Adds `count` samples of process `pid` in `mode`, a tick apart. Their stack has these frames in the kernel and in
    /// user mode.
    pub fn samples(
        &mut self,
        count: u64,
        (pid, name): (i32, &[u8]),
        mode: Mode,
        stack: (&[u64], &[u64]),
    ) {
        let mut comm = [0; COMM_LENGTH];
        comm[..name.len()].copy_from_slice(name);
        let sample = Sample {
            pid,
            tid: pid,
            comm,
            mode,
            ..Sample::default()
        };
        self.samples_like(&sample, count, stack);
    }

    /// The same, whose other properties are those of `sample`.
    pub fn samples_like(&mut self, sample: &Sample, count: u64, (kernel, user): (&[u64], &[u64])) {
        let frames = [kernel, user].concat();
        for _ in 0..count {
            self.time += PERIOD;
            let sample = Sample {
                time: self.time,
                pc: frames[0],
                stack: stack_of(kernel.len(), user.len(), self.user_end),
                ..*sample
            };
            self.push(&sample.into(), &frames);
        }
    }

    /// Adds ticks of any time.
    pub fn push(&mut self, ticks: &Ticks, frames: &[u64]) {
        self.encoder.push(ticks, frames);
        self.account.enter(ticks);
    }

    /// Ticks without a sample.
    pub fn gap(&mut self, idle: u64, stolen: u64, lost: u64) {
        let ticks = Ticks {
            idle,
            stolen,
            lost,
            ..Ticks::default()
        };
        self.push(&ticks, &[]);
        self.time += PERIOD * ticks.total();
    }

    /// Begins another block.
    pub fn end_block(&mut self) {
        self.blocks.push(self.encoder.take());
    }

    /// Closes it and writes it to `path`.
    pub fn write(self, path: &Path) {
        std::fs::write(path, self.finish().0).unwrap();
    }

    /// Closes it: the file's bytes, and its blocks in their order.
    pub fn finish(mut self) -> (Vec<u8>, Vec<WrittenBlock>) {
        self.end_block();
        let mut bytes = header().to_vec();
        let mut written = Vec::new();
        let mut add = |block: Option<Vec<u8>>, samples| {
            bytes.extend(block.unwrap());
            written.push(WrittenBlock {
                end: bytes.len(),
                samples,
            });
        };
        add(self.info.to_block(), 0);
        add(Block::encode(Kind::Symbols, self.symbols.as_bytes()), 0);
        for block in self.guest {
            add(Some(block), 0);
        }
        for block in self.blocks {
            if !block.details.is_empty() {
                add(Block::encode(Kind::Details, &block.details), 0);
            }
            add(Block::encode(Kind::Samples, &block.bytes), block.samples);
        }
        add(self.account.to_block(), 0);
        (bytes, written)
    }
}

/// A block of a recording.
#[derive(Clone, Copy, Debug)]
pub struct WrittenBlock {
    /// The offset of its end in the file, in bytes.
    pub end: usize,
    /// The number of its samples.
    pub samples: u64,
}

/// The symbols of [`ordinary`] recordings.
const SYMBOLS: &str = "\
ffffffff81000000 T entry_SYSCALL_64
ffffffff81001000 T ksys_read
ffffffff81002000 t copy_page
ffffffff81003000 T asm_timer_interrupt
ffffffff81004000 T _end
";

/// A recording with two processes; `copying` samples of one are in copy_page.
pub fn ordinary(path: &Path, copying: u64) {
    let mut written = Written::with_symbols(SYMBOLS);
    let syscall = [0xffff_ffff_8100_1010, 0xffff_ffff_8100_0010];
    let copy = [0xffff_ffff_8100_2010, syscall[0], syscall[1]];
    let main = [0x40_1234, 0x40_1000];
    let worker = (7, b"worker".as_slice());
    written.samples(60, worker, Mode::User, (&[], &main));
    written.samples(copying, worker, Mode::Kernel, (&copy, &main));
    written.gap(30, 4, 2);
    written.samples(25, (9, b"logger"), Mode::Kernel, (&syscall, &main));
    written.samples(
        5,
        (9, b"logger"),
        Mode::Interrupt,
        (&[0xffff_ffff_8100_3001], &[]),
    );
    written.write(path);
}
