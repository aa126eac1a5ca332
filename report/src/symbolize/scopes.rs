//! The namespaces and classes around functions whose linkage name the compiler didn't write: GCC writes none of static functions.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use gimli::{AttributeValue, DebuggingInformationEntry, DwTag, Reader, UnitOffset, UnitRef};

use super::debug::Slice;

/// Maximum number of namespaces and classes of a unit; those beyond have no names.
const MAX_SCOPES: usize = 1 << 18;
/// Maximum number of entries around another one.
const MAX_DEPTH: usize = 256;
/// Maximum number of references from an entry to the one that has its name.
const MAX_REFERENCES: usize = 8;
/// Maximum length of a name with its scopes, in bytes.
const MAX_NAME: usize = 4096;

type Entry = DebuggingInformationEntry<Slice>;
type Unit<'u> = UnitRef<'u, Slice>;

/// A namespace or a class, with the entries from `begin` on and before `end`.
#[derive(Debug, PartialEq, Eq)]
struct Scope {
    begin: usize,
    end: usize,
    /// `None` if it is unknown: that of a class without a name, or of one in a function.
    name: Option<String>,
    around: Option<usize>,
}

/// An entry with others in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EnclosingEntry {
    Unit,
    Scope(usize),
    Other,
}

/// A unit's offset and its id: units of split files have the same offsets.
type UnitKey = (usize, Option<u64>);

/// The scopes of the units that have been looked at.
#[derive(Debug, Default)]
pub struct UnitScopes(RefCell<HashMap<UnitKey, Rc<[Scope]>>>);

impl UnitScopes {
    /// `name`, that of the function with the entry at `offset` of `unit`, with the namespaces and classes around it. `None` if it has none,
    /// they can't be told, or the name is the function's linkage name.
    pub fn qualified(&self, unit: Unit<'_>, offset: UnitOffset, name: &str) -> Option<String> {
        let offset = static_function(unit, offset)?;
        let key = (unit.header.offset().0, unit.dwo_id.map(|id| id.0));
        let known = self.0.borrow().get(&key).cloned();
        let scopes = known.unwrap_or_else(|| {
            let scopes: Rc<[Scope]> = read(unit).unwrap_or_default().into();
            self.0.borrow_mut().insert(key, Rc::clone(&scopes));
            scopes
        });
        let mut names = vec![name];
        let mut length = name.len();
        let mut around = innermost(&scopes, offset.0);
        while let Some(scope) = around.and_then(|index| scopes.get(index)) {
            let outer = scope.name.as_deref()?;
            length += outer.len() + 2;
            if names.len() > MAX_DEPTH || length > MAX_NAME {
                return None;
            }
            names.push(outer);
            around = scope.around;
        }
        names.reverse();
        (names.len() > 1).then(|| names.join("::"))
    }
}

/// The entry that has the name of the function with the entry at `offset`, if no other unit can refer to the function: then it has no linkage name.
fn static_function(unit: Unit<'_>, mut offset: UnitOffset) -> Option<UnitOffset> {
    for _ in 0..MAX_REFERENCES {
        let entry = unit.entry(offset).ok()?;
        let is_mangled = entry.has_attr(gimli::DW_AT_linkage_name)
            || entry.has_attr(gimli::DW_AT_MIPS_linkage_name);
        if is_mangled || entry.has_attr(gimli::DW_AT_external) {
            return None;
        }
        let origin = entry.attr_value(gimli::DW_AT_abstract_origin);
        match origin.or_else(|| entry.attr_value(gimli::DW_AT_specification)) {
            Some(AttributeValue::UnitRef(next)) => offset = next,
            Some(_) => return None,
            None => return Some(offset),
        }
    }
    None
}

/// The innermost scope around the entry at `offset`.
fn innermost(scopes: &[Scope], offset: usize) -> Option<usize> {
    let after = scopes.partition_point(|scope| scope.begin < offset);
    let mut found = after.checked_sub(1);
    // Each is in the one around it, which begins before.
    while let Some(scope) = found.and_then(|index| scopes.get(index))
        && scope.end <= offset
    {
        found = scope.around;
    }
    found
}

