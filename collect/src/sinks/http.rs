//! Requests to sinks.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow};
use ureq::Agent;

use super::Failure;
use crate::config::Endpoint;

/// How long a request may take in all.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest file with the value of a header, and longest part of an answer that is told, in bytes.
const MAX_VALUE: u64 = 16 << 10;
const MAX_ANSWER: u64 = 200;

/// An address that is posted to.
pub struct Poster {
    agent: Agent,
    url: String,
    headers: BTreeMap<String, String>,
}

impl Poster {
    /// One for `endpoint`. Files with the values of headers are read now.
    pub fn new(endpoint: &Endpoint) -> anyhow::Result<Self> {
        let mut headers = endpoint.headers.clone();
        for (name, path) in &endpoint.header_files {
            headers.insert(name.clone(), read_value(path)?);
        }
        let config = Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            // Neither what is sent nor its secrets go anywhere else.
            .max_redirects(0)
            .proxy(None)
            .user_agent(concat!("kvmprof-collect/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self {
            agent: config.new_agent(),
            url: endpoint.url.clone(),
            headers,
        })
    }

    /// Posts `body`, with `query` behind the address.
    pub fn post(&self, query: &[(&str, String)], kind: &str, body: &[u8]) -> Result<(), Failure> {
        self.post_with(query, &[("Content-Type", kind)], body)
    }

    /// Posts `body` with these headers besides those of the configuration.
    pub fn post_with(
        &self,
        query: &[(&str, String)],
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<(), Failure> {
        let mut request = self.agent.post(&self.url);
        for (name, value) in query {
            request = request.query(name, value);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let url = &self.url;
        let answer = request.send(body);
        let mut answer = answer.with_context(|| format!("Cannot post to {url}"))?;
        let status = answer.status().as_u16();
        if answer.status().is_success() {
            return Ok(());
        }
        let mut text = Vec::new();
        // What the sink says is worth having, but not needed.
        let _ = answer
            .body_mut()
            .as_reader()
            .take(MAX_ANSWER)
            .read_to_end(&mut text);
        let text = kvmprof_report::text::visible(&String::from_utf8_lossy(&text));
        let error = anyhow!("{url} answers {status}: {text}");
        // What is wrong with this one batch is wrong for ever; all else may be mended.
        Err(match status {
            400 | 413 | 415 | 422 => Failure::Refused(error),
            _ => Failure::Retry(error),
        })
    }
}

fn read_value(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MAX_VALUE).read_to_string(&mut text))
        .with_context(|| format!("Cannot read {}", path.display()))?;
    Ok(text.trim_end().to_owned())
}
