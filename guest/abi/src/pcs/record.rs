//! The records of the device: `PSAMPLE` and `MSAMPLE`.

use super::format::{Format, low_u16};
use crate::encoded::{Encoded, array};

/// The types of the records of a pcs stream: byte 0 of each.
///
/// The device writes 1 to 5, 9 and 10; `getpc` adds the others (see [`crate::stream`]).
pub mod kind {
    /// A sample of the kernel.
    pub const KERNEL: u8 = 1;
    /// A sample of a process in user mode.
    pub const USER: u8 = 2;
    /// A count of idle ticks.
    pub const IDLE: u8 = 3;
    /// A count of kernel ticks that weren't selected.
    pub const MKERNEL: u8 = 4;
    /// A count of user ticks that weren't selected.
    pub const MUSER: u8 = 5;
    /// The start of a `getpc` run.
    pub const START: u8 = 6;
    /// The end of a `getpc` run.
    pub const STOP: u8 = 7;
    /// An ioctl that `getpc` made.
    pub const IOCTL: u8 = 8;
    /// A sample of the kernel servicing an interrupt.
    pub const KERNELI: u8 = 9;
    /// A count of interrupt ticks that weren't selected.
    pub const MKERNELI: u8 = 10;
    /// The accounts of a `getpc` run (native streams only).
    pub const PSTAT: u8 = 11;
    /// The name of a process (native streams only).
    pub const COMM: u8 = 12;
}

/// `PSAMPLE`: one tick's program counter.
///
/// Native: `{ u8 type, u8 sspace, u16 cpu, i32 pid, u64 pc }`.
/// Classic: `{ u8 type, u8 sspace, i16 pid, u32 pc }`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psample {
    /// [`kind::KERNEL`], [`kind::KERNELI`] or [`kind::USER`].
    pub kind: u8,
    /// The interrupt priority level in the high 4 bits, 0 in the others. Meaningful for kernel
    /// samples only; 0 in user samples.
    pub sspace: u8,
    /// The vCPU, from 0. The classic form lacks it (0 when decoded).
    pub cpu: u16,
    /// The interrupted process; -1 when unknown.
    pub pid: i32,
    /// The program counter.
    pub pc: u64,
}

/// `MSAMPLE`: a count of ticks of one kind.
///
/// Native: `{ u8 type, u8 cfill, u16 cpu, i32 count, u64 ufill }`.
/// Classic: `{ u8 type, u8 cfill, i16 count, u32 ufill }`, a sum over the vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Msample {
    /// [`kind::IDLE`], [`kind::MKERNEL`], [`kind::MKERNELI`] or [`kind::MUSER`].
    pub kind: u8,
    /// The vCPU, from 0. The classic form lacks it (0 when decoded).
    pub cpu: u16,
    /// The number of ticks, from 1 to [`Format::max_merged`].
    pub count: u32,
}

/// A record of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    /// One tick's program counter.
    Sample(Psample),
    /// A count of ticks.
    Merged(Msample),
}

impl Record {
    /// The record's bytes, [`Format::record_size`] of them. The classic form truncates pid and
    /// pc; a count above [`Format::max_merged`] saturates.
    pub fn encode(&self, format: Format) -> Encoded<16> {
        match self {
            Self::Sample(sample) => sample.encode(format),
            Self::Merged(merged) => merged.encode(format),
        }
    }

    /// The record at the start of `bytes`; `None` if they are too short, their first byte isn't a type of the device,
    /// or a count is negative.
    pub fn decode(format: Format, bytes: &[u8]) -> Option<Self> {
        let kind = *bytes.first()?;
        match kind {
            kind::KERNEL | kind::KERNELI | kind::USER => {
                Psample::decode(format, bytes).map(Self::Sample)
            }
            kind::IDLE | kind::MKERNEL | kind::MKERNELI | kind::MUSER => {
                Msample::decode(format, bytes).map(Self::Merged)
            }
            _ => None,
        }
    }

    /// The number of ticks that the record stands for.
    pub fn ticks(&self) -> u64 {
        match self {
            Self::Sample(_) => 1,
            Self::Merged(merged) => u64::from(merged.count),
        }
    }
}

