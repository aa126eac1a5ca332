//! Makes recordings of selected rows.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use kvmprof_recording::file::{Account, NewFile};
use kvmprof_report::rows::RowsWriter;

use crate::engine::Engine;
use crate::select::{for_each, in_order, numbers, summary};

/// A millisecond and a second in ns.
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// Writes a recording of the rows for which `condition` is true to `out`, and returns its account.
///
/// # Errors
/// `condition` isn't a valid condition, it selects nothing or too much, or the recording can't be written.
pub fn write<W: Write>(
    engine: &Engine,
    condition: Option<&str>,
    out: W,
) -> anyhow::Result<(W, Account)> {
    let summary = summary(engine, condition)?;
    let mut writer = RowsWriter::new(out, &summary.info, summary.kernel.as_ref())?;
    engine.compute(in_order(engine, condition)?, |batch| {
        let (time, seconds) = (numbers(batch, "time")?, numbers(batch, "seconds")?);
        for_each(batch, |number, row| {
            let positive = |number: i64| u64::try_from(number).unwrap_or_default();
            let begin = positive(time.value(number)).saturating_mul(MILLISECOND);
            let length = positive(seconds.value(number)).saturating_mul(SECOND);
            Ok(writer.add(row, begin, length)?)
        })
    })?;
    Ok(writer.finish()?)
}

/// As [`write()`], to the file at `path`, which the recording replaces when it is complete. An older recording has
/// [another name](NewFile::create_recording) then.
///
/// # Errors
/// As for [`write()`].
pub fn write_file(
    engine: &Engine,
    condition: Option<&str>,
    path: &Path,
) -> anyhow::Result<Account> {
    let refused = || format!("Cannot write {}", path.display());
    let file = NewFile::create_recording(path).with_context(refused)?;
    let out = std::io::BufWriter::new(file);
    let (out, account) = write(engine, condition, out)?;
    let file = out
        .into_inner()
        .map_err(std::io::IntoInnerError::into_error);
    let mut file = file.with_context(refused)?;
    file.keep().with_context(refused)?;
    Ok(account)
}
