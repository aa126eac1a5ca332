//! Aligned plain text.

use std::io::{self, Write};

/// How a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// Writes rows of text under their headings, every column as wide as it has to be.
pub(super) fn write_table<const N: usize>(
    output: &mut dyn Write,
    headings: [(&str, Align); N],
    rows: &[[String; N]],
) -> io::Result<()> {
    let mut widths = headings.map(|(heading, _)| heading.len());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    let aligns = headings.map(|(_, align)| align);
    let titles = headings.map(|(heading, _)| heading.to_owned());
    for row in [&titles].into_iter().chain(rows) {
        let mut line = String::new();
        for ((cell, width), align) in row.iter().zip(widths).zip(aligns) {
            line.push_str("  ");
            match align {
                Align::Left => line.push_str(&format!("{cell:<width$}")),
                Align::Right => line.push_str(&format!("{cell:>width$}")),
            }
        }
        writeln!(output, "{}", line.trim_end())?;
    }
    Ok(())
}
