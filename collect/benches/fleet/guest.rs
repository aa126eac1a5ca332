//! Simulated guests: servers of the wire whose recorder has made-up samples.

#[path = "../../../report/tests/shared/random.rs"]
mod random;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, sleep};
use std::time::Duration;

use kvmprof_abi::wire::{HelloReply, Reply, ReplyFrame, Request, RequestFrame};
use kvmprof_recording::file::{Block, Kind, RecordingInfo, SamplesEncoder, header};
use kvmprof_recording::{Mode, Sample, StackEnd, StackSummary, Ticks};
use random::Random;
use rustix::time::{ClockId, clock_gettime};

const HZ: u32 = 19;
const STACKS: u64 = 200;
const FRAMES: u8 = 16;
const FUNCTIONS: u64 = 2000;
const KERNEL: u64 = 0xffff_ffff_8100_0000;

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
                Request::Open { .. } => Reply::Open { handle: 1 },
                Request::Ioctl { .. } => Reply::Ioctl {
                    value: 0,
                    data: &[],
                },
                Request::Read { .. } => {
                    data = recording.next(ticks);
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

struct Recording {
    has_begun: bool,
    random: Random,
}

impl Recording {
    fn new(number: u64) -> Self {
        Self {
            has_begun: false,
            random: Random(number + 1),
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    /// The recording's begin, or what a second has brought.
    fn next(&mut self, ticks: &AtomicU64) -> Vec<u8> {
        if !self.has_begun {
            self.has_begun = true;
            let info = RecordingInfo {
                hz: HZ,
                vcpus: 1,
                ..RecordingInfo::default()
            };
            let info = serde_json::to_vec(&info).expect("JSON");
            let symbols: String = (0..FUNCTIONS)
                .map(|number| format!("{:x} t function_{number}\n", KERNEL + 256 * number))
                .collect();
            let blocks = [
                Block::encode(Kind::Info, &info),
                Block::encode(Kind::Symbols, symbols.as_bytes()),
            ];
            let blocks = blocks.into_iter().flatten().flatten();
            return header().into_iter().chain(blocks).collect();
        }
        sleep(Duration::from_secs(1));
        let mut encoder = SamplesEncoder::default();
        for _ in 0..HZ {
            self.push(&mut encoder);
        }
        ticks.fetch_add(HZ.into(), Ordering::Relaxed);
        Block::encode(Kind::Samples, &encoder.take().bytes).expect("a block")
    }

    fn push(&mut self, encoder: &mut SamplesEncoder) {
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
        let now = clock_gettime(ClockId::Monotonic);
        let time = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
        let stack = self.below(STACKS);
        let frames: Vec<u64> = (0..u64::from(FRAMES))
            .map(|frame| KERNEL + 256 * ((stack * 7 + frame * 13) % FUNCTIONS) + 8)
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
