//! Parses the argument of `--pid-at`: the place of the current pid in a guest without a note.

use kvmprof_abi::note::{Base, DEPTH_MAX, Location};

/// Why a `--pid-at` argument is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PidAtError {
    /// It doesn't have three parts.
    #[error(
        "'{0}' is not BASE:OFFSET[,OFFSET...]:WIDTH, such as absolute:0x1234:4 or gs:0x10,0x8:8"
    )]
    Shape(String),
    /// The base is unknown.
    #[error("The base '{0}' is neither 'absolute' nor 'gs'")]
    Base(String),
    /// An offset isn't a number.
    #[error("The offset '{0}' is not a decimal or 0x... number of 64 bits")]
    Offset(String),
    /// There are too many offsets.
    #[error("There are {0} offsets, more than {DEPTH_MAX}")]
    Depth(usize),
    /// The width isn't that of a number.
    #[error("The width '{0}' is none of 1, 2, 4 and 8 bytes")]
    Width(String),
}

/// Parses `BASE:OFFSET[,OFFSET...]:WIDTH`. The base is `absolute` or `gs`, offsets are decimal or 0x-prefixed and may
/// be negative, and the width is 1, 2, 4 or 8 bytes.
///
/// # Errors
/// A part is malformed.
pub fn parse(value: &str) -> Result<Location, PidAtError> {
    let shape = || PidAtError::Shape(value.to_owned());
    let mut parts = value.split(':');
    let (Some(base), Some(offsets), Some(width), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(shape());
    };
    let base = match base {
        "absolute" => Base::Absolute,
        "gs" => Base::Gs,
        other => return Err(PidAtError::Base(other.to_owned())),
    };
    let offsets = offsets
        .split(',')
        .map(offset)
        .collect::<Result<Vec<_>, _>>()?;
    if offsets.len() > DEPTH_MAX {
        return Err(PidAtError::Depth(offsets.len()));
    }
    let bytes = match width {
        "1" => 1,
        "2" => 2,
        "4" => 4,
        "8" => 8,
        other => return Err(PidAtError::Width(other.to_owned())),
    };
    Location::new(base, bytes, &offsets).ok_or_else(shape)
}

fn offset(text: &str) -> Result<i64, PidAtError> {
    let error = || PidAtError::Offset(text.to_owned());
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    if digits.starts_with(['+', '-']) {
        return Err(error());
    }
    let magnitude = match digits
        .strip_prefix("0x")
        .or_else(|| digits.strip_prefix("0X"))
    {
        // Kernel addresses are written as unsigned numbers.
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16),
        None => digits.parse(),
    };
    let value = magnitude.map_err(|_| error())?.cast_signed();
    Ok(if negative {
        value.wrapping_neg()
    } else {
        value
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_locations() {
        assert_eq!(
            parse("absolute:0x1234:4").ok(),
            Location::new(Base::Absolute, 4, &[0x1234])
        );
        assert_eq!(
            parse("gs:0x10,-8,24:8").ok(),
            Location::new(Base::Gs, 8, &[0x10, -8, 24])
        );
        assert_eq!(
            parse("absolute:0xffffffff81000000:2").ok(),
            Location::new(Base::Absolute, 2, &[-0x7f00_0000])
        );
    }

    #[test]
    fn invalid_locations_are_named() {
        let message = |value| parse(value).unwrap_err().to_string();
        assert!(message("").contains("absolute:0x1234:4"));
        assert!(message("gs:0x10").contains("BASE:OFFSET"));
        assert!(message("gs:1:4:5").contains("BASE:OFFSET"));
        assert_eq!(
            message("fs:0x10:4"),
            "The base 'fs' is neither 'absolute' nor 'gs'"
        );
        for bad in [
            "gs::4",
            "gs:0x:4",
            "gs:ten:4",
            "gs:+1:4",
            "gs:--1:4",
            "gs:0x10000000000000000:4",
        ] {
            assert!(message(bad).contains("is not a decimal or 0x"), "{bad}");
        }
        assert_eq!(
            message("gs:1,2,3,4,5:4"),
            "There are 5 offsets, more than 4"
        );
        assert_eq!(
            message("gs:1:16"),
            "The width '16' is none of 1, 2, 4 and 8 bytes"
        );
    }
}
