//! Pages of a recording, which a browser uses, beside the recording's report.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::path::Path;

use kvmprof_recording::file::Recording;
use kvmprof_report::html::page_of;
use serde_json::Value;

use super::read::selection;
use super::used::{Used, report_of};
use super::walk;

impl Used {
    /// A task with the page of the recording that `write` writes.
    pub fn of_recording(task: &str, write: impl Fn(&Path)) -> Self {
        Self::of_page(task, |folder| {
            let path = folder.join("recording");
            write(&path);
            page_of(&Recording::open(&path).unwrap(), &[], "A test").unwrap()
        })
    }

    /// A task with the page of a recording of two vCPUs with about this many ticks.
    pub fn walked(task: &str, ticks: u64) -> Self {
        Self::of_recording(task, |path| walk::write(path, 20, ticks))
    }

    /// The output of `kvmprof report --json` with these options for its recording.
    pub fn report(&self, options: &[&str]) -> Value {
        report_of(&self.folder.path().join("recording"), selection(options))
    }

    /// What the page's `command` prints.
    pub fn printed(&self, command: &str) -> Value {
        assert!(!command.contains("# without"), "{command}");
        let words = shlex::split(command).unwrap();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        assert_eq!(words[..3], ["kvmprof", "report", "FILE"], "{command}");
        self.report(&words[3..])
    }
}

/// Ticks of several seconds.
pub const USUAL: u64 = 1000;
/// So few that all frames and rows are shown.
pub const FEW: u64 = 150;

pub fn count(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

/// The row of this name of a table of the report.
pub fn row<'a>(report: &'a Value, table: &str, name: &str) -> &'a Value {
    let rows = report[table].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == name);
    row.unwrap_or_else(|| panic!("no {name}: {rows:?}"))
}
