//! Labels of processes: what the kernel knows of a process beside its mappings, as texts by keys. Recordings have them in a block of their own; whatever shows,
//! filters, groups or exports a recording takes any key.

use std::collections::BTreeMap;
use std::ops::Range;

use kvmprof_paging::AddressSpace;

use crate::PhysicalMemory;
use crate::image::types::Types;
use crate::linux::view::KernelView;

use super::cgroup::CgroupLayout;
use super::process_layout::ProcessLayout;
use super::{InstanceLayout, ProcessInstance, ProcessView, container};

/// The user in whose name a task acts, as a number of the first user namespace.
const USER: &str = "user";
/// The path of its control group.
const CGROUP: &str = "cgroup";
/// Its id in its innermost pid namespace, if that isn't the first one.
const INNER_PID: &str = "inner_pid";
/// Its parent's id.
const PARENT: &str = "parent";
/// When it was started, in s of the guest's CLOCK_MONOTONIC.
const STARTED: &str = "started";
/// The path of its program.
const EXECUTABLE: &str = "executable";
/// Its command line.
const ARGUMENTS: &str = "arguments";
/// Maximum number of bytes of a command line that are read, and what follows one that has more.
const MAX_ARGUMENTS: u64 = 2048;
const CUT: &str = "...";
const PAGE: u64 = 4096;
const SECOND: u64 = 1_000_000_000;

/// What tells the labels of a process apart from earlier ones; `None` where that isn't known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LabelNumbers {
    user: Option<u32>,
    cgroup: Option<u64>,
    instance: Option<ProcessInstance>,
    parent: Option<i32>,
}

impl LabelNumbers {
    /// When the process was started, in ns of the guest's CLOCK_MONOTONIC; 0 if unknown.
    pub fn started(&self) -> u64 {
        self.instance.map_or(0, |instance| instance.started)
    }
}

/// Where the kernel has what labels say; `None` if it has other structures.
#[derive(Debug)]
pub struct LabelLayout {
    /// `task_struct.cred`, `cred.uid`.
    user: Option<[u64; 2]>,
    cgroup: Option<CgroupLayout>,
    has_arguments: bool,
}

impl LabelLayout {
    /// Finds the layout.
    pub fn find(types: &Types<'_>) -> Self {
        let credentials = types.offset_of("task_struct", "cred");
        let user = credentials.zip(types.offset_of("cred", "uid"));
        Self {
            user: user.map(|(credentials, user)| [credentials, user]),
            cgroup: CgroupLayout::find(types),
            has_arguments: true,
        }
    }

    /// Leaves out command lines.
    pub fn leave_out_arguments(&mut self) {
        self.has_arguments = false;
    }
}

/// A task whose process has labels.
#[derive(Debug)]
pub struct Labelled<'l, 'v, M> {
    layout: &'l ProcessLayout,
    instances: Option<&'l InstanceLayout>,
    view: &'l KernelView<'v, M>,
    task: u64,
}

impl<'l, 'v, M: PhysicalMemory> Labelled<'l, 'v, M> {
    /// The task at kernel address `task`.
    pub fn new(view: &'l KernelView<'v, M>, layout: &'l ProcessLayout, task: u64) -> Self {
        Self {
            layout,
            instances: view.linux().instances.as_ref(),
            view,
            task,
        }
    }

    /// What tells its labels apart from earlier ones.
    pub fn numbers(&self) -> LabelNumbers {
        let cgroup = self.layout.labels.cgroup.as_ref().and_then(|layout| {
            let node = layout.node(self.view, self.task)?;
            layout.number(self.view, node)
        });
        let instance = self.instance();
        LabelNumbers {
            user: self.user(),
            cgroup,
            instance,
            parent: instance.and_then(|instance| self.parent(&instance)),
        }
    }

    fn user(&self) -> Option<u32> {
        let [credentials, user] = self.layout.labels.user?;
        let credentials = self.view.pointer(self.task, credentials)?;
        let user = self.view.i32(credentials.wrapping_add(user));
        user.map(i32::cast_unsigned)
    }

