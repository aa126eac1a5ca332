//! The sinks' part of the configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

/// Maximum number of sinks.
const MAX_SINKS: usize = 16;
/// Default time span of a Parquet file, in seconds.
const PARQUET_SECONDS: u64 = 300;
/// The beginnings of the URLs of object stores.
const STORES: [&str; 3] = ["s3://", "gs://", "az://"];

/// A sink.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "SinkKeys")]
pub struct SinkConfig {
    /// Its name, under which its position in the spool is stored.
    pub name: String,
    /// Its kind and its settings.
    pub kind: SinkKind,
}

/// The kinds of sinks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkKind {
    /// A folder of Parquet files.
    Parquet {
        /// The folder.
        folder: PathBuf,
        /// The approximate time span of a file, in seconds.
        seconds: u64,
    },
    /// Parquet files in an object store.
    Objects {
        /// The place in the store.
        bucket: Bucket,
        /// The approximate time span of an object, in seconds.
        seconds: u64,
    },
    /// Pyroscope's `/ingest`, or a compatible server.
    Pyroscope(Endpoint),
    /// Parca's `/api/v1/profiles/writeraw`.
    Parca(Endpoint),
    /// OTLP profiles over HTTP.
    Otlp(Endpoint),
    /// OTLP profiles over gRPC.
    OtlpGrpc(Endpoint),
}

/// The address of a sink for HTTP or gRPC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// The URL. For HTTP it has the whole path.
    pub url: String,
    /// Headers of each request.
    pub headers: BTreeMap<String, String>,
    /// Headers of each request whose values are in files, such as tokens and passwords.
    pub header_files: BTreeMap<String, PathBuf>,
    /// Who is trusted there, and what this side shows.
    pub tls: Tls,
}

/// A place in an object store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`.
    pub url: String,
    /// Options of the store's client in addition to the environment, such as its region.
    pub options: BTreeMap<String, String>,
    /// Options whose values are in files, such as keys.
    pub option_files: BTreeMap<String, PathBuf>,
    /// Who is trusted there, and what this side shows.
    pub tls: Tls,
}

/// Files for TLS, all in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Certificates of trusted authorities, which replace the system's.
    pub ca_file: Option<PathBuf>,
    /// The client certificate, with the certificates between it and its authority.
    pub certificate_file: Option<PathBuf>,
    /// Its private key.
    pub key_file: Option<PathBuf>,
}

impl Tls {
    fn is_given(&self) -> bool {
        *self != Self::default()
    }
}

/// The keys of a sink.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SinkKeys {
    name: String,
    r#type: String,
    protocol: Option<String>,
    folder: Option<PathBuf>,
    seconds: Option<u64>,
    url: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    header_files: Option<BTreeMap<String, PathBuf>>,
    options: Option<BTreeMap<String, String>>,
    option_files: Option<BTreeMap<String, PathBuf>>,
    ca_file: Option<PathBuf>,
    certificate_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
}

impl TryFrom<SinkKeys> for SinkConfig {
    type Error = String;

    fn try_from(mut keys: SinkKeys) -> Result<Self, String> {
        let name = std::mem::take(&mut keys.name);
        let kind = keys
            .into_kind()
            .map_err(|message| format!("sink {name}: {message}"))?;
        Ok(Self { name, kind })
    }
}

impl SinkKeys {
    fn into_kind(mut self) -> Result<SinkKind, String> {
        let tls = Tls {
            ca_file: self.ca_file.take(),
            certificate_file: self.certificate_file.take(),
            key_file: self.key_file.take(),
        };
        if self.protocol.is_some() && self.r#type != "otlp" {
            return Err("protocol is for otlp".to_owned());
        }
        if self.r#type == "parquet" {
            return self.into_parquet(tls);
        }
        if self.folder.is_some() || self.seconds.is_some() {
            return Err("folder and seconds are for parquet".to_owned());
        }
        if self.options.is_some() || self.option_files.is_some() {
            return Err("options and option_files are for parquet".to_owned());
        }
        let endpoint = Endpoint {
            url: self.url.ok_or("url is missing")?,
            headers: self.headers.unwrap_or_default(),
            header_files: self.header_files.unwrap_or_default(),
            tls,
        };
        Ok(match (self.r#type.as_str(), self.protocol.as_deref()) {
            ("pyroscope", _) => SinkKind::Pyroscope(endpoint),
            ("parca", _) => SinkKind::Parca(endpoint),
            ("otlp", None | Some("http")) => SinkKind::Otlp(endpoint),
            ("otlp", Some("grpc")) => SinkKind::OtlpGrpc(endpoint),
            ("otlp", _) => return Err("protocol is http or grpc".to_owned()),
            _ => return Err("type is parquet, pyroscope, parca or otlp".to_owned()),
        })
    }

    fn into_parquet(self, tls: Tls) -> Result<SinkKind, String> {
        if self.headers.is_some() || self.header_files.is_some() {
            return Err("parquet has no headers".to_owned());
        }
        let seconds = self.seconds.unwrap_or(PARQUET_SECONDS);
        let bucket = Bucket {
            url: self.url.unwrap_or_default(),
            options: self.options.unwrap_or_default(),
            option_files: self.option_files.unwrap_or_default(),
            tls,
        };
        match self.folder {
            None if bucket.url.is_empty() => Err("folder or url is missing".to_owned()),
            None => Ok(SinkKind::Objects { bucket, seconds }),
            Some(folder) if bucket == Bucket::default() => {
                Ok(SinkKind::Parquet { folder, seconds })
            }
            Some(_) => Err("folder excludes url and its options".to_owned()),
        }
    }
}

