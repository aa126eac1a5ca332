//! Offsets of members of the host kernel's structures, in bytes from the start of each structure, from the kernel's BTF.

use kvmprof_introspection::{Missing, Types};

use super::HostKernelError;

/// The maximum size of a structure that is read as a whole, in bytes.
const MAX_STRUCTURE: u64 = 4096;
/// The maximum number of slots of a node of an xarray (`XA_CHUNK_SIZE`, `include/linux/xarray.h`).
const MAX_CHUNK: u64 = 64;

/// `struct task_struct`, and `struct pid` with its namespace.
#[derive(Debug)]
pub struct TaskLayout {
    pub thread_pid: u64,
    /// `pid_links[PIDTYPE_TGID]`.
    pub process_link: u64,
    pub files: u64,
    pub mm: u64,
    /// `min_flt` and `maj_flt`: faults without a wait, and with one.
    pub faults: [u64; 2],
    /// `ioac.read_bytes`: how much the task has had read from disks; `None` for a kernel that doesn't count it.
    pub read_bytes: Option<u64>,
    /// `pid.level`.
    pub level: u64,
    /// `pid.tasks[PIDTYPE_TGID]`.
    pub processes: u64,
    /// `pid.numbers`, the size of an entry (`struct upid`), and an entry's members `nr` and `ns`.
    pub numbers: u64,
    pub number_size: u64,
    pub number: u64,
    pub namespace: u64,
}

/// The tree by which a `struct pid_namespace` finds a `struct pid` by its number, and the tree's nodes.
#[derive(Debug)]
pub struct PidTreeLayout {
    /// `pid_namespace.idr.idr_rt.xa_head`.
    pub root: u64,
    /// `xa_node.shift`, a byte.
    pub shift: u64,
    /// `xa_node.slots`, and their number, a power of 2.
    pub slots: u64,
    pub slot_count: u64,
}

/// From `task_struct.files` to `file.private_data`.
#[derive(Debug)]
pub struct FilesLayout {
    pub table: u64,
    pub max: u64,
    pub files: u64,
    pub private_data: u64,
}

/// `struct kvm` and `struct kvm_vcpu`.
#[derive(Debug)]
pub struct KvmLayout {
    /// `kvm.memslots[0]`.
    pub memslots: u64,
    pub mm: u64,
    /// `kvm.arch.vm_type`, in kernels from 6.8 on.
    pub vm_type: Option<u64>,
    /// `kvm.online_vcpus`, 32 bits.
    pub vcpu_count: Option<u64>,
    /// `kvm_vcpu.kvm`, `pid` and `vcpu_id`.
    pub vcpu_kvm: u64,
    pub vcpu_pid: u64,
    pub vcpu_id: u64,
}

/// How a `struct kvm_memslots` holds its slots.
#[derive(Clone, Copy, Debug)]
pub enum SlotOrder {
    /// A red-black tree of `kvm_memory_slot.gfn_node[node_idx]`, in kernels from 5.17 on.
    Tree {
        /// `kvm_memslots.gfn_tree`.
        root: u64,
        /// `kvm_memslots.node_idx`.
        node_index: u64,
        /// `kvm_memory_slot.gfn_node`, and the size of one of its entries.
        node: u64,
        node_size: u64,
        /// `rb_node.rb_left` and `rb_right`.
        left: u64,
        right: u64,
    },
    /// An array, in older kernels.
    Array {
        /// `kvm_memslots.used_slots`.
        used: u64,
        /// `kvm_memslots.memslots`.
        first: u64,
    },
}

/// `struct kvm_memslots` and `struct kvm_memory_slot`.
#[derive(Debug)]
pub struct SlotLayout {
    pub generation: u64,
    pub order: SlotOrder,
    pub size: u64,
    pub base_gfn: u64,
    pub npages: u64,
    pub userspace_addr: u64,
    pub flags: u64,
    pub id: u64,
}

/// The offsets of all structures.
#[derive(Debug)]
pub struct Layout {
    pub task: TaskLayout,
    pub pids: PidTreeLayout,
    pub files: FilesLayout,
    pub kvm: KvmLayout,
    pub slot: SlotLayout,
}

impl Layout {
    /// Finds the offsets in `types`.
    pub fn find(types: &Types<'_>) -> Result<Self, HostKernelError> {
        if types.size_of("kvm_vcpu").is_err() {
            return Err(HostKernelError::NoKvm);
        }
        Ok(Self {
            task: TaskLayout::find(types)?,
            pids: PidTreeLayout::find(types)?,
            files: FilesLayout::find(types)?,
            kvm: KvmLayout::find(types)?,
            slot: SlotLayout::find(types)?,
        })
    }
}

