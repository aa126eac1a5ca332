//! The two forms of `pcs.h`, and the header of a buffer.

use crate::encoded::{Encoded, array};

/// The form of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// For 64-bit guests, the default: 8-byte header `{ u16
    /// h_unused, u16 pad, u32 h_numlost }`, 16-byte records.
    #[default]
    Native,
    /// The page's `pcs.h` with a 32-bit `unsigned`, bit for bit: 4-byte header
    /// `{ u16 h_unused, i16 h_numlost }`, 8-byte records; pid and pc are truncated.
    Classic,
}

impl Format {
    /// Its number in `PCS_SETFORMAT` and in statuses.
    pub const fn number(self) -> u32 {
        match self {
            Self::Native => 0,
            Self::Classic => 1,
        }
    }

    /// The format with this `number`.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Native),
            1 => Some(Self::Classic),
            _ => None,
        }
    }

    /// Bytes in a buffer's header, `sizeof(struct LOGBUF_HDR)`.
    pub const fn header_size(self) -> usize {
        match self {
            Self::Native => 8,
            Self::Classic => 4,
        }
    }

    /// Bytes in a record of the device, `sizeof(struct PSAMPLE)`.
    pub const fn record_size(self) -> usize {
        match self {
            Self::Native => 16,
            Self::Classic => 8,
        }
    }

    /// `NUMSAMPS`: records that a buffer of `buffer_size` bytes holds.
    pub const fn samples_per_buffer(self, buffer_size: usize) -> usize {
        buffer_size.saturating_sub(self.header_size()) / self.record_size()
    }

    /// `NUMWASTE`: bytes that a full buffer of `buffer_size` bytes leaves unused.
    pub const fn wasted_per_buffer(self, buffer_size: usize) -> usize {
        buffer_size.saturating_sub(self.header_size()) % self.record_size()
    }

    /// The largest `h_numlost` of one header; the rest goes into the next.
    pub const fn max_lost(self) -> u32 {
        match self {
            Self::Native => u32::MAX,
            Self::Classic => 0x7fff,
        }
    }

    /// The largest count of one merged record; the rest goes into another record.
    pub const fn max_merged(self) -> u32 {
        match self {
            Self::Native => 0x7fff_ffff,
            Self::Classic => 0x7fff,
        }
    }
}

/// `LOGBUF_HDR`: the header of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// `h_unused`: unused bytes at the end of the buffer; they are zero.
    pub unused: u16,
    /// `h_numlost`: samples lost since the last buffer. Never above [`Format::max_lost`].
    pub lost: u32,
}

impl Header {
    /// The header's bytes. A `lost` above [`Format::max_lost`] saturates.
    pub fn encode(&self, format: Format) -> Encoded<8> {
        let mut bytes = Encoded::new();
        bytes.push(&self.unused.to_le_bytes());
        let lost = self.lost.min(format.max_lost());
        match format {
            Format::Native => bytes.push(&[0; 2]).push(&lost.to_le_bytes()),
            Format::Classic => bytes.push(&low_u16(lost).to_le_bytes()),
        };
        bytes
    }

    /// The header at the start of `buffer`; `None` if the buffer is too short, or the header invalid (a negative
    /// count).
    pub fn decode(format: Format, buffer: &[u8]) -> Option<Self> {
        let unused = u16::from_le_bytes(array(buffer, 0)?);
        let lost = match format {
            Format::Native => u32::from_le_bytes(array(buffer, 4)?),
            Format::Classic => u32::try_from(i16::from_le_bytes(array(buffer, 2)?)).ok()?,
        };
        Some(Self { unused, lost })
    }
}

/// The low 16 bits, for the classic format.
pub(crate) const fn low_u16(value: u32) -> u16 {
    let [first, second, ..] = value.to_le_bytes();
    u16::from_le_bytes([first, second])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcs::{BSIZE, UNUSED_BOUND};

    #[test]
    fn sizes_are_those_of_the_page() {
        let classic = Format::Classic;
        assert_eq!(classic.samples_per_buffer(512), 63);
        assert_eq!(classic.wasted_per_buffer(512), 4);
        assert_eq!(classic.samples_per_buffer(BSIZE), 127);
        assert_eq!(classic.wasted_per_buffer(BSIZE), 4);
        let native = Format::Native;
        assert_eq!(native.samples_per_buffer(BSIZE), 63);
        for shift in 10..=16 {
            for format in [native, classic] {
                let (size, fits) = (1 << shift, format.samples_per_buffer(1 << shift));
                let wasted = format.wasted_per_buffer(size);
                let used = format.header_size() + fits * format.record_size();
                assert_eq!(used + wasted, size);
                assert!(wasted < usize::from(UNUSED_BOUND));
            }
        }
    }

    #[test]
    fn headers_round_trip() {
        for format in [Format::Native, Format::Classic] {
            let header = Header {
                unused: 65528,
                lost: format.max_lost(),
            };
            let bytes = header.encode(format);
            assert_eq!(bytes.len(), format.header_size());
            assert_eq!(Header::decode(format, &bytes), Some(header));
            assert_eq!(Header::decode(format, &bytes[1..]), None);
        }
    }

    #[test]
    fn a_classic_header_saturates_and_refuses_negative_counts() {
        let header = Header {
            unused: 4,
            lost: 40_000,
        };
        let bytes = header.encode(Format::Classic);
        let lost = Header::decode(Format::Classic, &bytes).map(|it| it.lost);
        assert_eq!(lost, Some(32767));
        assert_eq!(Header::decode(Format::Classic, &[4, 0, 0xff, 0xff]), None);
    }
}
