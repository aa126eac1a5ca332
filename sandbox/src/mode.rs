//! Whether kvmprof is contained.

use std::fmt;
use std::str::FromStr;

/// The argument of `--sandbox`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It is contained. A system call that isn't allowed ends the process.
    #[default]
    On,
    /// As [`Mode::On`], but a system call that isn't allowed is reported and made.
    Log,
    /// It isn't contained.
    Off,
}

impl Mode {
    /// The word of the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Log => "log",
            Self::Off => "off",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        [Self::On, Self::Log, Self::Off]
            .into_iter()
            .find(|mode| mode.name() == word)
            .ok_or_else(|| format!("'{word}' isn't on, log or off"))
    }
}
