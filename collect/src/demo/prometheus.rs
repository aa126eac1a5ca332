//! Prometheus for the demonstration, which scrapes the collector and is queried once.

use std::fs;
use std::io::ErrorKind;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use kvmprof_cli::interrupt::Interrupt;
use serde::Deserialize;

use super::{DemoFolder, POLL, free_address};
use crate::child::{Child, program};

/// The query: the ticks of each guest's processes in all modes.
pub const QUERY: &str = "sum by (guest, process) (kvmprof_samples_total)";
/// Maximum time until it has the first window.
const WAITING: Duration = Duration::from_secs(60);
/// Maximum length of an answer in bytes.
const MAX_ANSWER: u64 = 1 << 20;

/// A running Prometheus.
pub struct Prometheus {
    // It ends when this is dropped.
    _child: Child,
    address: String,
}

/// The ticks of a guest's process.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    pub guest: String,
    pub process: String,
    pub ticks: f64,
}

#[derive(Deserialize)]
struct Reply {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    metric: Labels,
    /// The time, and the value as text (<https://prometheus.io/docs/prometheus/latest/querying/api/>).
    value: (f64, String),
}

#[derive(Deserialize)]
struct Labels {
    guest: String,
    process: String,
}

impl Prometheus {
    /// Starts it. It scrapes the page at `metrics`, and keeps its files in `folder`.
    ///
    /// # Errors
    /// It isn't installed, or can't be started.
    pub fn start(folder: &DemoFolder, metrics: &str) -> anyhow::Result<Self> {
        let config = folder.path("prometheus.yml");
        let text = format!(
            "global: {{ scrape_interval: 1s }}\n\
             scrape_configs: [{{ job_name: kvmprof, static_configs: [{{ targets: ['{metrics}'] }}] }}]\n"
        );
        fs::write(&config, text).context("Cannot write Prometheus's configuration")?;
        let address = free_address()?;
        let words = [
            format!("--config.file={}", config.display()),
            format!(
                "--storage.tsdb.path={}",
                folder.path("prometheus").display()
            ),
            format!("--web.listen-address={address}"),
        ];
        match Child::start(program("prometheus"), words) {
            Ok(child) => Ok(Self {
                _child: child,
                address,
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(anyhow!(
                "Prometheus isn't installed (apt install prometheus): the demonstration goes on without it"
            )),
            Err(error) => {
                Err(error).context("Cannot run Prometheus: the demonstration goes on without it")
            }
        }
    }

    /// The address at which it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The processes of all guests, those with the most ticks first. Waits until it has a window.
    ///
    /// # Errors
    /// It doesn't answer, or has no data.
    pub fn by_process(&self, interrupt: &Interrupt) -> anyhow::Result<Vec<Process>> {
        let until = Instant::now() + WAITING;
        loop {
            let found = self.ask();
            let is_over = Instant::now() >= until || interrupt.is_raised();
            match found {
                Ok(processes) if !processes.is_empty() || is_over => return Ok(processes),
                Err(error) if is_over => return Err(error).context("Prometheus doesn't answer"),
                _ => sleep(POLL),
            }
        }
    }

    fn ask(&self) -> anyhow::Result<Vec<Process>> {
        let url = format!("http://{}/api/v1/query", self.address);
        let agent = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(10)))
            .build()
            .new_agent();
        let mut answer = agent.get(url).query("query", QUERY).call()?;
        let text = answer
            .body_mut()
            .with_config()
            .limit(MAX_ANSWER)
            .read_to_string()?;
        parse(&text)
    }
}

fn parse(text: &str) -> anyhow::Result<Vec<Process>> {
    let answer: Reply = serde_json::from_str(text)?;
    let mut processes = Vec::new();
    for Series { metric, value } in answer.data.result {
        processes.push(Process {
            guest: metric.guest,
            process: metric.process,
            ticks: value.1.parse().context("a number")?,
        });
    }
    processes.sort_by(|one, other| {
        let of = |process: &Process| (process.guest.clone(), process.process.clone());
        let by_ticks = other.ticks.total_cmp(&one.ticks);
        by_ticks.then_with(|| of(one).cmp(&of(other)))
    });
    Ok(processes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_parsed() {
        let text = r#"{"status":"success","data":{"resultType":"vector","result":[
            {"metric":{"guest":"one","process":"dyer"},"value":[1.5,"7"]},
            {"metric":{"guest":"two","process":"weaver"},"value":[1.5,"30"]}]}}"#;
        let found = parse(text).unwrap();
        let of = |process: &Process| (process.process.clone(), process.ticks);
        let found: Vec<(String, f64)> = found.iter().map(of).collect();
        assert_eq!(
            found,
            [("weaver".to_owned(), 30.0), ("dyer".to_owned(), 7.0)]
        );
        assert!(parse("{}").is_err());
    }
}
