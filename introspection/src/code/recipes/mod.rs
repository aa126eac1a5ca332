//! The recipes, a file each.

mod areas;
mod cgroups;
mod constants;
mod files;
mod interrupts;
mod kernel_page_tables;
mod lists_of_tasks;
mod memory;
mod modules;
mod mounts;
mod page_cache;
mod pages;
mod per_cpu_offsets;
mod pids;
mod root_directories;
mod running_task;
mod saved_stack_pointer;
mod single_variables;
mod starts_of_tasks;
mod states_of_tasks;
mod tree_nodes;

use super::{Code, Findings};

/// Finds what one part of the kernel's source fixes.
type Recipe = fn(&Code<'_>, &mut Findings);

/// All recipes. Some use what those before them have found.
pub const ALL: [Recipe; 23] = [
    running_task::find,
    pids::find,
    pids::find_levels,
    pids::find_user,
    memory::find,
    saved_stack_pointer::find,
    per_cpu_offsets::find,
    interrupts::find,
    single_variables::find,
    areas::find,
    files::find,
    lists_of_tasks::find,
    states_of_tasks::find,
    starts_of_tasks::find,
    root_directories::find,
    mounts::find,
    page_cache::find,
    tree_nodes::find,
    pages::find,
    kernel_page_tables::find,
    modules::find,
    cgroups::find,
    constants::find,
];
