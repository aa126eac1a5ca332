//! Completes a call of profil or pcsample for kvmprof with the caller's process, and for AIX with the ranges.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range as Span;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::profil::{Call, Function, MAX_RANGES, Range};

use super::identity::{now, process_of};
use super::memory::{MemoryRange, memory};

/// `AT_RANDOM` (getauxval(3)).
const AT_RANDOM: u64 = 25;
/// Maximum number of bytes of an auxiliary vector; the kernel's have some 20 entries of 16 bytes.
const AUXV_MAX: u64 = 4096;
/// Maximum number of bytes of a line of `/proc/PID/maps`: a path has at most 4096, some of which are written as four.
const LINE_MAX: u64 = 20_000;
const PAGE: usize = 4096;
/// Smaller scales turn profiling off.
const LOWEST_SCALE: u32 = 2;

/// The data of `PROFIL_CALL` for a call that the thread makes.
///
/// # Errors
/// ESRCH if the caller can't be found, EPERM if its program can't be identified, EINVAL for fields that the caller may not set, EFAULT if
/// memory that AIX's functions name isn't mapped or can't be written.
pub(super) fn complete(thread: u32, call: Call) -> Result<Vec<u8>, Errno> {
    if call.flags & Call::KEEP != 0 || call.ranges != 0 {
        return Err(Errno::EINVAL);
    }
    let pid = process_of(thread).ok_or(Errno(libc::ESRCH))?;
    // Without these bytes kvmprof would mistake a program that the process executes right after the call, perhaps a privileged one, for the
    // caller. The process itself may have zeroed them; zeros stand for unknown.
    let program = program(thread).filter(|program| *program != [0; 16]);
    let mut call = Call {
        pid,
        time: now(),
        program: program.ok_or(Errno::EPERM)?,
        ..call
    };
    let mut ranges = Vec::new();
    match call.function {
        Function::AixRanges => {
            ranges = read_ranges(thread, call.buffer)?;
            let buffers = ranges
                .iter()
                .map(|range| (range.buffer, u64::try_from(range.size).unwrap_or(0)));
            check_writable(thread, buffers.collect())?;
            // There are at most 256.
            call.ranges = u32::try_from(ranges.len()).map_err(|_| Errno::EINVAL)?;
            call.buffer = 0;
        }
        Function::AixProfil if call.scale & 0xffff >= LOWEST_SCALE => {
            check_writable(thread, vec![(call.buffer, call.size)])?;
        }
        Function::AixProfil | Function::Profil | Function::Pcsample => {}
    }
    let mut data = call.encode().to_vec();
    for range in ranges {
        data.extend_from_slice(&range.encode());
    }
    Ok(data)
}

/// The 16 bytes that the kernel gave the thread's program at its start.
fn program(thread: u32) -> Option<[u8; 16]> {
    let file = File::open(format!("/proc/{thread}/auxv")).ok()?;
    let mut vector = Vec::new();
    file.take(AUXV_MAX).read_to_end(&mut vector).ok()?;
    let address = entry(&vector, AT_RANDOM)?;
    let part = MemoryRange {
        address: usize::try_from(address).ok()?,
        length: 16,
    };
    let bytes = memory(thread, &[part], part.length).ok()?;
    bytes.try_into().ok()
}

/// The value of `key` in an auxiliary vector.
fn entry(vector: &[u8], key: u64) -> Option<u64> {
    let mut entries = vector.chunks_exact(16).filter_map(|entry| {
        let (key, value) = entry.split_first_chunk()?;
        let value = value.first_chunk()?;
        Some((u64::from_ne_bytes(*key), u64::from_ne_bytes(*value)))
    });
    entries.find_map(|(this, value)| (this == key).then_some(value))
}

