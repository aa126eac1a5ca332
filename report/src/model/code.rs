//! The code that ran: names, functions, modules, frames, and the tree of the stacks that consist of them. All of these are numbered: counts by
//! function compare numbers, and names are looked up when they are shown.

use std::sync::Arc;

use super::frame::{Frame, ModuleOf};
use super::{CUT_SHORT, HALTED, HALTED_MODULE, Table};
use crate::symbolize::MappingSet;

/// The number of a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameId(u32);

/// The number of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionId(u32);

/// The number of a module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(u32);

/// The number of all frames at an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PlaceId(pub(super) u32);

/// The number of a stack: its innermost frames, and the stack of their callers. The default is the empty stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);

impl FunctionId {
    /// The number, as an index of tables by function.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl NodeId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl NameId {
    /// The number, as an index of tables by name.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The empty name and those of notes, which every [`Code`] has.
const NOTES: [NameId; 4] = [NameId(0), NameId(1), NameId(2), NameId(3)];
/// The place of the empty stack: there is none with this number.
const NO_PLACE: PlaceId = PlaceId(u32::MAX);

/// The kind of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// Of the guest's kernel or its modules.
    Kernel,
    /// Of the host, below the guest's frames.
    Host,
    /// Of a program or a library of the guest.
    #[default]
    User,
    /// Code that a program generated at run time.
    Generated,
    /// A function of a language, which an interpreter executes.
    Language,
}

impl FrameKind {
    /// Whether it is a kernel frame. Frames of the host count as such.
    pub fn is_kernel(self) -> bool {
        matches!(self, Self::Kernel | Self::Host)
    }
}

/// A function, as it is counted: whatever its address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Function {
    /// Its name, or its address.
    pub name: NameId,
    /// The name of its module.
    pub module: NameId,
    /// Whether it is a kernel function.
    pub is_kernel: bool,
}

/// What a module is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ModuleKind {
    /// No code of a file.
    #[default]
    Nowhere,
    /// The kernel, one of its modules, or the host.
    Kernel,
    /// The image of a guest without mappings.
    Image,
    /// A file of the guest.
    File,
}

/// What has code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Module {
    pub name: NameId,
    pub path: NameId,
    pub build_id: NameId,
    pub kind: ModuleKind,
}

/// Addresses from `begin` to `end`, the end excluded, which are at `offset` of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Range {
    /// The first address.
    pub begin: u64,
    /// The first one behind it.
    pub end: u64,
    /// The offset in the file of the first one.
    pub offset: u64,
}

/// A module where a process has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Mapped {
    pub module: ModuleId,
    /// The addresses in the process; none for the kernel.
    pub mapping: Range,
    /// The file's own addresses of the segment; the mapping's offsets if the file's segments aren't known.
    pub segment: Range,
}

/// A source file and the line in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    /// The file.
    pub file: NameId,
    /// The line; 0 if unknown.
    pub line: u32,
}

/// A function at an address.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PlacedFunction {
    pub function: FunctionId,
    pub mapped: u32,
    pub address: u64,
    pub file_address: u64,
    pub offset: Option<u64>,
    pub source: Option<Line>,
    pub mappings: MappingSet,
    pub kind: FrameKind,
    pub is_inlined: bool,
}

/// Frames, and the stack of their callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    caller: NodeId,
    place: PlaceId,
}

/// The code that ran.
#[derive(Clone, Debug)]
pub struct Code {
    names: Table<Arc<str>>,
    functions: Table<Function>,
    modules: Table<Module>,
    mapped: Table<Mapped>,
    frames: Vec<PlacedFunction>,
    /// Where the frames of each place end.
    places: Vec<u32>,
    /// The first one is the empty stack.
    nodes: Table<Node>,
}

