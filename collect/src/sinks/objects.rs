//! Object stores: S3 and compatible stores, Google Cloud Storage, Azure.
//!
//! The crate object_store has their protocols and credentials. Requests use the same HTTP client as other sinks.

use std::io::Read;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use async_trait::async_trait;
use http_body_util::{BodyExt, Full};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ClientConfigKey, ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig};
use prost::bytes::Bytes;
use tokio::runtime::{Builder, Runtime};
use ureq::Agent;

use super::parquet::{NamedWindow, RefusedFile, Target, write_rows};
use super::{http, tls};
use crate::config::Bucket;

/// The lowest rate that is accepted, in bytes per second: the maximum time of a request depends on its length.
const SLOWEST: u64 = 64 << 10;
/// Maximum length of an answer in bytes, and of the part of an error that is logged in characters.
const MAX_ANSWER: u64 = 1 << 20;
const MAX_TEXT: usize = 1000;

/// Error codes of answers with the status 400 that are about the object. All others may be about the credentials, such as S3's `ExpiredToken`, or about the bucket.
const REFUSALS: [&str; 4] = [
    "EntityTooLarge",
    "KeyTooLong",
    "KeyTooLongError",
    "OutOfRangeInput",
];

/// A place in an object store.
pub struct Objects {
    runtime: Runtime,
    store: Box<dyn ObjectStore>,
    url: String,
    prefix: String,
    /// Whether the last answer says that the object will never be accepted.
    is_refused: Arc<AtomicBool>,
}

impl Objects {
    /// The place that `bucket` names. Reads the files of the configuration, and the variables of the environment that other programs use, too, such as `AWS_REGION`.
    pub fn new(bucket: &Bucket) -> anyhow::Result<Self> {
        let is_refused = Arc::new(AtomicBool::new(false));
        let connector = Connector {
            agent: http::agent(tls::client(&bucket.tls, true)?),
            is_refused: Arc::clone(&is_refused),
        };
        let (_, rest) = bucket.url.split_once("://").unwrap_or_default();
        let (_, prefix) = rest.split_once('/').unwrap_or_default();
        Ok(Self {
            runtime: Builder::new_current_thread().enable_time().build()?,
            store: store(bucket, connector)?,
            url: bucket.url.clone(),
            prefix: prefix.trim_matches('/').to_owned(),
            is_refused,
        })
    }
}

impl Target for Objects {
    /// Writes an object, which becomes visible when the store has received all of it.
    fn write(&self, folder: &Path, name: &str, windows: &[NamedWindow<'_>]) -> anyhow::Result<()> {
        let rows = write_rows(Vec::new(), windows)?;
        let path = Path::new(&self.prefix).join(folder).join(name);
        let path = object_store::path::Path::parse(path.to_string_lossy())?;
        let put = self.runtime.block_on(self.store.put(&path, rows.into()));
        put.map(drop).map_err(|error| {
            let advice = tls::advice(&error);
            let text = kvmprof_report::text::visible(&error.to_string());
            let text: String = text.chars().take(MAX_TEXT).collect();
            let message = format!("Cannot write to {}{advice}: {text}", self.url);
            if self.is_refused.load(Ordering::Relaxed) {
                return RefusedFile(message).into();
            }
            anyhow!(message)
        })
    }
}

/// The store with this URL. It doesn't repeat failed requests: the sink does, and counts them.
fn store(bucket: &Bucket, connector: Connector) -> anyhow::Result<Box<dyn ObjectStore>> {
    let options = http::with_values(&bucket.options, &bucket.option_files)?;
    let url = bucket.url.as_str();
    let retry = RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    };
    let failed = "The options of the object store, or the environment, are wrong";
    Ok(match url.split("://").next() {
        Some("s3") => {
            let mut builder = AmazonS3Builder::from_env().with_url(url);
            for (name, value) in options {
                builder = builder.with_config(key::<AmazonS3ConfigKey>(&name)?, value);
            }
            let builder = builder.with_retry(retry).with_http_connector(connector);
            Box::new(builder.build().context(failed)?)
        }
        Some("gs") => {
            // The crate's default allows it because of the machine's metadata server, whose requests have other options.
            let allow_http = GoogleConfigKey::Client(ClientConfigKey::AllowHttp);
            let allowed = std::env::var("GOOGLE_ALLOW_HTTP").unwrap_or_default() == "true";
            let mut builder = GoogleCloudStorageBuilder::new().with_url(url);
            // The builder's own `from_env` takes `SERVICE_ACCOUNT`, too, which may be any program's.
            for (name, value) in std::env::vars_os() {
                let name = name.to_str().filter(|name| name.starts_with("GOOGLE_"));
                let key = name.and_then(|name| name.to_ascii_lowercase().parse().ok());
                if let (Some(key), Some(value)) = (key, value.to_str()) {
                    builder = builder.with_config(key, value);
                }
            }
            builder = builder.with_config(allow_http, allowed.to_string());
            for (name, value) in options {
                builder = builder.with_config(key::<GoogleConfigKey>(&name)?, value);
            }
            let builder = builder.with_retry(retry).with_http_connector(connector);
            Box::new(builder.build().context(failed)?)
        }
        Some("az") => {
            let mut builder = MicrosoftAzureBuilder::from_env().with_url(url);
            for (name, value) in options {
                builder = builder.with_config(key::<AzureConfigKey>(&name)?, value);
            }
            let builder = builder.with_retry(retry).with_http_connector(connector);
            Box::new(builder.build().context(failed)?)
        }
        _ => bail!("There is no such object store"),
    })
}