/// The array of `struct prof` at `address`, up to the one whose `p_high` is 0.
fn read_ranges(thread: u32, address: u64) -> Result<Vec<Range>, Errno> {
    let address = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    let longest = (MAX_RANGES + 1) * Range::SIZE;
    let mut bytes = Vec::new();
    let mut ranges = Vec::new();
    while bytes.len() < longest {
        // The next page may not be mapped, or not belong to the array.
        let start = address.checked_add(bytes.len()).ok_or(Errno::EFAULT)?;
        let length = (PAGE - start % PAGE).min(longest - bytes.len());
        let part = MemoryRange {
            address: start,
            length,
        };
        bytes.extend_from_slice(&memory(thread, &[part], length)?);
        for range in bytes
            .chunks_exact(Range::SIZE)
            .skip(ranges.len())
            .filter_map(Range::decode)
        {
            if range.high == 0 {
                return Ok(ranges);
            }
            ranges.push(range);
        }
    }
    Err(Errno::EINVAL)
}

/// Checks that the thread's process can write to all of the buffers, each an address and a length.
fn check_writable(thread: u32, buffers: Vec<(u64, u64)>) -> Result<(), Errno> {
    let mut missing = Vec::new();
    for (address, length) in buffers {
        let end = address.checked_add(length).ok_or(Errno::EFAULT)?;
        if length > 0 {
            missing.push(address..end);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    // The process may have ended, or access to it may be forbidden.
    let maps = File::open(format!("/proc/{thread}/maps")).map_err(|_| Errno::EFAULT)?;
    for_writable(BufReader::new(maps), |memory| {
        missing.retain(|buffer| buffer.start < memory.start || memory.end < buffer.end);
    });
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Errno::EFAULT)
    }
}

/// Calls `found` for each contiguous range of writable memory in `/proc/PID/maps` (proc_pid_maps(5)).
fn for_writable(mut maps: impl BufRead, mut found: impl FnMut(&Span<u64>)) {
    let mut piece = 0..0;
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = maps.by_ref().take(LINE_MAX).read_until(b'\n', &mut line);
        if !matches!(length, Ok(1..)) {
            break;
        }
        let Some(mapping) = writable(&line) else {
            continue;
        };
        if mapping.start == piece.end {
            piece.end = mapping.end;
        } else {
            found(&piece);
            piece = mapping;
        }
    }
    found(&piece);
}

