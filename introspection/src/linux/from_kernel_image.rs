//! The knowledge about a kernel from its image: a file, or a copy from a running guest's memory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use kvmprof_recording::elf::hex;

use super::build_files::BuildFiles;
use super::entry_code::EntryCode;
use super::gaps::Gaps;
use super::locks::LockLoops;
use super::modules::Modules;
use super::placement::{ALIGNMENT, PlacementCell};
use super::process_list::RequestedList;
use super::processes::{InstanceLayout, MapBudget, ProcessLayout, VdsoPlace};
use super::running::RunningImage;
use super::task_layout::{Addresses, TaskLayout};
use super::tasks::TaskListLayout;
use super::{BANNER_START, KERNEL_MAP, KERNEL_MAP_LENGTH, LinuxKnowledge, MAX_BANNER, stacks};
use crate::bundle::KernelBundle;
use crate::code::Code;
use crate::image::btf::Btf;
use crate::image::dwarf::to_btf;
use crate::image::elf::{FileSymbol, SymbolKind};
use crate::image::kallsyms::{self, Anchor, Budget, Stretch};
use crate::image::types::{Members, Missing, Types};
use crate::image::{self, KernelImage, Vmlinux};
use crate::unwind::{CodeRules, ReturnHooks};
use crate::{IntrospectionError, PhysicalMemory, Registers, Symbols};

/// Maximum number of bytes of a banner, with the builder's name and the compiler's version.
const LONGEST_BANNER: usize = 512;
/// The note with an ELF file's build id (elf(5)).
const NT_GNU_BUILD_ID: u32 = 3;
/// Instructions that the code entered by SYSCALL begins with (`arch/x86/entry/entry_64.S`).
const ENDBR64: &[u8] = b"\xf3\x0f\x1e\xfa";
const SWAPGS: &[u8] = b"\x0f\x01\xf8";
/// The link-time address of `_text` with the default CONFIG_PHYSICAL_START (`arch/x86/Kconfig`).
const LINKED_TEXT: u64 = KERNEL_MAP + 0x100_0000;

impl LinuxKnowledge {
    /// Reads a kernel file: a bzImage, an ELF vmlinux, or a library with a kernel.
    ///
    /// # Errors
    /// The file isn't a Linux kernel, or is damaged.
    pub fn from_image(file: &[u8]) -> Result<Self, IntrospectionError> {
        Self::from_image_with(file, &BuildFiles::default())
    }

    /// As [`Self::from_image`], with what else the kernel's build has left behind.
    ///
    /// # Errors
    /// The file isn't a Linux kernel, or is damaged, or the other files are those of another kernel.
    pub fn from_image_with(file: &[u8], others: &BuildFiles) -> Result<Self, IntrospectionError> {
        if let Some(bundle) = KernelBundle::find(file)? {
            let (found, _) = Self::read_image(bundle_image(&bundle), others)?;
            return Ok(found);
        }
        let unpacked = image::unpack(file)?;
        let vmlinux = Vmlinux::parse(&unpacked)?;
        let own = vmlinux.section(b".BTF");
        let has_types = own.is_some_and(|(_, section)| Btf::parse(section).is_ok());
        let types = if has_types { None } else { to_btf(&vmlinux) };
        let image = KernelImage::from_file(vmlinux).with_types(types.as_deref());
        let (found, _) = Self::read_image(image, others)?;
        Ok(found)
    }

    /// Reads the kernel that runs in `memory`, where a vCPU has `registers`, with what its build has left behind.
    ///
    /// # Errors
    /// No Linux kernel runs yet, or another kernel runs, or the files are those of another one.
    pub fn from_memory<M: PhysicalMemory>(
        memory: &M,
        registers: &Registers,
        others: &BuildFiles,
    ) -> Result<Self, IntrospectionError> {
        let running = RunningImage::read(memory, registers)?;
        let (found, slide) = Self::read_image(running.image(), others)?;
        found.locate_at(memory, registers, slide);
        Ok(found)
    }

