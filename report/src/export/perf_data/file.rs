//! The parts of the file around the records: header, attributes, data.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use super::records::{FLAGS, SAMPLE_TYPE};
use crate::profile::Weight;
use kvmprof_recording::file::create_in_place;

/// Bytes of `struct perf_file_header`.
const HEADER_LENGTH: u64 = 104;
/// Bytes of `struct perf_event_attr` (`PERF_ATTR_SIZE_VER5`).
const ATTRIBUTES_LENGTH: u32 = 112;
/// Bytes of `struct perf_event_attr` and of the position of the event's ids.
const FILE_ATTRIBUTES_LENGTH: u64 = ATTRIBUTES_LENGTH as u64 + 16;
/// `PERF_TYPE_SOFTWARE`.
const SOFTWARE: u32 = 1;
/// `PERF_COUNT_SW_CPU_CLOCK`.
const CPU_CLOCK: u64 = 0;
/// `PERF_COUNT_SW_DUMMY`: no event that perf knows.
const DUMMY: u64 = 9;
/// The features that are written (`HEADER_*`, `tools/perf/util/header.h`), each a bit of the header.
const BUILD_ID: u32 = 2;
const OS_RELEASE: u32 = 4;
const VERSION: u32 = 5;
const ARCHITECTURE: u32 = 6;
const CPU_COUNT: u32 = 7;
const TOTAL_MEMORY: u32 = 10;
const EVENT_DESCRIPTION: u32 = 12;
const SAMPLE_TIME: u32 = 21;
/// perf pads names to a multiple of this (`NAME_ALIGN`, `tools/perf/util/header.c`).
const NAME_ALIGN: usize = 64;
/// `CLOCK_MONOTONIC`.
const CLOCK_MONOTONIC: u32 = 1;

/// The properties of the guest in the file.
#[derive(Debug, Default)]
pub struct GuestProperties<'a> {
    /// The release of its kernel; empty if it isn't known.
    pub release: &'a str,
    /// The version of the program that has made the recording.
    pub program: &'a str,
    pub vcpus: u32,
    /// Its memory in bytes; 0 if it isn't known.
    pub memory: u64,
    /// The times of the first and the last sample in ns, if there are any.
    pub times: Option<(u64, u64)>,
    /// Records of build ids.
    pub build_ids: Vec<u8>,
}

/// A feature: its number and contents.
type Feature = (u32, Vec<u8>);

/// A file that is being written. Until it is finished, perf reads it as empty.
#[derive(Debug)]
pub struct PerfFile {
    out: BufWriter<File>,
    data_length: u64,
    weight: Weight,
}

impl PerfFile {
    /// Creates the file at `path`, for one event of which a sample stands for `weight`.
    pub fn create(path: &Path, weight: Weight) -> io::Result<Self> {
        let mut out = BufWriter::new(create_in_place(path)?);
        out.write_all(&header(0, &[]))?;
        out.write_all(&attributes(weight))?;
        // No ids: there is one event.
        out.write_all(&[0; 16])?;
        Ok(Self {
            out,
            data_length: 0,
            weight,
        })
    }

    /// Adds what follows the data, and completes the header.
    pub fn finish(mut self, guest: &GuestProperties<'_>) -> io::Result<()> {
        let end = HEADER_LENGTH + FILE_ATTRIBUTES_LENGTH + self.data_length;
        let features = features(guest, self.weight);
        self.out.write_all(&feature_sections(end, &features))?;
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&header(self.data_length, &features))?;
        self.out.flush()
    }
}

impl Write for PerfFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.data_length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn header(data_length: u64, features: &[Feature]) -> Vec<u8> {
    let mut bytes = b"PERFILE2".to_vec();
    let sections = [
        (HEADER_LENGTH, FILE_ATTRIBUTES_LENGTH),
        (HEADER_LENGTH + FILE_ATTRIBUTES_LENGTH, data_length),
        // Event types, which perf no longer writes.
        (0, 0),
    ];
    for number in [HEADER_LENGTH, FILE_ATTRIBUTES_LENGTH] {
        bytes.extend(number.to_le_bytes());
    }
    for (offset, length) in sections {
        bytes.extend(u64::to_le_bytes(offset));
        bytes.extend(u64::to_le_bytes(length));
    }
    // A bit for each feature.
    let bits = features
        .iter()
        .fold(0_u64, |bits, (number, _)| bits | 1 << number);
    bytes.extend(bits.to_le_bytes());
    bytes.extend([0; 24]);
    bytes
}

