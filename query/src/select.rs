//! Selects rows of the table for tables and pictures.

use std::collections::BTreeSet;

use anyhow::{Context, bail, ensure};
use datafusion::arrow::array::{
    Array, AsArray, Int64Array, ListArray, RecordBatch, StringViewArray,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::dataframe::DataFrame;
use datafusion::functions_aggregate::expr_fn::{min, sum};
use datafusion::prelude::col;
use kvmprof_recording::file::{KernelInfo, RecordingInfo};
use kvmprof_recording::{Mode, StackParts};
use kvmprof_report::rows::Row;

use crate::engine::Engine;

/// The properties of a selection.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The properties that a recording of it has. The name of the kernel's file is the selection's name: its guest, or the number of guests.
    pub info: RecordingInfo,
    /// The release of the kernel, if there is only one.
    pub kernel: Option<KernelInfo>,
}

/// The properties of the rows for which `condition` is true.
///
/// # Errors
/// `condition` isn't a valid condition, there are no such rows, or their ticks have different rates.
pub fn summary(engine: &Engine, condition: Option<&str>) -> anyhow::Result<Summary> {
    let keys = ["host", "guest", "kernel"].map(col);
    let values = vec![min(col("time")).alias("begin"), min(col("hz")).alias("hz")];
    let groups = [keys.as_slice(), &[col("hz").alias("rate")]].concat();
    let rows = engine.rows(condition)?.aggregate(groups, values)?;
    let (mut hosts, mut guests) = (BTreeSet::new(), BTreeSet::new());
    let (mut kernels, mut rates) = (BTreeSet::new(), BTreeSet::new());
    let mut begin = i64::MAX;
    engine.compute(rows, |batch| {
        let [host, guest, kernel] = [
            texts(batch, "host")?,
            texts(batch, "guest")?,
            texts(batch, "kernel")?,
        ];
        let (begins, hz) = (numbers(batch, "begin")?, numbers(batch, "hz")?);
        for row in 0..batch.num_rows() {
            hosts.insert(host.value(row).to_owned());
            guests.insert((host.value(row).to_owned(), guest.value(row).to_owned()));
            kernels.insert(kernel.value(row).to_owned());
            rates.insert(hz.value(row));
            begin = begin.min(begins.value(row));
        }
        Ok(())
    })?;
    let wanted = condition.unwrap_or("any row");
    let Some(hz) = rates.first() else {
        bail!("The data set has nothing where {wanted}");
    };
    ensure!(
        rates.len() == 1,
        "There are ticks of {} Hz, which stand for different times and cannot be added up: choose by hz, as in --where 'hz = {hz}'",
        rates
            .iter()
            .map(i64::to_string)
            .collect::<Vec<_>>()
            .join(" and of ")
    );
    let name = match guests.first() {
        Some((host, guest)) if guests.len() == 1 => format!("guest {guest} of {host}"),
        _ => format!(
            "{} guests of {}",
            guests.len(),
            match hosts.len() {
                1 => "1 host".to_owned(),
                hosts => format!("{hosts} hosts"),
            }
        ),
    };
    let began_ns = u64::try_from(begin)
        .unwrap_or_default()
        .saturating_mul(1_000_000);
    Ok(Summary {
        info: RecordingInfo {
            program: concat!("kvmprof-query ", env!("CARGO_PKG_VERSION")).to_owned(),
            kernel: name,
            vcpus: 1,
            hz: u32::try_from(*hz).unwrap_or_default(),
            clock: "a data set's windows".to_owned(),
            jitter: true,
            began_ns,
            // The times of samples are since 1970, since they are of many guests.
            began_monotonic_ns: began_ns,
            stacks: StackParts {
                kernel: true,
                user: true,
            },
            ..RecordingInfo::default()
        },
        kernel: (kernels.len() == 1).then(|| KernelInfo {
            release: kernels.pop_first().unwrap_or_default(),
            ..KernelInfo::default()
        }),
    })
}

/// The columns by which tables and pictures sum up ticks.
const KEYS: [&str; 5] = ["process", "thread", "mode", "stack", "modules"];

