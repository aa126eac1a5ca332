//! Labels of processes: what the kernel knows of a process beside its mappings, as texts by keys. Recordings have them in a block of their own; whatever shows,
//! filters, groups or exports a recording takes any key.

use std::collections::BTreeMap;

use crate::PhysicalMemory;
use crate::image::types::Types;
use crate::linux::view::KernelView;

use super::cgroup::CgroupLayout;
use super::container;

/// The user in whose name a task acts, as a number of the first user namespace.
const USER: &str = "user";
/// The path of its control group.
const CGROUP: &str = "cgroup";

/// What tells the labels of a process apart from earlier ones; `None` where that isn't known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LabelNumbers {
    user: Option<u32>,
    cgroup: Option<u64>,
}

/// Where the kernel has what labels say; `None` if it has other structures.
#[derive(Debug)]
pub struct LabelLayout {
    /// `task_struct.cred`, `cred.uid`.
    user: Option<[u64; 2]>,
    cgroup: Option<CgroupLayout>,
}

impl LabelLayout {
    /// Finds the layout.
    pub fn find(types: &Types<'_>) -> Self {
        let credentials = types.offset_of("task_struct", "cred");
        let user = credentials.zip(types.offset_of("cred", "uid"));
        Self {
            user: user.map(|(credentials, user)| [credentials, user]),
            cgroup: CgroupLayout::find(types),
        }
    }

    /// The numbers of the task at `task`.
    pub fn numbers<M: PhysicalMemory>(&self, view: &KernelView<'_, M>, task: u64) -> LabelNumbers {
        let cgroup = self.cgroup.as_ref().and_then(|layout| {
            let node = layout.node(view, task)?;
            layout.number(view, node)
        });
        LabelNumbers {
            user: self.user(view, task),
            cgroup,
        }
    }

    fn user<M: PhysicalMemory>(&self, view: &KernelView<'_, M>, task: u64) -> Option<u32> {
        let [credentials, user] = self.user?;
        let credentials = view.pointer(task, credentials)?;
        view.i32(credentials.wrapping_add(user))
            .map(i32::cast_unsigned)
    }

    /// The labels of the task at `task`.
    pub fn texts<M: PhysicalMemory>(
        &self,
        view: &KernelView<'_, M>,
        task: u64,
    ) -> BTreeMap<String, String> {
        let user = self.user(view, task).map(|user| (USER, user.to_string()));
        let path = self.cgroup.as_ref().and_then(|layout| {
            let node = layout.node(view, task)?;
            layout.path(view, node)
        });
        let of_path = path.into_iter().flat_map(|path| {
            let mut labels = container::labels(&path);
            labels.push((CGROUP, path));
            labels
        });
        let labels = user.into_iter().chain(of_path);
        labels.map(|(key, value)| (key.to_owned(), value)).collect()
    }
}
