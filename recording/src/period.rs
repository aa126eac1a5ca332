//! Periods that several clocks have in common.

/// The shortest time that is a multiple of both periods, in their unit; 0 if one of them is 0, and [`u64::MAX`] if it is longer than that.
pub fn least_common_multiple(one: u64, other: u64) -> u64 {
    let common = greatest_common_divisor(one, other);
    (one / common.max(1)).saturating_mul(other)
}

fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_multiple_of_both() {
        for (one, other, multiple) in [
            (4, 10, 20),
            (10, 4, 20),
            (7, 7, 7),
            (0, 5, 0),
            (5, 0, 0),
            (0, 0, 0),
            (u64::MAX, 2, u64::MAX),
        ] {
            assert_eq!(least_common_multiple(one, other), multiple);
        }
    }
}
