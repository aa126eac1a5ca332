//! Split debug information (DWARF 5, 7.3.2): units in files of their own (`.dwo`), or all of a program's in a package (`.dwp`).

use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use addr2line::SplitDwarfLoad;
use gimli::{Dwarf, DwarfPackage, DwoId, Reader, SectionId};
use object::read::ReadCache;

use super::debug::{Parsed, Slice, invalid, no_section, section};
use super::notes::Notes;
use crate::text::visible;
use kvmprof_recording::Sysroot;

/// Maximum number of bytes of one program's split debug information.
const MAX_BYTES: u64 = 4 << 30;
/// Maximum length of a path in debug information, in bytes.
const MAX_PATH: usize = 4096;

/// Where the units of a program may be.
pub struct SplitFiles {
    root: Rc<Sysroot>,
    /// The paths below `root` at which the program or its debug file may be; the first one is that of the file that refers to the units.
    paths: Vec<String>,
    notes: Rc<Notes>,
    package: OnceCell<Option<DwarfPackage<Slice>>>,
    /// How many bytes may still be read.
    left: Cell<u64>,
    is_said: Cell<bool>,
}

impl SplitFiles {
    /// The files of a program that is, or whose debug file is, at one of `paths` below `root`. A unit that is missing is said
    /// once, in `notes`.
    pub fn new(root: Rc<Sysroot>, paths: Vec<String>, notes: Rc<Notes>) -> Self {
        Self {
            root,
            paths,
            notes,
            package: OnceCell::new(),
            left: Cell::new(MAX_BYTES),
            is_said: Cell::new(false),
        }
    }

    /// The unit that `load` asks for. Its id proves that it is of the same build.
    pub fn load(&self, load: &SplitDwarfLoad<Slice>) -> Option<Arc<Dwarf<Slice>>> {
        let package = self.package.get_or_init(|| self.open_package());
        let packed = package.as_ref();
        let packed = packed.and_then(|package| package.find_cu(load.dwo_id, &load.parent).ok()?);
        let unit = packed.or_else(|| self.unit_file(load));
        if unit.is_none() {
            self.say_missing(load);
        }
        unit.map(Arc::new)
    }

    fn say_missing(&self, load: &SplitDwarfLoad<Slice>) {
        // A program may have thousands of units.
        if self.is_said.replace(true) {
            return;
        }
        let program = self.paths.first().map_or("", String::as_str);
        let program = visible(&self.root.shown(program).display().to_string());
        let unit = visible(&text(load.path.as_ref()).unwrap_or_default());
        self.notes.add(format!(
            "{program}: its debug information {unit} is missing, too large or of another build: functions are shown without inlined ones"
        ));
    }

    fn open_package(&self) -> Option<DwarfPackage<Slice>> {
        let names = self.paths.iter().flat_map(|path| {
            let bare = path.strip_suffix(".debug");
            [Some(path.as_str()), bare].into_iter().flatten()
        });
        let mut packages = names.filter_map(|name| {
            let file = self.root.file(&format!("{name}.dwp")).ok()?;
            let cache = ReadCache::new(file.try_clone().ok()?);
            let elf = Parsed::parse(&cache).ok()?;
            let load = |id| self.section(&file, &elf, id).map_err(|_| gimli::Error::Io);
            DwarfPackage::load(load, no_section()).ok()
        });
        packages.next()
    }

    /// The unit in a file of its own: at the path that the compiler wrote, or beside the program.
    fn unit_file(&self, load: &SplitDwarfLoad<Slice>) -> Option<Dwarf<Slice>> {
        let path = text(load.path.as_ref())?;
        let folder = text(load.comp_dir.as_ref()).unwrap_or_default();
        let built = if path.starts_with('/') {
            path.clone()
        } else {
            format!("{folder}/{path}")
        };
        let name = path.rsplit('/').next().unwrap_or(&path);
        let beside = self.paths.iter().flat_map(|program| {
            let folder = program.rsplit_once('/').map_or("", |(folder, _)| folder);
            [format!("{folder}/{path}"), format!("{folder}/{name}")]
        });
        let mut found = std::iter::once(built).chain(beside).filter_map(|path| {
            let file = self.root.file(&path).ok()?;
            let mut unit = self.read_unit(&file, load.dwo_id).ok()??;
            unit.make_dwo(&load.parent);
            Some(unit)
        });
        found.next()
    }

    /// The unit in `file`, if it is the one with `id`.
    fn read_unit(&self, file: &File, id: DwoId) -> io::Result<Option<Dwarf<Slice>>> {
        let cache = ReadCache::new(file.try_clone()?);
        let elf = Parsed::parse(&cache).map_err(invalid)?;
        let unit = Dwarf::load(|id| self.section(file, &elf, id))?;
        let Some(header) = unit.units().next().map_err(invalid)? else {
            return Ok(None);
        };
        let found = unit.unit(header).map_err(invalid)?.dwo_id;
        Ok((found == Some(id)).then_some(unit))
    }

    fn section(&self, file: &File, elf: &Parsed<'_>, id: SectionId) -> io::Result<Slice> {
        let Some(name) = id.dwo_name() else {
            return Ok(no_section());
        };
        let section = section(file, elf, name)?;
        let left = self.left.get().checked_sub(section.len() as u64);
        self.left
            .set(left.ok_or_else(|| invalid("too much debug information"))?);
        Ok(section)
    }
}

/// A path in debug information.
fn text(path: Option<&Slice>) -> Option<String> {
    let path = path.filter(|path| path.len() <= MAX_PATH)?;
    Some(path.to_string_lossy().ok()?.into_owned())
}
