//! Each format is well-formed for any names and numbers that a guest puts into a recording.

use std::path::Path;

use clap::ValueEnum;
use kvmprof_recording::file::{Recording, RecordingInfo, Unobserved};
use kvmprof_recording::{Mode, Sample, StackEnd, StackSummary, Ticks};
use kvmprof_report::export::{Format, Source};
use kvmprof_report::profile::Selection;
use kvmprof_report::symbolize::Resolver;
use proptest::prelude::*;

use super::recording::{info, write};

/// Numbers, often extreme ones.
fn number() -> impl Strategy<Value = u64> {
    let usual = prop::sample::select(vec![0, 1, u64::MAX, 0xffff_ffff_8100_0742]);
    prop_oneof![4 => usual, 1 => any::<u64>()]
}

fn id() -> impl Strategy<Value = i32> {
    prop_oneof![Just(-1), Just(0), Just(i32::MIN), Just(7), any::<i32>()]
}

fn sample() -> impl Strategy<Value = (Sample, Vec<u64>)> {
    let mode = prop::sample::select(&Mode::ALL);
    let end = prop::sample::select(&StackEnd::ALL);
    let frames = prop::collection::vec(number(), 0..6);
    let who = (id(), id(), any::<[u8; 16]>(), 0..3_u16);
    (who, number(), mode, end, frames, 0..6_u16).prop_map(
        |((pid, tid, comm, vcpu), time, mode, end, frames, kernel)| {
            let length = u16::try_from(frames.len()).unwrap();
            let kernel = kernel.min(length);
            let host = (length - kernel) / 2;
            let sample = Sample {
                time,
                pc: time,
                pid,
                tid,
                comm,
                vcpu,
                mode,
                stack: StackSummary {
                    kernel,
                    user: length - kernel - host,
                    host,
                    kernel_end: StackEnd::Complete,
                    user_end: end,
                },
                ..Sample::default()
            };
            (sample, frames)
        },
    )
}

fn ticks() -> impl Strategy<Value = (Ticks, Vec<u64>)> {
    // The encoder sums them.
    let counts = [(); 4].map(|()| number().prop_map(|number| number >> 8));
    let sample = prop::option::of(sample());
    (sample, counts).prop_map(|(sample, [idle, stolen, lost, ungathered])| {
        let (sample, frames) = sample.unzip();
        let ticks = Ticks {
            vcpu: sample.map_or(1, |sample: Sample| sample.vcpu),
            idle,
            stolen,
            lost,
            ungathered,
            sample,
        };
        (ticks, frames.unwrap_or_default())
    })
}

/// What leaves all samples, but maybe none of their frames.
fn transform() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "collapse-module=[kernel]",
        "collapse-module=[user]",
        "collapse-module=[host]",
        "merge=[kernel]",
        "merge=[user]",
        "merge=[host]",
        "merge=0xffffffff81000742",
        "collapse=0x1",
        "recursion=0x0",
    ])
    .prop_map(str::to_owned)
}

/// The recording at `path` with these `transforms`.
fn transformed(path: &Path, transforms: &[String]) -> Source {
    let recording = Recording::open(path).unwrap();
    let resolver = Resolver::from_contents(&recording.contents().unwrap());
    let selection = Selection {
        transforms: transforms
            .iter()
            .map(|text| text.parse().unwrap())
            .collect(),
        ..Selection::default()
    };
    Source::read(recording, selection, resolver, None, &Unobserved).unwrap()
}

proptest! {
    #[test]
    fn every_format_takes_any_recording(
        all in prop::collection::vec(ticks(), 0..20),
        hz in prop_oneof![Just(0_u32), Just(100), Just(u32::MAX)],
        event in prop::option::of(prop::sample::select(vec!["exits:1", "mmio:10000000", "guest-time:1ms", "halt:3"])),
        began in number(),
        transforms in prop::collection::vec(transform(), 0..4),
    ) {
        let info = RecordingInfo {
            hz,
            event: event.map(|event| event.parse().unwrap()),
            began_ns: began,
            began_monotonic_ns: began,
            ..info()
        };
        let (_folder, path) = write(&info, &all);
        for format in Format::value_variants() {
            if *format == Format::PerfData {
                let source = Source::open(&path, &[]).unwrap();
                format.write_file(&source, &path.with_extension("data")).unwrap();
                prop_assert!(format.write(&source, &mut Vec::new()).is_err());
                continue;
            }
            let mut out = Vec::new();
            format.write(&transformed(&path, &transforms), &mut out).unwrap();
            if matches!(format, Format::Firefox | Format::Speedscope) {
                serde_json::from_slice::<serde_json::Value>(&out).unwrap();
            }
            if *format == Format::PerfScript {
                let samples = all.iter().filter(|(ticks, _)| ticks.sample.is_some()).count();
                let halts = all.iter().filter(|(ticks, _)| ticks.idle > 0).count();
                let text = String::from_utf8(out).unwrap();
                let name = info.event.map_or("cpu-clock", |event| event.kind().name());
                prop_assert_eq!(text.matches(&format!("{name}: \n")).count(), samples + halts);
            }
        }
    }
}
