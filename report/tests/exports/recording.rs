//! A recording to export: a guest of two vCPUs with a server of two threads, a batch job and an unknown process.

use std::path::PathBuf;

use kvmprof_recording::file::{
    BinaryFunction, BinaryInfo, Block, KernelInfo, Kind, Mapping, ProcessMappings, RecordingInfo,
    SamplesEncoder, Segment, header,
};
use kvmprof_recording::{Mode, Sample, StackEnd, StackParts, StackSummary, Ticks, comm_of};
use tempfile::TempDir;

const SYMBOLS: &str = "\
ffffffff81000000 T _text
ffffffff81000100 T entry_SYSCALL_64
ffffffff81000300 T do_syscall_64
ffffffff81000500 T ksys_read
ffffffff81000700 t copy_page_to_iter
ffffffff81000900 T asm_sysvec_apic_timer_interrupt
ffffffff81000b00 t update_process_times
ffffffff81000d00 t cpu_idle_poll.constprop.0
ffffffff81001100 T _etext
";

/// The functions of the server's program, by the file's own addresses, with mangled names.
const FUNCTIONS: [(u64, u64, &str); 5] = [
    (0x40_1000, 0x100, "main"),
    (0x40_1100, 0x100, "_ZN6Server5serveERKSs"),
    (0x40_1200, 0x40, "read@plt"),
    // Known by .eh_frame only.
    (0x40_1300, 0x100, ""),
    (0x40_1500, 0x80, "_RNvCs1234_6server4spin"),
];

/// The functions of a module, which was loaded later.
const MODULE_SYMBOLS: &str = "\
ffffffffc0000f00 t virtnet_poll\t[virtio_net]
ffffffffc0001000 t virtnet_close\t[virtio_net]
";

const PERIOD: u64 = 10_000_000;
const BEGAN: u64 = 5_000_000_000;

