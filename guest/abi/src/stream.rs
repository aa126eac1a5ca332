//! The stream that `getpc` writes and `pcstat` reads.
//!
//! The order is: a START record, one IOCTL record for each ioctl with which `getpc` set the device up, the device's
//! records (without the headers of buffers), a STOP record, and in native streams an addition of kvmprof: one PSTAT
//! record and any number of COMM records. Byte 0 of each record is its type ([`crate::pcs::kind`]). Type and [`Format`]
//! determine its size ([`record_size`]), so that a reader can skip records that it can't use.
//!
//! | Record | Native | Classic |
//! |---|---|---|
//! | START, STOP | 16: `{ u8 type, u8 cfill, u8 pad[6], i64 stime }` | 8: `{ u8 type, u8 cfill, u8 pad[2], i32 stime }` |
//! | IOCTL | 32: `{ u8 type, u8 cfill, u8 pad[2], u32 cmd, i32 data[5], u8 pad[4] }` | 20: `{ u8 type, u8 cfill, u8 pad[2], u32 cmd, i16 data[5], u8 pad[2] }` |
//! | PSTAT | 96: `{ u8 type, u8 cfill, u16 vcpus, u32 format, u32 hz, u32 bsize, u32 bufno, u32 modes, u64 span, u64 ledger[8] }` | - |
//! | COMM | 24: `{ u8 type, u8 cfill, u8 pad[2], i32 pid, u8 comm[16] }` | - |
//! | all others | 16, see [`crate::pcs::Psample`] | 8 |
//!
//! `stime` is in seconds since 1970 (UTC), `span` in ns. Padding is zero, which also distinguishes the formats
//! ([`detect`]). If `getpc` was killed, the stream ends anywhere.

use crate::encoded::{Encoded, array};
use crate::pcs::{Format, Ledger, MAX_LIST, Record, Status, kind, low_u16};

/// Bytes in a process's name (`TASK_COMM_LEN`, `include/linux/sched.h`).
pub const COMM_SIZE: usize = 16;

/// Bytes in the largest record of a stream.
pub const MAX_RECORD_SIZE: usize = 96;

/// `ISAMPLE`: an ioctl that `getpc` made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Isample {
    /// The command.
    pub command: u32,
    /// The argument: an integer at index 0, or `PROF_LIST`'s process ids; the rest is 0. Classic streams truncate each
    /// to 16 bits.
    pub data: [i32; MAX_LIST],
}

/// PSTAT: the accounts of a `getpc` run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pstat {
    /// The device's status at the end; all 32-bit numbers, vcpus at most 65535.
    pub status: Status,
    /// The time from the device's open to its stop, in ns.
    pub span: u64,
}

/// COMM: the name of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Comm {
    /// The process.
    pub pid: i32,
    /// Its name, padded with NULs.
    pub comm: [u8; COMM_SIZE],
}

/// A record of a `getpc` stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamRecord {
    /// START, with the time in seconds since 1970.
    Start(i64),
    /// An ioctl that `getpc` made.
    Ioctl(Isample),
    /// A record of the device.
    Device(Record),
    /// STOP, with the time in seconds since 1970.
    Stop(i64),
    /// The accounts of the run.
    Pstat(Pstat),
    /// The name of a process.
    Comm(Comm),
}

/// Why a record is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The stream ends within the record, which has this many bytes.
    Truncated(usize),
    /// The format has no records of this type.
    UnknownType(u8),
    /// A record of this type has an invalid value, e.g. a negative count.
    BadContent(u8),
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Truncated(size) => write!(formatter, "Stream ends within a {size}-byte record"),
            Self::UnknownType(kind) => write!(formatter, "No record has type {kind}"),
            Self::BadContent(kind) => write!(formatter, "Record of type {kind} makes no sense"),
        }
    }
}

impl core::error::Error for Malformed {}

/// Bytes of a record of type `kind`; `None` if the format has no such type.
pub const fn record_size(format: Format, kind: u8) -> Option<usize> {
    match (format, kind) {
        (Format::Native, kind::START | kind::STOP) => Some(16),
        (Format::Classic, kind::START | kind::STOP) => Some(8),
        (Format::Native, kind::IOCTL) => Some(32),
        (Format::Classic, kind::IOCTL) => Some(20),
        (Format::Native, kind::PSTAT) => Some(96),
        (Format::Native, kind::COMM) => Some(24),
        (_, kind::KERNEL..=kind::MUSER | kind::KERNELI | kind::MKERNELI) => {
            Some(format.record_size())
        }
        _ => None,
    }
}

