//! The information in a recorder's stream about one process: its code, and the execution of another program.

use std::path::Path;

use kvmprof_recording::Mode;
use kvmprof_recording::file::{
    Budget, Piece, ReadError, Reader, RecordingInfo, Samples, page_tables,
};
use kvmprof_report::symbolize::{
    AddressLocation, CodeAddress, MappingSet, Resolved, Resolver, Sources, SymbolError,
};

/// Maximum number of blocks of samples, about one a second, in which the mapping at the process's program counter may
/// still be missing. After these, the code is finally unknown.
const MAX_BLOCKS_WITHOUT_MAPPING: u32 = 3;

/// The known part of a process of the guest.
#[derive(Debug)]
pub struct Process {
    /// Its pid.
    pub pid: i32,
    /// The properties of the recording; those by default while they are unknown.
    pub info: RecordingInfo,
    /// The resolver of names.
    pub resolver: Resolver,
    reader: Reader,
    budget: Budget,
    /// The page tables when the process was first seen.
    first_space: Option<u64>,
    /// The page tables when it was last seen.
    space: u64,
    /// The program counter when it was last seen in user mode.
    last_pc: Option<u64>,
    blocks: u32,
}

/// The state of the knowledge about a process's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// The process wasn't seen in user mode yet.
    Unseen,
    /// The process was seen in code that is still unknown.
    Unknown,
    /// The file with the code is known.
    Known,
    /// The process was seen, and its code will stay unknown.
    Hopeless,
}

/// The code at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CodeName {
    /// The file's name, or another name in brackets.
    pub module: String,
    /// The function, or the address.
    pub function: String,
}

impl Process {
    /// Process `pid`, without any information. Files are also looked for in the folder `sysroot`.
    ///
    /// # Errors
    /// The folder can't be opened.
    pub fn new(pid: i32, sysroot: Option<&Path>) -> Result<Self, SymbolError> {
        let sources = Sources {
            sysroot: sysroot.map(Path::to_owned),
            ..Sources::default()
        };
        Ok(Self {
            pid,
            info: RecordingInfo::default(),
            resolver: Resolver::new(&Default::default(), &sources)?,
            reader: Reader::default(),
            budget: Budget::default(),
            first_space: None,
            space: 0,
            last_pc: None,
            blocks: 0,
        })
    }

    /// Reads bytes of the stream.
    ///
    /// # Errors
    /// The bytes aren't a recording of a known format, or are damaged.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), ReadError> {
        self.reader.push(bytes);
        while let Some(block) = self.reader.next_block()? {
            if !self.budget.take(&block) {
                continue;
            }
            match block.piece()? {
                Some(Piece::Info(info)) => self.info = info,
                Some(Piece::Samples(samples)) => self.see(&samples)?,
                // Mappings of other processes would fill the memory.
                Some(Piece::Mappings(mappings)) if mappings.pid != self.pid => {}
                Some(piece) => self.resolver.add_piece(piece),
                None => {}
            }
        }
        Ok(())
    }

    fn see(&mut self, samples: &Samples) -> Result<(), ReadError> {
        let mut is_there = false;
        samples.read(|ticks, _| {
            let Some(sample) = &ticks.sample else {
                return;
            };
            if sample.pid == self.pid && sample.mode == Mode::User {
                self.space = page_tables(sample.address_space);
                self.first_space.get_or_insert(self.space);
                self.last_pc = Some(sample.pc);
                is_there = true;
            }
        })?;
        self.blocks += u32::from(is_there);
        Ok(())
    }

    /// The last known mappings of the program that was seen first. Programs that the process has executed later don't count.
    pub fn mappings(&self) -> MappingSet {
        let spaces = &self.resolver.tables().spaces;
        let space = self.first_space.unwrap_or(self.space);
        spaces.at(space, self.pid, u64::MAX)
    }

    /// The state of the knowledge about the process's code.
    pub fn knowledge(&self) -> Knowledge {
        let Some(pc) = self.last_pc else {
            return Knowledge::Unseen;
        };
        let located = self.resolver.tables().locate(self.mappings(), pc, false);
        match located {
            AddressLocation::Unknown if self.blocks < MAX_BLOCKS_WITHOUT_MAPPING => {
                Knowledge::Unknown
            }
            AddressLocation::Unknown => Knowledge::Hopeless,
            AddressLocation::Kernel(_) | AddressLocation::Mapping(_) => Knowledge::Known,
        }
    }

    /// Forgets what was seen, because the process has executed another program.
    pub fn restart(&mut self) {
        (self.first_space, self.last_pc, self.blocks) = (None, None, 0);
    }

    /// Whether the process has executed another program since it was first seen. Linux then gives it other page tables.
    pub fn has_executed(&self) -> bool {
        let is_linux = self.mappings() != MappingSet::default();
        let spaces = &self.resolver.tables().spaces;
        let is_other = |first| !spaces.can_be_same(first, self.space);
        is_linux && self.first_space.is_some_and(is_other)
    }

    /// The names of the code at `address`.
    pub fn resolve(&self, address: u64) -> Resolved {
        self.resolver.resolve(CodeAddress {
            mappings: self.mappings(),
            address,
            is_kernel: false,
        })
    }

    /// The function, or the functions, from `begin` to `last`.
    pub fn name(&self, begin: u64, last: u64) -> CodeName {
        let (first, last) = (self.resolve(begin), self.resolve(last));
        let (at_begin, at_end) = (name(&first), name(&last));
        match (first.offset, last.offset) {
            _ if at_begin == at_end => at_begin,
            // There is no code between two functions.
            (None, Some(_)) => at_end,
            (_, None) => at_begin,
            (Some(_), Some(_)) => CodeName {
                function: format!("{}..{}", at_begin.function, at_end.function),
                ..at_begin
            },
        }
    }
}