/// A kind of sample: process, stack, and frequency.
struct SampleKind {
    vcpu: u16,
    thread: (i32, i32, &'static str),
    mode: Mode,
    kernel: &'static [u64],
    user: &'static [u64],
    user_end: StackEnd,
    share: u32,
}

const COPY: u64 = 0xffff_ffff_8100_0742;
const READ: &[u64] = &[
    COPY,
    0xffff_ffff_8100_0555,
    0xffff_ffff_8100_0333,
    0xffff_ffff_8100_0111,
];

/// By vCPU, thread, mode, and the share.
const fn kind(vcpu: u16, thread: (i32, i32, &'static str), mode: Mode, share: u32) -> SampleKind {
    SampleKind {
        vcpu,
        thread,
        mode,
        kernel: &[],
        user: &[],
        user_end: StackEnd::Absent,
        share,
    }
}

const KINDREDS: [SampleKind; 8] = [
    SampleKind {
        kernel: READ,
        user: &[0x40_1234, 0x40_1100, 0x40_1000],
        user_end: StackEnd::Complete,
        ..kind(0, (101, 101, "server"), Mode::Kernel, 13)
    },
    SampleKind {
        kernel: READ,
        user: &[0x40_1234, 0x40_1500],
        user_end: StackEnd::Truncated,
        ..kind(1, (101, 102, "server worker"), Mode::Kernel, 8)
    },
    SampleKind {
        user: &[0x40_1300, 0x40_1100, 0x40_1300, 0x40_1100, 0x40_1000],
        user_end: StackEnd::Complete,
        ..kind(1, (101, 101, "server"), Mode::User, 11)
    },
    SampleKind {
        user: &[0x40_2080, 0x40_2000],
        user_end: StackEnd::Broken,
        ..kind(0, (230, 230, "batch"), Mode::User, 17)
    },
    SampleKind {
        kernel: &[0xffff_ffff_8100_0b10, 0xffff_ffff_8100_0910],
        user: &[0x40_2080, 0x40_2000],
        user_end: StackEnd::Complete,
        ..kind(0, (230, 230, "batch"), Mode::Interrupt, 3)
    },
    SampleKind {
        kernel: &[0xffff_ffff_c000_0f20],
        ..kind(1, (-1, -1, ""), Mode::Kernel, 5)
    },
    SampleKind {
        kernel: &[0xffff_ffff_8100_0d04],
        ..kind(1, (0, 0, "swapper/1"), Mode::Idle, 2)
    },
    kind(0, (231, 231, "a;b \"c\"\u{7f}"), Mode::User, 1),
];

impl SampleKind {
    fn sample(&self, time: u64) -> (Sample, Vec<u64>) {
        let frames = [self.kernel, self.user].concat();
        let (pid, tid, name) = self.thread;
        let kernel_end = match self.kernel {
            [] => StackEnd::Absent,
            _ => StackEnd::Complete,
        };
        let sample = Sample {
            time,
            pc: frames.first().copied().unwrap_or(0x7f00_1234_5678),
            pid,
            tid,
            process_group: -1,
            vcpu: self.vcpu,
            cpl: if self.mode == Mode::User { 3 } else { 0 },
            mode: self.mode,
            comm: comm_of(name),
            address_space: 0x1000 * u64::from(pid.unsigned_abs()),
            stack: StackSummary {
                kernel: self.kernel.len().try_into().unwrap(),
                user: self.user.len().try_into().unwrap(),
                host: 0,
                kernel_end,
                user_end: self.user_end,
            },
            ..Sample::default()
        };
        (sample, frames)
    }
}

/// All ticks of `rounds` rounds. In each round every kind of sample has its share, and each vCPU is halted for a while.
pub fn ticks(rounds: u64) -> Vec<(Ticks, Vec<u64>)> {
    let mut all = Vec::new();
    let mut times = [BEGAN; 2];
    for round in 0..rounds {
        for kind in &KINDREDS {
            let time = &mut times[usize::from(kind.vcpu)];
            for index in 0..kind.share {
                let idle = if index == 0 && kind.share > 7 { 3 } else { 0 };
                let stolen = u64::from(index == 5 && round % 2 == 0);
                *time += (1 + idle + stolen) * PERIOD;
                let (sample, frames) = kind.sample(*time);
                let ticks = Ticks {
                    idle,
                    stolen,
                    ..sample.into()
                };
                all.push((ticks, frames));
            }
        }
    }
    all
}

/// The kernel's symbols, and the server's mappings and program; nothing about the batch job.
fn blocks() -> Vec<Vec<u8>> {
    let kernel = KernelInfo {
        release: "6.1.0-test".to_owned(),
        build_id: "00c0ffee".to_owned(),
        ..KernelInfo::default()
    };
    let mapping = |begin, end, offset, file: &str, binary| Mapping {
        begin,
        end,
        offset,
        file: file.to_owned(),
        binary,
    };
    let mappings = ProcessMappings {
        address_space: (0x1000 * 101) & !0x1fff,
        pid: 101,
        time: BEGAN + 5 * PERIOD,
        mappings: vec![
            mapping(0x40_1000, 0x40_2000, 0x1000, "/usr/bin/server", Some(3)),
            mapping(0x7f00_0000_0000, 0x7f00_0010_0000, 0, "[anon]", None),
        ],
        ..ProcessMappings::default()
    };
    let info = BinaryInfo {
        id: 3,
        file: "/usr/bin/server".to_owned(),
        build_id: "0123456789abcdef".to_owned(),
        segments: vec![Segment {
            offset: 0x1000,
            address: 0x40_1000,
            length: 0x1000,
        }],
        code_crc32: None,
        source: "page cache".to_owned(),
    };
    let functions = FUNCTIONS.map(|(address, length, name)| BinaryFunction {
        address,
        length,
        name: name.to_owned(),
    });
    let binary = info.to_block(&functions);
    [kernel.to_block(), mappings.to_block(), binary]
        .into_iter()
        .flatten()
        .collect()
}

/// The properties of these recordings.
pub fn info() -> RecordingInfo {
    RecordingInfo {
        program: "1.2.3".to_owned(),
        kernel: "vmlinuz-6.1.0".to_owned(),
        vcpus: 2,
        hz: 100,
        clock: "thread".to_owned(),
        began_ns: 1_700_000_000_000_000_000,
        began_monotonic_ns: BEGAN,
        stacks: StackParts::BOTH,
        ..RecordingInfo::default()
    }
}

/// Writes a recording of `rounds` rounds.
pub fn recording(rounds: u64) -> (TempDir, PathBuf) {
    write(&info(), &ticks(rounds))
}

/// Writes a recording of `all` ticks and the frames of their samples.
pub fn write(info: &RecordingInfo, all: &[(Ticks, Vec<u64>)]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.kvmprof");
    let mut bytes = [&header()[..], &info.to_block().unwrap()].concat();
    let mut add = |kind, contents: &[u8]| bytes.extend(Block::encode(kind, contents).unwrap());
    let mut encoder = SamplesEncoder::default();
    for (ticks, frames) in all {
        encoder.push(ticks, frames);
        if encoder.is_full() {
            add(Kind::Samples, &encoder.take().bytes);
        }
    }
    // The recorder writes symbols once they are known: samples may come before them.
    add(Kind::Samples, &encoder.take().bytes);
    add(Kind::Symbols, SYMBOLS.as_bytes());
    add(Kind::Symbols, MODULE_SYMBOLS.as_bytes());
    bytes.extend(blocks().into_iter().flatten());
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}
