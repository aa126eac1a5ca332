//! The tables of a profile in pprof's format, for any source. Their rows are numbered from 1.

use super::message::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};
use crate::model::{Range, Table};

/// A location: mapping, address, and the functions there with their lines, innermost first.
type LocationKey = (u64, u64, Vec<(u64, i64)>);

/// A profile that is being made.
#[derive(Debug, Default)]
pub struct PprofTables {
    /// The profile, without its strings.
    pub profile: Profile,
    strings: Table<String>,
    functions: Table<(i64, i64)>,
    locations: Table<LocationKey>,
}

impl PprofTables {
    /// The values are ticks and what they measure, with its unit; a tick is `period` of these units.
    pub fn measure(&mut self, measured: &str, unit: &str, period: u64) {
        let types = [("samples", "count"), (measured, unit)].map(|(name, unit)| ValueType {
            r#type: self.string(name),
            unit: self.string(unit),
        });
        self.profile.period_type = Some(types[1]);
        self.profile.sample_type = types.into();
        self.profile.period = signed(period);
    }

    /// The number of a string, from 0.
    fn string(&mut self, text: &str) -> i64 {
        if self.strings.length() == 0 {
            // The format requires this one to be empty.
            self.strings.push(String::new());
        }
        let known = self.strings.find(text);
        let number = known.unwrap_or_else(|| self.strings.push(text.to_owned()));
        number.into()
    }

    /// Adds a mapping of `range`. Returns its number.
    pub fn mapping(&mut self, file: &str, build_id: &str, range: Range) -> u64 {
        let id = self.profile.mapping.len() as u64 + 1;
        let mapping = Mapping {
            id,
            memory_start: range.begin,
            memory_limit: range.end,
            file_offset: range.offset,
            filename: self.string(file),
            build_id: self.string(build_id),
            // Files and lines are marked when a frame has them.
            has_functions: true,
            ..Mapping::default()
        };
        self.profile.mapping.push(mapping);
        id
    }

    /// The number of a function, which is added if it is new.
    pub fn function(&mut self, name: &str, file: &str) -> u64 {
        let (name, filename) = (self.string(name), self.string(file));
        let known = self.functions.find(&(name, filename));
        let number = known.unwrap_or_else(|| {
            self.profile.function.push(Function {
                id: self.functions.length() as u64 + 1,
                name,
                system_name: name,
                filename,
            });
            self.functions.push((name, filename))
        });
        u64::from(number) + 1
    }

    /// The number of a location with these functions and lines, which is added if it is new.
    pub fn location(&mut self, mapping_id: u64, address: u64, lines: Vec<(u64, i64)>) -> u64 {
        let key = (mapping_id, address, lines);
        let known = self.locations.find(&key);
        let number = known.unwrap_or_else(|| {
            let line = |(function_id, line): &(u64, i64)| Line {
                function_id: *function_id,
                line: *line,
            };
            self.profile.location.push(Location {
                id: self.locations.length() as u64 + 1,
                mapping_id,
                address,
                line: key.2.iter().map(line).collect(),
            });
            self.locations.push(key)
        });
        u64::from(number) + 1
    }

    /// Adds a sample with these `values`.
    pub fn sample<'a>(
        &mut self,
        location_id: Vec<u64>,
        value: [i64; 2],
        labels: impl Iterator<Item = (&'a str, &'a str)>,
    ) {
        let label = labels.map(|(key, text)| Label {
            key: self.string(key),
            str: self.string(text),
        });
        let label = label.collect();
        self.profile.sample.push(Sample {
            location_id,
            value: value.into(),
            label,
        });
    }

    /// The profile.
    pub fn finish(mut self) -> Profile {
        self.string("");
        Profile {
            string_table: self.strings.into_values(),
            ..self.profile
        }
    }
}

/// `number` in the type of the format, saturated.
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
