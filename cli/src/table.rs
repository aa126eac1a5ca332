//! Plain text tables with columns of the necessary width.

use std::io::{self, Write};

use kvmprof_abi::text::visible;

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// To the left.
    Left,
    /// To the right.
    Right,
}

/// The spacing of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spacing {
    /// Before each line.
    pub margin: &'static str,
    /// Between two columns.
    pub gap: &'static str,
}

/// The most rows of most commands' tables without `--top`.
pub const USUAL_ROWS: usize = 20;

/// The most rows of a table: `top`; without it `usual`, but all of those of a JSON document, which a program reads.
pub fn most_rows(top: Option<usize>, usual: usize, is_document: bool) -> usize {
    top.unwrap_or(if is_document { usize::MAX } else { usual })
}

/// `part` of `whole` in percent, with one decimal place; `-` if `whole` is 0.
#[expect(
    clippy::cast_precision_loss,
    reason = "it is shown with one decimal place"
)]
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    format!("{:.1} %", part as f64 * 100.0 / whole as f64)
}

/// Writes `rows` in columns with this alignment; cells beyond these columns are left out. Invisible characters are replaced.
///
/// # Errors
/// Writing to `output` failed.
pub fn write_rows<R: AsRef<[String]>>(
    output: &mut dyn Write,
    spacing: Spacing,
    aligns: &[Align],
    rows: &[R],
) -> io::Result<()> {
    let cells = |row: &R| row.as_ref().iter().map(|cell| visible(cell)).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let mut widths = vec![0; aligns.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in &rows {
        let mut line = String::from(spacing.margin);
        let columns = widths.iter().copied().zip(aligns);
        for (index, (cell, (width, align))) in row.iter().zip(columns).enumerate() {
            if index > 0 {
                line += spacing.gap;
            }
            line += &match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            };
        }
        writeln!(output, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Writes `rows` below their headings.
///
/// # Errors
/// Writing to `output` failed.
pub fn write_table<R: AsRef<[String]>>(
    output: &mut dyn Write,
    headings: &[(&str, Align)],
    rows: &[R],
) -> io::Result<()> {
    const SPACING: Spacing = Spacing {
        margin: "  ",
        gap: "  ",
    };
    let (names, aligns): (Vec<String>, Vec<Align>) = headings
        .iter()
        .map(|(heading, align)| ((*heading).to_owned(), *align))
        .unzip();
    let rows = rows.iter().map(AsRef::as_ref);
    let all: Vec<&[String]> = [names.as_slice()].into_iter().chain(rows).collect();
    write_rows(output, SPACING, &aligns, &all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_zero_are_not_shown() {
        assert_eq!(percent(0, 0), "-");
        assert_eq!(percent(1, 3), "33.3 %");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["1", "größer"], ["100", "b"]].map(|row| row.map(str::to_owned));
        let mut output = Vec::new();
        let headings = [("PID", Align::Right), ("NAME", Align::Left)];
        write_table(&mut output, &headings, &rows).unwrap();
        let expected = "  PID  NAME\n    1  größer\n  100  b\n";
        assert_eq!(String::from_utf8(output).unwrap(), expected);

        let mut output = Vec::new();
        let (margin, gap) = ("", " ");
        let aligns = [Align::Right, Align::Right];
        write_rows(&mut output, Spacing { margin, gap }, &aligns, &rows).unwrap();
        let expected = "  1 größer\n100      b\n";
        assert_eq!(String::from_utf8(output).unwrap(), expected);
    }

    /// A symbol's name comes from a guest's file, and can contain anything.
    #[test]
    fn a_name_makes_no_further_rows() {
        let rows = [["7", "main\n  1  forged\t\u{202e}"]].map(|row| row.map(str::to_owned));
        let mut output = Vec::new();
        let headings = [("COUNT", Align::Right), ("NAME", Align::Left)];
        write_table(&mut output, &headings, &rows).unwrap();
        let expected = "  COUNT  NAME\n      7  main\u{fffd}  1  forged\u{fffd}\u{fffd}\n";
        assert_eq!(String::from_utf8(output).unwrap(), expected);
    }
}
