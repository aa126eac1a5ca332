//! What a launcher tells the collector: messages of one length, in one direction. The collector says nothing.

use std::collections::BTreeMap;
use std::fmt;

/// The length of each message, in bytes.
pub const BYTES: usize = 4096;
/// The part before the text: the kind, the pid, a number of 64 bits, and the text's length, little-endian.
const HEAD: usize = 20;
/// Maximum length of a text in bytes. Longer ones are cut.
const MAX_TEXT: usize = BYTES - HEAD;
/// Maximum length of a guest's name in bytes.
pub const MAX_NAME: usize = 128;
/// Maximum number of a guest's labels. All of them have room in a message.
const MAX_LABELS: usize = 8;
/// Maximum length of a label's key in bytes.
const MAX_KEY: usize = 64;
/// Maximum length of a label's value in bytes.
pub const MAX_VALUE: usize = 256;

/// A VMM's process. Its pid and its start time, in clock ticks since the host's start, together are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// A guest is being attached to. The pipe with its recording comes along.
    Guest {
        /// Its VMM.
        process: Process,
        /// Its name, which no other guest of the launcher has.
        name: String,
        /// Its labels by rules of the configuration.
        labels: BTreeMap<String, String>,
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

const GUEST: u32 = 1;
const ENDED: u32 = 2;
const FAILED: u32 = 3;
const LEFT_OUT: u32 = 4;
const WARNING: u32 = 5;

const NO_PROCESS: Process = Process {
    pid: 0,
    start_time: 0,
};

impl Told {
    /// Its bytes.
    pub fn encode(&self) -> [u8; BYTES] {
        let guest;
        let (kind, process, text) = match self {
            Self::Guest {
                process,
                name,
                labels,
            } => {
                guest = text_of_guest(name, labels);
                (GUEST, *process, guest.as_str())
            }
            Self::Ended {
                process,
                has_failed,
                said,
            } => {
                let kind = if *has_failed { FAILED } else { ENDED };
                (kind, *process, said.as_str())
            }
            Self::LeftOut(count) => {
                let start_time = u64::from(*count);
                let number = Process {
                    start_time,
                    ..NO_PROCESS
                };
                (LEFT_OUT, number, "")
            }
            Self::Warning(message) => (WARNING, NO_PROCESS, message.as_str()),
        };
        let text = cut(text, MAX_TEXT).as_bytes();
        let length = u32::try_from(text.len()).unwrap_or_default();
        let parts = [
            &kind.to_le_bytes()[..],
            &process.pid.to_le_bytes(),
            &process.start_time.to_le_bytes(),
            &length.to_le_bytes(),
            text,
        ];
        let mut bytes = [0; BYTES];
        for (place, byte) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
            *place = *byte;
        }
        bytes
    }

    /// The message in `bytes`, with which `files` files have come.
    ///
    /// # Errors
    /// They aren't one: another length, a kind that there isn't, a part that such a message doesn't have, or text that isn't UTF-8.
    pub fn decode(bytes: &[u8], files: usize) -> Result<Self, UnknownMessage> {
        Self::read(bytes, files).ok_or(UnknownMessage)
    }

    fn read(bytes: &[u8], files: usize) -> Option<Self> {
        let (head, text) = bytes.split_at_checked(HEAD)?;
        let number = |place: usize| -> Option<[u8; 4]> {
            head.get(place..place.checked_add(4)?)?.try_into().ok()
        };
        let kind = u32::from_le_bytes(number(0)?);
        let process = Process {
            pid: i32::from_le_bytes(number(4)?),
            start_time: u64::from_le_bytes(head.get(8..16)?.try_into().ok()?),
        };
        let length = usize::try_from(u32::from_le_bytes(number(16)?)).ok()?;
        let (text, rest) = text.split_at_checked(length)?;
        let text = std::str::from_utf8(text).ok()?.to_owned();
        let expected = usize::from(kind == GUEST);
        if bytes.len() != BYTES || files != expected || rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        let is_process = process.pid > 0;
        match kind {
            GUEST if is_process => {
                let (name, labels) = guest_of_text(&text)?;
                Some(Self::Guest {
                    process,
                    name,
                    labels,
                })
            }
            ENDED | FAILED if is_process => Some(Self::Ended {
                process,
                has_failed: kind == FAILED,
                said: text,
            }),
            LEFT_OUT if process.pid == 0 && text.is_empty() => {
                Some(Self::LeftOut(process.start_time.try_into().ok()?))
            }
            WARNING if process == NO_PROCESS => Some(Self::Warning(text)),
            _ => None,
        }
    }
}

