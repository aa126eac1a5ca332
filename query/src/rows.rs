//! Fills the model of report with the chosen rows of a data set.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, ensure};
use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, ListArray, RecordBatch, StringViewArray,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, Int64Type};
use kvmprof_recording::file::{Account, KernelInfo, Recording, RecordingInfo};
use kvmprof_recording::{Mode, StackParts};
use kvmprof_report::html::{Counts, counted};
use kvmprof_report::profile::Profile;
use kvmprof_report::rows::{Row, RowSums, RowsError, RowsWriter};

use crate::engine::Engine;

/// Where and when the chosen rows are from.
const SUMMARY: &str = "
    SELECT count(*) AS guests, count(DISTINCT host) AS hosts, min(host) AS host, min(guest) AS guest, min(began) AS began, min(lowest) AS lowest,
        max(highest) AS highest, min(oldest) AS oldest, max(newest) AS newest
    FROM (
        SELECT host, guest, min(time) AS began, min(hz) AS lowest, max(hz) AS highest, min(kernel) AS oldest, max(kernel) AS newest
        FROM chosen GROUP BY host, guest
    )";
/// The chosen rows, summed up over guests and times.
const SUMS: &str = "
    SELECT process, thread, mode, stack, modules, map_keys(labels) AS label_keys, map_values(labels) AS label_values,
        min(time) AS time, min(seconds) AS seconds, sum(ticks) AS ticks
    FROM chosen GROUP BY process, thread, mode, stack, modules, map_keys(labels), map_values(labels)";
/// The chosen rows, ordered by time.
const IN_ORDER: &str = "
    SELECT process, thread, mode, stack, modules, map_keys(labels) AS label_keys, map_values(labels) AS label_values, time, seconds, ticks
    FROM chosen ORDER BY time, seconds";
/// A millisecond and a second in ns.
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// The properties of a recording of the rows for which `conditions` are true, and their kernel if it is one. The name of the kernel's file is their name:
/// their guest, or the number of guests.
///
/// # Errors
/// There are no such rows, or their ticks have different rates.
fn summary(
    engine: &Engine,
    conditions: &[String],
) -> anyhow::Result<(RecordingInfo, Option<KernelInfo>)> {
    let mut found = None;
    engine.compute(engine.ask_of(conditions, SUMMARY)?, |batch| {
        let number = |name| Ok::<_, anyhow::Error>(numbers(batch, name)?.value(0));
        let text = |name| Ok::<_, anyhow::Error>(texts(batch, name)?.value(0).to_owned());
        if batch.num_rows() == 0 || number("guests")? == 0 {
            return Ok(());
        }
        let [lowest, highest] = [number("lowest")?, number("highest")?];
        ensure!(
            lowest == highest,
            "There are ticks of {lowest} and of {highest} Hz, which stand for different times and cannot be added up: choose by hz, as in --where \
             'hz = {lowest}'"
        );
        let kernel = match (number("guests")?, number("hosts")?) {
            (1, _) => format!("guest {} of {}", text("guest")?, text("host")?),
            (guests, 1) => format!("{guests} guests of 1 host"),
            (guests, hosts) => format!("{guests} guests of {hosts} hosts"),
        };
        // The times of samples are since 1970, since they are of many guests.
        let began_ns = positive(number("began")?).saturating_mul(MILLISECOND);
        let info = RecordingInfo {
            program: concat!("kvmprof-query ", env!("CARGO_PKG_VERSION")).to_owned(),
            kernel,
            vcpus: 1,
            hz: u32::try_from(lowest).unwrap_or_default(),
            clock: "a data set's windows".to_owned(),
            jitter: true,
            began_ns,
            began_monotonic_ns: began_ns,
            stacks: StackParts::BOTH,
            ..RecordingInfo::default()
        };
        let release = text("oldest")?;
        let is_one = release == text("newest")?;
        let kernel = is_one.then(|| KernelInfo {
            release,
            ..KernelInfo::default()
        });
        found = Some((info, kernel));
        Ok(())
    })?;
    found.with_context(|| match conditions {
        [] => "The data set has no rows".to_owned(),
        some => format!("The data set has nothing where {}", some.join(" AND ")),
    })
}

/// The sums of the rows for which `conditions` are true. Their stacks may take `room` bytes.
///
/// # Errors
/// `conditions` aren't valid, or select nothing or too much.
pub fn profile(engine: &Engine, conditions: &[String], room: u64) -> anyhow::Result<Profile> {
    let (info, _) = summary(engine, conditions)?;
    let mut rows = RowSums::new(room);
    for_each(engine, conditions, SUMS, |row, _| rows.add(row))?;
    Ok(rows.into_profile(&info))
}

