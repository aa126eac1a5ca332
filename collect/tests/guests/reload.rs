//! Configurations that are valid, but can't be started.

use std::fs;
use std::net::TcpListener;

use kvmprof_tests::{Boot, Guest, on_kvm_with_collector, until};

use super::{Fleet, count, free_port, get};

/// The collector continues with its previous configuration, whatever is missing for the next one.
#[test]
fn a_failed_reload_changes_nothing() {
    on_kvm_with_collector(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "100"]);
        let fleet = Fleet::new(&[("first", guest.socket())]);
        let address = free_port();
        let own = format!("metrics.listen = '{address}'\n");
        fleet.configure(&own);
        let collector = fleet.start();
        let until_windows = |labels: &str| {
            let series = format!("kvmprof_windows_total{{host=\"h\"{labels},guest=\"first\"}}");
            until("there are windows", || {
                get(&address).filter(|page| count(page, &series) >= 2)
            })
        };
        until_windows("");
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = taken.local_addr().map(|address| (taken, address)).unwrap();
        let sink = |keys: &str| format!("{own}[[sink]]\nname = 'next'\n{keys}\n");
        let file = fleet.path("file");
        fs::write(&file, "").unwrap();
        let otlp = "type = 'otlp'\nurl = 'https://127.0.0.1:1/'";
        let next = [
            (
                sink(&format!("{otlp}\nheader_files.A = '/none/1'")),
                "/none/1",
            ),
            (sink(&format!("{otlp}\nca_file = '/none/2'")), "/none/2"),
            (
                sink("type = 'parquet'\nurl = 's3://b'\noptions.colour = 'red'"),
                "no colour",
            ),
            (
                format!("metrics.listen = '{}'\n", taken.1),
                "Cannot serve metrics",
            ),
        ];
        let until_said = |words: &str| {
            until("the error is reported", || {
                let said = fs::read_to_string(fleet.path("stderr")).unwrap();
                let mut lines = said.lines();
                let is_told = |line: &str| {
                    line.contains(words) && line.contains("the former configuration stays")
                };
                lines.any(is_told).then_some(())
            });
        };
        for (more, words) in next {
            fleet.configure(&more);
            fleet.reload(&collector);
            until_said(words);
            until_windows("");
        }
        let text = format!("spool.folder = '{}'\n{own}", file.display());
        fs::write(fleet.path("collect.toml"), text).unwrap();
        fleet.reload(&collector);
        until_said("Cannot use the spool");
        until_windows("");
        // A valid one is applied.
        fleet.configure(&format!("{own}labels.zone = 'north'\n"));
        fleet.reload(&collector);
        until_windows(",zone=\"north\"");
        fleet.stop(collector);
        guest.stop();
    });
}