    fn instance(&self) -> Option<ProcessInstance> {
        self.instances?.instance(self.view, self.task)
    }

    fn parent(&self, instance: &ProcessInstance) -> Option<i32> {
        let parent = self.instances?.parent_pid(self.view, instance.leader())?;
        (parent >= 0).then_some(parent)
    }

    /// The labels. `memory` is the process's own, in which its command line is.
    pub fn texts(&self, memory: &AddressSpace<'_, M>) -> BTreeMap<String, String> {
        let user = self.user().map(|user| (USER, user.to_string()));
        let path = self.layout.labels.cgroup.as_ref().and_then(|layout| {
            let node = layout.node(self.view, self.task)?;
            layout.path(self.view, node)
        });
        let of_path = path.into_iter().flat_map(|path| {
            let mut labels = container::labels(&path);
            labels.push((CGROUP, path));
            labels
        });
        let of_instance = self.instance().into_iter();
        let of_instance = of_instance.flat_map(|instance| self.of_instance(&instance, memory));
        let labels = user.into_iter().chain(of_path).chain(of_instance);
        labels.map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// The labels of the one process, and of the program that it executes.
    fn of_instance(
        &self,
        instance: &ProcessInstance,
        memory: &AddressSpace<'_, M>,
    ) -> impl Iterator<Item = (&'static str, String)> + use<M> {
        let (seconds, rest) = (instance.started / SECOND, instance.started % SECOND);
        let namespaces = self.layout.perf_map.as_ref().ok();
        let inner = namespaces.and_then(|layout| {
            let inner = layout.innermost_pid(self.view, instance.leader(), instance.pid);
            inner.filter(|(level, _)| *level > 0)
        });
        let mm = self.view.pointer(self.task, self.layout.mm);
        let executable = mm.and_then(|mm| {
            let file = self.layout.address_space.executable?;
            let file = self.view.pointer(mm, file)?;
            ProcessView::new(self.view, self.layout).path(file)
        });
        let labels = [
            (STARTED, Some(format!("{seconds}.{rest:09}"))),
            (PARENT, self.parent(instance).map(|pid| pid.to_string())),
            (INNER_PID, inner.map(|(_, pid)| pid.to_string())),
            (EXECUTABLE, executable),
            (ARGUMENTS, mm.and_then(|mm| self.arguments(mm, memory))),
        ];
        labels
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)))
    }

    /// The words of the command line in the memory at `mm`, with blanks between them, as far as they are in memory at the moment.
    fn arguments(&self, mm: u64, memory: &AddressSpace<'_, M>) -> Option<String> {
        let Range { start: begin, end } = self.argument_area(mm)?;
        let length = end.checked_sub(begin)?.min(MAX_ARGUMENTS);
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        let mut read = 0;
        while read < bytes.len() {
            let at = begin + read as u64;
            let piece = usize::try_from(PAGE - at % PAGE).ok()?;
            let piece = piece.min(bytes.len() - read);
            if memory
                .read(at, bytes.get_mut(read..read + piece)?)
                .is_none()
            {
                break;
            }
            read += piece;
        }
        let is_cut = (read as u64) < end - begin;
        bytes.truncate(read);
        while !is_cut && bytes.last() == Some(&0) {
            bytes.pop();
        }
        (!bytes.is_empty()).then_some(())?;
        let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
        Some(if is_cut { text + CUT } else { text })
    }

    /// Where the command line is. `None` if there can't be one.
    fn argument_area(&self, mm: u64) -> Option<Range<u64>> {
        let layout = &self.layout.address_space;
        let at = |offset: u64| self.view.u64(mm.wrapping_add(offset));
        let area = at(layout.arg_start)?..at(layout.arg_end)?;
        let is_users = area.end >> 63 == 0 && !area.is_empty();
        (is_users && self.layout.labels.has_arguments).then_some(area)
    }
}
