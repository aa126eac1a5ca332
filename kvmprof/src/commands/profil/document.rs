//! The results of a profile as a table, or as a JSON document.

use std::io::{self, Write};

use kvmprof_abi::profil::{State, Status};
use kvmprof_cli::text::write_json;
use serde_json::{Value, json};

use super::arguments::StoredTicks;
use super::histogram::Layout;
use super::session::Ending;
use super::table::{Row, account, write_rows};

/// The version of the document's form. It stays the same when members are added.
const SCHEMA: u32 = 1;

/// The collected data of a command.
pub struct Collected<'a> {
    /// The process.
    pub pid: i32,
    /// The stored ticks.
    pub stored: StoredTicks,
    /// Why collecting has ended.
    pub ending: Ending,
    /// The account.
    pub status: &'a Status,
    /// How the code was divided; `None` for pcsample.
    pub layout: Option<&'a Layout>,
    /// The rows of the table.
    pub rows: &'a [Row],
    /// Maximum number of printed rows.
    pub top: usize,
}

impl Collected<'_> {
    /// Writes the table with its title and its account, or the document for `json`.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub fn write(&self, json: bool, out: &mut dyn Write) -> io::Result<()> {
        if json {
            return write_json(out, self.document());
        }
        let (pid, rate) = (self.pid, self.stored.describe());
        let layout = self.layout.map(Layout::describe);
        let what = layout.as_deref().unwrap_or("program counters");
        writeln!(out, "process {pid}: {what}, {rate}\n")?;
        write_rows(out, self.rows, self.top)?;
        writeln!(out, "\n{}", account(pid, self.status))
    }

    /// The data as one JSON object, as `docs/profil.md` describes it.
    pub fn document(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().take(self.top).map(row).collect();
        let mut document = json!({
            "schema": SCHEMA,
            "function": if self.layout.is_some() { "profil" } else { "pcsample" },
            "pid": self.pid,
            "hz": self.stored.hz(),
            "event": match self.stored {
                StoredTicks::Rate(_) => None,
                StoredTicks::Event(event) => Some(event.to_string()),
            },
            "ended": word(self.ending),
            "ticks": self.status.ticks,
            "stored": self.status.stored,
            "outside": self.status.outside,
            "waiting": self.status.waiting,
            "lost": self.status.lost,
            "rows": rows,
            "rows_left_out": self.rows.len().saturating_sub(self.top),
        });
        if let Some(layout) = self.layout {
            document["histogram"] = json!({
                "system": if layout.aix { "aix" } else { "solaris" },
                "offset": layout.offset,
                "bufsiz": layout.size,
                "scale": layout.scale,
            });
        }
        document
    }
}

fn row(Row { hit, name }: &Row) -> Value {
    json!({
        "begin": hit.begin,
        "last": hit.last,
        "count": hit.count,
        "module": name.module,
        "function": name.function,
    })
}

fn word(ending: Ending) -> &'static str {
    match ending {
        Ending::Wanted => "wanted",
        Ending::GuestEnded => "guest-ended",
        Ending::Executed | Ending::Stopped(State::Executed) => "executed",
        Ending::Stopped(State::Ended) => "ended",
        Ending::Stopped(State::Full) => "full",
        Ending::Stopped(State::Saturated) => "saturated",
        Ending::Stopped(State::Fault) => "fault",
        Ending::Stopped(State::Off | State::On | State::OtherTicks) => "off",
    }
}

#[cfg(test)]
mod tests {
    use super::super::histogram::Hit;
    use super::super::process::CodeName;
    use super::super::table::single_rows;
    use super::*;

    #[test]
    fn the_document_has_the_account_and_the_rows() {
        let status = Status {
            state: State::Executed,
            ticks: 20,
            stored: 15,
            outside: 3,
            lost: 2,
            ..Status::default()
        };
        let hits = [(0x1000, 12), (0x1008, 3)].map(|(begin, count)| Hit {
            begin,
            last: begin + 7,
            count,
        });
        let rows = single_rows(&hits, |_| CodeName {
            module: "loom".to_owned(),
            function: "weave".to_owned(),
        });
        let layout = Layout {
            offset: 0x1000,
            scale: 0x4000,
            size: 4,
            aix: true,
        };
        let mut collected = Collected {
            pid: 7,
            stored: StoredTicks::Rate(100),
            ending: Ending::Stopped(status.state),
            status: &status,
            layout: Some(&layout),
            rows: &rows,
            top: 1,
        };
        let mut expected = json!({
            "schema": 1, "function": "profil", "pid": 7, "hz": 100, "event": null, "ended": "executed",
            "ticks": 20, "stored": 15, "outside": 3, "waiting": 0, "lost": 2,
            "histogram": { "system": "aix", "offset": 4096, "bufsiz": 4, "scale": 16384 },
            "rows": [{ "begin": 4096, "last": 4103, "count": 12, "module": "loom", "function": "weave" }],
            "rows_left_out": 1,
        });
        assert_eq!(collected.document(), expected);
        collected.layout = None;
        expected["function"] = "pcsample".into();
        expected.as_object_mut().unwrap().remove("histogram");
        assert_eq!(collected.document(), expected);
    }
}