/// All scopes of `unit` by their begins; those before damage.
fn read(unit: Unit<'_>) -> Option<Vec<Scope>> {
    let mut entries = unit.entries_raw(None).ok()?;
    let mut entry = Entry::null();
    let mut scopes: Vec<Scope> = Vec::new();
    let mut open: Vec<(isize, EnclosingEntry)> = Vec::new();
    while !entries.is_empty() && scopes.len() < MAX_SCOPES {
        let Ok(is_entry) = entries.read_entry(&mut entry) else {
            break;
        };
        close(&mut open, &mut scopes, entry.depth(), entry.offset().0);
        if !is_entry || !entry.has_children() {
            continue;
        }
        if open.len() >= MAX_DEPTH {
            return None;
        }
        let around = match entry.tag() {
            gimli::DW_TAG_compile_unit | gimli::DW_TAG_partial_unit => EnclosingEntry::Unit,
            tag if is_scope(tag) => {
                scopes.push(scope(unit, &entry, &open));
                EnclosingEntry::Scope(scopes.len() - 1)
            }
            _ => EnclosingEntry::Other,
        };
        open.push((entry.depth(), around));
    }
    let end = entries.next_offset().0;
    close(&mut open, &mut scopes, 0, end);
    Some(scopes)
}

/// Ends what is open at `depth` and below, because the entry at `offset` isn't in it.
fn close(
    open: &mut Vec<(isize, EnclosingEntry)>,
    scopes: &mut [Scope],
    depth: isize,
    offset: usize,
) {
    while let Some((_, around)) = open.pop_if(|(outer, _)| *outer >= depth) {
        if let EnclosingEntry::Scope(index) = around
            && let Some(scope) = scopes.get_mut(index)
        {
            scope.end = offset;
        }
    }
}

fn is_scope(tag: DwTag) -> bool {
    matches!(
        tag,
        gimli::DW_TAG_namespace
            | gimli::DW_TAG_class_type
            | gimli::DW_TAG_structure_type
            | gimli::DW_TAG_union_type
    )
}

/// The scope of `entry`, which is in those that are `open`.
fn scope(unit: Unit<'_>, entry: &Entry, open: &[(isize, EnclosingEntry)]) -> Scope {
    let begin = entry.offset().0;
    let is_local = open
        .iter()
        .any(|(_, around)| *around == EnclosingEntry::Other);
    let name = entry.attr_value(gimli::DW_AT_name);
    let name = name.and_then(|name| {
        let name = unit.attr_string(name).ok()?;
        Some(name.to_string_lossy().ok()?.into_owned())
    });
    let nameless = (entry.tag() == gimli::DW_TAG_namespace).then_some("(anonymous namespace)");
    Scope {
        begin,
        end: usize::MAX,
        name: name
            .or_else(|| nameless.map(str::to_owned))
            .filter(|_| !is_local),
        around: match open.last() {
            Some((_, EnclosingEntry::Scope(index))) => Some(*index),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_in_the_innermost_scope() {
        let scope = |begin, end, around| Scope {
            begin,
            end,
            name: None,
            around,
        };
        let scopes = [
            scope(10, 100, None),
            scope(20, 30, Some(0)),
            scope(40, 60, Some(0)),
            scope(45, 50, Some(2)),
            scope(200, 300, None),
        ];
        let offsets = [5, 10, 15, 25, 30, 47, 55, 70, 100, 250];
        let (outer, inner) = (Some(0), Some(2));
        let expected = [
            None,
            None,
            outer,
            Some(1),
            outer,
            Some(3),
            inner,
            outer,
            None,
            Some(4),
        ];
        assert_eq!(offsets.map(|offset| innermost(&scopes, offset)), expected);
    }
}
