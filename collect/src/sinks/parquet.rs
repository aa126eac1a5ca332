//! Parquet files, in a folder or an object store: `date=YYYY-MM-DD/host=NAME/guest=NAME/START-BOOT.parquet`, one row for each window, process, thread, mode
//! and stack. docs/fleet.md has the schema.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use kvmprof_recording::file::NewFile;
use kvmprof_report::text::utc;
use parquet::basic::Compression;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, Type};

use super::departure::Departure;
use super::{Failure, Sink};
use crate::batch::{Batch, Row, Window};

/// The columns. Names and stacks are encoded by dictionaries.
pub const SCHEMA: &str = "
message kvmprof {
    required int64 time (TIMESTAMP(MILLIS, true));
    required int32 seconds;
    required binary boot (UTF8);
    required binary kernel (UTF8);
    required int32 hz;
    required binary process (UTF8);
    required binary thread (UTF8);
    required binary mode (UTF8);
    required int64 ticks;
    required int64 nanoseconds;
    optional int64 interrupts_off;
    required binary function (UTF8);
    required binary module (UTF8);
    required group stack (LIST) { repeated group list { required binary element (UTF8); } }
    required group modules (LIST) { repeated group list { required binary element (UTF8); } }
    required group labels (MAP) { repeated group key_value { required binary key (UTF8); required binary value (UTF8); } }
}";

/// The index of the column that has no value if it isn't known.
const INTERRUPTS_OFF: usize = 10;
/// Maximum number of rows that are written at once.
const GROUP: usize = 1 << 18;
/// Only their user can read folders and files, as names of functions and processes may be secret.
const FOLDER_MODE: u32 = 0o700;
/// Maximum length of a name in a path, in bytes.
const MAX_PART: usize = 200;

/// The place into which files are written.
pub trait Target: Send {
    /// Writes the file `name` in `folder`, a path below the target, with the rows of `windows`. It is complete or not there, and replaces a file of the
    /// same name.
    ///
    /// # Errors
    /// It can't be written now. If the error is a [`RefusedFile`], it can never be written.
    fn write(&self, folder: &Path, name: &str, windows: &[NamedWindow<'_>]) -> anyhow::Result<()>;
}

/// The error for a file that its target will never accept, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RefusedFile(pub String);

/// A window, its batch, and the batch's names in the form in which they are written, which are made once for all files.
#[derive(Clone, Copy)]
pub struct NamedWindow<'a> {
    batch: &'a Batch,
    window: &'a Window,
    names: &'a [ByteArray],
}

/// A folder of this host.
pub struct Folder(pub PathBuf);

/// The sink. Each file is a part.
pub(super) struct ParquetSink {
    target: Box<dyn Target>,
    span: u64,
    /// The files of the batches that are being delivered.
    files: Files,
}

impl ParquetSink {
    /// A sink that writes to `target`, with about `span` seconds in each file.
    pub fn new(target: Box<dyn Target>, span: u64) -> Self {
        Self {
            target,
            span,
            files: Files::default(),
        }
    }
}

impl Sink for ParquetSink {
    /// The same batches make the same files.
    fn is_idempotent(&self) -> bool {
        true
    }

    fn span(&self) -> u64 {
        self.span
    }

    fn parts(&mut self, batches: &[Batch]) -> usize {
        self.files = Files::new(batches);
        self.files.files.len()
    }

    fn part(&self, batches: &[Batch], part: usize) -> (u64, u64) {
        let windows = self.files.windows(batches, part);
        let ticks = windows.iter().map(|named| named.window.ticks());
        (windows.len() as u64, ticks.fold(0, u64::saturating_add))
    }

    /// Writes a file. It is visible only when it is complete, so that no departure has to be noted.
    fn send(&mut self, batches: &[Batch], part: usize, _: &Arc<Departure>) -> Result<(), Failure> {
        let written = self.files.write(self.target.as_ref(), batches, part);
        written.map_err(|error| {
            if error.is::<RefusedFile>() {
                Failure::Refused(error)
            } else {
                error.into()
            }
        })
    }

    fn forget(&mut self) {
        self.files = Files::default();
    }
}

/// The files that some batches make.
#[derive(Default)]
struct Files {
    files: Vec<PlannedFile>,
    /// The names of each batch in the form in which they are written, made once for all files.
    names: Vec<Vec<ByteArray>>,
}

/// A file: the windows of a guest on a day.
struct PlannedFile {
    folder: PathBuf,
    name: String,
    /// For each window, the index of its batch, and its index in the batch.
    windows: Vec<(usize, usize)>,
}

impl Files {
    fn new(batches: &[Batch]) -> Self {
        let mut places: BTreeMap<PathBuf, Vec<(usize, usize)>> = BTreeMap::new();
        for (number, batch) in batches.iter().enumerate() {
            for (place, window) in batch.windows.iter().enumerate() {
                let folder = folder_of(batch, window);
                places.entry(folder).or_default().push((number, place));
            }
        }
        let files = places.into_iter().filter_map(|(folder, windows)| {
            let first = batches.get(windows.first()?.0)?;
            Some(PlannedFile {
                folder,
                name: format!("{}-{}.parquet", first.start, part_of_path(&first.boot)),
                windows,
            })
        });
        // Most names are in each of the batches: their bytes are there once.
        let mut known: HashMap<&str, ByteArray> = HashMap::new();
        let names = batches.iter().map(|batch| {
            let names = batch.names.iter().map(String::as_str);
            let shared = names.map(|name| known.entry(name).or_insert_with(|| name.into()).clone());
            shared.collect()
        });
        Self {
            files: files.collect(),
            names: names.collect(),
        }
    }

