//! Tests of `dwarf`: debug information as compilers write it, and damaged.

use super::*;
use crate::image::btf::Btf;

/// Abbreviations: their numbers, tags, whether they have children, and attributes with their forms.
const ABBREVIATIONS: &[u8] = &[
    // 1: compile unit; 2: structure with name and size; 3: member with name, type and place; 4: bit field with place and width; 5: typedef;
    // 6: enumeration; 7: enumerator; 8: structure without a name; 9: declaration.
    1, 0x11, 1, 0, 0, //
    2, 0x13, 1, 0x03, 0x08, 0x0b, 0x0b, 0, 0, //
    3, 0x0d, 0, 0x03, 0x08, 0x49, 0x13, 0x38, 0x0b, 0, 0, //
    4, 0x0d, 0, 0x03, 0x08, 0x6b, 0x0b, 0x0d, 0x0b, 0, 0, //
    5, 0x16, 0, 0x49, 0x13, 0, 0, //
    6, 0x04, 1, 0x03, 0x08, 0x0b, 0x0b, 0, 0, //
    7, 0x28, 0, 0x03, 0x0e, 0x1c, 0x0b, 0, 0, //
    8, 0x13, 1, 0x0b, 0x0b, 0, 0, //
    9, 0x13, 0, 0x03, 0x08, 0x3c, 0x19, 0, 0, //
    0,
];
/// Bytes of a unit's header (version 5).
const HEADER: usize = 12;

fn unit(entries: &[u8]) -> Vec<u8> {
    let mut unit = Vec::new();
    let length = u32::try_from(HEADER - 4 + entries.len()).unwrap();
    unit.extend(length.to_le_bytes());
    unit.extend([5, 0, 1, 8, 0, 0, 0, 0]);
    unit.extend(entries);
    unit
}

fn place_of(entries: &[u8]) -> [u8; 4] {
    u32::try_from(HEADER + entries.len()).unwrap().to_le_bytes()
}

/// A unit with a `task_struct` that has a structure in it, by a typedef, and others.
fn entries() -> Vec<u8> {
    let mut all = vec![1];
    all.extend(b"\x09task_struct\0");
    let inner = place_of(&all);
    all.extend(b"\x08\x10\x03run_delay\0");
    all.extend([0, 0, 0, 0]);
    all.extend([8, 0]);
    let named = place_of(&all);
    all.push(5);
    all.extend(inner);
    all.extend(b"\x02task_struct\0\x40");
    for (name, kind, place) in [
        (&b"sched_info\0"[..], named, 16),
        (b"\0", inner, 32),
        (b"pid\0", [0; 4], 48),
    ] {
        all.push(3);
        all.extend(name);
        all.extend(kind);
        all.push(place);
    }
    all.extend(b"\x04flag\0\x29\x01\0");
    all.extend(b"\x06system_states\0\x04\x07\x01\0\0\0\x01\0");
    all.extend(b"\x02other\0\x08\0\0");
    all
}

const STRINGS: &[u8] = b"\0SYSTEM_SCHEDULING\0";

#[test]
fn structures_become_btf() {
    let info = [unit(&entries()), unit(&entries())].concat();
    let section = convert(&info, ABBREVIATIONS, STRINGS).unwrap();
    let btf = Btf::parse(&section).unwrap();
    let task = btf.structures("task_struct");
    assert_eq!(btf.size_of("task_struct"), Some(0x40));
    assert_eq!(task.offset_of("pid"), Some(48));
    assert_eq!(task.offset_within("sched_info", "run_delay"), Some(24));
    // A member of a structure without a name counts as one of the outer one.
    assert_eq!(task.offset_of("run_delay"), Some(40));
    assert_eq!(
        (task.bit_of("flag"), task.offset_of("flag")),
        (Some(0x29), None)
    );
    let state = btf.enumerator("system_states", "SYSTEM_SCHEDULING");
    assert_eq!(state, Some(1));
    assert_eq!(btf.size_of("other"), None, "nobody asks for it");
}

#[test]
fn files_without_structures_have_none() {
    assert_eq!(convert(&[], ABBREVIATIONS, STRINGS), None);
    assert_eq!(
        convert(&unit(b"\x01\x02other\0\x08\0\0"), ABBREVIATIONS, STRINGS),
        None
    );
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    assert_eq!(to_btf(&Vmlinux::parse(&own).unwrap()), None);
}

/// Wherever it ends, and whatever its bytes are.
#[test]
fn damaged_information_is_no_panic() {
    let info = unit(&entries());
    for length in 0..info.len() {
        let _either = convert(&info[..length], ABBREVIATIONS, STRINGS);
        for change in [0x01, 0x80, 0xff] {
            let mut changed = info.clone();
            changed[length] ^= change;
            if let Some(section) = convert(&changed, ABBREVIATIONS, STRINGS) {
                Btf::parse(&section).unwrap();
            }
        }
    }
    for place in 0..ABBREVIATIONS.len() {
        let mut changed = ABBREVIATIONS.to_vec();
        changed[place] ^= 0xff;
        let _either = convert(&info, &changed, STRINGS);
    }
}