/// The addresses in a line of `/proc/PID/maps`; `None` if they aren't writable.
fn writable(line: &[u8]) -> Option<Span<u64>> {
    let text = String::from_utf8_lossy(line);
    let mut words = text.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let address = |text| u64::from_str_radix(text, 16).ok();
    let permissions = words.next()?.as_bytes();
    (permissions.get(1) == Some(&b'w')).then_some(address(start)?..address(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us() -> u32 {
        std::process::id()
    }

    fn call(function: Function, buffer: u64, size: u64) -> Call {
        Call {
            function,
            flags: 0,
            pid: 99,
            ranges: 0,
            buffer,
            size,
            offset: 1,
            scale: 0x1_8000,
            time: 5,
            program: [7; 16],
        }
    }

    fn address<T>(value: &T) -> u64 {
        std::ptr::from_ref(value).addr() as u64
    }

    /// This process's own 16 bytes, from the C library.
    fn own_program() -> [u8; 16] {
        // SAFETY: the kernel has put 16 bytes there, which stay as long as the process does.
        unsafe {
            *std::ptr::with_exposed_provenance(usize::try_from(libc::getauxval(AT_RANDOM)).unwrap())
        }
    }

    #[test]
    fn the_caller_is_overwritten_by_the_real_one() {
        let counts = [0_u16; 64];
        let before = now();
        for function in [Function::Profil, Function::AixProfil, Function::Pcsample] {
            let asked = call(function, address(&counts), 128);
            // The caller is another thread than the first one of its process.
            let thread = std::thread::spawn(move || {
                let thread = rustix::thread::gettid().as_raw_pid();
                complete(thread.cast_unsigned(), asked)
            });
            let data = thread.join().unwrap().unwrap();
            let known = Call::decode(&data).unwrap();
            assert_eq!(data.len(), Call::SIZE);
            assert!((before..=now()).contains(&known.time));
            let expected = Call {
                pid: us().cast_signed(),
                time: known.time,
                program: own_program(),
                ..asked
            };
            assert_eq!(known, expected);
        }
    }

    #[test]
    fn fields_that_only_the_agent_sets_are_refused() {
        let asked = call(Function::Profil, 0, 0);
        let kept = Call {
            flags: Call::KEEP,
            ..asked
        };
        assert_eq!(complete(us(), kept), Err(Errno::EINVAL));
        let counted = Call { ranges: 1, ..asked };
        assert_eq!(complete(us(), counted), Err(Errno::EINVAL));
        for nobody in [0, u32::MAX] {
            assert_eq!(complete(nobody, asked), Err(Errno(libc::ESRCH)));
        }
    }

    #[test]
    fn a_buffer_of_aix_has_to_be_writable() {
        static CONSTANT: [u16; 64] = [0; 64];
        let counts = [0_u16; 64];
        let aix = |buffer, size| complete(us(), call(Function::AixProfil, buffer, size)).err();
        let (ours, constant) = (address(&counts), address(&CONSTANT));
        assert_eq!(aix(ours, 128), None);
        for (buffer, size) in [(constant, 128), (8, 2), (ours, 1 << 46), (ours, u64::MAX)] {
            assert_eq!(aix(buffer, size), Some(Errno::EFAULT), "{size:#x}");
        }
        // These calls store nothing, so their buffer isn't checked.
        assert_eq!(aix(8, 0), None);
        let off = Call {
            scale: 0x7_0001,
            ..call(Function::AixProfil, 8, 128)
        };
        assert_eq!(complete(us(), off).err(), None);
        // The functions of Solaris have no such error.
        assert_eq!(complete(us(), call(Function::Profil, 8, 128)).err(), None);
    }

    fn range(low: u64, buffer: u64) -> Range {
        Range {
            low,
            high: low + 1,
            buffer,
            size: 2,
            scale: u32::MAX,
        }
    }

    const END: Range = Range {
        low: 9,
        high: 0,
        buffer: 8,
        size: 9,
        scale: 9,
    };

    fn encoded(ranges: &[Range]) -> Vec<u8> {
        let bytes = ranges.iter().map(|range| range.encode().to_vec());
        bytes.collect::<Vec<_>>().concat()
    }

    fn aix_ranges(array: &[u8]) -> Result<Vec<u8>, Errno> {
        let array = array.as_ptr().addr() as u64;
        complete(us(), call(Function::AixRanges, array, 0))
    }

    #[test]
    fn ranges_are_read_up_to_their_end() {
        let counts = [0_u16; 8];
        let ranges: Vec<Range> = (0..MAX_RANGES as u64)
            .map(|low| range(low, address(&counts)))
            .collect();
        for count in [0, 1, 130, MAX_RANGES] {
            let some = &ranges[..count];
            let data = aix_ranges(&encoded(&[some, &[END]].concat())).unwrap();
            let known = Call::decode(&data).unwrap();
            assert_eq!((known.ranges as usize, known.buffer), (count, 0));
            assert_eq!(data[Call::SIZE..], encoded(some));
        }
        let endless = [&ranges[..], &ranges[..1], &[END]].concat();
        assert_eq!(aix_ranges(&encoded(&endless)), Err(Errno::EINVAL));
        let wrong = [ranges[0], range(9, 8), END];
        assert_eq!(aix_ranges(&encoded(&wrong)), Err(Errno::EFAULT));
        for nowhere in [8, u64::MAX - 7] {
            let refused = complete(us(), call(Function::AixRanges, nowhere, 0));
            assert_eq!(refused, Err(Errno::EFAULT), "{nowhere:#x}");
        }
    }

    #[test]
    fn adjacent_writable_mappings_are_joined() {
        let maps = b"1000-2000 r--p 0 08:01 1 /bin/x\n2000-3000 rw-p 0 08:01 1 /bin/a b\n\
            3000-5000 rw-s 0 00:00 0 \n6000-7000 rw-p 0 00:00 0 [heap]\nbroken\n8000-9000 -w-p";
        let mut found = Vec::new();
        for_writable(&maps[..], |piece| found.push(piece.clone()));
        let expected = [0..0, 0x2000..0x5000, 0x6000..0x7000, 0x8000..0x9000];
        assert_eq!(found, expected);
    }
}
