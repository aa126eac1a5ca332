//! What samples are grouped by: the tables of reports, their levels, and the frames on which flame graphs put processes.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command};

use super::{Profile, label_keys};

/// The most groupings that can be levels of each other.
const MOST_LEVELS: usize = 16;

/// What samples are grouped by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// User, kernel, interrupt, idle.
    Mode,
    /// vCPUs.
    Vcpu,
    /// Processes.
    Process,
    /// Threads.
    Thread,
    /// The kernel, its modules, programs and libraries.
    Module,
    /// Functions.
    Function,
    /// Source lines; needs debug information.
    Line,
    /// The values of the label with this key.
    Label(String),
}

impl Grouping {
    /// Those that every recording can have, with their names on command lines and what they are.
    pub const ALL: [(Self, &'static str, &'static str); 7] = [
        (Self::Mode, "mode", "User, kernel, interrupt, idle"),
        (Self::Vcpu, "vcpu", "vCPUs"),
        (Self::Process, "process", "Processes"),
        (Self::Thread, "thread", "Threads"),
        (
            Self::Module,
            "module",
            "The kernel, its modules, programs and libraries",
        ),
        (Self::Function, "function", "Functions"),
        (Self::Line, "line", "Source lines; needs debug information"),
    ];

    /// Its name on command lines.
    pub fn name(&self) -> &str {
        let known = Self::ALL.iter().find(|(known, ..)| known == self);
        match (self, known) {
            (Self::Label(key), _) => key,
            (_, known) => known.map_or("", |(_, name, _)| name),
        }
    }

    /// The grouping with this name. Other names are keys of labels.
    fn named(name: &str) -> Self {
        let known = Self::ALL.into_iter().find(|(_, known, _)| *known == name);
        known.map_or_else(|| Self::Label(name.to_owned()), |(grouping, ..)| grouping)
    }

    /// Whether it is one of frames: a sample with several of them on its stack is in several groups.
    pub fn is_of_code(&self) -> bool {
        matches!(self, Self::Module | Self::Function | Self::Line)
    }

    /// Whether groups of it and of other groupings have samples only by [`Profile::parts`].
    fn needs_parts(&self) -> bool {
        matches!(self, Self::Vcpu | Self::Thread)
    }
}

/// Groupings that are levels of each other, the outermost first; none is twice. A single one is a table without levels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Levels(Vec<Grouping>);

impl From<Grouping> for Levels {
    fn from(grouping: Grouping) -> Self {
        Self(vec![grouping])
    }
}

impl Levels {
    /// The groupings with these `names`.
    ///
    /// # Errors
    /// There are too many, or one is named twice; in words.
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut levels = Vec::new();
        for name in names {
            let grouping = Grouping::named(name);
            if levels.contains(&grouping) {
                return Err(format!("{name} is named twice"));
            }
            levels.push(grouping);
        }
        match levels.len() {
            0..=MOST_LEVELS => Ok(Self(levels)),
            _ => Err(format!("there can be {MOST_LEVELS} levels at most")),
        }
    }

    /// The groupings.
    pub fn groupings(&self) -> &[Grouping] {
        &self.0
    }

    /// These, and `innermost` below them unless it is one of them.
    #[must_use]
    pub fn above(&self, innermost: Grouping) -> Self {
        let mut levels = self.0.clone();
        if !levels.contains(&innermost) {
            levels.push(innermost);
        }
        Self(levels)
    }

    /// Whether any of them is of code.
    pub fn are_of_code(&self) -> bool {
        self.0.iter().any(Grouping::is_of_code)
    }

    /// Whether they need [`Profile::parts`].
    pub fn need_parts(&self) -> bool {
        self.0.iter().any(Grouping::needs_parts)
    }

    /// The first label among them that no sampled process of `profile` has.
    pub fn missing_label(&self, profile: &Profile) -> Option<&str> {
        let keys = label_keys(profile);
        self.0.iter().find_map(|grouping| match grouping {
            Grouping::Label(key) if !keys.contains(key.as_str()) => Some(key.as_str()),
            _ => None,
        })
    }
}

/// Parses names of groupings with commas between them.
#[derive(Clone, Copy, Debug)]
pub struct LevelsParser {
    /// Whether those of code are among them.
    pub with_code: bool,
}

impl TypedValueParser for LevelsParser {
    type Value = Levels;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Levels, clap::Error> {
        let with_code = self.with_code;
        let parser = StringValueParser::new().try_map(move |text| {
            let levels = Levels::named(text.split(','))?;
            let code = levels.groupings().iter().find(|one| one.is_of_code());
            match code {
                Some(code) if !with_code => Err(format!(
                    "{} is of the frames on a stack, which are in the picture already",
                    code.name()
                )),
                _ => Ok(levels),
            }
        });
        parser.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let values = Grouping::ALL.into_iter();
        let values = values.filter(|(grouping, ..)| self.with_code || !grouping.is_of_code());
        Some(Box::new(
            values.map(|(_, name, help)| PossibleValue::new(name).help(help)),
        ))
    }
}
