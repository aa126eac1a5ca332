//! Where HotSpot keeps what stacks and names consist of.
//!
//! Nearly all of it is in the tables of the process ([`Tables`]). What isn't is that of JDK 17, 21 and 25 on x86-64: the slots of an
//! interpreter's frame (`src/hotspot/cpu/x86/frame_x86.hpp`), how numbers are packed (`src/hotspot/share/utilities/unsigned5.hpp`), and the
//! order of what belongs to compiled code (`src/hotspot/share/code/nmethod.hpp`). Other versions are refused, and so are builds in which
//! what is assumed here is said to be different.

use super::super::ProcessMemory;
use super::tables::Tables;
use crate::bytes::{i32_at, u64_at};

/// The versions that are known.
const KNOWN: [u32; 3] = [17, 21, 25];
/// The first version whose packed numbers have no byte that is 0.
const NO_ZEROS: u32 = 20;
/// Maximum number of bytes of a blob's head, with that of its block.
pub const MAX_HEAD: usize = 384;

/// Slots of an interpreter's frame, in bytes below its frame pointer: the stack pointer of its caller, that of its last call, the method,
/// and the instruction at its last call. The caller's frame pointer and the return address are at and above the frame pointer.
pub mod slot {
    pub const SENDER: u64 = 8;
    pub const LAST: u64 = 16;
    pub const METHOD: u64 = 24;
    pub const INSTRUCTION: u64 = 64;
}

/// `Symbol`: the hash, 16 bits, behind as many of references, the length and the characters.
pub mod symbol {
    pub const LENGTH: usize = 4;
    pub const TEXT: usize = 6;
}

/// `PcDesc`: the distance of a program counter from the begin of the code, and the place of its scope.
pub mod pc {
    pub const DISTANCE: usize = 0;
    pub const SCOPE: usize = 4;
    pub const BYTES: u64 = 16;
}

/// Offsets of fields that have the same ones in all versions.
const FIXED: [(&str, &str, usize); 5] = [
    ("Symbol", "_hash_and_refcount", 0),
    ("Symbol", "_length", symbol::LENGTH),
    ("Symbol", "_body", symbol::TEXT),
    ("PcDesc", "_pc_offset", pc::DISTANCE),
    ("PcDesc", "_scope_decode_offset", pc::SCOPE),
];
/// Constants that say what slots are assumed to be, in words.
const NUMBERS: [(&str, i32); 4] = [
    ("frame::interpreter_frame_sender_sp_offset", -1),
    ("frame::interpreter_frame_last_sp_offset", -2),
    ("frame::pc_return_offset", 0),
    ("InvocationEntryBci", -1),
];

/// Offsets in bytes, by the structures' names in HotSpot's source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub methods: Methods,
    pub heaps: Heaps,
    pub blobs: Blobs,
    /// Whether the bytes of packed numbers are never 0.
    pub has_no_zeros: bool,
}

/// `Method`, and what leads from it to names and lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Methods {
    /// `Method::_constMethod`.
    pub constant: usize,
    /// `ConstMethod`: the constants, its length in words, the flags, the length of its code, and the number of its name's constant. Its
    /// code is behind it.
    pub pool: usize,
    pub words: usize,
    pub flags: usize,
    pub code_length: usize,
    pub name: usize,
    pub bytes: usize,
    /// `ConstantPool`: the class, the number of constants, and that of the source file's name among them. They are behind it.
    pub class: usize,
    pub length: usize,
    pub file: usize,
    pub pool_bytes: usize,
    /// `InstanceKlass`: its constants and its name.
    pub class_pool: usize,
    pub class_name: usize,
}

/// `CodeHeap`, and what leads to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heaps {
    /// `GrowableArray`: the number of elements, and where they are.
    pub count: usize,
    pub elements: usize,
    /// `CodeHeap`: the memory and the map of its segments, each a `VirtualSpace`, and a segment's size as a power of two.
    pub memory: usize,
    pub map: usize,
    pub segment: usize,
    /// `VirtualSpace`: the first address, and all that may be used one day.
    pub low: usize,
    pub reserved: [usize; 2],
    /// `StubQueue`: where its code begins, and how long it is.
    pub stubs: usize,
    pub stubs_length: usize,
}

