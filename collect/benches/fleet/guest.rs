//! Simulated guests: servers of the wire whose recorder has made-up samples.

#[path = "../../../report/tests/shared/random.rs"]
mod random;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, sleep};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvmprof_abi::recorder::REC_INTERVAL;
use kvmprof_abi::wire::{HelloReply, Reply, ReplyFrame, Request, RequestFrame, device};
use kvmprof_recording::counters::Counter;
use kvmprof_recording::file::{Block, Kind, RecordingInfo, SamplesEncoder, header};
use kvmprof_recording::{Mode, Sample, StackEnd, StackSummary, Ticks};
use random::Random;
use rustix::time::{ClockId, clock_gettime};

/// Ticks a second of each guest.
pub const HZ: u32 = 19;
const RECORDING: u32 = 1;
const COUNTERS: u32 = 2;
/// The counters of guest/abi/PMC.md.
const COUNTED: [&str; 19] = [
    "cpu-time",
    "ticks",
    "port-reads",
    "port-writes",
    "mmio-reads",
    "mmio-writes",
    "interrupted",
    "exits",
    "halts",
    "interrupts",
    "tlb-flushes",
    "emulated",
    "page-faults",
    "cycles",
    "instructions",
    "branches",
    "branch-misses",
    "cache-references",
    "cache-misses",
];
const STACKS: u64 = 200;
const FRAMES: u16 = 16;
/// As many as in a distribution's kernel with modules. Their names have 20 to 27 letters.
const FUNCTIONS: u64 = 60_000;
const MODULE_FUNCTIONS: u64 = 200;
const MODULES: u64 = 50;
/// The address in the first guest; it differs in the others, as by KASLR.
const KERNEL: u64 = 0xffff_ffff_8100_0000;
const MODULE_SPACE: u64 = 0xffff_ffff_c000_0000;
const SLIDE: u64 = 2 << 20;

/// All of them.
pub struct Guests(Arc<AtomicU64>);

impl Guests {
    /// Ticks that were sent.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    pub fn ticks(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64
    }
}

/// Starts `count` guests whose sockets are in `folder`.
pub fn start(folder: &Path, count: usize) -> Guests {
    let ticks = Arc::new(AtomicU64::new(0));
    for number in 0..count {
        let listener = UnixListener::bind(folder.join(format!("{number}.sock"))).expect("a socket");
        let ticks = Arc::clone(&ticks);
        let serve = move || {
            for stream in listener.incoming() {
                // The collector has ended.
                let _ = stream.and_then(|stream| serve(stream, number as u64, &ticks));
            }
        };
        Builder::new()
            .stack_size(64 << 10)
            .spawn(serve)
            .expect("a thread");
    }
    Guests(ticks)
}

fn serve(mut stream: UnixStream, number: u64, ticks: &AtomicU64) -> std::io::Result<()> {
    let mut recording = Recording::new(number);
    let mut counters = Counters::default();
    let (mut buffer, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut chunk)?;
        if count == 0 {
            return Ok(());
        }
        buffer.extend_from_slice(&chunk[..count]);
        while let Ok(Some((frame, length))) = RequestFrame::decode(&buffer) {
            let data;
            let reply = match frame.request {
                Request::Hello { lowest, highest } => {
                    Reply::Hello(HelloReply::answer(lowest, highest, 1, HZ))
                }
                Request::Open { device, .. } if device == device::PMC => {
                    counters = Counters::default();
                    Reply::Open { handle: COUNTERS }
                }
                Request::Open { .. } => Reply::Open { handle: RECORDING },
                Request::Ioctl {
                    command, argument, ..
                } => {
                    if command == REC_INTERVAL {
                        recording.interval = argument.unsigned_abs().max(1);
                    }
                    Reply::Ioctl {
                        value: 0,
                        data: &[],
                    }
                }
                Request::Read { handle, .. } if handle == COUNTERS => {
                    data = counters.next();
                    Reply::Read { data: &data }
                }
                Request::Read { limit, .. } => {
                    data = recording.read(limit as usize, ticks);
                    Reply::Read { data: &data }
                }
                _ => Reply::Close,
            };
            let reply = ReplyFrame::success(frame.tag, reply);
            let mut bytes = vec![0; reply.encoded_length()];
            reply.encode(&mut bytes).map_err(std::io::Error::other)?;
            stream.write_all(&bytes)?;
            buffer.drain(..length);
        }
    }
}

/// The status of a guest of one vCPU.
#[derive(Default)]
struct Counters {
    has_been_read: bool,
}

