//! Debian's Prometheus scrapes the counts, answers the dashboard's queries and evaluates the alerts.

use std::fmt::Write;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use kvmprof_collect::config::Config;
use kvmprof_collect::metrics::Metrics;
use kvmprof_collect::page::Page;
use kvmprof_collect::spool::Spool;
use kvmprof_recording::counters::{Counter, Counters};
use serde_json::Value;

use super::fleet::{self, GUESTS};
use super::root;

/// A test that waits for longer than this fails: something hangs.
const DEADLINE: Duration = Duration::from_secs(600);

/// A program of Debian's package prometheus. tests/run unpacks the package.
fn program(name: &str) -> PathBuf {
    let path = root().join("target/prometheus/usr/bin").join(name);
    assert!(path.is_file(), "no {}: run tests/run", path.display());
    path
}

struct Prometheus {
    child: Child,
    address: String,
    folder: tempfile::TempDir,
}

impl Prometheus {
    /// Starts a server that scrapes the page at `target`.
    fn start(target: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let alerts = root().join("packaging/kvmprof-collect/alerts.yml");
        fs::copy(alerts, path("alerts.yml")).unwrap();
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [alerts.yml]\n\
             scrape_configs: [{{ job_name: kvmprof, static_configs: [{{ targets: ['{target}'] }}] }}]\n"
        );
        fs::write(path("prometheus.yml"), config).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let child = Command::new(program("prometheus"))
            .arg(format!(
                "--config.file={}",
                path("prometheus.yml").display()
            ))
            .arg(format!("--storage.tsdb.path={}", path("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stderr(fs::File::create(path("stderr")).unwrap())
            .spawn()
            .unwrap();
        Self {
            child,
            address,
            folder,
        }
    }

    /// The server's answer to a request; `None` if it gives none yet.
    fn get(&self, path: &str, query: &str) -> Option<Value> {
        let url = format!("http://{}{path}", self.address);
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .new_agent();
        let mut answer = agent.get(url).query("query", query).call().ok()?;
        let text = answer.body_mut().read_to_string().ok()?;
        let answer: Value = serde_json::from_str(&text).ok()?;
        assert_eq!(answer["status"], "success", "{query}: {text}");
        Some(answer)
    }

    /// The series that answer a query, with their values.
    fn query(&self, query: &str) -> Vec<Value> {
        let answer = self.get("/api/v1/query", query);
        let answer = answer.and_then(|answer| Some(answer["data"]["result"].as_array()?.clone()));
        answer.unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let said = fs::read_to_string(self.folder.path().join("stderr"));
            eprintln!("{}", said.unwrap_or_default());
        }
    }
}

/// Calls `step` repeatedly until `look` finds something, and returns that.
fn until<T>(what: &str, mut step: impl FnMut(), look: impl Fn() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < DEADLINE, "timed out waiting until {what}");
        step();
        sleep(Duration::from_millis(200));
    }
}

/// The queries of the dashboard's panels, by the panels' numbers, with its variables replaced, as Grafana sends them.
fn dashboard() -> Vec<(u64, String)> {
    let text = fs::read_to_string(root().join("packaging/kvmprof-collect/dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let queries = panels.flat_map(|panel| {
        let targets = panel["targets"].as_array().unwrap().iter();
        targets.map(|target| {
            let query = target["expr"].as_str().unwrap();
            // All of them use the variables.
            assert!(query.contains("$host"), "{query}");
            let query = query
                .replace("$__rate_interval", "5m")
                .replace("$guest", ".*")
                .replace("$host", ".*");
            assert!(!query.contains('$'), "{query}");
            (panel["id"].as_u64().unwrap(), query)
        })
    });
    queries.collect()
}

/// The counters of a guest after this number of windows.
fn counts(windows: u64) -> Counters {
    let counter = |name: &str, count| Counter {
        name: name.to_owned(),
        vcpus: vec![count],
        ..Counter::default()
    };
    Counters {
        counters: vec![
            counter("exits", 1000 * windows),
            counter("halts", 100 * windows),
        ],
        ..Counters::default()
    }
}