impl Default for Code {
    fn default() -> Self {
        let mut code = Self {
            names: Table::default(),
            functions: Table::default(),
            modules: Table::default(),
            mapped: Table::default(),
            frames: Vec::new(),
            places: vec![0],
            nodes: Table::default(),
        };
        for text in ["", HALTED, HALTED_MODULE, CUT_SHORT] {
            code.name(text);
        }
        // What notes consist of.
        code.functions.push(Function::default());
        code.modules.push(Module::default());
        code.mapped.push(Mapped::default());
        code.nodes.push(Node {
            caller: NodeId::default(),
            place: NO_PLACE,
        });
        code
    }
}

impl Code {
    /// The number of `name`, which is added if it is new.
    pub(crate) fn name(&mut self, name: &str) -> NameId {
        let known = self.names.find(name);
        NameId(known.unwrap_or_else(|| self.names.push(name.into())))
    }

    /// The same for a name that is shared.
    pub(super) fn shared_name(&mut self, name: &Arc<str>) -> NameId {
        let known = self.names.find(&**name);
        NameId(known.unwrap_or_else(|| self.names.push(Arc::clone(name))))
    }

    pub(crate) fn add_function(&mut self, function: Function) -> FunctionId {
        FunctionId(self.functions.number(function))
    }

    pub(super) fn add_module(&mut self, module: Module) -> ModuleId {
        ModuleId(self.modules.number(module))
    }

    pub(super) fn add_mapped(&mut self, mapped: Mapped) -> u32 {
        self.mapped.number(mapped)
    }

    /// Adds the `frames` of an address, innermost first.
    pub(super) fn add_place(
        &mut self,
        frames: impl IntoIterator<Item = PlacedFunction>,
    ) -> PlaceId {
        let place = PlaceId(number(self.places.len() - 1));
        self.frames.extend(frames);
        self.places.push(number(self.frames.len()));
        place
    }

    /// Adds the frame of a function whose address isn't known.
    pub(crate) fn add_named(&mut self, function: FunctionId) -> PlaceId {
        let kind = if self.function(function).is_kernel {
            FrameKind::Kernel
        } else {
            FrameKind::User
        };
        self.add_place([PlacedFunction {
            function,
            kind,
            ..PlacedFunction::default()
        }])
    }

    /// The stack of `place` called by `caller`, which is added if it is new.
    pub(crate) fn add_node(&mut self, caller: NodeId, place: PlaceId) -> NodeId {
        NodeId(self.nodes.number(Node { caller, place }))
    }

    /// Adds all of `other`. Returns the new numbers of its stacks, by their old numbers.
    pub(super) fn absorb(&mut self, other: &Self) -> Vec<NodeId> {
        let names = other.names.values().iter();
        let names: Vec<NameId> = names.map(|name| self.shared_name(name)).collect();
        let name = |id: NameId| names[id.0 as usize];
        let functions = other.functions.values().iter().map(|function| {
            self.add_function(Function {
                name: name(function.name),
                module: name(function.module),
                ..*function
            })
        });
        let functions: Vec<FunctionId> = functions.collect();
        let modules = other.modules.values().iter().map(|module| {
            self.add_module(Module {
                name: name(module.name),
                path: name(module.path),
                build_id: name(module.build_id),
                ..*module
            })
        });
        let modules: Vec<ModuleId> = modules.collect();
        let mapped = other.mapped.values().iter().map(|mapped| {
            self.add_mapped(Mapped {
                module: modules[mapped.module.0 as usize],
                ..*mapped
            })
        });
        let mapped: Vec<u32> = mapped.collect();
        let first = number(self.places.len() - 1);
        let before = number(self.frames.len());
        self.frames
            .extend(other.frames.iter().map(|own| PlacedFunction {
                function: functions[own.function.index()],
                mapped: mapped[own.mapped as usize],
                source: own.source.map(|line| Line {
                    file: name(line.file),
                    ..line
                }),
                ..*own
            }));
        let ends = other.places.iter().skip(1);
        self.places.extend(ends.map(|end| before + end));
        let mut nodes = vec![NodeId::default()];
        for node in other.nodes.values().iter().skip(1) {
            let place = PlaceId(first + node.place.0);
            nodes.push(self.add_node(nodes[node.caller.0 as usize], place));
        }
        nodes
    }

