//! The part of the status document about limits that were reached.

use serde::{Deserialize, Serialize};

/// What is missing because the names and the unwind tables of the guest's code have limits. Ordinary guests reach none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitsStatus {
    /// Address spaces that made room for others, the least recently changed ones first: recordings that start later lack their mappings, unless
    /// these change.
    pub forgotten_address_spaces: u64,
    /// Files of processes whose address spaces are known that made room for others: recordings that start later lack their functions.
    pub forgotten_files: u64,
    /// Modules of the guest's kernel, and ends of modules, that made room for others: recordings that start later lack them.
    pub forgotten_modules: u64,
    /// Processes whose names made room for those of others in the list of names, the least recently sampled ones first.
    pub forgotten_names: u64,
    /// Modules, and ends of modules, that recordings lack from the beginning.
    pub refused_modules: u64,
    /// Files whose unwind table found no room: their code is unwound by frame pointers.
    pub refused_tables: u64,
    /// Functions of files that recordings lack from the beginning: a file has too many names, or too long ones.
    pub unnamed_functions: u64,
    /// Lists of a process's mappings whose files weren't read, because too many waited for that.
    pub unread_mappings: u64,
}