impl Counters {
    fn next(&mut self) -> Vec<u8> {
        if std::mem::replace(&mut self.has_been_read, true) {
            return Vec::new();
        }
        let counter = |name: &&str| Counter {
            name: (*name).to_owned(),
            description: "exits to kvmprof by a read of an address without memory".to_owned(),
            source: "kvm".to_owned(),
            vcpus: vec![1_234_567],
            ..Counter::default()
        };
        let document = kvmprof_recording::counters::Counters {
            counters: COUNTED.iter().map(counter).collect(),
            ..kvmprof_recording::counters::Counters::default()
        };
        serde_json::to_vec(&document).expect("JSON")
    }
}

/// The first blocks of guest `number`'s recording.
fn begin(number: u64) -> Vec<u8> {
    let info = RecordingInfo {
        hz: HZ,
        vcpus: 1,
        ..RecordingInfo::default()
    };
    let info = serde_json::to_vec(&info).expect("JSON");
    let slide = SLIDE * number;
    let mut symbols = String::new();
    for function in 0..FUNCTIONS {
        let address = KERNEL + slide + 256 * function;
        symbols += &format!("{address:x} t function_of_kernel_{function}\n");
    }
    for module in 0..MODULES {
        symbols += "\n";
        for function in 0..MODULE_FUNCTIONS {
            let address = MODULE_SPACE + slide % (1 << 28) + (module << 20) + 256 * function;
            symbols += &format!("{address:x} t function_of_module_{function}\t[module{module}]\n");
        }
    }
    let blocks = [
        Block::encode(Kind::Info, &info),
        Block::encode(Kind::Symbols, symbols.as_bytes()),
    ];
    let blocks = blocks.into_iter().flatten().flatten();
    header().into_iter().chain(blocks).collect()
}

struct Recording {
    number: u64,
    /// The rest of the recording's first blocks.
    waiting: Vec<u8>,
    random: Random,
    /// Seconds of ticks in a block, as the recorder of kvmprof has them.
    interval: u64,
}

impl Recording {
    fn new(number: u64) -> Self {
        Self {
            number,
            waiting: begin(number),
            random: Random(number + 1),
            interval: 1,
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    /// The recording's first blocks, piece by piece, and then each interval's ticks, a second after its end.
    fn read(&mut self, limit: usize, ticks: &AtomicU64) -> Vec<u8> {
        if !self.waiting.is_empty() {
            let length = limit.min(self.waiting.len());
            return self.waiting.drain(..length).collect();
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let since = now.expect("a clock") - Duration::from_secs(1);
        let interval = Duration::from_secs(self.interval);
        let past = since.as_nanos() % interval.as_nanos();
        sleep(interval - Duration::from_nanos(u64::try_from(past).expect("some seconds")));
        let mut encoder = SamplesEncoder::default();
        let count = self.interval * u64::from(HZ);
        let now = clock_gettime(ClockId::Monotonic);
        let now = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
        for before in (0..count).rev() {
            let time = now.saturating_sub(before * 1_000_000_000 / u64::from(HZ));
            self.push(&mut encoder, time);
        }
        ticks.fetch_add(count, Ordering::Relaxed);
        Block::encode(Kind::Samples, &encoder.take().bytes).expect("a block")
    }

    fn push(&mut self, encoder: &mut SamplesEncoder, time: u64) {
        if self.below(2) == 0 {
            encoder.push(
                &Ticks {
                    idle: 1,
                    ..Ticks::default()
                },
                &[],
            );
            return;
        }
        let stack = self.below(STACKS);
        let kernel = KERNEL + SLIDE * self.number;
        let frames: Vec<u64> = (0..u64::from(FRAMES))
            .map(|frame| kernel + 256 * ((stack * 7 + frame * 13) % FUNCTIONS) + 8)
            .collect();
        let pid = i32::try_from(stack % 20).unwrap_or_default() + 1;
        let mut comm = [0; 16];
        comm[..2].copy_from_slice(&[b'p', b'a' + u8::try_from(stack % 20).unwrap_or_default()]);
        let sample = Sample {
            time,
            pc: frames[0],
            pid,
            tid: pid,
            mode: Mode::Kernel,
            comm,
            stack: StackSummary {
                kernel: FRAMES,
                kernel_end: StackEnd::Complete,
                ..StackSummary::default()
            },
            ..Sample::default()
        };
        encoder.push(
            &Ticks {
                sample: Some(sample),
                ..Ticks::default()
            },
            &frames,
        );
    }
}