/// The function, without the functions that are inlined into it.
fn name(resolved: &Resolved) -> CodeName {
    let frame = resolved.frames.last();
    frame.map_or_else(CodeName::default, |frame| CodeName {
        module: frame.module.to_string(),
        function: frame.function.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::Sample;
    use kvmprof_recording::file::{
        BinaryFunction, BinaryInfo, Block, Kind, Mapping, ProcessMappings, SamplesEncoder, Segment,
        header,
    };

    use super::*;

    const PID: i32 = 7;
    const SPACE: u64 = 0x2000;
    const CODE: u64 = 0x5000_1000;

    /// A block with a sample of process `pid` in user mode.
    fn sample(pid: i32, space: u64, pc: u64) -> Vec<u8> {
        let mut encoder = SamplesEncoder::default();
        let sample = Sample {
            pid,
            pc,
            mode: Mode::User,
            address_space: space,
            ..Sample::default()
        };
        encoder.push(&sample.into(), &[pc]);
        Block::encode(Kind::Samples, &encoder.take().bytes).unwrap()
    }

    fn mappings(pid: i32, space: u64) -> Vec<u8> {
        let mapping = Mapping {
            begin: CODE,
            end: CODE + 0x1000,
            offset: 0x1000,
            file: "/bin/loom".to_owned(),
            binary: Some(1),
        };
        let mappings = ProcessMappings {
            address_space: space,
            pid,
            mappings: vec![mapping],
            ..ProcessMappings::default()
        };
        mappings.to_block().unwrap()
    }

    fn functions() -> Vec<u8> {
        let info = BinaryInfo {
            id: 1,
            segments: vec![Segment {
                offset: 0x1000,
                address: 0x40_1000,
                length: 0x1000,
            }],
            ..BinaryInfo::default()
        };
        let function = |address, length, name: &str| BinaryFunction {
            address,
            length,
            name: name.to_owned(),
        };
        let functions = [
            function(0x40_1000, 0x1c, "weave"),
            function(0x40_1020, 0x20, "card"),
        ];
        info.to_block(&functions).unwrap()
    }

    fn process(blocks: &[Vec<u8>]) -> Process {
        let mut process = Process::new(PID, None).unwrap();
        process.feed(&header()).unwrap();
        for block in blocks {
            process.feed(block).unwrap();
        }
        process
    }

    #[test]
    fn code_is_known_once_a_sample_is_in_a_mapping() {
        let seen = || sample(PID, SPACE, CODE);
        let own = || mappings(PID, SPACE);
        for (blocks, expected) in [
            (vec![own()], Knowledge::Unseen),
            (vec![sample(8, SPACE, CODE)], Knowledge::Unseen),
            (vec![seen()], Knowledge::Unknown),
            (vec![seen(), mappings(8, SPACE)], Knowledge::Unknown),
            (vec![seen(), own()], Knowledge::Known),
            (vec![seen(), seen(), seen()], Knowledge::Hopeless),
            (vec![seen(), seen(), seen(), own()], Knowledge::Known),
        ] {
            assert_eq!(process(&blocks).knowledge(), expected, "{}", blocks.len());
        }
    }

    #[test]
    fn other_page_tables_are_another_program_on_linux() {
        let blocks = [sample(PID, SPACE, CODE), mappings(PID, SPACE)];
        let mut linux = process(&blocks);
        assert!(!linux.has_executed());
        // The other half under KPTI, and another process.
        linux.feed(&sample(PID, SPACE | 0x1000, CODE)).unwrap();
        linux.feed(&sample(8, 0x6000, CODE)).unwrap();
        assert!(!linux.has_executed());
        linux.feed(&sample(PID, 0x4000, CODE)).unwrap();
        linux.feed(&mappings(PID, 0x4000)).unwrap();
        assert!(linux.has_executed());
        let blocks = [sample(PID, SPACE, CODE), sample(PID, 0x4000, CODE)];
        assert!(!process(&blocks).has_executed());
    }

    #[test]
    fn code_keeps_its_name_when_another_program_is_executed() {
        let blocks = [sample(PID, SPACE, CODE), mappings(PID, SPACE), functions()];
        let mut process = process(&blocks);
        process.feed(&sample(PID, 0x4000, CODE)).unwrap();
        process.feed(&mappings(PID, 0x4000)).unwrap();
        assert!(process.has_executed());
        assert_eq!(process.name(CODE, CODE).function, "weave");
        // The next program is still unknown then.
        process.restart();
        assert!(!process.has_executed());
        assert_eq!(process.knowledge(), Knowledge::Unseen);
    }

    #[test]
    fn regions_are_named_after_their_functions() {
        let blocks = [sample(PID, SPACE, CODE), mappings(PID, SPACE), functions()];
        let process = process(&blocks);
        let name = |begin, last| process.name(CODE + begin, CODE + last).function;
        assert_eq!(name(0x10, 0x17), "weave");
        // From one function, over the gap, to the next one.
        assert_eq!(name(0x18, 0x1f), "weave");
        assert_eq!(name(0x1c, 0x23), "card");
        assert_eq!(name(0x10, 0x2f), "weave..card");
        assert_eq!(name(0x80, 0x87), "loom+0x401080");
        assert_eq!(process.name(CODE, CODE).module, "loom");
    }
}