    /// Compares this kernel, which wasn't found on a vCPU with `registers`, with the kernel that runs there. Copies
    /// that kernel's image, as [`Self::from_memory`] does.
    ///
    /// # Errors
    /// The running kernel is another one or isn't Linux, or no kernel runs yet.
    pub fn compare_with_running<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
    ) -> Result<(), IntrospectionError> {
        let running = RunningImage::read(memory, registers)?;
        let image = running.image();
        // There can be several banners, because reused memory may hold old ones.
        let mut banners = image.segments().iter().flat_map(|segment| {
            let starts = memchr::memmem::find_iter(segment.data, BANNER_START);
            starts.filter_map(|start| segment.data.get(start..))
        });
        if banners.any(|banner| banner.starts_with(&self.banner)) {
            return Ok(());
        }
        let running = match release(&image) {
            Some(release) if release != self.release => {
                format!("Linux {}", release.escape_default())
            }
            _ => "another build of it".to_owned(),
        };
        Err(IntrospectionError::OtherBuild {
            file: self.release.clone(),
            running,
        })
    }

    /// Reads `image`. Also returns the slide: that of a running kernel, 0 for a file.
    fn read_image<'a>(
        mut image: KernelImage<'a>,
        others: &'a BuildFiles,
    ) -> Result<(Self, u64), IntrospectionError> {
        let kernel = release(&image).ok_or(IntrospectionError::NotAKernel)?;
        let mut symbols = kernel_symbols(&image);
        let mut slide = 0;
        if image.is_running() {
            // The kernel's decompressor has relocated the image and its symbols. From here on, all addresses are
            // link-time addresses.
            slide = slide_of(&image, &symbols);
            symbols = symbols.moved_down(KERNEL_MAP + slide, slide);
            image.move_down(slide);
        }
        if let Some(listed) = others.symbols_of(&image, &symbols)? {
            symbols = listed.with_others(&symbols);
        }
        let (types, without_types) = types(&image, &symbols);
        let (symbols, types) = completed(&image, symbols, types, others)?;
        let mut gaps = Gaps::new(without_types.filter(|_| matches!(types, Types::Code(_))));
        let (banner_address, banner) =
            banner(&image, &symbols).ok_or(IntrospectionError::NotAKernel)?;
        let is_smp = memchr::memmem::find(banner, b" SMP").is_some();
        let addresses = Addresses::find(&symbols, &types, banner_address, is_smp);
        // The first banner may be an old one in reused memory.
        let release = release_in(banner).map_or(kernel, str::to_owned);
        let tasks = TaskLayout::find(&types);
        if symbols.is_empty() {
            gaps.add(
                "names of functions",
                "the kernel has no symbol table (CONFIG_KALLSYMS)",
            );
        }
        let current = addresses.current.ok_or(Missing::Symbol("current_task"));
        gaps.check("processes", &current);
        gaps.check("process ids", &tasks.tgid);
        gaps.check("thread ids", &tasks.pid);
        gaps.check("names of threads", &tasks.comm);
        gaps.check("process groups", &tasks.group);
        let interrupts = addresses
            .preempt_count
            .ok_or(Missing::Symbol("__preempt_count"));
        gaps.check("interrupts apart from other kernel code", &interrupts);
        let orc = stacks::find(&image, &symbols, &release);
        let modules = Modules::new(&symbols, &types);
        if symbols.address_of("load_module").is_some() {
            let found = match modules.can_be_found() {
                true => modules.page_tables().map(|_| ()),
                false => Err(Missing::Form("module")),
            };
            gaps.check("functions and stacks of modules", &found);
        }
        let processes = gaps.keep("mappings of processes", ProcessLayout::find(&types));
        if let Some(processes) = &processes {
            // A `struct page` is read by the kernel's own page tables.
            let pages = processes.page_cache.as_ref().map_err(|missing| *missing);
            let pages = pages.and(modules.page_tables());
            gaps.check("files out of the guest's page cache", &pages);
            gaps.check("paths beyond a file's own mount", &processes.mount);
            gaps.check("perf maps", &processes.perf_map);
            gaps.check(
                "perf maps out of the guest's memory",
                &processes.directories,
            );
        }
        let found = Self {
            image: extent(&image, &symbols).ok_or(IntrospectionError::NotAKernel)?,
            modules,
            process_list: RequestedList::default(),
            tasks,
            rules: match orc {
                Some(_) => None,
                None => CodeRules::find(&image, &symbols).map(Arc::new),
            },
            orc,
            initcalls: stacks::find_initcalls(&image, &symbols),
            entry_code: EntryCode::find(&symbols),
            return_hooks: ReturnHooks::find(&symbols, &types),
            processes,
            map_budget: MapBudget::default(),
            instances: gaps.keep("lives of processes", InstanceLayout::find(&symbols, &types)),
            task_list: gaps.keep("looks at all tasks", TaskListLayout::find(&symbols, &types)),
            locks: LockLoops::find(&symbols, &types),
            build_id: build_id(&image, &symbols),
            release,
            banner: banner.to_vec(),
            addresses,
            placement: PlacementCell::default(),
            direct_map: AtomicU64::new(0),
            vdso_place: VdsoPlace::default(),
            symbols,
            gaps,
        };
        Ok((found, slide))
    }
}