/// Checks values that the parser doesn't check.
pub(super) fn check(sinks: &[SinkConfig]) -> Result<(), String> {
    if sinks.len() > MAX_SINKS {
        return Err(format!("sink: there may be {MAX_SINKS}"));
    }
    for (index, sink) in sinks.iter().enumerate() {
        let name = &sink.name;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if name.is_empty() || name.len() > 64 || !name.bytes().all(is_plain) {
            return Err(format!(
                "sink '{}': a name has letters, digits, - and _, 64 at most",
                name.escape_default()
            ));
        }
        if sinks.iter().take(index).any(|other| other.name == *name) {
            return Err(format!("sink {name}: there are two of this name"));
        }
        let checked = match &sink.kind {
            SinkKind::Parquet { .. } => Ok(()),
            SinkKind::Objects { bucket, .. } => check_bucket(bucket),
            SinkKind::Pyroscope(endpoint)
            | SinkKind::Parca(endpoint)
            | SinkKind::Otlp(endpoint)
            | SinkKind::OtlpGrpc(endpoint) => check_endpoint(endpoint),
        };
        checked.map_err(|message| format!("sink {name}: {message}"))?;
    }
    Ok(())
}

/// Checks an address. Messages don't quote it, as it may have a secret.
fn check_endpoint(endpoint: &Endpoint) -> Result<(), String> {
    let url = endpoint.url.as_str();
    let (https, http) = (url.strip_prefix("https://"), url.strip_prefix("http://"));
    let Some(rest) = https.or(http) else {
        return Err("url has to begin with http:// or https://".to_owned());
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(
            "url must not have a user or a password: use header_files for secrets".to_owned(),
        );
    }
    if https.is_none() && endpoint.tls.is_given() {
        return Err("ca_file, certificate_file and key_file need an https:// url".to_owned());
    }
    check_tls(&endpoint.tls)
}

fn check_bucket(bucket: &Bucket) -> Result<(), String> {
    let rest = STORES
        .iter()
        .find_map(|store| bucket.url.strip_prefix(store));
    let name = rest.and_then(|rest| rest.split('/').next());
    if name.is_none_or(str::is_empty) || bucket.url.contains(['@', '?', '#']) {
        return Err(
            "url is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX".to_owned(),
        );
    }
    check_tls(&bucket.tls)
}

fn check_tls(tls: &Tls) -> Result<(), String> {
    if tls.certificate_file.is_some() != tls.key_file.is_some() {
        return Err("certificate_file and key_file go together".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn check_text(text: &str) -> Result<Vec<SinkConfig>, String> {
        let config: Config = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        config.check().map_err(|error| error.to_string())?;
        Ok(config.sink)
    }

    fn sink(kind: &str, keys: &str) -> String {
        format!("[[sink]]\nname = 'a'\ntype = '{kind}'\n{keys}\n")
    }

    #[test]
    fn invalid_settings_are_refused() {
        let lake = sink("parquet", "folder = 'x'");
        for (text, words) in [
            (lake.replace("'a'", "'a/b'"), "a/b"),
            (format!("{lake}{lake}"), "two"),
            (sink("otlp", "url = 'ftp://x/'"), "http:// or https://"),
            (sink("kafka", "url = 'http://x/'"), "type is"),
            (sink("otlp", ""), "url is missing"),
            (sink("otlp", "uri = 'x'"), "uri"),
            (
                sink("otlp", "url = 'http://x'\nprotocol = 'quic'"),
                "protocol",
            ),
            (
                sink("parca", "url = 'http://x'\nprotocol = 'grpc'"),
                "protocol",
            ),
            (
                sink("parca", "url = 'http://x'\nca_file = 'x'"),
                "need an https:// url",
            ),
            (
                sink("parca", "url = 'https://x'\nkey_file = 'x'"),
                "go together",
            ),
            (sink("parca", "url = 'https://x'\noptions = {}"), "options"),
            (sink("parquet", ""), "folder or url"),
            (sink("parquet", "folder = 'x'\nurl = 's3://x'"), "exclude"),
            (sink("parquet", "url = 'https://x'"), "s3://BUCKET"),
            (sink("parquet", "url = 's3:///x'"), "s3://BUCKET"),
            (sink("parquet", "url = 's3://x'\nheaders = {}"), "headers"),
        ] {
            let error = check_text(&text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
        for url in ["https://me:pa55@x/", "http://pa55@x:1/"] {
            let error = check_text(&sink("otlp", &format!("url = '{url}'"))).unwrap_err();
            assert!(error.contains("header_files") && !error.contains("pa55"));
        }
    }

    #[test]
    fn kinds_are_distinguished() {
        let kind = |text: &str| check_text(text).unwrap().remove(0).kind;
        let grpc = kind(&sink("otlp", "url = 'https://x:1'\nprotocol = 'grpc'"));
        assert!(matches!(grpc, SinkKind::OtlpGrpc(_)), "{grpc:?}");
        let keys = "url = 'gs://b/p/q'\noptions = { region = 'r' }\nca_file = 'c'";
        let SinkKind::Objects { bucket, seconds } = kind(&sink("parquet", keys)) else {
            panic!("{keys}");
        };
        assert_eq!((bucket.options.len(), seconds), (1, PARQUET_SECONDS));
        assert_eq!(bucket.tls.ca_file, Some("c".into()));
    }
}
