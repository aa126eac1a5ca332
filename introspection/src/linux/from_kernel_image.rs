//! The knowledge about a kernel from its image: a file, or a copy from a running guest's memory.

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use kvmprof_recording::elf::hex;

use super::locks::LockLoops;
use super::modules::Modules;
use super::placement::{ALIGNMENT, PlacementCell};
use super::processes::{InstanceLayout, MapBudget, ProcessLayout};
use super::running::RunningImage;
use super::task_layout::{Addresses, TaskLayout};
use super::tasks::TaskListLayout;
use super::{KERNEL_MAP, KERNEL_MAP_LENGTH, LinuxKnowledge, MAX_BANNER, stacks};
use crate::image::btf::Btf;
use crate::image::kallsyms::{self, Anchor, Budget, Stretch};
use crate::image::{self, KernelImage, Vmlinux};
use crate::unwind::ReturnHooks;
use crate::{IntrospectionError, PhysicalMemory, Registers, Symbols};

/// The start of the kernel's banner (`init/version-timestamp.c`).
const BANNER_START: &[u8] = b"Linux version ";
/// The note with an ELF file's build id (elf(5)).
const NT_GNU_BUILD_ID: u32 = 3;
/// The link-time address of `_text` with the default CONFIG_PHYSICAL_START (`arch/x86/Kconfig`).
const LINKED_TEXT: u64 = KERNEL_MAP + 0x100_0000;

impl LinuxKnowledge {
    /// Reads a kernel file, a bzImage or an ELF vmlinux.
    ///
    /// # Errors
    /// The file isn't a Linux kernel, is damaged, or lacks kallsyms or BTF.
    pub fn from_image(file: &[u8]) -> Result<Self, IntrospectionError> {
        let unpacked = image::unpack(file)?;
        let image = KernelImage::from_file(Vmlinux::parse(&unpacked)?);
        let (found, _) = Self::read_image(image)?;
        Ok(found)
    }

    /// Reads the kernel that runs in `memory`, where a vCPU has `registers`.
    ///
    /// # Errors
    /// No Linux kernel runs yet, another kernel runs, or the kernel has no kallsyms or BTF in memory.
    pub fn from_memory<M: PhysicalMemory>(
        memory: &M,
        registers: &Registers,
    ) -> Result<Self, IntrospectionError> {
        let running = RunningImage::read(memory, registers)?;
        let (found, slide) = Self::read_image(running.image())
            .map_err(|error| IntrospectionError::IncompleteInMemory(Box::new(error)))?;
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
    fn read_image(mut image: KernelImage<'_>) -> Result<(Self, u64), IntrospectionError> {
        let kernel = release(&image).ok_or(IntrospectionError::NotAKernel)?;
        let mut symbols = find_symbols(&image).ok_or_else(|| IntrospectionError::NoSymbols {
            kernel: kernel.clone(),
        })?;
        let mut slide = 0;
        if image.is_running() {
            // The kernel's decompressor has relocated the image and its symbols. From here on, all addresses are
            // link-time addresses.
            slide = slide_of(&symbols);
            symbols = symbols.moved_down(KERNEL_MAP + slide, slide);
            image.move_down(slide);
        }
        let btf = image.part(".BTF", &symbols, ["__start_BTF", "__stop_BTF"]);
        let (_, btf) = btf.ok_or_else(|| IntrospectionError::NoBtf {
            kernel: kernel.clone(),
        })?;
        let btf = Btf::parse(btf)?;
        let addresses = Addresses::find(&symbols, &btf, &kernel)?;
        let banner = banner_at(&image, addresses.banner);
        let banner = banner.ok_or_else(|| IntrospectionError::MissingSymbol {
            kernel: kernel.clone(),
            symbol: "linux_banner",
        })?;
        // The first banner may be an old one in reused memory.
        let release = release_in(banner).map_or(kernel, str::to_owned);
        let found = Self {
            image: extent(&image, &symbols).ok_or(IntrospectionError::NotAKernel)?,
            modules: Modules::new(&symbols, &btf),
            tasks: TaskLayout::find(&btf)?,
            orc: stacks::find(&image, &symbols, &release),
            initcalls: stacks::find_initcalls(&image, &symbols),
            return_hooks: ReturnHooks::find(&symbols, &btf),
            processes: ProcessLayout::find(&btf),
            map_budget: MapBudget::default(),
            instances: InstanceLayout::find(&symbols, &btf),
            task_list: TaskListLayout::find(&symbols, &btf),
            locks: LockLoops::find(&symbols, &btf),
            build_id: build_id(&image, &symbols),
            release,
            banner: banner.to_vec(),
            addresses,
            placement: PlacementCell::default(),
            direct_map: AtomicU64::new(0),
            symbols,
        };
        Ok((found, slide))
    }
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

/// The first bytes of the banner at `address`.
fn banner_at<'a>(image: &KernelImage<'a>, address: u64) -> Option<&'a [u8]> {
    let bytes = image.bytes_from(address)?;
    let bytes = &bytes[..bytes.len().min(MAX_BANNER)];
    if !bytes.starts_with(BANNER_START) {
        return None;
    }
    bytes.split(|byte| *byte == 0).next()
}

/// The slide of a running kernel with `symbols`. If the kernel was linked to an unusual address, all link-time
/// addresses are wrong by the same distance, which is visible only in the slide.
fn slide_of(symbols: &Symbols) -> u64 {
    let [text] = symbols.addresses_of(["_text"]);
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

/// The kernel's symbols: its kallsyms, or the file's symbol table if it wasn't stripped.
fn find_symbols(image: &KernelImage<'_>) -> Option<Symbols> {
    let is_banner = |address| {
        image
            .bytes_from(address)
            .is_some_and(|bytes| bytes.starts_with(BANNER_START))
    };
    let anchor = Anchor {
        name: "linux_banner",
        fits: &is_banner,
    };
    let mut budget = Budget::new();
    let carried = image.segments().iter().find_map(|segment| {
        let stretch = Stretch {
            address: segment.address,
            data: segment.data,
        };
        kallsyms::find(stretch, &anchor, &mut budget)
    });
    carried.or_else(|| {
        let file = image.file()?;
        let symbols = Symbols::from_table(file.symbols(), file.code_ends());
        (!symbols.is_empty()).then_some(symbols)
    })
}