/// The kernel's types, and why they aren't from BTF if they aren't.
fn types<'a>(image: &KernelImage<'a>, symbols: &Symbols) -> (Types<'a>, Option<String>) {
    let reason = match image.types(symbols).map(Btf::parse) {
        Some(Ok(btf)) => return (Types::Btf(btf), None),
        Some(Err(_)) => "the kernel's BTF is damaged".to_owned(),
        None => "the kernel has no BTF".to_owned(),
    };
    (Types::Code(Members::new()), Some(reason))
}

/// Adds what the kernel's code tells to `symbols` and `types`, if these lack something that all kernels have. The types of another file come before the
/// code's, which they are compared with.
fn completed<'a>(
    image: &KernelImage<'_>,
    symbols: Symbols,
    types: Types<'a>,
    others: &'a BuildFiles,
) -> Result<(Symbols, Types<'a>), IntrospectionError> {
    let [offsets] = symbols.addresses_of(["__per_cpu_offset"]);
    let has_types = matches!(types, Types::Btf(_));
    if offsets.is_some() && has_types && !others.has_types() {
        return Ok((symbols, types));
    }
    let findings = Code::new(image, &symbols).findings();
    let variables = findings.variables().map(|(name, address)| FileSymbol {
        address,
        name: name.as_bytes(),
        kind: SymbolKind::Variable,
        size: 0,
    });
    let variables = Symbols::from_table(variables, Vec::new());
    let members = findings.members();
    let types = match types {
        Types::Btf(_) => types,
        Types::Code(_) => Types::Code(members.clone()),
    };
    let described = others.types_of(&types, &members)?;
    let types = match (types, described) {
        (Types::Code(_), Some(described)) => described,
        (types, _) => types,
    };
    Ok((symbols.with_others(&variables), types))
}

/// The release of the kernel in a file that isn't compressed: an ELF vmlinux, or a library with a kernel. `None` if there is none.
pub fn release_of_file(file: &[u8]) -> Option<String> {
    match KernelBundle::find(file).ok()? {
        Some(bundle) => release(&bundle_image(&bundle)),
        None => release(&KernelImage::from_file(Vmlinux::parse(file).ok()?)),
    }
}

/// The image of a kernel in a library. Such a kernel is linked to the address at which it is loaded, and isn't moved.
fn bundle_image<'a>(bundle: &KernelBundle<'a>) -> KernelImage<'a> {
    KernelImage::flat(KERNEL_MAP.wrapping_add(bundle.load), bundle.contents)
}

/// The kernel's release, from the first banner in the image.
pub fn release(image: &KernelImage<'_>) -> Option<String> {
    image.segments().iter().find_map(|segment| {
        memchr::memmem::find_iter(segment.data, BANNER_START)
            .find_map(|start| release_in(&segment.data[start..]))
            .map(str::to_owned)
    })
}

/// The release in the banner at the start of `bytes`.
fn release_in(bytes: &[u8]) -> Option<&str> {
    let rest = bytes.strip_prefix(BANNER_START)?;
    let length = rest.iter().take(128).position(|byte| *byte == b' ')?;
    let release = std::str::from_utf8(&rest[..length]).ok()?;
    release
        .starts_with(|first: char| first.is_ascii_digit())
        .then_some(release)
}

/// The address and the first bytes of the kernel's banner: of its symbol, or the first bytes in the image that are one
/// and its end. Copies in the kernel's log have no end of line.
fn banner<'a>(image: &KernelImage<'a>, symbols: &Symbols) -> Option<(u64, &'a [u8])> {
    let [named] = symbols.addresses_of(["linux_banner"]);
    if let Some(named) = named
        && let Some(bytes) = image.bytes_from(named)
        && let Some(banner) = banner_in(bytes)
    {
        return Some((named, banner));
    }
    image.segments().iter().find_map(|segment| {
        let mut starts = memchr::memmem::find_iter(segment.data, BANNER_START);
        starts.find_map(|start| {
            let bytes = segment.data.get(start..)?;
            release_in(bytes)?;
            let end = memchr::memchr(0, bytes.get(..LONGEST_BANNER.min(bytes.len()))?)?;
            let is_whole = bytes[..end].ends_with(b"\n");
            is_whole.then(|| {
                Some((
                    segment.address.wrapping_add(start as u64),
                    banner_in(bytes)?,
                ))
            })?
        })
    })
}

