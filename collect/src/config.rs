//! The configuration: a TOML file, some of whose values can be replaced by options of the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use kvmprof_attach::{NameRules, RuleError, RuleText};
use serde::Deserialize;

use crate::files::read_text_up_to;
use crate::gather::{LABELS_OF_GROUPS, Policy};
use crate::hash::{Hashed, Key};

mod sinks;

pub use sinks::{Bucket, Endpoint, SinkConfig, SinkKind, Tls};

/// Maximum length of the file in bytes, far above what a configuration needs.
const MAX_FILE: u64 = 1 << 20;
/// Maximum length of a label's name, and of its value, in bytes; maximum number of labels.
const MAX_LABEL: usize = 128;
const MAX_LABELS: usize = 32;
/// The start of the names of labels of samples in /metrics that are labels of processes.
pub(crate) const OF_PROCESSES: &str = "label_";

/// The whole configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Patterns of the paths of guests' sockets.
    pub sockets: Vec<String>,
    /// User ids whose programs at sockets are trusted, besides root and this process's user.
    pub owners: Vec<u32>,
    /// Ticks per second on each vCPU.
    pub hz: u32,
    /// The length of windows, in s.
    pub window: u32,
    /// The host's name. `None`: the system's name.
    pub host: Option<String>,
    /// Whether the kernel's part of call stacks is collected.
    pub kernel_stacks: bool,
    /// Whether the user's part of call stacks is collected.
    pub user_stacks: bool,
    /// Labels that all collected data get.
    pub labels: BTreeMap<String, String>,
    /// The keys of labels of processes that leave this program.
    pub process_labels: Vec<String>,
    /// Limits of memory and of the number of names.
    pub limits: LimitsConfig,
    /// The spool, in which batches wait for the sinks.
    pub spool: SpoolConfig,
    /// The page for Prometheus.
    pub metrics: MetricsConfig,
    /// Patterns of names of processes and threads that don't leave this program: their ticks count as those of `other`.
    pub drop: Vec<String>,
    /// Names of processes and threads that leave this program as a hash.
    pub hash: HashConfig,
    /// Guests of other VMMs.
    pub attach: AttachConfig,
    /// The sinks, which receive the batches.
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
    /// Whether the stacks of these processes and threads are kept.
    pub stacks: bool,
    /// The key, once it has been read.
    #[serde(skip)]
    pub key: Option<Key>,
}

/// Guests of other VMMs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AttachConfig {
    /// Patterns of their names, their VMMs' programs or pids. If it is empty, no such guest is followed.
    pub guests: Vec<String>,
    /// How samples are taken.
    pub capture: Capture,
    /// Whether their exits are counted.
    pub exits: bool,
    /// Maximum number of guests that are attached to at a time.
    pub limit: usize,
    /// The socket of the launcher, which attaches by its own configuration. `None`: the collector starts one itself.
    pub launcher: Option<PathBuf>,
    /// For a launcher: the user whose collectors may connect to its socket, besides root's and its own.
    pub user: Option<u32>,
    /// Rules for names and labels of guests.
    pub rule: Vec<RuleConfig>,
}

/// A rule for the name and the labels of guests: what it means is what [`RuleText`] does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RuleConfig {
    /// An expression for the VMM's command line.
    pub command_line: Option<String>,
    /// An expression for the VMM's control group.
    pub cgroup: Option<String>,
    /// The guest's name.
    pub name: Option<String>,
    /// The guest's labels.
    pub labels: BTreeMap<String, String>,
}

impl AttachConfig {
    /// The rules for names and labels of guests.
    ///
    /// # Errors
    /// One is wrong.
    pub fn name_rules(&self) -> Result<NameRules, RuleError> {
        let rules = self.rule.iter().cloned();
        let texts = rules.map(|rule| RuleText {
            command_line: rule.command_line,
            cgroup: rule.cgroup,
            name: rule.name,
            labels: rule.labels,
        });
        NameRules::new(&texts.collect::<Vec<_>>())
    }
}

/// How samples of a guest of another VMM are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Capture {
    /// kvmprof stops the vCPU for each sample.
    #[default]
    Ptrace,
    /// The host's kernel takes them.
    Kernel,
}

impl Capture {
    /// Its name in `kvmprof attach --capture`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ptrace => "ptrace",
            Self::Kernel => "kernel",
        }
    }

    /// Whether its ticks can have a random phase.
    pub fn has_jitter(self) -> bool {
        self == Self::Ptrace
    }
}

/// Limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Maximum number of guests at a time.
    pub guests: usize,
    /// Maximum number of names of processes of a guest, in a window and in metrics.
    pub processes: usize,
    /// Maximum number of names of threads of a guest in a window.
    pub threads: usize,
}

/// The spool.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpoolConfig {
    /// Its folder.
    pub folder: PathBuf,
    /// Its maximum size in MiB.
    pub mebibytes: u64,
}

/// The page for Prometheus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    /// The address at which it is served. `None`: it isn't served.
    pub listen: Option<SocketAddr>,
    /// The keys of labels of processes that samples have there.
    pub labels: Vec<String>,
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
            process_labels: LABELS_OF_GROUPS.map(str::to_owned).to_vec(),
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

