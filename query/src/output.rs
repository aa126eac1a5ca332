//! Prints answers.

use std::io::Write;

use anyhow::Context;
use clap::ValueEnum;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{FieldRef, SchemaRef};
use datafusion::arrow::json::LineDelimitedWriter;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use kvmprof_cli::table::{Align, Spacing, write_rows};
use kvmprof_cli::text::visible_json;
use kvmprof_report::text::visible;

/// The format of answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned columns
    #[default]
    Table,
    /// Comma-separated values with a header line, RFC 4180
    Csv,
    /// A JSON object for each row, on a line of its own
    Json,
}

/// Number of rows that are aligned together: an answer may have more rows than fit into memory.
const ROWS: usize = 10_000;
const SPACING: Spacing = Spacing {
    margin: "",
    gap: "  ",
};

/// Prints the rows of one answer as they are computed.
pub struct Printer<'a> {
    format: Format,
    out: &'a mut dyn Write,
    aligns: Option<Vec<Align>>,
    waiting: Vec<Vec<String>>,
}

impl<'a> Printer<'a> {
    /// A printer that writes to `out`.
    pub fn new(format: Format, out: &'a mut dyn Write) -> Self {
        Self {
            format,
            out,
            aligns: None,
            waiting: Vec::new(),
        }
    }

    /// Prints the columns' names before the first rows.
    fn begin(&mut self, schema: &SchemaRef) {
        if self.aligns.is_none() {
            let align = |field: &FieldRef| match field.data_type().is_numeric() {
                true => Align::Right,
                false => Align::Left,
            };
            let fields = schema.fields().iter();
            self.waiting
                .push(fields.clone().map(|field| visible(field.name())).collect());
            self.aligns = Some(fields.map(align).collect());
        }
    }

    /// Prints rows.
    ///
    /// # Errors
    /// It can't be written.
    pub fn add(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        if self.format == Format::Json {
            let mut lines = LineDelimitedWriter::new(Vec::new());
            lines.write(batch)?;
            lines.finish()?;
            let lines = visible_json(&String::from_utf8(lines.into_inner())?);
            return self.out.write_all(lines.as_bytes()).context("Cannot write");
        }
        self.begin(&batch.schema());
        let options = FormatOptions::default();
        let columns = batch.columns().iter();
        let columns = columns.map(|column| ArrayFormatter::try_new(column, &options));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            let values = columns.iter();
            let values = values.map(|column| visible(&column.value(row).to_string()));
            self.waiting.push(values.collect());
            if self.waiting.len() > ROWS {
                self.write_waiting()?;
            }
        }
        Ok(())
    }

    fn write_waiting(&mut self) -> anyhow::Result<()> {
        let rows = std::mem::take(&mut self.waiting);
        if self.format == Format::Table {
            let aligns = self.aligns.as_deref().unwrap_or_default();
            return write_rows(self.out, SPACING, aligns, &rows).context("Cannot write");
        }
        let quoted = |value: &String| match value.contains(['"', ',']) {
            true => format!("\"{}\"", value.replace('"', "\"\"")),
            false => value.clone(),
        };
        for row in &rows {
            let line = row.iter().map(quoted).collect::<Vec<_>>().join(",");
            write!(self.out, "{line}\r\n").context("Cannot write")?;
        }
        Ok(())
    }

    /// Prints the remaining rows. `schema` has the columns, for an answer without rows.
    ///
    /// # Errors
    /// It can't be written.
    pub fn finish(mut self, schema: &SchemaRef) -> anyhow::Result<()> {
        if self.format != Format::Json {
            self.begin(schema);
        }
        self.write_waiting()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, Int64Array, StringArray};

    use super::*;

    fn printed(format: Format) -> String {
        let names = StringArray::from(vec![Some("a\x1b[2J,b"), None, Some("say \"x\"\u{202e}")]);
        let ticks = Int64Array::from(vec![5, 1000, -3]);
        let columns: [(&str, ArrayRef); 2] =
            [("name", Arc::new(names)), ("ticks", Arc::new(ticks))];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut out = Vec::new();
        let mut printer = Printer::new(format, &mut out);
        printer.add(&batch).unwrap();
        printer.finish(&batch.schema()).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn names_have_no_effect_on_terminals_in_any_format() {
        assert_eq!(
            printed(Format::Table),
            "name      ticks\na\u{fffd}[2J,b       5\n           1000\nsay \"x\"\u{fffd}     -3\n"
        );
        assert_eq!(
            printed(Format::Csv),
            "name,ticks\r\n\"a\u{fffd}[2J,b\",5\r\n,1000\r\n\"say \"\"x\"\"\u{fffd}\",-3\r\n"
        );
        assert_eq!(
            printed(Format::Json),
            "{\"name\":\"a\\u001b[2J,b\",\"ticks\":5}\n{\"ticks\":1000}\n{\"name\":\"say \\\"x\\\"\\u202e\",\"ticks\":-3}\n"
        );
    }
}
