//! What a launcher tells the collector: each message is a packet with a JSON object, in one direction. The collector says nothing.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Maximum length of a message in bytes: a byte of text takes six of them at most.
pub const BYTES: usize = 32 << 10;
/// Maximum length of a text in bytes. Longer ones are cut.
const MAX_TEXT: usize = 4 << 10;
/// Maximum length of a guest's name in bytes.
pub const MAX_NAME: usize = 128;
/// Maximum number of a guest's labels. All of them have room in a message.
const MAX_LABELS: usize = 8;
/// Maximum length of a label's key in bytes.
const MAX_KEY: usize = 64;
/// Maximum length of a label's value in bytes.
pub const MAX_VALUE: usize = 256;

/// A VMM's process. Its pid and its start time, in clock ticks since the host's start, together are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    /// Its pid.
    pub pid: i32,
    /// Its start time.
    pub start_time: u64,
}

/// As a word of the command line of `kvmprof attach`.
impl fmt::Display for Process {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.pid, self.start_time)
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum LauncherMessage {
    /// A guest is being attached to. The pipe with its recording comes along.
    Guest {
        /// Its VMM.
        process: Process,
        /// Its name, which no other guest of the launcher has.
        name: String,
        /// Its labels by rules of the configuration.
        labels: BTreeMap<String, String>,
    },
    /// The exits of a guest that was told of are being counted. The pipe with them comes along.
    Exits {
        /// Its VMM.
        process: Process,
    },
    /// A `kvmprof attach` has ended. It is started again while the guest is there.
    Ended {
        /// The guest's VMM.
        process: Process,
        /// Whether it has failed.
        has_failed: bool,
        /// What it has said about that.
        said: String,
    },
    /// Number of guests that aren't attached to because of the limit.
    LeftOut(u32),
    /// Why a guest, or none, can be attached to.
    Warning(String),
}

/// A message that no launcher sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it sends messages of another form: the launcher and the collector have to be of the same release"
)]
pub struct UnknownMessage;

impl LauncherMessage {
    /// Its bytes, [`BYTES`] at most. What is too long is cut.
    pub fn encode(&self) -> Vec<u8> {
        let mut told = self.clone();
        match &mut told {
            Self::Guest { name, labels, .. } => {
                shorten(name, MAX_NAME);
                let all = std::mem::take(labels).into_iter().take(MAX_LABELS);
                labels.extend(all.map(|(mut key, mut value)| {
                    shorten(&mut key, MAX_KEY);
                    shorten(&mut value, MAX_VALUE);
                    (key, value)
                }));
            }
            Self::Ended { said: text, .. } | Self::Warning(text) => shorten(text, MAX_TEXT),
            Self::Exits { .. } | Self::LeftOut(_) => {}
        }
        // It has no map whose keys aren't text, for which this could fail.
        serde_json::to_vec(&told).unwrap_or_default()
    }

    /// The message in `bytes`, with which `files` files have come.
    ///
    /// # Errors
    /// They aren't one: another form, other files, a process that there can't be, or a name or labels that are too long.
    pub fn decode(bytes: &[u8], files: usize) -> Result<Self, UnknownMessage> {
        let told: Self = serde_json::from_slice(bytes).map_err(|_| UnknownMessage)?;
        let is_valid = match &told {
            Self::Guest {
                process,
                name,
                labels,
            } => {
                let fit = |(key, value): (&String, &String)| {
                    (1..=MAX_KEY).contains(&key.len()) && value.len() <= MAX_VALUE
                };
                process.pid > 0
                    && (1..=MAX_NAME).contains(&name.len())
                    && labels.len() <= MAX_LABELS
                    && labels.iter().all(fit)
            }
            Self::Exits { process } | Self::Ended { process, .. } => process.pid > 0,
            Self::LeftOut(_) | Self::Warning(_) => true,
        };
        let expected = usize::from(matches!(told, Self::Guest { .. } | Self::Exits { .. }));
        (is_valid && files == expected)
            .then_some(told)
            .ok_or(UnknownMessage)
    }
}

fn shorten(text: &mut String, limit: usize) {
    text.truncate(cut(text, limit).len());
}