/// The size of `structure`, at most [`MAX_STRUCTURE`].
fn size(types: &Types<'_>, structure: &'static str) -> Result<u64, Missing> {
    let size = types.size_of(structure)?;
    let is_sound = size <= MAX_STRUCTURE;
    is_sound.then_some(size).ok_or(Missing::Size(structure))
}

impl TaskLayout {
    fn find(types: &Types<'_>) -> Result<Self, Missing> {
        let task = types.structures("task_struct");
        let pid = types.structures("pid");
        let number = types.structures("upid");
        let process = types.enumerator("pid_type", "PIDTYPE_TGID");
        let process = u64::from(process.ok_or(Missing::Member("pid_type", "PIDTYPE_TGID"))?);
        let link_size = size(types, "hlist_node")?;
        let head_size = size(types, "hlist_head")?;
        Ok(Self {
            thread_pid: task.need("thread_pid")?,
            process_link: task.need("pid_links")? + process * link_size,
            files: task.need("files")?,
            mm: task.need("mm")?,
            faults: [task.need("min_flt")?, task.need("maj_flt")?],
            read_bytes: task
                .offset_of("ioac")
                .zip(types.offset_of("task_io_accounting", "read_bytes"))
                .map(|(account, bytes)| account + bytes),
            level: pid.need("level")?,
            processes: pid.need("tasks")? + process * head_size,
            numbers: pid.need("numbers")?,
            number_size: size(types, "upid")?,
            number: number.need("nr")?,
            namespace: number.need("ns")?,
        })
    }
}

impl PidTreeLayout {
    fn find(types: &Types<'_>) -> Result<Self, Missing> {
        let namespace = types.structures("pid_namespace");
        let node = types.structures("xa_node");
        let slots = node.need("slots")?;
        // The kernel's configuration sets the number of slots. The marks follow them.
        let slot_count = node.need("marks")?.saturating_sub(slots) / 8;
        if !slot_count.is_power_of_two() || slot_count > MAX_CHUNK {
            return Err(Missing::Form("xa_node"));
        }
        Ok(Self {
            root: namespace.need("idr.idr_rt")? + types.need("xarray", "xa_head")?,
            shift: node.need("shift")?,
            slots,
            slot_count,
        })
    }
}

impl FilesLayout {
    fn find(types: &Types<'_>) -> Result<Self, Missing> {
        let table = types.structures("fdtable");
        Ok(Self {
            table: types.need("files_struct", "fdt")?,
            max: table.need("max_fds")?,
            files: table.need("fd")?,
            private_data: types.need("file", "private_data")?,
        })
    }
}

impl KvmLayout {
    fn find(types: &Types<'_>) -> Result<Self, Missing> {
        let kvm = types.structures("kvm");
        let vcpu = types.structures("kvm_vcpu");
        Ok(Self {
            memslots: kvm.need("memslots")?,
            mm: kvm.need("mm")?,
            vm_type: kvm.offset_of("arch.vm_type"),
            vcpu_count: kvm.offset_of("online_vcpus"),
            vcpu_kvm: vcpu.need("kvm")?,
            vcpu_pid: vcpu.need("pid")?,
            vcpu_id: vcpu.need("vcpu_id")?,
        })
    }
}

impl SlotLayout {
    fn find(types: &Types<'_>) -> Result<Self, Missing> {
        let all = types.structures("kvm_memslots");
        let slot = types.structures("kvm_memory_slot");
        let order = if all.offset_of("gfn_tree").is_some() {
            let node = types.structures("rb_node");
            SlotOrder::Tree {
                root: all.need("gfn_tree")?,
                node_index: all.need("node_idx")?,
                node: slot.need("gfn_node")?,
                node_size: size(types, "rb_node")?,
                left: node.need("rb_left")?,
                right: node.need("rb_right")?,
            }
        } else {
            SlotOrder::Array {
                used: all.need("used_slots")?,
                first: all.need("memslots")?,
            }
        };
        Ok(Self {
            generation: all.need("generation")?,
            order,
            size: size(types, "kvm_memory_slot")?,
            base_gfn: slot.need("base_gfn")?,
            npages: slot.need("npages")?,
            userspace_addr: slot.need("userspace_addr")?,
            flags: slot.need("flags")?,
            id: slot.need("id")?,
        })
    }
}
