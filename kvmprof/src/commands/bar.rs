//! Bars beside numbers.

/// Columns of the longest bar.
const COLUMNS: f64 = 24.0;

/// A bar for `part`, 0 to 1, of the longest bar, to an eighth of a column.
pub fn bar(part: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most 24 columns, and no part is negative"
    )]
    let eighths = (part.clamp(0.0, 1.0) * COLUMNS * 8.0).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_part() {
        assert_eq!(bar(1.0), "█".repeat(24));
        assert_eq!(bar(0.5), "█".repeat(12));
        assert_eq!(bar(0.0), "");
        assert_eq!(bar(1.5 / 24.0), "█▌");
    }
}
