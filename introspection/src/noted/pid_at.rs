//! Parses the argument of `--pid-at`: the place of the current pid in a guest without a note.

use kvmprof_abi::note::{Base, DEPTH_MAX, Location};

use crate::Symbols;

/// Why a `--pid-at` argument is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PidAtError {
    /// It doesn't have three parts.
    #[error(
        "'{0}' is not BASE:OFFSET[,OFFSET...]:WIDTH, such as absolute:0x1234:4 or gs:0x10,0x8:8"
    )]
    Shape(String),
    /// The base is unknown.
    #[error(
        "The base '{0}' is neither 'absolute' nor 'gs', nor the name of a variable in the guest's image, an ELF file with symbols (--kernel)"
    )]
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

/// The place of a pid, as the option says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PidAt {
    location: Location,
    /// The variable that `location` is relative to, instead of the address 0.
    variable: Option<String>,
}

impl PidAt {
    /// Parses `BASE:OFFSET[,OFFSET...]:WIDTH`. The base is `absolute`, `gs` or the name of a variable in the guest's image, offsets are decimal or
    /// 0x-prefixed and may be negative, and the width is 1, 2, 4 or 8 bytes.
    ///
    /// # Errors
    /// A part is malformed.
    pub fn parse(value: &str) -> Result<Self, PidAtError> {
        let shape = || PidAtError::Shape(value.to_owned());
        let mut parts = value.split(':');
        let (Some(base), Some(offsets), Some(width), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(shape());
        };
        let (base, variable) = match base {
            "absolute" => (Base::Absolute, None),
            "gs" => (Base::Gs, None),
            "" => return Err(shape()),
            variable => (Base::Absolute, Some(variable.to_owned())),
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
        Ok(Self {
            location: Location::new(base, bytes, &offsets).ok_or_else(shape)?,
            variable,
        })
    }

    /// The place; `None` if it is relative to a variable.
    pub fn location(&self) -> Option<Location> {
        self.variable.is_none().then_some(self.location)
    }

    /// The place with the link-time address of the variable in `symbols`.
    ///
    /// # Errors
    /// There is no such variable.
    pub fn resolve(&self, symbols: &Symbols) -> Result<Location, PidAtError> {
        let Some(variable) = &self.variable else {
            return Ok(self.location);
        };
        let [address] = symbols.addresses_of([variable.as_str()]);
        let address = address.ok_or_else(|| self.unknown_base())?;
        Ok(self.location.moved(address))
    }

    /// The error if there is no image with the variable.
    pub fn unknown_base(&self) -> PidAtError {
        PidAtError::Base(self.variable.clone().unwrap_or_default())
    }
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
        for (value, base, width, offsets) in [
            ("absolute:0x1234:4", Base::Absolute, 4, &[0x1234][..]),
            ("gs:0x10,-8,24:8", Base::Gs, 8, &[0x10, -8, 24]),
            (
                "absolute:0xffffffff81000000:2",
                Base::Absolute,
                2,
                &[-0x7f00_0000],
            ),
        ] {
            let location = PidAt::parse(value).unwrap().location();
            assert_eq!(location, Location::new(base, width, offsets), "{value}");
        }
    }

    #[test]
    fn invalid_locations_are_named() {
        let number = "is not a decimal or 0x";
        for (value, words) in [
            ("", "absolute:0x1234:4"),
            ("gs:0x10", "BASE:OFFSET"),
            ("gs:1:4:5", "BASE:OFFSET"),
            (":0x10:4", "BASE:OFFSET"),
            ("gs::4", number),
            ("gs:0x:4", number),
            ("gs:ten:4", number),
            ("gs:+1:4", number),
            ("gs:--1:4", number),
            ("gs:0x10000000000000000:4", number),
            ("gs:1,2,3,4,5:4", "There are 5 offsets, more than 4"),
            ("gs:1:16", "The width '16' is none of 1, 2, 4 and 8 bytes"),
        ] {
            let said = PidAt::parse(value).unwrap_err().to_string();
            assert!(said.contains(words), "{value}: {said}");
        }
    }
}