    /// The windows of a file. Empty if there is no such file.
    fn windows<'a>(&'a self, batches: &'a [Batch], file: usize) -> Vec<NamedWindow<'a>> {
        let Some(file) = self.files.get(file) else {
            return Vec::new();
        };
        let windows = file.windows.iter().filter_map(|(number, place)| {
            let batch = batches.get(*number)?;
            Some(NamedWindow {
                batch,
                window: batch.windows.get(*place)?,
                names: self.names.get(*number)?,
            })
        });
        windows.collect()
    }

    /// Writes a file. Does nothing if there is no such file.
    fn write(&self, target: &dyn Target, batches: &[Batch], file: usize) -> anyhow::Result<()> {
        let windows = self.windows(batches, file);
        match self.files.get(file) {
            Some(file) => target.write(&file.folder, &file.name, &windows),
            None => Ok(()),
        }
    }
}

/// Writes all windows of `batches` to `target`, with one file for a guest and a day.
///
/// # Errors
/// A file can't be written. Those before it have been written.
pub fn write(target: &dyn Target, batches: &[Batch]) -> anyhow::Result<()> {
    let files = Files::new(batches);
    (0..files.files.len()).try_for_each(|file| files.write(target, batches, file))
}

/// The folder for a window.
fn folder_of(batch: &Batch, window: &Window) -> PathBuf {
    let mut place = PathBuf::from(format!("date={}", date(batch.start)));
    place.push(format!("host={}", part_of_path(&batch.host)));
    place.push(format!("guest={}", part_of_path(&window.guest)));
    place
}

/// A name as a part of a path, in percent-encoding, which readers of such folders decode.
fn part_of_path(name: &str) -> String {
    let mut part = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            part.push(char::from(byte));
        } else {
            // Writing to a String can't fail.
            let _ = write!(part, "%{byte:02X}");
        }
        if part.len() >= MAX_PART {
            break;
        }
    }
    part
}

/// The date of a time in s since 1970, such as `2026-03-01`.
fn date(seconds: u64) -> String {
    // Its text begins with the date, and 0 is no known time for it.
    let time = utc(seconds.saturating_mul(1_000_000_000).max(1)).unwrap_or_default();
    time.chars().take_while(|part| *part != ' ').collect()
}

impl Target for Folder {
    /// Writes the file under another name and renames it, so that readers find it complete or not at all.
    fn write(&self, folder: &Path, name: &str, windows: &[NamedWindow<'_>]) -> anyhow::Result<()> {
        let folder = self.0.join(folder);
        write_file(&folder, name, windows)
            .with_context(|| format!("Cannot write to {}", folder.display()))
    }
}

fn write_file(folder: &Path, name: &str, windows: &[NamedWindow<'_>]) -> anyhow::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(FOLDER_MODE)
        .create(folder)?;
    let path = folder.join(name);
    let mut file = write_rows(NewFile::create(&path)?, windows)?;
    file.sync_all()?;
    file.keep()?;
    // A killed collector leaves an incomplete file, which the next one replaces.
    NewFile::remove_unfinished(&path)?;
    File::open(folder)?.sync_all()?;
    Ok(())
}

/// Writes a Parquet file with the rows of `windows` to `out`.
///
/// # Errors
/// `out` fails.
pub fn write_rows<W: Write + Send>(out: W, windows: &[NamedWindow<'_>]) -> anyhow::Result<W> {
    let schema: Type = parse_message_type(SCHEMA)?;
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(format!("kvmprof-collect {}", env!("CARGO_PKG_VERSION")));
    // Minimum and maximum of the names in stacks would exclude no file from a query, and would take a comparison for each frame.
    for list in ["stack", "modules"] {
        let path = ColumnPath::new([list, "list", "element"].map(str::to_owned).to_vec());
        properties = properties.set_column_statistics_enabled(path, EnabledStatistics::None);
    }
    let mut writer =
        SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties.build()))?;
    let rows: Vec<Line<'_>> = windows
        .iter()
        .flat_map(|named| {
            let lines = named.window.rows.iter();
            lines.map(|row| Line { named: *named, row })
        })
        .collect();
    for rows in rows.chunks(GROUP) {
        let mut group = writer.next_row_group()?;
        let mut column = 0;
        while let Some(mut place) = group.next_column()? {
            write_column(column, rows, place.untyped())?;
            place.close()?;
            column += 1;
        }
        group.close()?;
    }
    Ok(writer.into_inner()?)
}

/// A row with its window and batch.
#[derive(Clone, Copy)]
struct Line<'a> {
    named: NamedWindow<'a>,
    row: &'a Row,
}