#[test]
fn prometheus_scrapes_the_counts_and_answers_the_dashboards_queries() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(&folder.path().join("spool"), 1 << 30, &["lake"]).unwrap();
    let config = Config::default();
    let metrics = Arc::new(Metrics::new(&config, "host-3", Arc::new(spool)));
    let page = Page::start("127.0.0.1:0".parse().unwrap(), Arc::clone(&metrics)).unwrap();
    metrics.note_guests(GUESTS, 0);
    let mut windows = 0_u64;
    let mut add = || {
        metrics.add(&fleet::batch(1, 3, windows));
        windows += 1;
        for guest in 0..GUESTS {
            metrics.note_counts(&format!("guest {guest}"), &counts(windows));
        }
    };
    let prometheus = Prometheus::start(&page.address().to_string());
    let queries = dashboard();
    assert!(queries.len() >= 8, "{queries:?}");
    for (_, query) in &queries {
        until(query, &mut add, || {
            let found = prometheus.query(query);
            println!("{query}: {} series", found.len());
            (!found.is_empty()).then_some(())
        });
    }
    // No ticks are added any more, so that the server's last values are the sums.
    let known = fleet::known(1, 3);
    let count = |process: &str, mode: &str| {
        let known = known.iter();
        let known = known.filter(|known| known.process == process && known.mode.name() == mode);
        known.map(|known| known.ticks).sum::<u64>() * windows
    };
    for (process, mode) in [
        ("worker", "user"),
        ("worker", "interrupt"),
        ("copier", "kernel"),
        ("idle", "idle"),
    ] {
        let query =
            format!("kvmprof_samples_total{{host='host-3',process='{process}',mode='{mode}'}}");
        let expected = count(process, mode).to_string();
        until(
            &query,
            || (),
            || {
                let found = prometheus.query(&query);
                let is_all = found
                    .iter()
                    .all(|series| series["value"][1] == expected.as_str());
                (is_all && found.len() == GUESTS).then_some(())
            },
        );
    }
    let answer = prometheus.get("/api/v1/rules", "").unwrap();
    let rules = answer["data"]["groups"][0]["rules"]
        .as_array()
        .unwrap()
        .clone();
    assert!(rules.len() >= 6);
    until(
        "each rule is evaluated",
        || (),
        || {
            let answer = prometheus.get("/api/v1/rules", "")?;
            let rules = answer["data"]["groups"][0]["rules"].as_array()?;
            rules
                .iter()
                .all(|rule| rule["health"] == "ok")
                .then_some(())
        },
    );
}

#[test]
fn promtool_accepts_the_alerts() {
    promtool(
        "check",
        &root().join("packaging/kvmprof-collect/alerts.yml"),
    );
}

/// Runs `promtool COMMAND rules` on this file, which has to succeed.
fn promtool(command: &str, file: &Path) {
    let output = Command::new(program("promtool"))
        .args([command, "rules"])
        .arg(file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Two hosts have a guest of the same name with a process of the same name. That of `a` is busy, and 95 % of its ticks are stolen; that of
/// `b` is busy for half of its time.
#[test]
fn the_dashboard_shows_stolen_time_by_host() {
    let queries = dashboard();
    let of_panel = |number: u64| {
        let queries = queries.iter();
        queries.filter(move |(panel, _)| *panel == number)
    };
    let [busy, waited] = [0, 1].map(|index| &of_panel(3).nth(index).unwrap().1);
    let by_process = &of_panel(4).next().unwrap().1;
    let mut text =
        "rule_files: []\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n"
            .to_owned();
    for (host, ran, stolen) in [("a", 60, 1140), ("b", 600, 0)] {
        let guest = format!("host=\"{host}\",guest=\"web\"");
        for (series, values) in [
            (format!("kvmprof_rate_hertz{{{guest}}}"), "20x60".to_owned()),
            (
                format!("kvmprof_samples_total{{{guest},process=\"worker\",mode=\"user\"}}"),
                format!("0+{ran}x60"),
            ),
            (
                format!("kvmprof_samples_total{{{guest},process=\"idle\",mode=\"idle\"}}"),
                format!("0+{}x60", 1200 - ran - stolen),
            ),
            (
                format!("kvmprof_ticks_total{{{guest},fate=\"stolen\"}}"),
                format!("0+{stolen}x60"),
            ),
        ] {
            writeln!(text, "      - {{ series: '{series}', values: '{values}' }}").unwrap();
        }
    }
    text.push_str("    promql_expr_test:\n");
    let worker = ",process=\"worker\"";
    for (query, more, values) in [
        (busy, "", [1.0, 0.5]),
        (waited, "", [0.95, 0.0]),
        (by_process, worker, [0.05, 0.5]),
    ] {
        let query = serde_json::to_string(query).unwrap();
        writeln!(text, "      - expr: {query}\n        eval_time: 50m").unwrap();
        text.push_str("        exp_samples:\n");
        for (host, value) in ["a", "b"].into_iter().zip(values) {
            let labels = format!("{{host=\"{host}\",guest=\"web\"{more}}}");
            writeln!(text, "          - {{ labels: '{labels}', value: {value} }}").unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let tests = folder.path().join("dashboard.yml");
    fs::write(&tests, &text).unwrap();
    println!("{text}");
    promtool("test", &tests);
}

/// promtool evaluates each alert with series that must raise it and with others.
#[test]
fn each_alert_fires() {
    let tests = root().join("collect/tests/sinks/alerts.yml");
    promtool("test", &tests);
    let read = |path| fs::read_to_string(path).unwrap();
    let tests = read(tests);
    let alerts = read(root().join("packaging/kvmprof-collect/alerts.yml"));
    let alerts = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let mut count = 0;
    for alert in alerts {
        let fires = format!("alertname: {alert}\n        exp_alerts:\n");
        assert!(tests.contains(&fires), "{alert}");
        count += 1;
    }
    assert!(count >= 9, "{count}");
}