/// `CodeBlob` and `nmethod`, which is compiled code. Each is behind a `HeapBlock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blobs {
    /// `HeapBlock`: whether the block is used, and its length in bytes.
    pub used: usize,
    pub block: usize,
    /// The name; the length of the head, 16 bits, and that of an `nmethod`; words of a frame; where a frame is complete, 16 bits.
    pub name: usize,
    pub head: usize,
    pub compiled: usize,
    pub frame: usize,
    pub complete: usize,
    /// The begin and the end of its code.
    pub code: [Place; 2],
    /// Of an `nmethod`: the method; the begin and the end of its `PcDesc`s; its scopes; the methods that scopes refer to.
    pub method: usize,
    pub pcs: [Place; 2],
    pub scopes: Place,
    pub metadata: Place,
}

/// How a blob says where a part of it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The address is at this offset.
    Address(usize),
    /// The distance from the blob is, 32 bits.
    Distance(usize),
    /// An address is at the first offset, and the distance from it at the second one.
    Beyond(usize, usize),
}

impl Place {
    /// The place in the blob at `blob`, whose head begins with `bytes`.
    pub fn find(self, blob: u64, bytes: &[u8]) -> Option<u64> {
        let distance = |offset: usize| u64::try_from(i32_at(bytes, offset)?).ok();
        match self {
            Self::Address(offset) => u64_at(bytes, offset),
            Self::Distance(offset) => blob.checked_add(distance(offset)?),
            Self::Beyond(address, offset) => u64_at(bytes, address)?.checked_add(distance(offset)?),
        }
    }
}

/// JDK 25, as Debian builds it.
pub const JDK_25: Layout = Layout {
    methods: Methods {
        constant: 8,
        pool: 8,
        words: 24,
        flags: 28,
        code_length: 34,
        name: 36,
        bytes: 56,
        class: 24,
        length: 68,
        file: 62,
        pool_bytes: 80,
        class_pool: 216,
        class_name: 24,
    },
    heaps: Heaps {
        count: 0,
        elements: 8,
        memory: 0,
        map: 112,
        segment: 248,
        low: 16,
        reserved: [0, 8],
        stubs: 8,
        stubs_length: 20,
    },
    blobs: Blobs {
        used: 4,
        block: 8,
        name: 8,
        head: 52,
        compiled: 224,
        frame: 44,
        complete: 54,
        code: [Place::Distance(36), Place::Distance(40)],
        method: 80,
        pcs: [Place::Beyond(96, 196), Place::Beyond(96, 200)],
        scopes: Place::Beyond(96, 200),
        metadata: Place::Beyond(16, 28),
    },
    has_no_zeros: true,
};

impl Layout {
    /// The layout of the process with these tables. `None` if its version or build isn't known.
    pub fn find(tables: &Tables, memory: &mut dyn ProcessMemory) -> Option<Self> {
        let mut version = [0; 4];
        memory.read(
            tables.place("Abstract_VM_Version", "_vm_major_version")?,
            &mut version,
        )?;
        let version = u32::from_le_bytes(version);
        let mut fixed = FIXED.into_iter();
        let mut numbers = NUMBERS.into_iter();
        let fits = KNOWN.contains(&version)
            && fixed.all(|(of_type, field, offset)| tables.offset(of_type, field) == Some(offset))
            && numbers.all(|(name, value)| tables.number(name) == Some(value))
            && tables.size("PcDesc") == usize::try_from(pc::BYTES).ok();
        fits.then_some(())?;
        let blobs = Blobs::find(tables)?;
        (blobs.length() <= MAX_HEAD).then_some(())?;
        Some(Self {
            methods: Methods::find(tables)?,
            heaps: Heaps::find(tables)?,
            blobs,
            has_no_zeros: version >= NO_ZEROS,
        })
    }
}