/// The format of a stream that begins with `bytes`; `None` if it doesn't begin with a START record, or there are less
/// than 8 bytes.
///
/// A native START has padding at the position of a classic one's time, which is 0 only in 1970.
pub fn detect(bytes: &[u8]) -> Option<Format> {
    let head: [u8; 8] = array(bytes, 0)?;
    match head {
        [kind::START, _, 0, 0, 0, 0, 0, 0] => Some(Format::Native),
        [kind::START, _, 0, 0, _, _, _, _] => Some(Format::Classic),
        _ => None,
    }
}

impl StreamRecord {
    /// The record's bytes. PSTAT and COMM have none in classic streams.
    pub fn encode(&self, format: Format) -> Encoded<MAX_RECORD_SIZE> {
        let mut bytes = Encoded::new();
        match (self, format) {
            (Self::Start(time), _) => encode_time(&mut bytes, format, kind::START, *time),
            (Self::Stop(time), _) => encode_time(&mut bytes, format, kind::STOP, *time),
            (Self::Ioctl(ioctl), _) => ioctl.encode(format, &mut bytes),
            (Self::Device(record), _) => {
                bytes.push(&record.encode(format));
            }
            (Self::Pstat(pstat), Format::Native) => pstat.encode(&mut bytes),
            (Self::Comm(comm), Format::Native) => {
                bytes
                    .push(&[kind::COMM, 0, 0, 0])
                    .push(&comm.pid.to_le_bytes())
                    .push(&comm.comm);
            }
            (Self::Pstat(_) | Self::Comm(_), Format::Classic) => (),
        }
        bytes
    }

    /// The record at the start of `bytes`, which mustn't be empty, and its number of bytes.
    ///
    /// # Errors
    /// The record is invalid.
    pub fn decode(format: Format, bytes: &[u8]) -> Result<(Self, usize), Malformed> {
        let kind = *bytes.first().ok_or(Malformed::Truncated(1))?;
        let size = record_size(format, kind).ok_or(Malformed::UnknownType(kind))?;
        let bytes = bytes.get(..size).ok_or(Malformed::Truncated(size))?;
        let record = match kind {
            kind::START => decode_time(format, bytes).map(Self::Start),
            kind::STOP => decode_time(format, bytes).map(Self::Stop),
            kind::IOCTL => Isample::decode(format, bytes).map(Self::Ioctl),
            kind::PSTAT => Pstat::decode(bytes).map(Self::Pstat),
            kind::COMM => Comm::decode(bytes).map(Self::Comm),
            _ => Record::decode(format, bytes).map(Self::Device),
        };
        record
            .map(|record| (record, size))
            .ok_or(Malformed::BadContent(kind))
    }
}

fn encode_time(bytes: &mut Encoded<MAX_RECORD_SIZE>, format: Format, kind: u8, time: i64) {
    bytes.push(&[kind, 0, 0, 0]);
    match format {
        Format::Native => bytes.push(&[0; 4]).push(&time.to_le_bytes()),
        Format::Classic => bytes.push(time.to_le_bytes().first_chunk::<4>().unwrap_or(&[0; 4])),
    };
}

fn decode_time(format: Format, bytes: &[u8]) -> Option<i64> {
    match format {
        Format::Native => array(bytes, 8).map(i64::from_le_bytes),
        Format::Classic => array(bytes, 4).map(|time| i32::from_le_bytes(time).into()),
    }
}

impl Isample {
    fn encode(&self, format: Format, bytes: &mut Encoded<MAX_RECORD_SIZE>) {
        bytes
            .push(&[kind::IOCTL, 0, 0, 0])
            .push(&self.command.to_le_bytes());
        for value in self.data {
            match format {
                Format::Native => bytes.push(&value.to_le_bytes()),
                Format::Classic => bytes.push(&low_u16(value.cast_unsigned()).to_le_bytes()),
            };
        }
        match format {
            Format::Native => bytes.push(&[0; 4]),
            Format::Classic => bytes.push(&[0; 2]),
        };
    }

    fn decode(format: Format, bytes: &[u8]) -> Option<Self> {
        let mut data = [0; MAX_LIST];
        for (index, value) in data.iter_mut().enumerate() {
            *value = match format {
                Format::Native => i32::from_le_bytes(array(bytes, 8 + index * 4)?),
                Format::Classic => i16::from_le_bytes(array(bytes, 8 + index * 2)?).into(),
            };
        }
        Some(Self {
            command: u32::from_le_bytes(array(bytes, 4)?),
            data,
        })
    }
}

