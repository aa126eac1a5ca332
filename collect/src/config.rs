//! The configuration: a file in TOML, and options of the command line that take its place.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::collector::system_name;
use crate::files::read_text_up_to;
use crate::gather::Policy;
use crate::hash::{Hashed, Key, KeyError};

mod sinks;

pub use sinks::{Bucket, Endpoint, SinkConfig, SinkKind, Tls};

/// Longest file, in bytes: far above any that makes sense.
const MAX_FILE: u64 = 1 << 20;
/// Longest name and value of a label, in bytes, and most labels.
const MAX_LABEL: usize = 128;
const MAX_LABELS: usize = 32;

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("Cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It isn't TOML of this form.
    #[error("{}: {message}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        message: String,
    },
    /// A value makes no sense.
    #[error("{0}")]
    Value(String),
    /// The key can't be used.
    #[error("hash")]
    Key(#[from] KeyError),
}

/// The whole configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Patterns of the paths of guests' sockets.
    pub sockets: Vec<String>,
    /// Users, by number, whose programs at sockets are trusted, besides root and the own one.
    pub owners: Vec<u32>,
    /// Ticks a second on each vCPU.
    pub hz: u32,
    /// The length of windows, in s.
    pub window: u32,
    /// The host's name; without it the one that the system has.
    pub host: Option<String>,
    /// Whether the kernel's part of call stacks is taken.
    pub kernel_stacks: bool,
    /// Whether the user's part is.
    pub user_stacks: bool,
    /// Labels of everything.
    pub labels: BTreeMap<String, String>,
    /// Bounds of memory and of labels.
    pub limits: LimitsConfig,
    /// Where what was collected waits.
    pub spool: SpoolConfig,
    /// The page for Prometheus.
    pub metrics: MetricsConfig,
    /// Patterns of names of processes and threads that are kept to this program: their ticks count as those of `other`.
    pub drop: Vec<String>,
    /// Names of processes and threads that leave this program as a hash.
    pub hash: HashConfig,
    /// Guests of other VMMs.
    pub attach: AttachConfig,
    /// Who gets what was collected.
    pub sink: Vec<SinkConfig>,
}

/// Names that leave this program as a hash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HashConfig {
    /// Patterns of names of processes, and of threads.
    pub processes: Vec<String>,
    /// The file with the key.
    pub key_file: Option<PathBuf>,
    /// Whether their stacks are kept.
    pub stacks: bool,
    /// The key, once it has been read.
    #[serde(skip)]
    pub key: Option<Key>,
}

/// Guests of other VMMs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AttachConfig {
    /// Patterns of their names, their VMMs' programs or pids; none: none are followed.
    pub guests: Vec<String>,
    /// Who takes samples.
    pub capture: Capture,
    /// How many are attached to at a time.
    pub limit: usize,
}

/// Who takes samples of a guest of another VMM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Capture {
    /// kvmprof, which stops the vCPU for each.
    #[default]
    Ptrace,
    /// The host's kernel.
    Kernel,
}

impl Capture {
    /// The word that `kvmprof attach` has for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ptrace => "ptrace",
            Self::Kernel => "kernel",
        }
    }

    /// Whether its clock can have a random phase.
    pub fn has_jitter(self) -> bool {
        self == Self::Ptrace
    }
}

/// Bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Guests at a time.
    pub guests: usize,
    /// Names of processes of a guest, in a window and in metrics.
    pub processes: usize,
    /// Names of threads of a guest in a window.
    pub threads: usize,
}

/// The spool.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpoolConfig {
    /// Its folder.
    pub folder: PathBuf,
    /// MiB that it takes at most.
    pub mebibytes: u64,
}

/// The page for Prometheus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    /// Where it is served; nowhere if it isn't given.
    pub listen: Option<SocketAddr>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            sockets: vec!["/run/kvmprof/*.sock".to_owned()],
            owners: Vec::new(),
            hz: 19,
            window: 10,
            host: None,
            kernel_stacks: true,
            user_stacks: true,
            labels: BTreeMap::new(),
            limits: LimitsConfig::default(),
            spool: SpoolConfig::default(),
            metrics: MetricsConfig::default(),
            drop: Vec::new(),
            hash: HashConfig::default(),
            attach: AttachConfig::default(),
            sink: Vec::new(),
        }
    }
}

impl Default for AttachConfig {
    fn default() -> Self {
        Self {
            guests: Vec::new(),
            capture: Capture::default(),
            limit: 64,
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            guests: 1024,
            processes: 64,
            threads: 256,
        }
    }
}

impl Default for SpoolConfig {
    fn default() -> Self {
        Self {
            folder: "/var/lib/kvmprof-collect".into(),
            mebibytes: 1024,
        }
    }
}