/// The begin of `text`, of at most `limit` bytes.
pub fn cut(text: &str, limit: usize) -> &str {
    let mut ends = (0..=limit.min(text.len())).rev();
    let end = ends.find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESS: Process = Process {
        pid: 4711,
        start_time: 98_765,
    };

    fn guest(name: &str, labels: &[(&str, &str)]) -> LauncherMessage {
        let labels = labels.iter();
        let labels = labels.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        LauncherMessage::Guest {
            process: PROCESS,
            name: name.to_owned(),
            labels: labels.collect(),
        }
    }

    /// A message of each kind, and how many files come with it.
    fn all() -> Vec<(LauncherMessage, usize)> {
        let ended = |has_failed| LauncherMessage::Ended {
            process: PROCESS,
            has_failed,
            said: "the guest has rebooted".to_owned(),
        };
        vec![
            (guest("db-1", &[]), 1),
            (guest("db-1", &[("stage", "a=b\0"), ("state", "x")]), 1),
            (ended(false), 0),
            (ended(true), 0),
            (LauncherMessage::LeftOut(94), 0),
            (LauncherMessage::Warning("no rights".to_owned()), 0),
            (LauncherMessage::Exits { process: PROCESS }, 1),
        ]
    }

    #[test]
    fn only_whole_messages_with_their_files_are_understood() {
        for (told, files) in all() {
            let bytes = told.encode();
            assert_eq!(LauncherMessage::decode(&bytes, files), Ok(told));
            for length in 0..bytes.len() {
                assert_eq!(
                    LauncherMessage::decode(&bytes[..length], files),
                    Err(UnknownMessage)
                );
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(LauncherMessage::decode(&longer, files), Err(UnknownMessage));
            for other in [0, 1, 2, 7].into_iter().filter(|other| *other != files) {
                assert_eq!(LauncherMessage::decode(&bytes, other), Err(UnknownMessage));
            }
        }
        assert_eq!(PROCESS.to_string(), "4711:98765");
    }

    /// Fields that the form allows and the meaning doesn't.
    #[test]
    fn parts_that_a_message_does_not_have_are_refused() {
        let many: BTreeMap<String, &str> = (0..=MAX_LABELS).map(|n| (n.to_string(), "")).collect();
        let many = serde_json::to_string(&many).unwrap();
        let long = |length: usize| "x".repeat(length + 1);
        let long_name = long(MAX_NAME);
        let long_key = format!("{{\"{}\":\"\"}}", long(MAX_KEY));
        let long_value = format!("{{\"k\":\"{}\"}}", long(MAX_VALUE));
        let text = |told: &LauncherMessage| String::from_utf8(told.encode()).unwrap();
        let [guest, _, ended, _, left_out, warning, exits] = <[_; 7]>::try_from(all())
            .unwrap()
            .map(|(told, _)| text(&told));
        for (message, files, from, to) in [
            (&guest, 1, "Guest", "Other"),
            (&guest, 1, "4711", "0"),
            (&guest, 1, "4711", "-1"),
            (&guest, 1, "db-1", ""),
            (&guest, 1, "db-1", long_name.as_str()),
            (&guest, 1, "{}", many.as_str()),
            (&guest, 1, "{}", long_key.as_str()),
            (&guest, 1, "{}", long_value.as_str()),
            (&guest, 1, "{}", "{},\"said\":\"\""),
            (&ended, 0, "4711", "0"),
            (&exits, 1, "4711", "0"),
            (&ended, 0, "false", "0"),
            (&left_out, 0, "94", "4294967296"),
            (&warning, 0, "no rights", "\u{1}"),
        ] {
            assert!(
                LauncherMessage::decode(message.as_bytes(), files).is_ok()
                    && message.contains(from)
            );
            let changed = message.replace(from, to);
            let read = LauncherMessage::decode(changed.as_bytes(), files);
            assert_eq!(read, Err(UnknownMessage), "{changed}");
        }
        let mut no_text = warning.into_bytes();
        let last = no_text.len() - 3;
        no_text[last] = 0xff;
        assert_eq!(LauncherMessage::decode(&no_text, 0), Err(UnknownMessage));
    }

    /// Also where each byte takes the most room.
    #[test]
    fn long_texts_are_cut_between_characters() {
        for (long, shown) in [("é", MAX_TEXT / 2), ("\u{1}", MAX_TEXT)] {
            let told = LauncherMessage::Warning(long.repeat(MAX_TEXT + 1)).encode();
            assert!(told.len() <= BYTES, "{}", told.len());
            let expected = LauncherMessage::Warning(long.repeat(shown));
            assert_eq!(LauncherMessage::decode(&told, 0), Ok(expected));
        }
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("aé", 3), "aé");
        // As long as they may be, all labels have room.
        let key = "\u{1}".repeat(MAX_KEY - 1);
        let keys = (0..MAX_LABELS).map(|number| format!("{number}{key}"));
        let keys: Vec<String> = keys.collect();
        let value = "\u{1}".repeat(MAX_VALUE);
        let labels = keys.iter().map(|key| (key.as_str(), value.as_str()));
        let labels: Vec<(&str, &str)> = labels.collect();
        let told = guest(&"x".repeat(MAX_NAME + 1), &labels).encode();
        assert!(told.len() <= BYTES, "{}", told.len());
        let expected = guest(&"x".repeat(MAX_NAME), &labels);
        assert_eq!(LauncherMessage::decode(&told, 1), Ok(expected));
    }
}