fn key<K: FromStr>(name: &str) -> anyhow::Result<K> {
    let key = name.to_ascii_lowercase().parse();
    key.map_err(|_| anyhow!("options: this object store has no {name}"))
}

/// Gives the store an HTTP client.
#[derive(Debug)]
struct Connector {
    agent: Agent,
    is_refused: Arc<AtomicBool>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allowed = options.get_config_value(&ClientConfigKey::AllowHttp);
        Ok(HttpClient::new(Service {
            agent: self.agent.clone(),
            is_refused: Arc::clone(&self.is_refused),
            is_plain_allowed: allowed.is_some_and(|allowed| allowed == "true"),
        }))
    }
}

#[derive(Debug)]
struct Service {
    agent: Agent,
    is_refused: Arc<AtomicBool>,
    is_plain_allowed: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("the store has an http:// address: allow_http = \"true\" in options lets it be used")]
struct PlainHttp;

#[async_trait]
impl HttpService for Service {
    /// Sends a request, and blocks until its answer: the sink's thread has nothing else to do.
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if request.uri().scheme_str() != Some("https") && !self.is_plain_allowed {
            return Err(HttpError::new(HttpErrorKind::Unknown, PlainHttp));
        }
        self.is_refused.store(false, Ordering::Relaxed);
        // Requests for tokens are none.
        let is_object = request.method() == "PUT" && request.uri().path().ends_with(".parquet");
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let time = time_for(body.len());
        let request = ureq::http::Request::from_parts(head, body.as_ref());
        let request = self.agent.configure_request(request);
        let answer = self.agent.run(request.timeout_global(Some(time)).build());
        let answer = answer.map_err(|error| HttpError::new(HttpErrorKind::Request, error))?;
        let (head, mut body) = answer.into_parts();
        let mut bytes = Vec::new();
        let read = body.as_reader().take(MAX_ANSWER).read_to_end(&mut bytes);
        read.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error))?;
        let is_refused = is_object && is_refusal(head.status.as_u16(), &bytes);
        self.is_refused.store(is_refused, Ordering::Relaxed);
        let body = Full::new(Bytes::from(bytes)).map_err(|never| match never {});
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}

/// Maximum time of a request with a body of `bytes` bytes.
fn time_for(bytes: usize) -> Duration {
    http::TIMEOUT + Duration::from_secs(bytes as u64 / SLOWEST)
}

/// Whether an answer with this status is about the object, so that repeating the request is useless.
fn is_refusal(status: u16, answer: &[u8]) -> bool {
    let answer = String::from_utf8_lossy(answer);
    let is_named = |code: &&str| answer.contains(&format!("<Code>{code}</Code>"));
    match status {
        413 | 415 | 422 => true,
        400 => REFUSALS.iter().any(is_named),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_grow_with_the_size_of_an_object() {
        for (bytes, seconds) in [(0, 30), (64 << 10, 31), (16 << 20, 286)] {
            assert_eq!(time_for(bytes).as_secs(), seconds);
        }
    }
}
