//! The calls of bpf(2) that are needed, and their numbers (`include/uapi/linux/bpf.h`).

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEMENT: libc::c_int = 2;
const MAP_LOOKUP_BATCH: libc::c_int = 24;
const PROG_LOAD: libc::c_int = 5;
const PROG_TEST_RUN: libc::c_int = 10;
const MAP_TYPE_HASH: u32 = 1;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_PERF_EVENT_ARRAY: u32 = 4;
/// A flag of a map: its values can be mapped.
const F_MMAPABLE: u32 = 1 << 10;
const PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
/// Room for the verifier's messages, in bytes.
const LOG_BYTES: usize = 64 << 10;
/// `bpf_probe_read_kernel` is for programs under the GPL, or under it and another licence (`license_is_gpl_compatible`,
/// `include/linux/license.h`).
const LICENSE: &CStr = c"Dual MIT/GPL";

/// What runs a program, and so what its context is (`enum bpf_prog_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The begin of a function of the host's kernel: the context is its registers.
    Function = 2,
    /// A tracepoint: the context is its record.
    Tracepoint = 5,
    /// An event of perf.
    PerfEvent = 7,
}

/// How often this process tries to load a program.
const LOAD_TRIES: u32 = 8;

/// One instruction (`struct bpf_insn`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub code: u8,
    /// The destination register in the low half, the source register in the high half.
    pub registers: u8,
    pub offset: i16,
    pub immediate: i32,
}

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map: u32,
}

#[repr(C)]
#[derive(Default)]
struct MapElement {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct MapBatch {
    /// Where the batch begins: null for the map's begin.
    begin: u64,
    end: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgramLoad {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buffer: u64,
    kernel_version: u32,
    program_flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    result: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_size_in: u32,
    context_size_out: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
}

/// Calls bpf(2).
///
/// # Safety
/// Pointers among the attributes must be valid for what `command` does with them.
unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: the attributes are valid for the size that is stated; the caller answers for pointers in them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attributes),
            size_of::<T>(),
        )
    };
    libc::c_int::try_from(result)
        .ok()
        .filter(|result| *result >= 0)
        .ok_or_else(io::Error::last_os_error)
}

/// A map of one value of `bytes` bytes that can be mapped at offset 0.
pub fn create_map(bytes: usize) -> io::Result<OwnedFd> {
    create_array(bytes, 1)
}

/// A map of `entries` values of `bytes` bytes each, zeros at first, that can be mapped.
pub fn create_array(bytes: usize, entries: u32) -> io::Result<OwnedFd> {
    create(MapCreate {
        map_type: MAP_TYPE_ARRAY,
        key_size: 4,
        value_size: u32::try_from(bytes).map_err(io::Error::other)?,
        max_entries: entries,
        map_flags: F_MMAPABLE,
        ..MapCreate::default()
    })
}

/// A hash map of at most `entries` entries, for whose values the kernel allocates all memory at once.
pub fn create_hash(key: usize, value: usize, entries: u32) -> io::Result<OwnedFd> {
    create(MapCreate {
        map_type: MAP_TYPE_HASH,
        key_size: u32::try_from(key).map_err(io::Error::other)?,
        value_size: u32::try_from(value).map_err(io::Error::other)?,
        max_entries: entries,
        ..MapCreate::default()
    })
}

fn create(mut attributes: MapCreate) -> io::Result<OwnedFd> {
    // SAFETY: there are no pointers among the attributes.
    let descriptor = unsafe { bpf(MAP_CREATE, &mut attributes)? };
    // SAFETY: the descriptor was just made and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The entries of a hash map of at most `entries`: keys of `key` bytes and values of `value` bytes, a multiple of 8. Programs may change them meanwhile.
pub fn entries(
    map: &OwnedFd,
    key: usize,
    value: usize,
    entries: u32,
) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let room = usize::try_from(entries).map_err(io::Error::other)?;
    let (mut keys, mut values) = (vec![0_u8; room * key], vec![0_u8; room * value]);
    let mut end = 0_u32;
    let mut attributes = MapBatch {
        end: std::ptr::from_mut(&mut end) as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count: entries,
        map: u32::try_from(map.as_raw_fd()).map_err(io::Error::other)?,
        ..MapBatch::default()
    };
    // SAFETY: keys and values have room for `count` elements of the map's sizes, which the caller states, and live through the call, as `end` does.
    match unsafe { bpf(MAP_LOOKUP_BATCH, &mut attributes) } {
        // There are no more than these.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
        result => drop(result?),
    }
    let count = usize::try_from(attributes.count).map_err(io::Error::other)?;
    let keys = keys.chunks_exact(key).map(<[u8]>::to_vec);
    let values = values.chunks_exact(value).map(<[u8]>::to_vec);
    Ok(keys.zip(values).take(count).collect())
}