impl<'a> Line<'a> {
    /// The name with this index. Empty if there is none.
    fn name(self, place: u32) -> ByteArray {
        let name = self.named.names.get(place as usize);
        name.cloned().unwrap_or_else(|| "".into())
    }

    /// The names of the functions of its stack, or of their modules, innermost first.
    fn stack(self, is_module: bool) -> impl Iterator<Item = ByteArray> + 'a {
        self.named.batch.frames(self.row).map(move |(_, frame)| {
            self.name(if is_module {
                frame.module
            } else {
                frame.function
            })
        })
    }

    /// The keys or the values of the configured labels, and of those of the process.
    fn labels(self, is_value: bool) -> impl Iterator<Item = ByteArray> + 'a {
        let batch = self.named.batch;
        let configured = batch.labels.iter();
        let configured = configured.map(|(key, value)| (key.as_str(), value.as_str()));
        let own = batch.labels(self.row);
        let own = own.filter(|(key, _)| !batch.labels.contains_key(*key));
        let all = configured.chain(own);
        all.map(move |(key, value)| if is_value { value } else { key }.into())
    }
}

/// Writes the column with this index in [`SCHEMA`].
fn write_column(
    column: usize,
    rows: &[Line<'_>],
    writer: &mut ColumnWriter<'_>,
) -> anyhow::Result<()> {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let short = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let innermost = |line: &Line<'_>, is_module| {
        let mut stack = line.stack(is_module);
        stack.next().unwrap_or_else(|| "".into())
    };
    match writer {
        ColumnWriter::Int64ColumnWriter(writer) if column == INTERRUPTS_OFF => {
            let known = rows.iter().map(|line| line.row.interrupts_off);
            let present: Vec<i16> = known.clone().map(|off| off.is_some().into()).collect();
            let values: Vec<i64> = known.flatten().map(number).collect();
            writer.write_batch(&values, Some(&present), None)?;
        }
        ColumnWriter::Int64ColumnWriter(writer) => {
            let value = |line: &Line<'_>| match column {
                0 => number(line.named.batch.start.saturating_mul(1000)),
                8 => number(line.row.ticks),
                _ => number(line.row.ticks.saturating_mul(line.named.window.period())),
            };
            let values: Vec<i64> = rows.iter().map(value).collect();
            writer.write_batch(&values, None, None)?;
        }
        ColumnWriter::Int32ColumnWriter(writer) => {
            let value = |line: &Line<'_>| match column {
                1 => short(line.named.batch.length),
                _ => short(line.named.window.hz),
            };
            let values: Vec<i32> = rows.iter().map(value).collect();
            writer.write_batch(&values, None, None)?;
        }
        ColumnWriter::ByteArrayColumnWriter(writer) => {
            let value = |line: &Line<'_>| match column {
                2 => line.named.batch.boot.as_str().into(),
                3 => line.named.window.kernel.as_str().into(),
                5 => line.name(line.row.process),
                6 => line.name(line.row.thread),
                7 => line.row.mode().name().into(),
                11 => innermost(line, false),
                _ => innermost(line, true),
            };
            if column <= 12 {
                let values: Vec<ByteArray> = rows.iter().map(value).collect();
                writer.write_batch(&values, None, None)?;
            } else {
                let lists = Lists::new(column, rows);
                writer.write_batch(&lists.values, Some(&lists.present), Some(&lists.repeated))?;
            }
        }
        _ => anyhow::bail!("Column {column} has another type"),
    }
    Ok(())
}

/// A column of lists, flat (Dremel's repetition and definition levels: <https://parquet.apache.org/docs/file-format/nestedencoding/>).
#[derive(Default)]
struct Lists {
    values: Vec<ByteArray>,
    present: Vec<i16>,
    repeated: Vec<i16>,
}

impl Lists {
    fn new(column: usize, rows: &[Line<'_>]) -> Self {
        let mut lists = Self::default();
        for line in rows {
            match column {
                13 => lists.add(line.stack(false)),
                14 => lists.add(line.stack(true)),
                15 => lists.add(line.labels(false)),
                _ => lists.add(line.labels(true)),
            }
        }
        lists
    }

    fn add(&mut self, items: impl Iterator<Item = ByteArray>) {
        let before = self.values.len();
        for item in items {
            self.repeated.push(i16::from(self.values.len() > before));
            self.present.push(1);
            self.values.push(item);
        }
        // An empty list has levels, too.
        if self.values.len() == before {
            self.repeated.push(0);
            self.present.push(0);
        }
    }
}

#[cfg(test)]
mod tests;