/// The features by number, which is the order that perf expects (`tools/perf/Documentation/perf.data-file-format.txt`).
fn features(guest: &GuestProperties<'_>, weight: Weight) -> Vec<Feature> {
    let mut features = Vec::new();
    if !guest.build_ids.is_empty() {
        features.push((BUILD_ID, guest.build_ids.clone()));
    }
    if !guest.release.is_empty() {
        features.push((OS_RELEASE, text(guest.release)));
    }
    features.push((VERSION, text(&format!("kvmprof {}", guest.program))));
    features.push((ARCHITECTURE, text("x86_64")));
    // Online and available.
    let counts = [guest.vcpus; 2].map(u32::to_le_bytes);
    features.push((CPU_COUNT, counts.concat()));
    if guest.memory > 0 {
        let kilobytes = guest.memory / 1024;
        features.push((TOTAL_MEMORY, kilobytes.to_le_bytes().to_vec()));
    }
    // A name for an event that perf has none for.
    if let Some(name) = weight.quantity.event() {
        features.push((EVENT_DESCRIPTION, event_description(name, weight)));
    }
    if let Some((first, last)) = guest.times {
        let times = [first, last].map(u64::to_le_bytes);
        features.push((SAMPLE_TIME, times.concat()));
    }
    features
}

fn event_description(name: &str, weight: Weight) -> Vec<u8> {
    let mut description = Vec::new();
    // How many events there are.
    description.extend(1_u32.to_le_bytes());
    description.extend(ATTRIBUTES_LENGTH.to_le_bytes());
    description.extend(attributes(weight));
    // How many ids it has.
    description.extend(0_u32.to_le_bytes());
    description.extend(text(name));
    description
}

/// A text with its length, in the form of features.
fn text(text: &str) -> Vec<u8> {
    let length = (text.len() + 1).next_multiple_of(NAME_ALIGN);
    let mut bytes = u32::try_from(length)
        .unwrap_or(u32::MAX)
        .to_le_bytes()
        .to_vec();
    bytes.extend(text.as_bytes());
    bytes.resize(4 + length, 0);
    bytes
}

/// The part after the data, which end at `offset`: first the position of each feature, then the features.
fn feature_sections(offset: u64, features: &[Feature]) -> Vec<u8> {
    let mut begin = offset + 16 * features.len() as u64;
    let mut bytes = Vec::new();
    for (_, contents) in features {
        bytes.extend(begin.to_le_bytes());
        bytes.extend((contents.len() as u64).to_le_bytes());
        begin += contents.len() as u64;
    }
    for (_, contents) in features {
        bytes.extend(contents);
    }
    bytes
}

/// `struct perf_event_attr`.
fn attributes(weight: Weight) -> Vec<u8> {
    let event = match weight.quantity.event() {
        None => CPU_CLOCK,
        Some(_) => DUMMY,
    };
    let mut bytes = Vec::new();
    for number in [SOFTWARE, ATTRIBUTES_LENGTH] {
        bytes.extend(number.to_le_bytes());
    }
    // config, sample_period, sample_type, read_format, flags
    for number in [event, weight.per_tick, SAMPLE_TYPE, 0, FLAGS] {
        bytes.extend(number.to_le_bytes());
    }
    // wakeup_events and bp_type to sample_regs_user, sample_stack_user
    bytes.extend([0; 8 + 8 * 4 + 4]);
    bytes.extend(CLOCK_MONOTONIC.to_le_bytes());
    bytes.resize(ATTRIBUTES_LENGTH as usize, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Quantity;

    #[test]
    fn parts_have_the_declared_length() {
        let time = Weight {
            per_tick: 1_000_000,
            quantity: Quantity::Time,
        };
        let events = Weight {
            per_tick: 20,
            quantity: Quantity::Events("port-write"),
        };
        for weight in [time, events] {
            let header = header(7, &features(&GuestProperties::default(), weight));
            assert_eq!(header.len() as u64, HEADER_LENGTH);
            let attributes = attributes(weight);
            assert_eq!(attributes.len() as u64 + 16, FILE_ATTRIBUTES_LENGTH);
            // clockid stands at 92.
            assert_eq!(attributes[92..96], [1, 0, 0, 0]);
        }
        let guest = GuestProperties {
            release: "6.1.0",
            build_ids: vec![7; 40],
            ..GuestProperties::default()
        };
        let features = features(&guest, events);
        assert!(features.is_sorted_by_key(|(number, _)| *number));
        let sections = feature_sections(1000, &features);
        let mut end = 1000 + 16 * features.len() as u64;
        for (index, (_, contents)) in features.iter().enumerate() {
            let number = |at: usize| u64::from_le_bytes(sections[at..at + 8].try_into().unwrap());
            let (begin, length) = (number(16 * index), number(16 * index + 8));
            assert_eq!((begin, length), (end, contents.len() as u64));
            end += length;
        }
        assert_eq!(end - 1000, sections.len() as u64);
        let (_, named) = features.last().unwrap();
        let name = named.len() - NAME_ALIGN;
        assert_eq!(named[name - 4..name], 64_u32.to_le_bytes());
        assert!(named[name..].starts_with(b"port-write\0"));
    }
}