impl Psample {
    fn encode(&self, format: Format) -> Encoded<16> {
        let mut bytes = Encoded::new();
        bytes.push(&[self.kind, self.sspace]);
        match format {
            Format::Native => bytes
                .push(&self.cpu.to_le_bytes())
                .push(&self.pid.to_le_bytes())
                .push(&self.pc.to_le_bytes()),
            Format::Classic => bytes
                .push(&low_u16(self.pid.cast_unsigned()).to_le_bytes())
                .push(self.pc.to_le_bytes().first_chunk::<4>().unwrap_or(&[0; 4])),
        };
        bytes
    }

    fn decode(format: Format, bytes: &[u8]) -> Option<Self> {
        let [kind, sspace] = array(bytes, 0)?;
        Some(match format {
            Format::Native => Self {
                kind,
                sspace,
                cpu: u16::from_le_bytes(array(bytes, 2)?),
                pid: i32::from_le_bytes(array(bytes, 4)?),
                pc: u64::from_le_bytes(array(bytes, 8)?),
            },
            Format::Classic => Self {
                kind,
                sspace,
                cpu: 0,
                pid: i16::from_le_bytes(array(bytes, 2)?).into(),
                pc: u32::from_le_bytes(array(bytes, 4)?).into(),
            },
        })
    }
}

impl Msample {
    fn encode(&self, format: Format) -> Encoded<16> {
        let mut bytes = Encoded::new();
        bytes.push(&[self.kind, 0]);
        let count = self.count.min(format.max_merged());
        match format {
            Format::Native => bytes
                .push(&self.cpu.to_le_bytes())
                .push(&count.to_le_bytes())
                .push(&[0; 8]),
            Format::Classic => bytes.push(&low_u16(count).to_le_bytes()).push(&[0; 4]),
        };
        bytes
    }

    fn decode(format: Format, bytes: &[u8]) -> Option<Self> {
        // A record must be complete, with its padding.
        let bytes = bytes.get(..format.record_size())?;
        let kind = *bytes.first()?;
        Some(match format {
            Format::Native => Self {
                kind,
                cpu: u16::from_le_bytes(array(bytes, 2)?),
                count: u32::try_from(i32::from_le_bytes(array(bytes, 4)?)).ok()?,
            },
            Format::Classic => Self {
                kind,
                cpu: 0,
                count: u32::try_from(i16::from_le_bytes(array(bytes, 2)?)).ok()?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: Psample = Psample {
        kind: kind::KERNELI,
        sspace: 0xf0,
        cpu: 0x0102,
        pid: -1,
        pc: 0xffff_ffff_8100_1234,
    };

    #[test]
    fn classic_samples_truncate_pid_and_pc() {
        let sample = Psample {
            pid: 0x1_8001,
            ..SAMPLE
        };
        let bytes = Record::Sample(sample).encode(Format::Classic);
        assert_eq!(*bytes, [9, 0xf0, 0x01, 0x80, 0x34, 0x12, 0, 0x81]);
        let Some(Record::Sample(decoded)) = Record::decode(Format::Classic, &bytes) else {
            panic!("not a sample");
        };
        let found = (decoded.pid, decoded.pc, decoded.cpu);
        assert_eq!(found, (-32767, 0x8100_1234, 0));
    }

    #[test]
    fn merged_counts_saturate() {
        let many = Msample {
            kind: kind::IDLE,
            cpu: 3,
            count: u32::MAX,
        };
        for format in [Format::Native, Format::Classic] {
            let decoded = Record::decode(format, &Record::Merged(many).encode(format));
            let ticks = decoded.map(|record| record.ticks());
            assert_eq!(ticks, Some(format.max_merged().into()));
        }
    }

    #[test]
    fn short_and_foreign_records_are_refused() {
        for format in [Format::Native, Format::Classic] {
            for kind in [kind::USER, kind::IDLE] {
                let mut bytes = [0; 16];
                bytes[0] = kind;
                let size = format.record_size();
                assert!(Record::decode(format, &bytes[..size]).is_some());
                assert_eq!(Record::decode(format, &bytes[..size - 1]), None);
            }
            assert_eq!(Record::decode(format, &[kind::START; 16]), None);
            assert_eq!(Record::decode(format, &[]), None);
        }
        let negative = [kind::IDLE, 0, 0xff, 0xff, 0, 0, 0, 0];
        assert_eq!(Record::decode(Format::Classic, &negative), None);
    }
}
