//! The control group of a task (`struct css_set`, `struct cgroup`, `include/linux/cgroup-defs.h`; `struct kernfs_node`,
//! `include/linux/kernfs.h`).

use crate::PhysicalMemory;
use crate::image::types::Types;
use crate::linux::view::KernelView;

/// Maximum number of groups from one to the root, and length of all their names, in bytes.
const MAX_DEPTH: usize = 64;
const MAX_PATH: usize = 4096;
/// Maximum length of a name in bytes (`NAME_MAX`), and the number of bytes that are read at once.
const MAX_NAME: usize = 255;
const PIECE: usize = 32;
/// What precedes the inner groups of a path that is too long.
const CUT: &str = "...";

/// Where the kernel has a task's group.
#[derive(Debug)]
pub struct CgroupLayout {
    /// `task_struct.cgroups`.
    set: u64,
    /// `css_set.dfl_cgrp`: the group of version 2.
    group: u64,
    /// That of the processor's controller, where version 1 has it: `css_set.subsys[cpu_cgrp_id]` and `cgroup_subsys_state.cgroup`.
    of_processor: Option<[u64; 2]>,
    /// `cgroup.kn`.
    node: u64,
    /// `kernfs_node.parent`, `name` and `id`, which no later node has again.
    parent: u64,
    name: u64,
    id: Option<u64>,
}

impl CgroupLayout {
    /// Finds the layout. `None` if the kernel has other structures, or no groups.
    pub fn find(types: &Types<'_>) -> Option<Self> {
        let node = |member| types.offset_of("kernfs_node", member);
        let processor = types.enumerator("cgroup_subsys_id", "cpu_cgrp_id");
        let of_processor = processor.and_then(|index| {
            let states = types.offset_of("css_set", "subsys")?;
            let group = types.offset_of("cgroup_subsys_state", "cgroup")?;
            Some([states.checked_add(8 * u64::from(index))?, group])
        });
        Some(Self {
            set: types.offset_of("task_struct", "cgroups")?,
            group: types.offset_of("css_set", "dfl_cgrp")?,
            of_processor,
            node: types.offset_of("cgroup", "kn")?,
            // It has two underscores since 6.15.
            parent: node("parent").or_else(|| node("__parent"))?,
            name: node("name")?,
            id: node("id"),
        })
    }

    /// The node of the group of the task at `task`.
    pub fn node<M: PhysicalMemory>(&self, view: &KernelView<'_, M>, task: u64) -> Option<u64> {
        let set = view.pointer(task, self.set)?;
        let node = view.pointer(view.pointer(set, self.group)?, self.node)?;
        // Where version 1 is used, all tasks are in the root of version 2.
        let is_root = view.u64(node.wrapping_add(self.parent))? == 0;
        let of_processor = is_root.then(|| self.node_of_processor(view, set));
        Some(of_processor.flatten().unwrap_or(node))
    }

    fn node_of_processor<M: PhysicalMemory>(
        &self,
        view: &KernelView<'_, M>,
        set: u64,
    ) -> Option<u64> {
        let [state, group] = self.of_processor?;
        let state = view.pointer(set, state)?;
        view.pointer(view.pointer(state, group)?, self.node)
    }

    /// What tells the group with this `node` apart from all others.
    pub fn number<M: PhysicalMemory>(&self, view: &KernelView<'_, M>, node: u64) -> Option<u64> {
        match self.id {
            Some(id) => view.u64(node.wrapping_add(id)),
            None => Some(node),
        }
    }

    /// The path of the group with this `node` from the root of its hierarchy. Of one that is too long only the inner groups, behind `...`.
    pub fn path<M: PhysicalMemory>(
        &self,
        view: &KernelView<'_, M>,
        mut node: u64,
    ) -> Option<String> {
        let mut path = String::new();
        for _ in 0..MAX_DEPTH {
            let parent = view.u64(node.wrapping_add(self.parent))?;
            if parent == 0 {
                let is_root = path.is_empty();
                return Some(if is_root { "/".to_owned() } else { path });
            }
            // A name needn't be aligned as structures are.
            let name = name(view, view.u64(node.wrapping_add(self.name))?)?;
            if path.len() + name.len() >= MAX_PATH {
                break;
            }
            path = format!("/{name}{path}");
            node = view.pointer(node, self.parent)?;
        }
        Some(format!("{CUT}{path}"))
    }
}

/// The text at kernel address `address`, which ends with a zero.
fn name<M: PhysicalMemory>(view: &KernelView<'_, M>, address: u64) -> Option<String> {
    (address >> 63 == 1).then_some(())?;
    let mut bytes = Vec::new();
    while bytes.len() <= MAX_NAME {
        let mut piece = [0; PIECE];
        // A name may end right before memory that isn't there.
        let at = address.checked_add(bytes.len() as u64)?;
        let length = PIECE - usize::try_from(at % PIECE as u64).ok()?;
        let piece = piece.get_mut(..length)?;
        view.read(at, piece)?;
        let end = piece.iter().position(|byte| *byte == 0);
        bytes.extend_from_slice(piece.get(..end.unwrap_or(length))?);
        if end.is_some() {
            return (bytes.len() <= MAX_NAME).then(|| String::from_utf8_lossy(&bytes).into_owned());
        }
    }
    None
}
