//! Names the frames of stacks: asks the resolver once for each different address.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use kvmprof_recording::file::{KernelInfo, Mapping, Observer, Segment};

use super::code::{
    Code, FrameKind, Function, Line, Mapped, Module, ModuleKind, NodeId, PlaceId, PlacedFunction,
    Range,
};
use super::{Stack, StackCounts};
use crate::symbolize::{
    AddressLocation, CodeAddress, KERNEL, Labels, Resolved, Resolver, is_nameless, module_name,
};
use crate::text::visible;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// An address in memory, and whether it is one of the host's.
type Address = (CodeAddress, bool);

/// Fills [`Code`].
pub struct Namer<'a> {
    resolver: &'a Resolver,
    kernel: Option<&'a KernelInfo>,
    code: Code,
    known: HashMap<Address, PlaceId, RandomState>,
}

impl<'a> Namer<'a> {
    /// A namer by `resolver`, of a guest with this `kernel`, if it is known.
    pub fn new(resolver: &'a Resolver, kernel: Option<&'a KernelInfo>) -> Self {
        Self {
            resolver,
            kernel,
            code: Code::default(),
            known: HashMap::default(),
        }
    }

    /// The labels of processes.
    pub fn labels(&self) -> &'a Labels {
        &self.resolver.tables().labels
    }

    /// What has been named so far.
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// The same, for more stacks of it.
    pub(super) fn code_mut(&mut self) -> &mut Code {
        &mut self.code
    }

    /// All that has been named.
    pub fn into_code(self) -> Code {
        self.code
    }

    /// Names the frames of all `stacks`. `observer` gets the progress; after it interrupts, further frames get no source lines.
    pub fn prepare(&mut self, stacks: &StackCounts, observer: &dyn Observer) {
        let mut all: Vec<Address> = Vec::new();
        let mut seen = std::collections::HashSet::<Address, RandomState>::default();
        for (_, stack, _) in stacks.iter() {
            let addresses = stack
                .addresses()
                .filter(|address| !self.known.contains_key(address));
            all.extend(addresses.filter(|address| seen.insert(*address)));
        }
        drop(seen);
        // Addresses that are close in a file are read together.
        all.sort_by_key(|(asked, _)| (asked.is_kernel, asked.mappings, asked.address));
        for (done, address) in (0..).zip(&all) {
            if observer.advance(done, all.len() as u64).is_break() {
                self.resolver.skip_source_lines();
                return;
            }
            self.place(*address);
        }
    }

    /// The number of `stack`.
    pub fn node(&mut self, stack: Stack<'_>) -> NodeId {
        let mut node = NodeId::default();
        let shows_native = self.resolver.shows_native();
        for index in (0..stack.frames.len()).rev() {
            if !shows_native && stack.is_interpreter(index) {
                continue;
            }
            let place = self.place(stack.address(index));
            node = self.code.add_node(node, place);
        }
        node
    }

    fn place(&mut self, address: Address) -> PlaceId {
        if let Some(place) = self.known.get(&address) {
            return *place;
        }
        let (asked, is_host) = address;
        let resolved = self.resolver.resolve(asked);
        let mapped = self.mapped(asked, &resolved);
        let mut frames = Vec::with_capacity(resolved.frames.len());
        for frame in resolved.frames.iter() {
            let function = Function {
                name: self.code.shared_name(&frame.function),
                module: self.code.shared_name(&frame.module),
                is_kernel: asked.is_kernel,
            };
            frames.push(PlacedFunction {
                function: self.code.add_function(function),
                mapped,
                address: asked.address,
                file_address: resolved.file_address,
                offset: resolved.offset.filter(|_| !frame.is_inlined),
                source: frame.source.as_ref().map(|source| Line {
                    file: self.code.shared_name(&source.file),
                    line: source.line,
                }),
                mappings: asked.mappings,
                kind: match (is_host, asked.is_kernel, frame.is_generated) {
                    _ if frame.is_of_language => FrameKind::Language,
                    (true, _, _) => FrameKind::Host,
                    (_, true, _) => FrameKind::Kernel,
                    (_, _, true) => FrameKind::Generated,
                    _ => FrameKind::User,
                },
                is_inlined: frame.is_inlined,
            });
        }
        let place = self.code.add_place(frames);
        self.known.insert(address, place);
        place
    }

    /// What has the code at an address, and where.
    fn mapped(&mut self, asked: CodeAddress, resolved: &Resolved) -> u32 {
        let location =
            (self.resolver.tables()).locate(asked.mappings, asked.address, asked.is_kernel);
        if let AddressLocation::Mapping(mapping) = location
            && !is_nameless(mapping)
        {
            return self.mapped_file(mapping, asked.address);
        }
        // There is at least one frame.
        let module = resolved.frames.last().map(|frame| &*frame.module);
        let module = module.unwrap_or_default();
        let kind = match location {
            _ if asked.is_kernel => ModuleKind::Kernel,
            AddressLocation::Kernel(_) => ModuleKind::Image,
            AddressLocation::Mapping(_) | AddressLocation::Unknown => ModuleKind::Nowhere,
        };
        let kernel = self
            .kernel
            .filter(|_| kind == ModuleKind::Kernel && module == KERNEL);
        let build_id = kernel.map_or_else(String::new, |kernel| visible(&kernel.build_id));
        let name = self.code.name(module);
        let module = Module {
            name,
            path: name,
            build_id: self.code.name(&build_id),
            kind,
        };
        let mapped = Mapped {
            module: self.code.add_module(module),
            ..Mapped::default()
        };
        self.code.add_mapped(mapped)
    }

    fn mapped_file(&mut self, mapping: &Mapping, address: u64) -> u32 {
        let file = self.resolver.tables().file(mapping);
        let build_id = file.map_or("", |file| &*file.info().build_id);
        let module = Module {
            name: self.code.name(&visible(module_name(&mapping.file))),
            path: self.code.name(&visible(&mapping.file)),
            build_id: self.code.name(&visible(build_id)),
            kind: ModuleKind::File,
        };
        let mapped = Mapped {
            module: self.code.add_module(module),
            mapping: Range {
                begin: mapping.begin,
                end: mapping.end,
                offset: mapping.offset,
            },
            segment: match self.resolver.segment(mapping, address) {
                Some(segment) => of_segment(segment),
                None => of_offsets(mapping),
            },
        };
        self.code.add_mapped(mapped)
    }
}

