//! Code outside the kernel's image with rules of its own: that of modules, and that which the kernel has made.

use std::ops::Range;
use std::sync::Arc;

use super::CodeRules;
use super::framed_code::FramedCode;
use super::orc::{OrcEntry, OrcFormat, OrcTable};

/// The addresses of modules and of code that is compiled at run time (`Documentation/arch/x86/x86_64/mm.rst`).
pub const MODULES: Range<u64> = 0xffff_ffff_a000_0000..0xffff_ffff_ff00_0000;

/// A contiguous range of code.
#[derive(Clone, Debug)]
pub struct CodeRegion {
    /// Its addresses.
    pub range: Range<u64>,
    /// How callers are found; `None` if that isn't known.
    pub callers: Option<Callers>,
}

/// How the callers of code are found.
#[derive(Clone, Debug)]
pub enum Callers {
    /// By an unwind table with run-time addresses.
    Table(Arc<OrcTable>),
    /// By the code itself, in a kernel without unwind tables.
    Rules(Arc<CodeRules>),
    /// By the frame pointer.
    Frame(Arc<FramedCode>),
    /// As those of the kernel's code from this link-time address on, of which it is a copy.
    Copy(u64),
}

impl Callers {
    /// The approximate memory use, in bytes.
    pub fn footprint(&self) -> usize {
        match self {
            Self::Table(table) => table.footprint(),
            Self::Rules(rules) => rules.footprint(),
            Self::Frame(code) => code.footprint(),
            Self::Copy(_) => size_of::<Self>(),
        }
    }
}

/// The code of all modules.
#[derive(Debug, Default)]
pub struct ModuleCode {
    /// Sorted by address, without overlaps.
    regions: Vec<CodeRegion>,
}

impl ModuleCode {
    /// The code of modules with these regions. Regions of a kernel don't overlap; if two of them do, the lower one is kept.
    pub fn new(mut regions: Vec<CodeRegion>) -> Self {
        regions.sort_by_key(|region| region.range.start);
        let mut end = 0;
        regions.retain(|region| {
            let fits = region.range.start >= end;
            if fits {
                end = region.range.end;
            }
            fits
        });
        Self { regions }
    }

    /// The entry for `address`, an instruction that was about to be executed if it `is_exact`, otherwise what follows a call; and its format.
    pub fn find(&self, address: u64, is_exact: bool) -> Option<(OrcEntry, OrcFormat)> {
        let inside = address.wrapping_sub(u64::from(!is_exact));
        let derived = |entry| (entry, OrcFormat::DERIVED);
        match self.region(inside)?.callers.as_ref()? {
            Callers::Table(orc) => Some((orc.find(inside)?, orc.format())),
            Callers::Rules(rules) => rules.entry(address, is_exact).map(derived),
            Callers::Frame(code) => code.entry(address, is_exact).map(derived),
            Callers::Copy(_) => None,
        }
    }

    /// The link-time address in the kernel of the code at `address`, if it is a copy of that.
    pub fn original(&self, address: u64) -> Option<u64> {
        let region = self.region(address)?;
        match region.callers {
            Some(Callers::Copy(original)) => original.checked_add(address - region.range.start),
            _ => None,
        }
    }

    fn region(&self, address: u64) -> Option<&CodeRegion> {
        let after = (self.regions).partition_point(|region| region.range.start <= address);
        let region = self.regions.get(after.checked_sub(1)?)?;
        region.range.contains(&address).then_some(region)
    }
}