/// The rows for which `condition` is true, summed up over guests and times.
///
/// # Errors
/// It isn't a condition.
pub fn sums(engine: &Engine, condition: Option<&str>) -> anyhow::Result<DataFrame> {
    let ticks = vec![sum(col("ticks")).alias("ticks")];
    Ok(engine
        .rows(condition)?
        .aggregate(KEYS.map(col).to_vec(), ticks)?)
}

/// The rows for which `condition` is true, ordered by time.
///
/// # Errors
/// It isn't a condition.
pub fn in_order(engine: &Engine, condition: Option<&str>) -> anyhow::Result<DataFrame> {
    let columns = [KEYS.as_slice(), &["time", "seconds", "ticks"]].concat();
    let rows = engine.rows(condition)?.select_columns(&columns)?;
    Ok(rows.sort(vec![
        col("time").sort(true, true),
        col("seconds").sort(true, true),
    ])?)
}

/// Calls `each` with each row of a part of such an answer, and its number.
///
/// # Errors
/// A column is missing or has invalid values, or `each` fails.
pub fn for_each(
    batch: &RecordBatch,
    mut each: impl FnMut(usize, &Row<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let [process, thread, mode] = [
        texts(batch, "process")?,
        texts(batch, "thread")?,
        texts(batch, "mode")?,
    ];
    let (stack, modules) = (Texts::new(batch, "stack")?, Texts::new(batch, "modules")?);
    let ticks = numbers(batch, "ticks")?;
    let (mut functions_of, mut modules_of) = (Vec::new(), Vec::new());
    for row in 0..batch.num_rows() {
        stack.get(row, &mut functions_of);
        modules.get(row, &mut modules_of);
        let known = Mode::ALL
            .into_iter()
            .find(|known| known.name() == mode.value(row));
        let known = known.with_context(|| format!("There is no mode {}", mode.value(row)))?;
        let ticks = u64::try_from(ticks.value(row))
            .ok()
            .filter(|_| ticks.is_valid(row));
        let row_of = Row {
            process: process.value(row),
            thread: thread.value(row),
            mode: known,
            functions: &functions_of,
            modules: &modules_of,
            ticks: ticks.context("There are rows with no number of ticks, or less than none")?,
        };
        each(row, &row_of)?;
    }
    Ok(())
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> anyhow::Result<&'a dyn Array> {
    let column = batch.column_by_name(name);
    Ok(column
        .with_context(|| format!("There is no column {name}"))?
        .as_ref())
}

/// A column of text. Missing values are empty.
fn texts(batch: &RecordBatch, name: &str) -> anyhow::Result<StringViewArray> {
    let texts = cast(column(batch, name)?, &DataType::Utf8View)?;
    Ok(texts.as_string_view().clone())
}

/// A column of numbers, or of times in ms.
///
/// # Errors
/// There is no such column, or it has another type.
pub fn numbers(batch: &RecordBatch, name: &str) -> anyhow::Result<Int64Array> {
    let numbers = cast(column(batch, name)?, &DataType::Int64)?;
    Ok(numbers.as_primitive::<Int64Type>().clone())
}

/// A column of lists of text.
struct Texts {
    lists: ListArray,
    values: StringViewArray,
}

impl Texts {
    fn new(batch: &RecordBatch, name: &str) -> anyhow::Result<Self> {
        let item = Field::new("item", DataType::Utf8View, true);
        let lists = cast(column(batch, name)?, &DataType::List(item.into()))?;
        let lists = lists.as_list::<i32>().clone();
        let values = lists.values().as_string_view().clone();
        Ok(Self { lists, values })
    }

    /// Puts the list of this row into `into`.
    fn get<'a>(&'a self, row: usize, into: &mut Vec<&'a str>) {
        into.clear();
        let offsets = self.lists.value_offsets();
        let at = |row: usize| {
            offsets
                .get(row)
                .and_then(|offset| usize::try_from(*offset).ok())
        };
        if let (Some(begin), Some(end)) = (at(row), at(row + 1)) {
            into.extend((begin..end).map(|place| self.values.value(place)));
        }
    }
}
