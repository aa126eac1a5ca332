//! Resolves addresses to functions, modules and source lines.
//!
//! [`Tables`] has the names of a recording itself. A [`Resolver`] adds debug files and the host's copies of the guest's
//! files, and caches its results. All of these come from guests: lookups are bounded, and invalid data leads to an
//! address instead of a name.

mod assembly;
mod builds;
mod code;
mod debug;
mod debug_files;
mod demangle;
mod error;
mod files;
mod former;
mod frame;
mod functions;
mod generated_code;
mod host_copy;
mod kallsyms;
mod labels;
mod machine_code;
mod notes;
mod perf_map;
mod perf_maps;
mod resolver;
mod scopes;
mod shared;
mod source_texts;
mod spaces;
mod split;
mod tables;
mod vmlinux;

pub use assembly::{Assembly, MAX_INSTRUCTION};
pub use builds::BuildIds;
pub use code::Code;
pub use debug::SourceLine;
pub use debug_files::DebugFiles;
pub use demangle::demangle;
pub use error::SymbolError;
pub use former::Epoch;
pub use frame::{CodeAddress, Frame, Resolved};
pub use kallsyms::{FunctionAt, KERNEL, Symbols};
pub use labels::{LabelSet, LabelValues, Labels};
pub use resolver::{Resolver, Sources, is_nameless};
pub use source_texts::SourceTexts;
pub use spaces::{MappingSet, ProcessState, Spaces, StateTimes};
pub use tables::{AddressLocation, Tables, file_address, module_name};

/// The symbol that gives the slide: its address in the kernel that ran, less that in the debug file.
const KERNEL_BEGIN: &str = "_stext";
/// The module of user frames in unknown memory.
pub const USER: &str = "[user]";
