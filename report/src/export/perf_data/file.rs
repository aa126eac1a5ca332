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
/// `HEADER_EVENT_DESC`, the feature that has the event's name.
const EVENT_DESCRIPTION: u32 = 12;
/// perf pads names to a multiple of this (`NAME_ALIGN`, `tools/perf/util/header.c`).
const NAME_ALIGN: usize = 64;
/// `CLOCK_MONOTONIC`.
const CLOCK_MONOTONIC: u32 = 1;

/// A file that is being written. Until it is finished, perf takes it for empty.
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
        out.write_all(&header(0, weight))?;
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
    pub fn finish(mut self) -> io::Result<()> {
        let end = HEADER_LENGTH + FILE_ATTRIBUTES_LENGTH + self.data_length;
        self.out.write_all(&features(end, self.weight))?;
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&header(self.data_length, self.weight))?;
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

fn header(data_length: u64, weight: Weight) -> Vec<u8> {
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
    let features = match weight.quantity.event() {
        None => 0,
        Some(_) => 1_u64 << EVENT_DESCRIPTION,
    };
    bytes.extend(features.to_le_bytes());
    bytes.extend([0; 24]);
    bytes
}

/// What is behind the data, which end at `offset`: a name for an event that perf has none for. First there is where each
/// feature lies.
fn features(offset: u64, weight: Weight) -> Vec<u8> {
    let Some(name) = weight.quantity.event() else {
        return Vec::new();
    };
    let mut description = Vec::new();
    // How many events there are.
    description.extend(1_u32.to_le_bytes());
    description.extend(ATTRIBUTES_LENGTH.to_le_bytes());
    description.extend(attributes(weight));
    // How many ids it has.
    description.extend(0_u32.to_le_bytes());
    let mut text = name.as_bytes().to_vec();
    text.resize((name.len() + 1).next_multiple_of(NAME_ALIGN), 0);
    description.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
    description.extend(text);
    let mut bytes = Vec::new();
    bytes.extend((offset + 16).to_le_bytes());
    bytes.extend((description.len() as u64).to_le_bytes());
    bytes.extend(description);
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
    fn parts_are_as_long_as_they_say() {
        let time = Weight {
            per_tick: 1_000_000,
            quantity: Quantity::Time,
        };
        let events = Weight {
            per_tick: 20,
            quantity: Quantity::Events("port-write"),
        };
        for weight in [time, events] {
            assert_eq!(header(7, weight).len() as u64, HEADER_LENGTH);
            let attributes = attributes(weight);
            assert_eq!(attributes.len() as u64 + 16, FILE_ATTRIBUTES_LENGTH);
            // clockid stands at 92.
            assert_eq!(attributes[92..96], [1, 0, 0, 0]);
        }
        assert!(features(1000, time).is_empty());
        let named = features(1000, events);
        assert_eq!(named[..8], 1016_u64.to_le_bytes());
        assert_eq!(named[8..16], (named.len() as u64 - 16).to_le_bytes());
        let name = named.len() - NAME_ALIGN;
        assert_eq!(named[name - 4..name], 64_u32.to_le_bytes());
        assert!(named[name..].starts_with(b"port-write\0"));
    }
}