/// A guest's name, and behind it its labels, in the order of their keys: each is a NUL, the key, `=` and the value.
fn text_of_guest(name: &str, labels: &BTreeMap<String, String>) -> String {
    let mut text = cut(name, MAX_NAME).to_owned();
    for (key, value) in labels.iter().take(MAX_LABELS) {
        let (key, value) = (cut(key, MAX_KEY), cut(value, MAX_VALUE));
        text.push_str(&format!("\0{key}={value}"));
    }
    text
}

/// The name and the labels in such a text; `None` if it isn't one.
fn guest_of_text(text: &str) -> Option<(String, BTreeMap<String, String>)> {
    let mut parts = text.split('\0');
    let name = parts
        .next()
        .filter(|name| (1..=MAX_NAME).contains(&name.len()))?;
    let mut labels = BTreeMap::<String, String>::new();
    for part in parts {
        let (key, value) = part.split_once('=')?;
        let has_room = labels.len() < MAX_LABELS;
        let is_next = labels
            .last_key_value()
            .is_none_or(|(last, _)| last.as_str() < key);
        let fits = (1..=MAX_KEY).contains(&key.len()) && value.len() <= MAX_VALUE;
        (has_room && is_next && fits).then(|| labels.insert(key.to_owned(), value.to_owned()))?;
    }
    Some((name.to_owned(), labels))
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

    /// Labels of a guest.
    fn labels() -> BTreeMap<String, String> {
        let labels = [("stage", "a=b"), ("state", "x")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        labels.into()
    }

    /// A message of each kind, and how many files come with it.
    fn all() -> Vec<(Told, usize)> {
        let said = "the guest has rebooted".to_owned();
        let ended = |has_failed| Told::Ended {
            process: PROCESS,
            has_failed,
            said: said.clone(),
        };
        let guest = |labels| Told::Guest {
            process: PROCESS,
            name: "db-1".to_owned(),
            labels,
        };
        vec![
            (guest(BTreeMap::new()), 1),
            (guest(labels()), 1),
            (ended(false), 0),
            (ended(true), 0),
            (Told::LeftOut(94), 0),
            (Told::Warning("no rights".to_owned()), 0),
        ]
    }

    #[test]
    fn what_is_told_is_understood() {
        for (told, files) in all() {
            assert_eq!(Told::decode(&told.encode(), files), Ok(told));
        }
        assert_eq!(PROCESS.to_string(), "4711:98765");
    }

    #[test]
    fn messages_of_another_length_or_with_other_files_are_refused() {
        for (told, files) in all() {
            let bytes = told.encode();
            for length in [0, 1, HEAD - 1, HEAD, BYTES - 1] {
                assert_eq!(Told::decode(&bytes[..length], files), Err(UnknownMessage));
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(Told::decode(&longer, files), Err(UnknownMessage));
            for other in [0, 1, 2, 7].into_iter().filter(|other| *other != files) {
                assert_eq!(Told::decode(&bytes, other), Err(UnknownMessage), "{told:?}");
            }
        }
    }

    /// Each byte that another value makes a message of something else, or of nothing. Only the text, and numbers, may have other values.
    #[test]
    fn damaged_messages_are_refused_or_say_something_else() {
        for (told, files) in all() {
            let bytes = told.encode();
            for place in 0..BYTES {
                for bit in 0..8 {
                    let mut damaged = bytes;
                    damaged[place] ^= 1 << bit;
                    let Ok(read) = Told::decode(&damaged, files) else {
                        continue;
                    };
                    assert_ne!(read, told, "{place} {bit}");
                    // Nothing that was read is lost: the form has one message for each content.
                    assert_eq!(read.encode(), damaged, "{place} {bit}");
                }
            }
        }
    }

    /// Fields that the form allows and the meaning doesn't.
    #[test]
    fn parts_that_a_message_does_not_have_are_refused() {
        let refused = |told: &Told, files, change: &dyn Fn(&mut [u8; BYTES])| {
            let mut bytes = told.encode();
            change(&mut bytes);
            assert_eq!(Told::decode(&bytes, files), Err(UnknownMessage), "{told:?}");
        };
        for (told, files) in all() {
            for kind in [0, 6, u32::MAX] {
                refused(&told, files, &|bytes| {
                    bytes[..4].copy_from_slice(&kind.to_le_bytes())
                });
            }
            for length in [u32::try_from(MAX_TEXT).unwrap() + 1, u32::MAX] {
                let length = length.to_le_bytes();
                refused(&told, files, &|bytes| {
                    bytes[16..20].copy_from_slice(&length)
                });
            }
            // Behind the text.
            refused(&told, files, &|bytes| bytes[BYTES - 1] = 1);
            refused(&told, files, &|bytes| {
                bytes[4..8].copy_from_slice(&(-1_i32).to_le_bytes())
            });
        }
        let [guest, labelled, ended, failed, left_out, warning] =
            <[_; 6]>::try_from(all()).unwrap().map(|(told, _)| told);
        // The same key twice, and keys that aren't in order.
        for key in [b"state", b"statf"] {
            refused(&labelled, 1, &|bytes| {
                bytes[HEAD + 5..HEAD + 10].copy_from_slice(key)
            });
        }
        for told in [&guest, &labelled, &ended, &failed] {
            let files = usize::from(matches!(told, Told::Guest { .. }));
            refused(told, files, &|bytes| bytes[4..8].fill(0));
            refused(told, files, &|bytes| bytes[HEAD] = 0xff);
        }
        let no_name = Told::Guest {
            process: PROCESS,
            name: String::new(),
            labels: labels(),
        };
        refused(&no_name, 1, &|_| ());
        let long = u32::try_from(MAX_NAME).unwrap() + 1;
        refused(&guest, 1, &|bytes| {
            bytes[16..20].copy_from_slice(&long.to_le_bytes());
            bytes[HEAD..=HEAD + MAX_NAME].fill(b'x');
        });
        // More guests than can be counted; a text; a process.
        refused(&left_out, 0, &|bytes| bytes[12] = 1);
        refused(&left_out, 0, &|bytes| {
            bytes[16] = 1;
            bytes[HEAD] = b'x';
        });
        refused(&left_out, 0, &|bytes| bytes[4] = 1);
        refused(&warning, 0, &|bytes| bytes[8] = 1);
        refused(&warning, 0, &|bytes| bytes[HEAD] = 0xff);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "é".repeat(MAX_TEXT);
        let Ok(Told::Warning(read)) = Told::decode(&Told::Warning(long).encode(), 0) else {
            panic!("it isn't a warning");
        };
        assert_eq!(read, "é".repeat(MAX_TEXT / 2));
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("aé", 3), "aé");
        // As long as they may be, all labels have room.
        let labels = (0..MAX_LABELS).map(|number| {
            let key = format!("{number}{}", "k".repeat(MAX_KEY - 1));
            (key, "é".repeat(MAX_VALUE / 2))
        });
        let labels: BTreeMap<String, String> = labels.collect();
        let guest = Told::Guest {
            process: PROCESS,
            name: "x".repeat(MAX_NAME + 1),
            labels: labels.clone(),
        };
        let Ok(Told::Guest {
            name, labels: read, ..
        }) = Told::decode(&guest.encode(), 1)
        else {
            panic!("it isn't a guest");
        };
        assert_eq!((name.len(), read), (MAX_NAME, labels));
    }
}