/// The first bytes of the banner at the start of `bytes`.
fn banner_in(bytes: &[u8]) -> Option<&[u8]> {
    let bytes = &bytes[..bytes.len().min(MAX_BANNER)];
    if !bytes.starts_with(BANNER_START) {
        return None;
    }
    bytes.split(|byte| *byte == 0).next()
}

/// The slide of a running kernel with `symbols`. If the kernel was linked to an unusual address, all link-time
/// addresses are wrong by the same distance, which is visible only in the slide.
fn slide_of(image: &KernelImage<'_>, symbols: &Symbols) -> u64 {
    let [text] = symbols.addresses_of(["_text"]);
    // The kernel removes everything before its text from its mapping (`cleanup_highmap`, `arch/x86/mm/init_64.c`).
    let text = text.or_else(|| Some(image.segments().first()?.address));
    let slide = text.and_then(|text| text.checked_sub(LINKED_TEXT));
    slide
        .filter(|slide| slide.is_multiple_of(ALIGNMENT) && *slide < KERNEL_MAP_LENGTH)
        .unwrap_or(0)
}

/// The build id in hexadecimal; empty if there is none.
fn build_id(image: &KernelImage<'_>, symbols: &Symbols) -> String {
    let mut notes = image.notes(symbols, b"GNU").into_iter();
    let id = notes.find(|(kind, id)| *kind == NT_GNU_BUILD_ID && !id.is_empty());
    id.map_or_else(String::new, |(_, id)| hex(id))
}

/// The image's range within the kernel's mapping: all its segments, but not other memory that a running kernel has
/// mapped around its image.
fn extent(image: &KernelImage<'_>, symbols: &Symbols) -> Option<Range<u64>> {
    let inside = || {
        image.segments().iter().filter_map(|segment| {
            let end = segment.address.checked_add(segment.memory_length)?;
            (segment.address >= KERNEL_MAP && end - KERNEL_MAP <= KERNEL_MAP_LENGTH)
                .then_some(segment.address..end)
        })
    };
    let start = inside().map(|range| range.start).min()?;
    let end = inside().map(|range| range.end).max()?;
    if !image.is_running() {
        return Some(start..end);
    }
    let [text, last] = symbols.addresses_of(["_text", "_end"]);
    let start = text.map_or(start, |text| text.clamp(start, end));
    let end = last.map_or(end, |last| last.clamp(start, end));
    Some(start..end)
}

/// The kernel's symbols: its kallsyms, or the file's symbol table if it wasn't stripped. Empty if it has neither.
pub fn kernel_symbols(image: &KernelImage<'_>) -> Symbols {
    let is_banner = |address| {
        image
            .bytes_from(address)
            .is_some_and(|bytes| bytes.starts_with(BANNER_START))
    };
    let is_entry = |address| {
        image.bytes_from(address).is_some_and(|bytes| {
            let bytes = bytes.strip_prefix(ENDBR64).unwrap_or(bytes);
            bytes.starts_with(SWAPGS)
        })
    };
    let begins_image = |address: u64| {
        let mut segments = image.segments().iter();
        let is_begin = segments.any(|segment| segment.address == address);
        is_begin && address.is_multiple_of(ALIGNMENT)
    };
    let anchors = [
        Anchor {
            name: "linux_banner",
            fits: &is_banner,
        },
        // Without CONFIG_KALLSYMS_ALL, only functions are in the table. This one's first instructions are known; other
        // symbols may have the address of the image's start, too.
        Anchor {
            name: "entry_SYSCALL_64",
            fits: &is_entry,
        },
        Anchor {
            name: "_text",
            fits: &begins_image,
        },
    ];
    let mut budget = Budget::new();
    let carried = image.segments().iter().find_map(|segment| {
        let stretch = Stretch {
            address: segment.address,
            data: segment.data,
        };
        kallsyms::find(stretch, &anchors, &mut budget)
    });
    let carried = carried.or_else(|| {
        let file = image.file()?;
        Some(Symbols::from_table(file.symbols(), file.code_ends()))
    });
    carried.unwrap_or_else(|| Symbols::new(Vec::new(), String::new(), Vec::new()))
}
