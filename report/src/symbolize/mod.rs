//! From addresses to functions, modules and source lines.
//!
//! [`Tables`] is what a recording itself has; a [`Resolver`] adds debug files and copies of the guest's files on the
//! host, and remembers what it found. All of it comes from guests or from copies of their files: look-ups are bounded,
//! and what makes no sense leads to an address instead of a name.

mod debug;
mod demangle;
mod error;
mod files;
mod functions;
mod kallsyms;
mod perf_map;
mod resolver;
mod spaces;
mod tables;

pub use debug::SourceLine;
pub use demangle::demangle;
pub use error::SymbolError;
pub use kallsyms::{Found, KERNEL, Symbols};
pub use resolver::{Asked, Frame, Resolved, Resolver, Sources};
pub use spaces::{MappingSet, Spaces};
pub use tables::{Place, Tables, file_address, module_name};

/// The symbol by which a debug file's addresses are compared with those of the kernel that ran.
const KERNEL_BEGIN: &str = "_stext";
/// The module of user frames of which nothing is known.
pub const USER: &str = "[user]";
