//! The places of processes in words of 8 bytes, in which one process of kvmprof tells them to another.

use kvmprof_introspection::{
    LinearMap, ProcessPlaces, TaskMemory, TaskPointer, ValueAt, ValueKind, ValuePlace,
};
use vm_memory::GuestAddress;

/// Maximum number of memory slots, and of ranges of a task's memory. A guest of kvmprof's own has two.
const MAX_RANGES: u64 = 64;

/// Appends `places` to `words`.
pub fn encode_places(places: &ProcessPlaces, words: &mut Vec<u64>) {
    words.push(places.is_linux.into());
    encode_optional(places.interrupt_stack.map(|at| at.0), words);
    words.push(places.task.is_some().into());
    if let Some(task) = &places.task {
        words.extend([task.at.0, task.maps.len() as u64]);
        for map in &task.maps {
            words.extend([map.address, map.physical.0, map.bytes]);
        }
        words.push(task.memory.is_some().into());
        if let Some(memory) = &task.memory {
            words.extend([memory.mm, memory.page_tables, memory.direct_map]);
            encode_optional(memory.stack, words);
        }
    }
    words.push(places.values.len() as u64);
    for value in &places.values {
        let (kind, masks) = match value.kind {
            ValueKind::Pid => (0, 0),
            ValueKind::Tid => (1, 0),
            ValueKind::ProcessGroup => (2, 0),
            ValueKind::Comm => (3, 0),
            ValueKind::Interrupts(bits) => (4, bits),
            ValueKind::PreemptCount(first, second) => {
                (5, u64::from(first) | u64::from(second) << 32)
            }
        };
        let (place, at) = match value.at {
            ValueAt::Physical(at) => (0, at.0),
            ValueAt::Task(offset) => (1, offset),
        };
        words.extend([kind, masks, place, at, value.width.into()]);
    }
}

/// What [`encode_places`] has appended; `None` for anything else.
pub fn decode_places(words: &mut impl Iterator<Item = u64>) -> Option<ProcessPlaces> {
    let is_linux = flag(words)?;
    let interrupt_stack = optional(words, Iterator::next)?.map(GuestAddress);
    let task = optional(words, decode_task)?;
    let values = length(words).filter(|values| *values <= ProcessPlaces::MAX as u64)?;
    let values: Option<Vec<ValuePlace>> = (0..values).map(|_| decode_value(words)).collect();
    Some(ProcessPlaces {
        task,
        values: values?,
        interrupt_stack,
        is_linux,
    })
}

fn decode_task(words: &mut impl Iterator<Item = u64>) -> Option<TaskPointer> {
    let at = GuestAddress(words.next()?);
    let maps: Option<Vec<LinearMap>> = (0..length(words)?)
        .map(|_| {
            Some(LinearMap {
                address: words.next()?,
                physical: GuestAddress(words.next()?),
                bytes: words.next()?,
            })
        })
        .collect();
    Some(TaskPointer {
        at,
        maps: maps?,
        memory: optional(words, decode_memory)?,
    })
}

fn decode_memory(words: &mut impl Iterator<Item = u64>) -> Option<TaskMemory> {
    Some(TaskMemory {
        mm: words.next()?,
        page_tables: words.next()?,
        direct_map: words.next()?,
        stack: optional(words, Iterator::next)?,
    })
}

fn decode_value(words: &mut impl Iterator<Item = u64>) -> Option<ValuePlace> {
    let (kind, masks) = (words.next()?, words.next()?);
    let kind = match kind {
        0 => ValueKind::Pid,
        1 => ValueKind::Tid,
        2 => ValueKind::ProcessGroup,
        3 => ValueKind::Comm,
        4 => ValueKind::Interrupts(masks),
        5 => {
            let [first, second] = [masks, masks >> 32].map(|mask| mask & u64::from(u32::MAX));
            ValueKind::PreemptCount(u32::try_from(first).ok()?, u32::try_from(second).ok()?)
        }
        _ => return None,
    };
    let (place, at) = (words.next()?, words.next()?);
    let at = match place {
        0 => ValueAt::Physical(GuestAddress(at)),
        1 => ValueAt::Task(at),
        _ => return None,
    };
    let width = u8::try_from(words.next()?).ok()?;
    matches!(width, 1 | 2 | 4 | 8 | 16).then_some(ValuePlace { kind, at, width })
}

fn encode_optional(number: Option<u64>, words: &mut Vec<u64>) {
    words.push(number.is_some().into());
    words.extend(number);
}

/// What `decode` makes of the following words, if the first one says that it is there.
pub fn optional<W: Iterator<Item = u64>, T>(
    words: &mut W,
    decode: impl FnOnce(&mut W) -> Option<T>,
) -> Option<Option<T>> {
    match flag(words)? {
        true => decode(words).map(Some),
        false => Some(None),
    }
}

/// A word that says yes or no.
pub fn flag(words: &mut impl Iterator<Item = u64>) -> Option<bool> {
    match words.next()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// A number of entries.
pub fn length(words: &mut impl Iterator<Item = u64>) -> Option<u64> {
    words.next().filter(|length| *length <= MAX_RANGES)
}