/// The addresses at which `segment` is loaded: whole pages, as the system does it.
fn of_segment(segment: Segment) -> Range {
    let before = segment.address % PAGE;
    let is_in_pages = segment.offset % PAGE == before;
    let before = if is_in_pages { before } else { 0 };
    let end = segment.address.saturating_add(segment.length);
    Range {
        begin: segment.address - before,
        end: end.checked_next_multiple_of(PAGE).unwrap_or(end),
        offset: segment.offset - before,
    }
}

/// The offsets of `mapping` in its file, which are its addresses if the file's segments aren't known.
fn of_offsets(mapping: &Mapping) -> Range {
    Range {
        begin: mapping.offset,
        end: (mapping.offset).saturating_add(mapping.end.saturating_sub(mapping.begin)),
        offset: mapping.offset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_loaded_in_pages() {
        let range = |address, offset, length| {
            let segment = Segment {
                offset,
                address,
                length,
            };
            let Range { begin, end, offset } = of_segment(segment);
            (begin, end, offset)
        };
        let loaded = range(0x40_1040, 0x1040, 0x1fc0);
        assert_eq!(loaded, (0x40_1000, 0x40_3000, 0x1000));
        assert_eq!(range(0x2000, 0x1000, 1), (0x2000, 0x3000, 0x1000));
        // Segments that no system would load are unchanged, and nothing overflows.
        assert_eq!(range(0x2010, 0x1000, 1), (0x2010, 0x3000, 0x1000));
        let last = range(u64::MAX - 1, 0xffe, u64::MAX);
        assert_eq!(last, (u64::MAX - 0xfff, u64::MAX, 0));
    }
}
