//! Requests to sinks.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use ureq::http::Response;
use ureq::tls::TlsConfig;
use ureq::{Agent, Body};

use super::{Failure, tls};
use crate::config::Endpoint;

/// How long a request may take in all.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// What this program calls itself.
pub const USER_AGENT: &str = concat!("kvmprof-collect/", env!("CARGO_PKG_VERSION"));
/// Longest file with the value of a header, longest answer, and longest part of an error that is told, in bytes.
const MAX_VALUE: u64 = 16 << 10;
pub const MAX_ANSWER: usize = 1 << 20;
const MAX_ERROR: usize = 200;

/// An address that is posted to.
pub struct Poster {
    agent: Agent,
    url: String,
    headers: BTreeMap<String, String>,
}

/// A client of HTTP with this `tls`.
pub fn agent(tls: TlsConfig) -> Agent {
    let config = Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .http_status_as_error(false)
        // Neither what is sent nor its secrets go anywhere else.
        .max_redirects(0)
        .proxy(None)
        .user_agent(USER_AGENT)
        .tls_config(tls)
        .build();
    config.new_agent()
}

impl Poster {
    /// One for `endpoint`. Files with the values of headers are read now.
    pub fn new(endpoint: &Endpoint) -> anyhow::Result<Self> {
        let tls = tls::client(&endpoint.tls, endpoint.url.starts_with("https://"))?;
        Ok(Self {
            agent: agent(tls),
            url: endpoint.url.clone(),
            headers: with_values(&endpoint.headers, &endpoint.header_files)?,
        })
    }

    /// Posts `body`, with `query` behind the address.
    pub fn post(&self, query: &[(&str, String)], kind: &str, body: &[u8]) -> Result<(), Failure> {
        self.post_with(query, &[("Content-Type", kind)], body)?;
        Ok(())
    }

    /// Posts `body` with these headers besides those of the configuration, and returns what is answered, cut at [`MAX_ANSWER`].
    pub fn post_with(
        &self,
        query: &[(&str, String)],
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Vec<u8>, Failure> {
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
        let url = shown(&self.url);
        let mut answer = request.send(body).map_err(|error| {
            let advice = tls::advice(&error);
            anyhow!(error).context(format!("Cannot post to {url}{advice}"))
        })?;
        if answer.status().is_success() {
            return Ok(read_up_to(MAX_ANSWER, &mut answer));
        }
        let status = answer.status().as_u16();
        let after = answer.headers().get("Retry-After");
        let after = after.and_then(|value| value.to_str().ok()?.parse().ok());
        let text = read_up_to(MAX_ERROR, &mut answer);
        let text = kvmprof_report::text::visible(&String::from_utf8_lossy(&text));
        let error = anyhow!("{url} answers {status}: {text}");
        // What is wrong with this one batch is wrong for ever; all else may be mended.
        Err(match status {
            400 | 413 | 415 | 422 => Failure::Refused(error),
            _ => Failure::Retry {
                error,
                after: after.map(Duration::from_secs),
            },
        })
    }
}

/// `url` as it is told: its query may be a secret.
pub fn shown(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or_default()
}

/// The first bytes of an answer, as far as they come: what the sink says is worth having, but not needed.
fn read_up_to(length: usize, answer: &mut Response<Body>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let reader = answer.body_mut().as_reader();
    let _ = reader.take(length as u64).read_to_end(&mut bytes);
    bytes
}

/// `plain` values, and those that are in `files`, which are read now.
pub fn with_values(
    plain: &BTreeMap<String, String>,
    files: &BTreeMap<String, PathBuf>,
) -> anyhow::Result<BTreeMap<String, String>> {
    let mut values = plain.clone();
    for (name, path) in files {
        values.insert(name.clone(), read_value(path)?);
    }
    Ok(values)
}

fn read_value(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MAX_VALUE).read_to_string(&mut text))
        .with_context(|| format!("Cannot read {}", path.display()))?;
    Ok(text.trim_end().to_owned())
}