impl Methods {
    fn find(tables: &Tables) -> Option<Self> {
        let of_constant = |field| tables.offset("ConstMethod", field);
        let of_pool = |field| tables.offset("ConstantPool", field);
        Some(Self {
            constant: tables.offset("Method", "_constMethod")?,
            pool: of_constant("_constants")?,
            words: of_constant("_constMethod_size")?,
            flags: of_constant("_flags").or_else(|| of_constant("_flags._flags"))?,
            code_length: of_constant("_code_size")?,
            name: of_constant("_name_index")?,
            bytes: tables.size("ConstMethod")?,
            class: of_pool("_pool_holder")?,
            length: of_pool("_length")?,
            file: of_pool("_source_file_name_index")?,
            pool_bytes: tables.size("ConstantPool")?,
            class_pool: tables.offset("InstanceKlass", "_constants")?,
            class_name: tables.offset("Klass", "_name")?,
        })
    }
}

impl Heaps {
    fn find(tables: &Tables) -> Option<Self> {
        let of_space = |field| tables.offset("VirtualSpace", field);
        Some(Self {
            count: tables.offset("GrowableArrayBase", "_len")?,
            elements: tables.offset("GrowableArray<int>", "_data")?,
            memory: tables.offset("CodeHeap", "_memory")?,
            map: tables.offset("CodeHeap", "_segmap")?,
            segment: tables.offset("CodeHeap", "_log2_segment_size")?,
            low: of_space("_low")?,
            reserved: [of_space("_low_boundary")?, of_space("_high_boundary")?],
            stubs: tables.offset("StubQueue", "_stub_buffer")?,
            stubs_length: tables.offset("StubQueue", "_buffer_limit")?,
        })
    }
}

impl Blobs {
    fn find(tables: &Tables) -> Option<Self> {
        let of_blob = |field| tables.offset("CodeBlob", field);
        let of_compiled = |field| tables.offset("nmethod", field);
        let of_both = |field| of_compiled(field).or_else(|| tables.offset("CompiledMethod", field));
        let code = match of_blob("_code_begin") {
            Some(begin) => [Place::Address(begin), Place::Address(of_blob("_code_end")?)],
            None => [
                Place::Distance(of_blob("_code_offset")?),
                Place::Distance(of_blob("_data_offset")?),
            ],
        };
        let pcs = of_compiled("_scopes_pcs_offset")?;
        // From JDK 23 on, what doesn't change is in memory of its own, and so is what does.
        let (pcs, scopes, metadata) = if let Some(data) = of_compiled("_immutable_data") {
            let scopes = Place::Beyond(data, of_compiled("_scopes_data_offset")?);
            let metadata = Place::Beyond(of_blob("_mutable_data")?, of_blob("_relocation_size")?);
            ([Place::Beyond(data, pcs), scopes], scopes, metadata)
        } else {
            let end = Place::Distance(of_compiled("_dependencies_offset")?);
            let scopes = Place::Address(of_both("_scopes_data_begin")?);
            let metadata = Place::Distance(of_compiled("_metadata_offset")?);
            ([Place::Distance(pcs), end], scopes, metadata)
        };
        Some(Self {
            used: tables.offset("HeapBlock::Header", "_used")?,
            block: tables.size("HeapBlock")?,
            name: of_blob("_name")?,
            head: of_blob("_header_size")?,
            compiled: tables.size("nmethod")?,
            frame: of_blob("_frame_size")?,
            complete: of_blob("_frame_complete_offset")?,
            code,
            method: of_both("_method")?,
            pcs,
            scopes,
            metadata,
        })
    }

    /// Bytes of a block's and a blob's heads up to the last field that is used.
    pub fn length(&self) -> usize {
        let [begin, end] = self.code;
        let [first, last] = self.pcs;
        let places = [begin, end, first, last, self.scopes, self.metadata];
        let furthest = places.map(|place| match place {
            Place::Address(offset) | Place::Distance(offset) => offset,
            Place::Beyond(first, second) => first.max(second),
        });
        let others = [self.name, self.head, self.frame, self.complete, self.method];
        let furthest = furthest.into_iter().chain(others).max().unwrap_or(0);
        self.block + self.used.max(furthest) + 8
    }
}
