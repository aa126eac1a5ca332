//! The parts of the file around the records: header, attributes, data.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use super::records::{FLAGS, SAMPLE_TYPE};

/// Bytes of `struct perf_file_header`.
const HEADER_LENGTH: u64 = 104;
/// Bytes of `struct perf_event_attr` (`PERF_ATTR_SIZE_VER5`).
const ATTRIBUTES_LENGTH: u32 = 112;
/// Bytes of `struct perf_event_attr` and of the position of the event's ids.
const FILE_ATTRIBUTES_LENGTH: u64 = ATTRIBUTES_LENGTH as u64 + 16;
/// `PERF_TYPE_SOFTWARE`; its event 0 is `PERF_COUNT_SW_CPU_CLOCK`.
const SOFTWARE: u32 = 1;
/// `CLOCK_MONOTONIC`.
const CLOCK_MONOTONIC: u32 = 1;

/// A file that is being written. Until it is finished, perf takes it for empty.
#[derive(Debug)]
pub struct PerfFile {
    out: BufWriter<File>,
    data_length: u64,
}

impl PerfFile {
    /// Creates the file at `path`, for one event with a period of `period` ns.
    pub fn create(path: &Path, period: u64) -> io::Result<Self> {
        let mut out = BufWriter::new(File::create(path)?);
        out.write_all(&header(0))?;
        out.write_all(&attributes(period))?;
        Ok(Self {
            out,
            data_length: 0,
        })
    }

    /// Completes the header.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&header(self.data_length))?;
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

fn header(data_length: u64) -> Vec<u8> {
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
    // No further features.
    bytes.extend([0; 32]);
    bytes
}

/// `struct perf_event_attr`, without ids: there is one event.
fn attributes(period: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in [SOFTWARE, ATTRIBUTES_LENGTH] {
        bytes.extend(number.to_le_bytes());
    }
    // config, sample_period, sample_type, read_format, flags
    for number in [0, period, SAMPLE_TYPE, 0, FLAGS] {
        bytes.extend(number.to_le_bytes());
    }
    // wakeup_events and bp_type to sample_regs_user, sample_stack_user
    bytes.extend([0; 8 + 8 * 4 + 4]);
    bytes.extend(CLOCK_MONOTONIC.to_le_bytes());
    bytes.resize(ATTRIBUTES_LENGTH as usize, 0);
    bytes.extend([0; 16]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_long_as_they_say() {
        assert_eq!(header(7).len() as u64, HEADER_LENGTH);
        let attributes = attributes(1_000_000);
        assert_eq!(attributes.len() as u64, FILE_ATTRIBUTES_LENGTH);
        // clockid stands at 92.
        assert_eq!(attributes[92..96], [1, 0, 0, 0]);
    }
}
