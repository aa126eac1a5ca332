//! A thread's samples, stacks, frames and names, in the tables of the format.

use crate::model::Table;

/// A frame to be added.
#[derive(Clone, Copy, Debug)]
pub struct NewFrame<'a> {
    pub name: &'a str,
    /// The library's number and name.
    pub library: Option<(u32, &'a str)>,
    /// The address in the library.
    pub address: Option<u32>,
    /// The start of the function that the library has there.
    pub symbol: Option<(u32, &'a str)>,
    /// The source file and line.
    pub source: Option<(&'a str, u32)>,
    /// How many functions it is inlined into, at this address.
    pub depth: u32,
    pub category: u32,
}

/// A function: numbers of its name, resource and file.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Function {
    pub name: u32,
    pub resource: Option<u32>,
    pub file: Option<u32>,
}

/// A frame: numbers of its function and symbol, and as in [`NewFrame`].
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    pub function: u32,
    pub address: Option<u32>,
    pub symbol: Option<u32>,
    pub line: Option<u32>,
    pub depth: u32,
    pub category: u32,
}

/// A library's function: numbers of the library and of its name, and its address.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Symbol {
    pub library: u32,
    pub address: u32,
    pub name: u32,
}

/// A sample, or consecutive ticks of a halted vCPU: the time in ns since the recording's start, the number of its stack.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub time: u64,
    pub stack: Option<u32>,
    pub ticks: u32,
    is_busy: bool,
}

/// A thread's stay on a vCPU, in ns since the recording's start.
#[derive(Clone, Copy, Debug)]
pub struct Stay {
    pub vcpu: u16,
    pub first: u64,
    pub last: u64,
}

/// The tables of a thread.
#[derive(Debug, Default)]
pub struct Tables {
    pub strings: Table<String>,
    /// Libraries: numbers of each and of its name.
    pub resources: Table<(u32, u32)>,
    pub functions: Table<Function>,
    pub symbols: Table<Symbol>,
    pub frames: Table<Frame>,
    /// The number of the stack below, and that of the frame.
    pub stacks: Table<(Option<u32>, u32)>,
    /// The samples; in complete tables by time.
    pub samples: Vec<Sample>,
    /// How long the thread ran before each sample, in ns; only in complete tables.
    pub busy: Vec<u64>,
    /// Each with the number of its text.
    pub stays: Vec<(Stay, u32)>,
    /// The number of the stays' name; only in complete tables.
    pub marker: u32,
}

impl Tables {
    fn string(&mut self, text: &str) -> u32 {
        let known = self.strings.find(text);
        known.unwrap_or_else(|| self.strings.push(text.to_owned()))
    }

    /// The number of the stack with `frame` on top of the stack `below`.
    pub fn stack(&mut self, below: Option<u32>, frame: NewFrame<'_>) -> u32 {
        let name = self.string(frame.name);
        let resource = frame.library.map(|(library, name)| {
            let name = self.string(name);
            self.resources.number((library, name))
        });
        let function = Function {
            name,
            resource,
            file: frame.source.map(|(file, _)| self.string(file)),
        };
        let symbol = frame.symbol.zip(frame.library);
        let symbol = symbol.map(|((address, name), (library, _))| {
            let name = self.string(name);
            self.symbols.number(Symbol {
                library,
                address,
                name,
            })
        });
        let frame = Frame {
            function: self.functions.number(function),
            address: frame.address,
            symbol,
            line: frame.source.map(|(_, line)| line).filter(|line| *line > 0),
            depth: frame.depth,
            category: frame.category,
        };
        let frame = self.frames.number(frame);
        self.stacks.number((below, frame))
    }

    /// Adds a sample.
    pub fn sample(&mut self, time: u64, stack: Option<u32>, ticks: u64, is_busy: bool) {
        self.samples.push(Sample {
            time,
            stack,
            ticks: u32::try_from(ticks).unwrap_or(u32::MAX),
            is_busy,
        });
    }

    /// Adds a stay on a vCPU.
    pub fn stay(&mut self, stay: Stay) {
        let name = self.string(&format!("vCPU {}", stay.vcpu));
        self.stays.push((stay, name));
    }

    /// Completes the tables, with the time that a tick stands for in ns.
    pub fn finish(&mut self, tick_ns: u64) {
        self.marker = self.string("vCPU");
        self.samples.sort_by_key(|sample| sample.time);
        self.busy = busy_time(&self.samples, tick_ns);
    }
}

/// How long the thread ran from each sample to the next, in ns: the time of each tick, and never more than has passed.
/// Ticks come unevenly, so that the excess of a sample counts for the next one.
fn busy_time(samples: &[Sample], tick_ns: u64) -> Vec<u64> {
    let (mut before, mut left) = (0, 0_u64);
    let busy = samples.iter().map(|sample| {
        let passed = sample.time - before;
        before = sample.time;
        if !sample.is_busy {
            left = 0;
            return 0;
        }
        left = left.saturating_add(tick_ns.saturating_mul(sample.ticks.into()));
        let ran = left.min(passed);
        left = (left - ran).min(tick_ns);
        ran
    });
    busy.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(samples: &[(u64, u32, bool)]) -> Vec<u64> {
        let samples: Vec<Sample> = (samples.iter())
            .map(|(time, ticks, is_busy)| Sample {
                time: *time,
                stack: None,
                ticks: *ticks,
                is_busy: *is_busy,
            })
            .collect();
        busy_time(&samples, 10)
    }

    #[test]
    fn a_thread_runs_no_longer_than_time_has_passed() {
        // With jitter, ticks are nearer and farther apart.
        let jitter = [100, 108, 120, 130].map(|time| (time, 1, true));
        assert_eq!(busy(&jitter), [10, 8, 12, 10]);
        // Time without a known owner isn't a thread's; idle time isn't either.
        let gaps = [
            (5, 1, true),
            (100, 1, true),
            (150, 3, false),
            (152, 1, true),
        ];
        assert_eq!(busy(&gaps), [5, 15, 0, 2]);
    }
}