impl MetricsConfig {
    /// Checks the keys of labels of processes, of which those of `leaving` leave this program. Data have the `others` beside them.
    fn check(&self, leaving: &[String], others: &BTreeMap<String, String>) -> Result<(), String> {
        check_keys("process_labels", leaving)?;
        check_keys("metrics.labels", &self.labels)?;
        for key in &self.labels {
            if others.contains_key(&format!("{OF_PROCESSES}{key}")) {
                return Err(format!("metrics.labels: {key} is there twice"));
            }
            if !leaving.contains(key) {
                return Err(format!("metrics.labels: {key} isn't in process_labels"));
            }
        }
        Ok(())
    }
}

impl Default for AttachConfig {
    fn default() -> Self {
        Self {
            guests: Vec::new(),
            capture: Capture::default(),
            exits: false,
            limit: 64,
            launcher: None,
            user: None,
            rule: Vec::new(),
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
    /// It can't be read, isn't TOML, or has unknown keys or values of a wrong type.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = read_text_up_to(path, MAX_FILE);
        let text = text.with_context(|| format!("Cannot read {}", path.display()))?;
        Self::parse(&text, path)
    }

    /// Parses `text`, the contents of the file at `path`.
    fn parse(text: &str, path: &Path) -> anyhow::Result<Self> {
        toml::from_str(text).map_err(|error| {
            let before = error.span().map_or(0, |span| span.start);
            let line = text.get(..before).unwrap_or_default().matches('\n').count() + 1;
            let message = without_value(error.message());
            anyhow!("{}: line {line}: {message}", path.display())
        })
    }

    /// The host's name: that of the configuration, or else the system's.
    pub fn host_name(&self) -> String {
        self.host.clone().unwrap_or_else(system_name)
    }

    /// The names that windows keep. Invalid patterns are left out: [`check`](Self::check) refuses them.
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
            labels: self.process_labels.clone(),
        }
    }

    /// Reads the key with which names are hashed, if any are to be.
    ///
    /// # Errors
    /// No key file is given, or the key can't be used.
    pub fn read_key(&mut self) -> anyhow::Result<()> {
        if !self.hash.processes.is_empty() {
            let path = self.hash.key_file.as_ref();
            let path = path.context("hash: key_file is missing")?;
            self.hash.key = Some(Key::read(path).context("hash")?);
        }
        Ok(())
    }

    /// The folders in which the collector makes files: those of the spool and of Parquet files.
    pub fn folders(&self) -> Vec<PathBuf> {
        let of_sinks = self.sink.iter().filter_map(|sink| match &sink.kind {
            SinkKind::Parquet { folder, .. } => Some(folder.clone()),
            _ => None,
        });
        of_sinks.chain([self.spool.folder.clone()]).collect()
    }

    /// Checks values that the parser doesn't check.
    ///
    /// # Errors
    /// One isn't allowed.
    pub fn check(&self) -> anyhow::Result<()> {
        let wrong = |message: String| Err(anyhow!(message));
        if !(1..=10_000).contains(&self.hz) {
            return wrong(format!("hz = {}: it has to be 1 to 10000", self.hz));
        }
        if !(1..=3600).contains(&self.window) {
            return wrong(format!(
                "window = {}: it has to be 1 to 3600 s",
                self.window
            ));
        }
        let attach = &self.attach;
        if self.sockets.is_empty() && attach.guests.is_empty() && attach.launcher.is_none() {
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
        if let Err(error) = attach.name_rules() {
            return wrong(format!("attach: {error}"));
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
        (self.metrics.check(&self.process_labels, &self.labels)).or_else(wrong)?;
        sinks::check(&self.sink).or_else(wrong)
    }
}

/// serde's message without the value that it quotes, which may be a token or a password: `invalid type: string, expected a map`.
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

/// Names of labels that the metrics, the sinks and the data set use themselves.
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

/// Checks labels: each must be valid in Prometheus and OpenTelemetry, and not be in [`TAKEN`].
fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), String> {
    if labels.len() > MAX_LABELS {
        return Err(format!("labels: there may be {MAX_LABELS}"));
    }
    for (name, value) in labels {
        check_name("labels", name)?;
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

/// The system's name of this host (uname(2)).
pub fn system_name() -> String {
    let name = rustix::system::uname();
    kvmprof_report::text::visible(&name.nodename().to_string_lossy())
}

/// Checks the keys of labels of processes in `list`.
fn check_keys(list: &str, keys: &[String]) -> Result<(), String> {
    if keys.len() > MAX_LABELS {
        return Err(format!("{list}: there may be {MAX_LABELS}"));
    }
    let mut seen = BTreeSet::new();
    for key in keys {
        check_name(list, key)?;
        if !seen.insert(key) {
            return Err(format!("{list}: {key} is there twice"));
        }
    }
    Ok(())
}

/// Checks the name of a label in `list`.
fn check_name(list: &str, name: &str) -> Result<(), String> {
    let mut bytes = name.bytes();
    let begins = bytes.next().is_some_and(|byte| byte.is_ascii_lowercase());
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if !begins || !bytes.all(is_plain) || name.len() > MAX_LABEL {
        return Err(format!(
            "{list}: {name}: a name has letters a to z, digits and _"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