impl Pstat {
    fn encode(&self, bytes: &mut Encoded<MAX_RECORD_SIZE>) {
        let status = &self.status;
        bytes.push(&[kind::PSTAT, 0]).push(
            &u16::try_from(status.vcpus)
                .unwrap_or(u16::MAX)
                .to_le_bytes(),
        );
        for field in [
            status.format.number(),
            status.hz,
            status.buffer_size,
            status.buffers,
            status.modes,
        ] {
            bytes.push(&field.to_le_bytes());
        }
        bytes
            .push(&self.span.to_le_bytes())
            .push(&status.ledger.encode());
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let field = |index: usize| array(bytes, 4 + index * 4).map(u32::from_le_bytes);
        Some(Self {
            status: Status {
                vcpus: u16::from_le_bytes(array(bytes, 2)?).into(),
                format: Format::from_number(field(0)?)?,
                hz: field(1)?,
                buffer_size: field(2)?,
                buffers: field(3)?,
                modes: field(4)?,
                ledger: Ledger::decode(bytes.get(32..)?)?,
            },
            span: u64::from_le_bytes(array(bytes, 24)?),
        })
    }
}

impl Comm {
    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            pid: i32::from_le_bytes(array(bytes, 4)?),
            comm: array(bytes, 8)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcs::{Msample, PROF_LIST, Psample};

    fn records() -> [StreamRecord; 7] {
        let comm = *b"shell\0\0\0\0\0\0\0\0\0\0\0";
        [
            StreamRecord::Start(1_700_000_000),
            StreamRecord::Ioctl(Isample {
                command: PROF_LIST,
                data: [1, -2, 300, 0, 0],
            }),
            StreamRecord::Device(Record::Sample(Psample {
                kind: kind::USER,
                pid: 7,
                pc: 0x40_0000,
                ..Psample::default()
            })),
            StreamRecord::Device(Record::Merged(Msample {
                kind: kind::MKERNELI,
                count: 9,
                cpu: 0,
            })),
            StreamRecord::Stop(1_700_000_005),
            StreamRecord::Pstat(Pstat {
                status: Status {
                    ledger: Ledger {
                        ticks: 10,
                        discarded: 10,
                        ..Ledger::default()
                    },
                    hz: 100,
                    vcpus: 2,
                    format: Format::Native,
                    buffer_size: 1024,
                    buffers: 3,
                    modes: 4,
                },
                span: 5_000_000_000,
            }),
            StreamRecord::Comm(Comm { pid: 7, comm }),
        ]
    }

    #[test]
    fn records_round_trip_and_have_their_size() {
        // Classic streams have no trailer.
        for (format, count) in [(Format::Native, 7), (Format::Classic, 5)] {
            for record in &records()[..count] {
                let bytes = record.encode(format);
                let length = bytes.len();
                assert_eq!(record_size(format, bytes[0]), Some(length));
                let decoded = StreamRecord::decode(format, &bytes);
                assert_eq!(decoded, Ok((*record, length)));
                let cut = StreamRecord::decode(format, &bytes[..length - 1]);
                assert_eq!(cut, Err(Malformed::Truncated(length)));
            }
            let rest = &records()[count..];
            assert!(rest.iter().all(|it| it.encode(format).is_empty()));
        }
    }

    #[test]
    fn sizes_are_those_of_the_table() {
        let sizes = |format| {
            [
                kind::START,
                kind::IOCTL,
                kind::USER,
                kind::IDLE,
                kind::STOP,
                kind::PSTAT,
                kind::COMM,
            ]
            .map(|kind| record_size(format, kind).unwrap_or(0))
        };
        assert_eq!(sizes(Format::Native), [16, 32, 16, 16, 16, 96, 24]);
        assert_eq!(sizes(Format::Classic), [8, 20, 8, 8, 8, 0, 0]);
        assert_eq!(record_size(Format::Native, 0), None);
        assert_eq!(record_size(Format::Native, 13), None);
    }

    #[test]
    fn the_start_record_names_the_format() {
        for format in [Format::Native, Format::Classic] {
            assert_eq!(detect(&records()[0].encode(format)), Some(format));
        }
        assert_eq!(detect(b"not a stream"), None);
        assert_eq!(detect(&[kind::START, 0, 0]), None);
    }
}
