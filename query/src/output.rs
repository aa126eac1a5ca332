//! Prints answers.

use std::io::Write;

use anyhow::Context;
use clap::ValueEnum;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
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
    aligns: Vec<Align>,
    waiting: Vec<Vec<String>>,
    is_begun: bool,
}

impl<'a> Printer<'a> {
    /// A printer that writes to `out`.
    pub fn new(format: Format, out: &'a mut dyn Write) -> Self {
        Self {
            format,
            out,
            aligns: Vec::new(),
            waiting: Vec::new(),
            is_begun: false,
        }
    }

    fn begin(&mut self, schema: &SchemaRef) -> anyhow::Result<()> {
        if std::mem::replace(&mut self.is_begun, true) || self.format == Format::Json {
            return Ok(());
        }
        let fields = schema.fields().iter();
        let align = |is_number| if is_number { Align::Right } else { Align::Left };
        self.aligns = (fields.clone())
            .map(|field| align(field.data_type().is_numeric()))
            .collect();
        let names: Vec<String> = fields.map(|field| visible(field.name())).collect();
        match self.format {
            Format::Table => self.waiting.push(names),
            _ => self.write_values(&names)?,
        }
        Ok(())
    }

    /// Prints rows.
    ///
    /// # Errors
    /// It can't be written.
    pub fn add(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        self.begin(&batch.schema())?;
        if self.format == Format::Json {
            let mut lines = LineDelimitedWriter::new(Vec::new());
            lines.write(batch)?;
            lines.finish()?;
            let lines = String::from_utf8(lines.into_inner())?;
            return self
                .out
                .write_all(visible_json(&lines).as_bytes())
                .context("Cannot write");
        }
        let options = FormatOptions::default();
        let columns = batch.columns().iter();
        let columns: Result<Vec<ArrayFormatter<'_>>, _> = columns
            .map(|column| ArrayFormatter::try_new(column, &options))
            .collect();
        let columns = columns?;
        for row in 0..batch.num_rows() {
            let values = columns
                .iter()
                .map(|column| visible(&column.value(row).to_string()));
            let values: Vec<String> = values.collect();
            if self.format == Format::Csv {
                self.write_values(&values)?;
            } else {
                self.waiting.push(values);
            }
            if self.waiting.len() > ROWS {
                self.write_waiting()?;
            }
        }
        Ok(())
    }

    fn write_values(&mut self, values: &[String]) -> anyhow::Result<()> {
        let quoted = values.iter().map(|value| {
            if value.contains(['"', ',']) {
                format!("\"{}\"", value.replace('"', "\"\""))
            } else {
                value.clone()
            }
        });
        let line = quoted.collect::<Vec<_>>().join(",");
        write!(self.out, "{line}\r\n").context("Cannot write")
    }

    fn write_waiting(&mut self) -> anyhow::Result<()> {
        let rows = std::mem::take(&mut self.waiting);
        write_rows(self.out, SPACING, &self.aligns, &rows).context("Cannot write")
    }

    /// Prints the remaining rows. `schema` has the columns, for an answer without rows.
    ///
    /// # Errors
    /// It can't be written.
    pub fn finish(mut self, schema: &SchemaRef) -> anyhow::Result<()> {
        self.begin(schema)?;
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