/// The value of a map with one value of `bytes` bytes.
pub fn value(map: &OwnedFd, bytes: usize) -> io::Result<Vec<u8>> {
    const MAP_LOOKUP_ELEMENT: libc::c_int = 1;
    let key = 0_u32;
    // The kernel writes multiples of 8 bytes.
    let mut value = vec![0_u8; bytes.next_multiple_of(8)];
    let mut attributes = MapElement {
        map: u32::try_from(map.as_raw_fd()).map_err(io::Error::other)?,
        key: std::ptr::from_ref(&key) as u64,
        value: value.as_mut_ptr() as u64,
        ..MapElement::default()
    };
    // SAFETY: key and value have the map's sizes and live through the call, which reads the former and writes the latter.
    unsafe { bpf(MAP_LOOKUP_ELEMENT, &mut attributes)? };
    Ok(value)
}

/// Loads a program for raw tracepoints, which the kernel checks.
pub fn load(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    load_type(PROG_TYPE_RAW_TRACEPOINT, instructions, &mut [])
}

/// Loads a program of this type, which the kernel checks. The verifier writes to `log`, if that isn't empty.
fn load_type(
    program_type: u32,
    instructions: &[Instruction],
    log: &mut [u8],
) -> io::Result<OwnedFd> {
    let mut attributes = ProgramLoad {
        program_type,
        instruction_count: u32::try_from(instructions.len()).map_err(io::Error::other)?,
        instructions: instructions.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        ..ProgramLoad::default()
    };
    if !log.is_empty() {
        attributes.log_level = 1;
        attributes.log_size = u32::try_from(log.len()).map_err(io::Error::other)?;
        attributes.log_buffer = log.as_mut_ptr() as u64;
    }
    // A signal interrupts the check with EAGAIN.
    let mut tries = LOAD_TRIES;
    let descriptor = loop {
        tries -= 1;
        // SAFETY: instructions, licence and log live through the call, which reads the former and writes to the latter
        // within its length.
        match unsafe { bpf(PROG_LOAD, &mut attributes) } {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && tries > 0 => {}
            result => break result?,
        }
    };
    // SAFETY: the descriptor was just made and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Why a program isn't loaded.
#[derive(Debug)]
pub enum LoadError {
    /// The verifier refuses it. The text is the last line of its messages.
    Verifier(String),
    /// The system refuses all programs, or fails in another way.
    System(io::Error),
}

/// An array of one perf event. The entry is removed when this descriptor is closed.
pub fn create_event_array() -> io::Result<OwnedFd> {
    create(MapCreate {
        map_type: MAP_TYPE_PERF_EVENT_ARRAY,
        key_size: 4,
        value_size: 4,
        max_entries: 1,
        ..MapCreate::default()
    })
}

/// Puts `event` into an array of one.
pub fn set_event(array: &OwnedFd, event: BorrowedFd<'_>) -> io::Result<()> {
    set_value(array, 0, &event.as_raw_fd().to_ne_bytes())
}

/// Sets value number `index` of an array whose values are as long as `value`.
pub fn set_value(array: &OwnedFd, index: u32, value: &[u8]) -> io::Result<()> {
    let mut attributes = MapElement {
        map: u32::try_from(array.as_raw_fd()).map_err(io::Error::other)?,
        key: std::ptr::from_ref(&index) as u64,
        value: value.as_ptr() as u64,
        ..MapElement::default()
    };
    // SAFETY: key and value have the map's sizes, as the caller states, and live through the call, which only reads them.
    unsafe { bpf(MAP_UPDATE_ELEMENT, &mut attributes)? };
    Ok(())
}

/// Loads a program that `trigger` runs, which the kernel checks. The verifier's messages cost time: the program is loaded again with messages only
/// after the verifier has refused it.
pub fn load_for(trigger: Trigger, instructions: &[Instruction]) -> Result<OwnedFd, LoadError> {
    let first = match load_type(trigger as u32, instructions, &mut []) {
        Ok(program) => return Ok(program),
        Err(error) => error,
    };
    if first.raw_os_error() == Some(libc::EPERM) || first.raw_os_error() == Some(libc::ENOSYS) {
        return Err(LoadError::System(first));
    }
    let mut log = vec![0; LOG_BYTES];
    match load_type(trigger as u32, instructions, &mut log) {
        Ok(program) => Ok(program),
        Err(error) => Err(LoadError::Verifier(
            last_line(&log).unwrap_or(error.to_string()),
        )),
    }
}

/// The last line of a verifier's log that says what was wrong: statistics follow it.
fn last_line(log: &[u8]) -> Option<String> {
    let text = log.split(|byte| *byte == 0).next()?;
    let text = String::from_utf8_lossy(text);
    let mut lines = text.lines().rev().map(str::trim);
    let line = lines.find(|line| !line.is_empty() && !line.starts_with("processed "))?;
    Some(line.to_owned())
}

/// Runs a program for raw tracepoints once, in the calling thread, with `arguments`. Returns its result.
pub fn run(program: &OwnedFd, arguments: [u64; 2]) -> io::Result<i32> {
    let mut attributes = TestRun {
        program: u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?,
        context_size_in: u32::try_from(size_of_val(&arguments)).map_err(io::Error::other)?,
        context_in: arguments.as_ptr() as u64,
        ..TestRun::default()
    };
    // SAFETY: the arguments live through the call, which only reads them, and have the size that is stated.
    unsafe { bpf(PROG_TEST_RUN, &mut attributes)? };
    Ok(attributes.result.cast_signed())
}