/// Writes a recording of the rows for which `conditions` are true to `out`, and returns its account.
///
/// # Errors
/// As [`profile`], or it can't be written.
pub fn write<W: Write>(
    engine: &Engine,
    conditions: &[String],
    out: W,
) -> anyhow::Result<(W, Account)> {
    let (info, kernel) = summary(engine, conditions)?;
    let mut rows = RowsWriter::new(out, &info, kernel.as_ref())?;
    for_each(engine, conditions, IN_ORDER, |row, (begin, length)| {
        rows.add(row, begin, length)
    })?;
    Ok(rows.finish()?)
}

/// The sums of the rows for which `conditions` are true, and their times for a page, which are those of a recording.
///
/// # Errors
/// As [`profile`].
pub fn timed(engine: &Engine, conditions: &[String]) -> anyhow::Result<(Profile, Counts)> {
    let (bytes, _) = write(engine, conditions, Vec::new())?;
    let recording = Recording::from_bytes(Path::new("the data set"), bytes)?;
    Ok(counted(&recording, &[])?)
}

/// Calls `each` with each row of the answer to `sql` about the rows for which `conditions` are true, and the begin and the length of its window, in ns.
fn for_each(
    engine: &Engine,
    conditions: &[String],
    sql: &str,
    mut each: impl FnMut(&Row<'_>, (u64, u64)) -> Result<(), RowsError>,
) -> anyhow::Result<()> {
    engine.compute(engine.ask_of(conditions, sql)?, |batch| {
        let (process, thread) = (texts(batch, "process")?, texts(batch, "thread")?);
        let mode = texts(batch, "mode")?;
        let (stack, modules) = (lists(batch, "stack")?, lists(batch, "modules")?);
        let (keys, values) = (lists(batch, "label_keys")?, lists(batch, "label_values")?);
        let (time, seconds) = (numbers(batch, "time")?, numbers(batch, "seconds")?);
        let ticks = numbers(batch, "ticks")?;
        for row in 0..batch.num_rows() {
            let lists = [&stack, &modules, &keys, &values].map(|lists| lists.value(row));
            let [functions, modules, keys, values] = lists.each_ref().map(|list| {
                let texts = list.as_string_view().iter();
                texts.map(Option::unwrap_or_default).collect::<Vec<&str>>()
            });
            let labels: Vec<(&str, &str)> = keys.into_iter().zip(values).collect();
            let known = Mode::named(mode.value(row));
            let ticks = ticks.is_valid(row).then(|| ticks.value(row));
            let ticks = ticks.and_then(|ticks| u64::try_from(ticks).ok());
            let row_of = Row {
                process: process.value(row),
                thread: thread.value(row),
                mode: known.with_context(|| format!("There is no mode {}", mode.value(row)))?,
                functions: &functions,
                modules: &modules,
                labels: &labels,
                ticks: ticks
                    .context("There are rows with no number of ticks, or less than none")?,
            };
            let begin = positive(time.value(row)).saturating_mul(MILLISECOND);
            let length = positive(seconds.value(row)).saturating_mul(SECOND);
            each(&row_of, (begin, length))?;
        }
        Ok(())
    })?;
    Ok(())
}

fn positive(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// A column as an array of this type.
fn column(batch: &RecordBatch, name: &str, kind: &DataType) -> anyhow::Result<ArrayRef> {
    let column = batch.column_by_name(name);
    let column = column.with_context(|| format!("There is no column {name}"))?;
    cast(column, kind)
        .with_context(|| format!("The column {name} has the type {}", column.data_type()))
}

/// A column of text. Missing values are empty.
fn texts(batch: &RecordBatch, name: &str) -> anyhow::Result<StringViewArray> {
    let texts = column(batch, name, &DataType::Utf8View)?;
    Ok(texts.as_string_view().clone())
}

/// A column of numbers, or of times in ms.
fn numbers(batch: &RecordBatch, name: &str) -> anyhow::Result<Int64Array> {
    let numbers = column(batch, name, &DataType::Int64)?;
    Ok(numbers.as_primitive::<Int64Type>().clone())
}

/// A column of lists of text.
fn lists(batch: &RecordBatch, name: &str) -> anyhow::Result<ListArray> {
    let item = Field::new("item", DataType::Utf8View, true);
    let lists = column(batch, name, &DataType::List(item.into()))?;
    Ok(lists.as_list::<i32>().clone())
}
