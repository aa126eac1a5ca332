//! Offsets of members of the host kernel's structures, in bytes from the start of each structure, from the kernel's BTF.

use kvmprof_introspection::{Btf, Structures};

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
    /// Finds the offsets in `btf`.
    pub fn find(btf: &Btf<'_>) -> Result<Self, HostKernelError> {
        if btf.size_of("kvm_vcpu").is_none() {
            return Err(HostKernelError::NoKvm);
        }
        Ok(Self {
            task: TaskLayout::find(btf)?,
            pids: PidTreeLayout::find(btf)?,
            files: FilesLayout::find(btf)?,
            kvm: KvmLayout::find(btf)?,
            slot: SlotLayout::find(btf)?,
        })
    }
}

/// The structures with one name, and the name for errors.
struct StructureCandidates<'b, 'a> {
    name: &'static str,
    structures: Structures<'b, 'a>,
}

impl<'b, 'a> StructureCandidates<'b, 'a> {
    fn find(btf: &'b Btf<'a>, name: &'static str) -> Self {
        Self {
            name,
            structures: btf.structures(name),
        }
    }

    fn missing(&self, member: &'static str) -> HostKernelError {
        HostKernelError::MissingMember {
            structure: self.name,
            member,
        }
    }

    fn offset(&self, member: &'static str) -> Result<u64, HostKernelError> {
        let offset = self.structures.offset_of(member);
        offset.ok_or_else(|| self.missing(member))
    }

    fn within(&self, member: &'static str, inner: &'static str) -> Result<u64, HostKernelError> {
        let offset = self.structures.offset_within(member, inner);
        offset.ok_or_else(|| self.missing(member))
    }

    fn size(&self) -> Result<u64, HostKernelError> {
        let size = self.structures.size();
        size.filter(|size| *size <= MAX_STRUCTURE)
            .ok_or_else(|| self.missing("(size)"))
    }
}

impl TaskLayout {
    fn find(btf: &Btf<'_>) -> Result<Self, HostKernelError> {
        let task = StructureCandidates::find(btf, "task_struct");
        let pid = StructureCandidates::find(btf, "pid");
        let number = StructureCandidates::find(btf, "upid");
        let process = btf.enumerator("pid_type", "PIDTYPE_TGID");
        let process = u64::from(process.ok_or_else(|| pid.missing("(PIDTYPE_TGID)"))?);
        let link_size = StructureCandidates::find(btf, "hlist_node").size()?;
        let head_size = StructureCandidates::find(btf, "hlist_head").size()?;
        Ok(Self {
            thread_pid: task.offset("thread_pid")?,
            process_link: task.offset("pid_links")? + process * link_size,
            files: task.offset("files")?,
            mm: task.offset("mm")?,
            level: pid.offset("level")?,
            processes: pid.offset("tasks")? + process * head_size,
            numbers: pid.offset("numbers")?,
            number_size: number.size()?,
            number: number.offset("nr")?,
            namespace: number.offset("ns")?,
        })
    }
}

impl PidTreeLayout {
    fn find(btf: &Btf<'_>) -> Result<Self, HostKernelError> {
        let namespace = StructureCandidates::find(btf, "pid_namespace");
        let node = StructureCandidates::find(btf, "xa_node");
        let slots = node.offset("slots")?;
        // The kernel's configuration sets the number of slots. The marks follow them.
        let slot_count = node.offset("marks")?.saturating_sub(slots) / 8;
        if !slot_count.is_power_of_two() || slot_count > MAX_CHUNK {
            return Err(node.missing("slots"));
        }
        Ok(Self {
            root: namespace.within("idr", "idr_rt")?
                + StructureCandidates::find(btf, "xarray").offset("xa_head")?,
            shift: node.offset("shift")?,
            slots,
            slot_count,
        })
    }
}

impl FilesLayout {
    fn find(btf: &Btf<'_>) -> Result<Self, HostKernelError> {
        let table = StructureCandidates::find(btf, "fdtable");
        Ok(Self {
            table: StructureCandidates::find(btf, "files_struct").offset("fdt")?,
            max: table.offset("max_fds")?,
            files: table.offset("fd")?,
            private_data: StructureCandidates::find(btf, "file").offset("private_data")?,
        })
    }
}

impl KvmLayout {
    fn find(btf: &Btf<'_>) -> Result<Self, HostKernelError> {
        let kvm = StructureCandidates::find(btf, "kvm");
        let vcpu = StructureCandidates::find(btf, "kvm_vcpu");
        Ok(Self {
            memslots: kvm.offset("memslots")?,
            mm: kvm.offset("mm")?,
            vm_type: kvm.structures.offset_within("arch", "vm_type"),
            vcpu_count: kvm.structures.offset_of("online_vcpus"),
            vcpu_kvm: vcpu.offset("kvm")?,
            vcpu_pid: vcpu.offset("pid")?,
            vcpu_id: vcpu.offset("vcpu_id")?,
        })
    }
}

impl SlotLayout {
    fn find(btf: &Btf<'_>) -> Result<Self, HostKernelError> {
        let all = StructureCandidates::find(btf, "kvm_memslots");
        let slot = StructureCandidates::find(btf, "kvm_memory_slot");
        let order = if all.structures.offset_of("gfn_tree").is_some() {
            let node = StructureCandidates::find(btf, "rb_node");
            SlotOrder::Tree {
                root: all.offset("gfn_tree")?,
                node_index: all.offset("node_idx")?,
                node: slot.offset("gfn_node")?,
                node_size: node.size()?,
                left: node.offset("rb_left")?,
                right: node.offset("rb_right")?,
            }
        } else {
            SlotOrder::Array {
                used: all.offset("used_slots")?,
                first: all.offset("memslots")?,
            }
        };
        Ok(Self {
            generation: all.offset("generation")?,
            order,
            size: slot.size()?,
            base_gfn: slot.offset("base_gfn")?,
            npages: slot.offset("npages")?,
            userspace_addr: slot.offset("userspace_addr")?,
            flags: slot.offset("flags")?,
            id: slot.offset("id")?,
        })
    }
}
