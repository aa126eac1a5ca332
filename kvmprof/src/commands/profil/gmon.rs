//! The file that gprof reads: a histogram in the form of GNU's gmon.out (`gmon_out.h` of glibc and binutils).

use std::io::{self, Write};

use super::histogram::Layout;

const MAGIC: &[u8; 4] = b"gmon";
const VERSION: u32 = 1;
/// Reserved bytes after the version.
const SPARE: [u8; 12] = [0; 12];
/// The tag of a histogram.
const TIME_HIST: u8 = 0;
/// The unit of the clock's ticks: its name in 15 bytes, and its abbreviation.
const SECONDS: (&[u8; 15], u8) = (b"seconds\0\0\0\0\0\0\0\0", b's');
/// The unit of an event's ticks.
const TICKS: (&[u8; 15], u8) = (b"ticks\0\0\0\0\0\0\0\0\0\0", b't');

/// A histogram for gprof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gmon {
    /// The first address of the first count, as a link-time address of the file.
    low: u64,
    /// The first address after the last count.
    high: u64,
    /// Ticks a second; `None` for an event's ticks.
    hz: Option<u32>,
}

impl Gmon {
    /// A histogram with `layout`, which begins at address `linked` of its file, for a clock with `hz` ticks a second,
    /// or for an event without `hz`. `None` if its counts don't stand for equally many bytes each, or begin below
    /// address 0.
    pub fn new(layout: &Layout, linked: u64, hz: Option<u32>) -> Option<Self> {
        let bytes = layout.bytes_per_count()?;
        // A count of AIX covers the code around its address.
        let low = linked.checked_sub(if layout.aix { bytes / 2 } else { 0 })?;
        let high = low.checked_add(layout.size / 2 * bytes)?;
        Some(Self { low, high, hz })
    }

    /// Writes the file, with these `counts`.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub fn write(&self, counts: &[u16], out: &mut dyn Write) -> io::Result<()> {
        let length = u32::try_from(counts.len()).map_err(io::Error::other)?;
        let (rate, (dimension, abbreviation)) = match self.hz {
            Some(hz) => (hz, SECONDS),
            None => (1, TICKS),
        };
        let header: [&[u8]; 10] = [
            MAGIC,
            &VERSION.to_le_bytes(),
            &SPARE,
            &[TIME_HIST],
            &self.low.to_le_bytes(),
            &self.high.to_le_bytes(),
            &length.to_le_bytes(),
            &rate.to_le_bytes(),
            dimension,
            &[abbreviation],
        ];
        out.write_all(&header.concat())?;
        let mut counts = counts.iter();
        counts.try_for_each(|count| out.write_all(&count.to_le_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(scale: u32, aix: bool) -> Layout {
        Layout {
            offset: 0x5555_0000_1000,
            scale,
            size: 6,
            aix,
        }
    }

    #[test]
    fn the_file_has_the_form_that_gprof_reads() {
        let gmon = Gmon::new(&layout(0x4000, false), 0x1000, Some(100)).unwrap();
        let mut file = Vec::new();
        gmon.write(&[1, 0, 0xfffe], &mut file).unwrap();
        let expected = [
            b"gmon\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".as_slice(),
            b"\0",
            b"\0\x10\0\0\0\0\0\0",
            b"\x18\x10\0\0\0\0\0\0",
            b"\x03\0\0\0",
            b"\x64\0\0\0",
            b"seconds\0\0\0\0\0\0\0\0s",
            b"\x01\0\0\0\xfe\xff",
        ];
        assert_eq!(file, expected.concat());
    }

    #[test]
    fn ticks_of_an_event_are_not_converted_to_seconds() {
        let gmon = Gmon::new(&layout(0x4000, false), 0x1000, None).unwrap();
        let mut file = Vec::new();
        gmon.write(&[1, 0, 2], &mut file).unwrap();
        let expected = b"\x01\0\0\0ticks\0\0\0\0\0\0\0\0\0\0t\x01\0\0\0\x02\0";
        assert!(file.ends_with(expected), "{file:?}");
    }

    #[test]
    fn counts_of_aix_begin_half_a_count_earlier() {
        let gmon = Gmon::new(&layout(0x4000, true), 0x1000, Some(100)).unwrap();
        assert_eq!((gmon.low, gmon.high), (0xffc, 0x1014));
        assert_eq!(Gmon::new(&layout(0x4000, true), 0, Some(100)), None);
    }

    #[test]
    fn scales_that_divide_unevenly_have_no_such_file() {
        for scale in [0xffff, 0x3000, 3, 2] {
            assert_eq!(
                Gmon::new(&layout(scale, false), 0x1000, Some(100)),
                None,
                "{scale:#x}"
            );
        }
        for scale in [0x8000, 0x4000, 4] {
            assert!(
                Gmon::new(&layout(scale, false), 0x1000, Some(100)).is_some(),
                "{scale:#x}"
            );
        }
    }
}
