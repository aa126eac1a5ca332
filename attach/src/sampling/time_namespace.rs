//! The time namespace of this process: eBPF programs read the host's clocks.

use std::fs;

/// This process's CLOCK_MONOTONIC minus the host's, in ns modulo 2^64; 0 if the kernel has no time namespaces.
pub fn monotonic_offset() -> u64 {
    // The file shows the namespace of future children. That is the process's own namespace unless it makes another one (time_namespaces(7)).
    let offsets = fs::read_to_string("/proc/self/timens_offsets");
    offsets.map_or(0, |text| parse(&text).unwrap_or(0))
}

/// The offset out of the file's lines: a clock's name, and the seconds and ns that are added to the clock.
fn parse(text: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    let mut words = lines.find_map(|mut words| (words.next()? == "monotonic").then_some(words))?;
    let seconds: i64 = words.next()?.parse().ok()?;
    let nanoseconds: u64 = words.next()?.parse().ok()?;
    let offset = seconds.checked_mul(1_000_000_000)?;
    Some(offset.cast_unsigned().wrapping_add(nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_may_be_positive_or_negative() {
        let of = |seconds, nanoseconds| {
            parse(&format!(
                "boottime            7         9\nmonotonic  {seconds:>12} {nanoseconds:>9}\n"
            ))
        };
        assert_eq!(of("0", "0"), Some(0));
        assert_eq!(of("100000", "5"), Some(100_000_000_000_005));
        assert_eq!(
            of("-2", "500000000"),
            Some(1_500_000_000_u64.wrapping_neg())
        );
        assert_eq!(of("x", "0"), None);
        assert_eq!(of("9223372036854775807", "0"), None);
        assert_eq!(parse("boottime 1 2\n"), None);
    }
}