    /// The name with this number.
    pub fn text(&self, name: NameId) -> &Arc<str> {
        &self.names.values()[name.0 as usize]
    }

    /// The number of `name`, if anything has it.
    pub fn find_name(&self, name: &str) -> Option<NameId> {
        self.names.find(name).map(NameId)
    }

    /// How many names there are.
    pub fn names(&self) -> usize {
        self.names.length()
    }

    /// The function with this number.
    pub fn function(&self, id: FunctionId) -> Function {
        self.functions.values()[id.index()]
    }

    /// All functions, but that of notes.
    pub(crate) fn functions(&self) -> impl Iterator<Item = (FunctionId, Function)> {
        let functions = (0..)
            .map(FunctionId)
            .zip(self.functions.values().iter().copied());
        functions.skip(1)
    }

    /// The frames of the stack `node`, innermost first.
    pub fn frames(&self, node: NodeId) -> impl Iterator<Item = Frame<'_>> {
        let numbers = self.frame_numbers(node);
        numbers.map(|number| self.frame(&self.frames[number as usize]))
    }

    /// The numbers of the same frames.
    pub(super) fn frame_numbers(&self, node: NodeId) -> impl Iterator<Item = u32> {
        let nodes = std::iter::successors(self.node(node), |node| self.node(node.caller));
        nodes.flat_map(|node| {
            let place = node.place.0 as usize;
            self.places[place]..self.places[place + 1]
        })
    }

    /// The frame with this number.
    pub(super) fn placed(&self, number: u32) -> PlacedFunction {
        self.frames[number as usize]
    }

    fn frame(&self, own: &PlacedFunction) -> Frame<'_> {
        let Function {
            name,
            module,
            is_kernel,
        } = self.function(own.function);
        let mapped = self.mapped.values()[own.mapped as usize];
        Frame {
            function: own.function,
            name: self.text(name),
            name_id: name,
            module: self.text(module),
            module_id: module,
            kind: own.kind,
            is_kernel,
            is_inlined: own.is_inlined,
            is_note: false,
            address: own.address,
            file_address: own.file_address,
            offset: own.offset,
            line: own.source,
            source: own.source.map(|line| (self.text(line.file), line.line)),
            code: self.module(mapped.module),
            mapping: mapped.mapping,
            segment: mapped.segment,
            mappings: own.mappings,
        }
    }

    /// Stands for the stack of a halted vCPU.
    pub fn halted(&self) -> Frame<'_> {
        let [_, halted, module, _] = NOTES;
        self.note(halted, module, FrameKind::Kernel)
    }

    /// Stands for the missing frames behind `last`.
    pub fn cut_short(&self, last: &Frame<'_>) -> Frame<'_> {
        let [.., cut_short] = NOTES;
        self.note(cut_short, last.module_id, last.kind)
    }

    fn note(&self, name: NameId, module: NameId, kind: FrameKind) -> Frame<'_> {
        let nothing = PlacedFunction {
            kind,
            ..PlacedFunction::default()
        };
        Frame {
            name: self.text(name),
            name_id: name,
            module: self.text(module),
            module_id: module,
            is_kernel: kind.is_kernel(),
            is_note: true,
            ..self.frame(&nothing)
        }
    }

    /// The node with this number; `None` for the empty stack.
    fn node(&self, node: NodeId) -> Option<Node> {
        (node.0 > 0).then(|| self.nodes.values()[node.0 as usize])
    }

    /// The module with this number.
    pub fn module(&self, id: ModuleId) -> ModuleOf<'_> {
        let module = self.modules.values()[id.0 as usize];
        ModuleOf {
            id,
            name: self.text(module.name),
            path: self.text(module.path),
            build_id: self.text(module.build_id),
            kind: module.kind,
        }
    }
}

/// A number of frames, which are limited by the length of a recording.
fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
