//! Numbers and sizes on a command line.

use kvmprof_abi::recorder::MAX_LOOK_TICKS;
use kvmprof_machine::{HugePages, MemoryBacking, MemoryOptions};
use kvmprof_recording::{MAX_STACK_FRAMES, StackParts};

/// Parses an amount of memory, such as `512M`. The suffixes are powers of 1024, and a number without a suffix is in
/// bytes. The result is in bytes.
pub fn parse_memory(text: &str) -> Result<u64, String> {
    let suffixes = [("K", 10), ("M", 20), ("G", 30), ("T", 40)];
    let upper = text.trim().to_ascii_uppercase();
    let upper = upper
        .strip_suffix("IB")
        .or(upper.strip_suffix('B'))
        .unwrap_or(&upper);
    let (digits, shift) = suffixes
        .iter()
        .find_map(|(suffix, shift)| Some((upper.strip_suffix(suffix)?, *shift)))
        .unwrap_or((upper, 0));
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| format!("'{text}' is no amount of memory: write 512M or 2G, say"))
}

/// Parses `--memory`: a size, and after a comma the backing of the memory. A path includes everything that follows,
/// also commas.
pub fn parse_guest_memory(text: &str) -> Result<MemoryOptions, String> {
    let (size, backing) = match text.split_once(',') {
        None => (text, MemoryBacking::Private),
        Some((size, word)) => (size, memory_backing(word)?),
    };
    let bytes = parse_memory(size)?;
    Ok(MemoryOptions { bytes, backing })
}

fn memory_backing(word: &str) -> Result<MemoryBacking, String> {
    match word.split_once('=').unwrap_or((word, "")) {
        ("shared", "") => Ok(MemoryBacking::Shared),
        ("hugepages", "" | "2M") => Ok(MemoryBacking::HugePages(HugePages::TwoMebibytes)),
        ("hugepages", "1G") => Ok(MemoryBacking::HugePages(HugePages::OneGibibyte)),
        ("file", path) if !path.is_empty() => Ok(MemoryBacking::File(path.into())),
        _ => Err(format!(
            "'{word}' is nothing that memory can be made of: there are shared, hugepages, hugepages=1G and file=PATH"
        )),
    }
}

/// `bytes` with the largest suffix that gives an exact number.
pub fn format_memory(bytes: u64) -> String {
    for (suffix, shift) in [("G", 30), ("M", 20), ("K", 10)] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{suffix}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Parses `--tasks`: the number of ticks between two looks at the guest's tasks.
pub fn parse_look_ticks(text: &str) -> Result<u32, String> {
    let ticks = text.parse().ok();
    let ticks = ticks.filter(|ticks| (1..=MAX_LOOK_TICKS).contains(ticks));
    ticks.ok_or_else(|| format!("'{text}' is no number of ticks from 1 to {MAX_LOOK_TICKS}"))
}

/// Minimum value of `--max-stack`.
const MIN_STACK_FRAMES: usize = 16;

/// Parses `--max-stack`: the number of frames of a call stack.
pub fn parse_max_stack(text: &str) -> Result<usize, String> {
    let range = MIN_STACK_FRAMES..=MAX_STACK_FRAMES;
    let frames = text.parse().ok().filter(|frames| range.contains(frames));
    frames.ok_or_else(|| {
        format!("'{text}' is no number of frames from {MIN_STACK_FRAMES} to {MAX_STACK_FRAMES}")
    })
}

/// Parses `--stacks`.
pub fn parse_stacks(words: &str) -> Result<StackParts, String> {
    let mut parts = StackParts::default();
    if words == "none" {
        return Ok(parts);
    }
    for word in words.split(',') {
        match word {
            "kernel" => parts.kernel = true,
            "user" => parts.user = true,
            _ => {
                return Err(format!(
                    "'{word}' is no part of a stack: use kernel, user or none"
                ));
            }
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_sizes_parse_with_a_suffix() {
        assert_eq!(parse_memory("512M"), Ok(512 << 20));
        assert_eq!(parse_memory("2g"), Ok(2 << 30));
        assert_eq!(parse_memory("1GiB"), Ok(1 << 30));
        assert_eq!(parse_memory("4096"), Ok(4096));
        for wrong in ["", "M", "12X", "-1M", "99999999999T", "1.5G"] {
            assert!(parse_memory(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn guest_memory_takes_options_after_the_size() {
        let backing = |text: &str| parse_guest_memory(text).map(|memory| memory.backing);
        assert_eq!(backing("1G"), Ok(MemoryBacking::Private));
        assert_eq!(backing("1G,shared"), Ok(MemoryBacking::Shared));
        let huge = |pages| Ok(MemoryBacking::HugePages(pages));
        assert_eq!(backing("8G,hugepages"), huge(HugePages::TwoMebibytes));
        assert_eq!(backing("8G,hugepages=1G"), huge(HugePages::OneGibibyte));
        let file = Ok(MemoryBacking::File("/a,b=c".into()));
        assert_eq!(backing("2G,file=/a,b=c"), file);
        assert_eq!(parse_guest_memory("2G,shared").unwrap().bytes, 2 << 30);
        for wrong in [
            "1G,",
            "1G,file",
            "1G,file=",
            "1G,hugepages=4K",
            "1G,shared=1",
            ",shared",
        ] {
            assert!(parse_guest_memory(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn memory_sizes_round_trip() {
        assert_eq!(format_memory(512 << 20), "512M");
        assert_eq!(format_memory(2 << 30), "2G");
        assert_eq!(format_memory(1000), "1000");
    }
}