impl Config {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let failed = |source| ConfigError::Read {
            path: path.to_owned(),
            source,
        };
        let text = read_text_up_to(path, MAX_FILE).map_err(failed)?;
        Self::parse(&text, path)
    }

    /// The configuration that `text` is, of the file at `path`.
    fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| {
            let before = error.span().map_or(0, |span| span.start);
            let line = text.get(..before).unwrap_or_default().matches('\n').count() + 1;
            ConfigError::Form {
                path: path.to_owned(),
                message: format!("line {line}: {}", without_value(error.message())),
            }
        })
    }

    /// The host's name: the configuration's, else the one that the system has.
    pub fn host_name(&self) -> String {
        self.host.clone().unwrap_or_else(system_name)
    }

    /// What windows tell apart. Invalid patterns are left out: [`check`](Self::check) refuses them.
    pub fn policy(&self) -> Policy {
        let patterns = |words: &[String]| {
            let patterns = words.iter().map(|word| glob::Pattern::new(word));
            patterns.filter_map(Result::ok).collect()
        };
        let key = self.hash.key.as_ref();
        let hash = key.map(|key| Hashed {
            processes: patterns(&self.hash.processes),
            key: key.clone(),
            keeps_stacks: self.hash.stacks,
        });
        Policy {
            processes: self.limits.processes,
            threads: self.limits.threads,
            drop: patterns(&self.drop),
            hash,
        }
    }

    /// Reads the key that names are hashed with, if there are any.
    ///
    /// # Errors
    /// It isn't named, or can't be used.
    pub fn read_key(&mut self) -> Result<(), ConfigError> {
        if self.hash.processes.is_empty() {
            return Ok(());
        }
        let Some(path) = &self.hash.key_file else {
            return Err(ConfigError::Value("hash: key_file is missing".to_owned()));
        };
        self.hash.key = Some(Key::read(path)?);
        Ok(())
    }

    /// Checks what the form doesn't.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |message: String| Err(ConfigError::Value(message));
        if !(1..=10_000).contains(&self.hz) {
            return wrong(format!("hz = {}: it has to be 1 to 10000", self.hz));
        }
        if !(1..=3600).contains(&self.window) {
            return wrong(format!(
                "window = {}: it has to be 1 to 3600 s",
                self.window
            ));
        }
        if self.sockets.is_empty() && self.attach.guests.is_empty() {
            return wrong("sockets: there has to be a pattern".to_owned());
        }
        for (name, patterns) in [
            ("sockets", &self.sockets),
            ("drop", &self.drop),
            ("hash.processes", &self.hash.processes),
            ("attach.guests", &self.attach.guests),
        ] {
            for pattern in patterns {
                if let Err(error) = glob::Pattern::new(pattern) {
                    return wrong(format!("{name}: {pattern}: {}", error.msg));
                }
            }
        }
        let limits = [
            self.limits.guests,
            self.limits.processes,
            self.limits.threads,
            self.attach.limit,
        ];
        if limits.iter().any(|limit| !(1..=4096).contains(limit)) {
            return wrong("limits, attach.limit: each has to be 1 to 4096".to_owned());
        }
        if self.spool.mebibytes == 0 || self.spool.mebibytes > 1 << 24 {
            return wrong("spool: mebibytes has to be 1 to 16777216".to_owned());
        }
        check_labels(&self.labels).or_else(wrong)?;
        sinks::check(&self.sink).or_else(wrong)
    }
}

/// serde's message without the value that it tells of, which may be a token or a password: `invalid type: string, expected a map`.
fn without_value(message: &str) -> String {
    for begin in ["invalid type: ", "invalid value: ", "unknown variant "] {
        let Some(rest) = message.strip_prefix(begin) else {
            continue;
        };
        let (found, expected) = rest.rsplit_once(", expected ").unwrap_or((rest, "another"));
        // Its kind stands before the value.
        let kind = found.split(['"', '`']).next().unwrap_or_default();
        let begin = format!("{begin}{kind}");
        return format!("{}, expected {expected}", begin.trim_end());
    }
    message.to_owned()
}

/// Labels that the page of metrics, the sinks and the data set have themselves.
pub(crate) const TAKEN: [&str; 12] = [
    "date",
    "event",
    "fate",
    "guest",
    "host",
    "kernel",
    "mode",
    "process",
    "release",
    "service_name",
    "sink",
    "thread",
];

/// A label must be valid in Prometheus and OpenTelemetry, and not be one of our own.
fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), String> {
    if labels.len() > MAX_LABELS {
        return Err(format!("labels: there may be {MAX_LABELS}"));
    }
    for (name, value) in labels {
        let begins = name
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_lowercase());
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if !begins || !name.bytes().all(is_plain) || name.len() > MAX_LABEL {
            return Err(format!(
                "labels: {name}: a name has letters a to z, digits and _"
            ));
        }
        if TAKEN.contains(&name.as_str()) {
            return Err(format!("labels: {name} has a meaning of its own"));
        }
        if value.len() > MAX_LABEL {
            return Err(format!(
                "labels: {name}: the value is longer than {MAX_LABEL} bytes"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
