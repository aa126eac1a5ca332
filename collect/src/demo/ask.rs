//! The query of the demonstration to the Parquet files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use serde::Deserialize;

/// The query.
pub const QUERY: &str = "SELECT function, guest, process, mode, sum(ticks) AS ticks FROM samples GROUP BY ALL ORDER BY ticks DESC";
/// The Python program that asks DuckDB. Its argument is the folder of the files, its output a JSON array.
const DUCKDB: &str = "\
import duckdb, json, sys
files = sys.argv[1].replace(\"'\", \"''\") + '/*/*/*/*.parquet'
duckdb.sql(f\"CREATE VIEW samples AS SELECT * FROM read_parquet('{files}', hive_partitioning = true, hive_types_autocast = false)\")
names = ['function', 'guest', 'process', 'mode', 'ticks']
print(json.dumps([dict(zip(names, row[:4] + (int(row[4]),))) for row in duckdb.sql(sys.argv[2]).fetchall()]))
";
/// Maximum number of folders and files that are read. Two guests make a few.
const MAX_FILES: usize = 10_000;

/// A row of the answer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Row {
    pub function: String,
    pub guest: String,
    pub process: String,
    pub mode: String,
    pub ticks: u64,
}

/// Asks DuckDB if Python has it, or else reads the files itself with the same result. Returns the query and its answer.
///
/// # Errors
/// The files can't be read, or DuckDB fails.
pub fn ask(folder: &Path) -> anyhow::Result<(&'static str, Vec<Row>)> {
    let has_duckdb = Command::new("python3")
        .args(["-c", "import duckdb"])
        .output()
        .is_ok_and(|output| output.status.success());
    if has_duckdb {
        return Ok(("DuckDB", by_duckdb(folder)?));
    }
    let by = "this program (with pip install duckdb: by DuckDB)";
    Ok((by, by_reading(folder)?))
}

fn by_duckdb(folder: &Path) -> anyhow::Result<Vec<Row>> {
    let output = Command::new("python3")
        .args(["-c", DUCKDB])
        .arg(folder)
        .arg(QUERY)
        .output()
        .context("Cannot run python3")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("DuckDB has failed: {}", said.trim());
    }
    serde_json::from_slice(&output.stdout).context("DuckDB's answer")
}

fn by_reading(folder: &Path) -> anyhow::Result<Vec<Row>> {
    let mut sums: BTreeMap<[String; 4], u64> = BTreeMap::new();
    let files = glob::glob(&format!("{}/*/*/*/*.parquet", folder.display()))?;
    for path in files.take(MAX_FILES) {
        read(&path?, &mut sums)?;
    }
    let mut rows: Vec<Row> = sums
        .into_iter()
        .map(|([function, guest, process, mode], ticks)| Row {
            function,
            guest,
            process,
            mode,
            ticks,
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.ticks));
    Ok(rows)
}

/// Adds the rows of a file. Its guest is that of its folder.
fn read(path: &Path, sums: &mut BTreeMap<[String; 4], u64>) -> anyhow::Result<()> {
    let parent = path.parent().and_then(Path::file_name).unwrap_or_default();
    let parent = parent.to_string_lossy();
    let guest = parent.strip_prefix("guest=").unwrap_or_default();
    let reader = SerializedFileReader::new(File::open(path)?)?;
    for row in reader.get_row_iter(None)? {
        let mut key = [const { String::new() }; 4];
        guest.clone_into(&mut key[1]);
        let mut ticks = 0;
        for (name, field) in row?.get_column_iter() {
            match (name.as_str(), field) {
                ("function", Field::Str(text)) => key[0].clone_from(text),
                ("process", Field::Str(text)) => key[2].clone_from(text),
                ("mode", Field::Str(text)) => key[3].clone_from(text),
                ("ticks", Field::Long(count)) => ticks = count.unsigned_abs(),
                _ => {}
            }
        }
        *sums.entry(key).or_default() += ticks;
    }
    Ok(())
}

/// Whether the folder has any entry. It has none if the guests didn't tick.
pub fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::batch::testing::batch;
    use crate::config::{SinkConfig, SinkKind};
    use crate::sinks::Prepared;
    use crate::spool::Spool;

    #[test]
    fn counts_of_files_are_summed() {
        let folder = tempfile::tempdir().unwrap();
        assert!(is_empty(&folder.path().join("lake")));
        let sink = SinkConfig {
            name: "lake".to_owned(),
            kind: SinkKind::Parquet {
                folder: folder.path().join("lake"),
                seconds: 10,
            },
        };
        let spool = Spool::open(&folder.path().join("spool"), 1 << 20, &["lake"]).unwrap();
        let spool = Arc::new(spool);
        spool.push(&batch(100, &["a", "b"], 7)).unwrap();
        spool.push(&batch(110, &["a"], 9)).unwrap();
        let running = Prepared::new(&sink).unwrap();
        let running = running.start(Arc::clone(&spool)).unwrap();
        spool.drain();
        running.join();
        let rows = by_reading(&folder.path().join("lake")).unwrap();
        let row = |function: &str, guest: &str, process: &str, mode: &str, ticks| Row {
            function: function.to_owned(),
            guest: guest.to_owned(),
            process: process.to_owned(),
            mode: mode.to_owned(),
            ticks,
        };
        assert_eq!(
            rows,
            [
                row("work", "a", "worker", "user", 16),
                row("work", "b", "worker", "user", 7),
                row("", "a", "idle", "idle", 6),
                row("", "b", "idle", "idle", 3),
            ]
        );
        assert!(!is_empty(&folder.path().join("lake")));
    }
}
