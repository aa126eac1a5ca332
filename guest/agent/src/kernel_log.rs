//! Messages to the kernel's log, where they can be read before any other log exists.

use std::fs::{File, OpenOptions};
use std::io::Write;

use log::{Level, LevelFilter, Log, Metadata, Record};

/// The file to which messages for the kernel's log are written (`Documentation/ABI/testing/dev-kmsg`).
const KERNEL_LOG: &str = "/dev/kmsg";
/// Maximum length of a message, in bytes. The kernel splits longer ones into lines.
const LENGTH_MAX: usize = 900;

/// Writes to the kernel's log and to standard error, which is `/dev/null` once the program is in the background.
struct KernelLog {
    kernel: Option<File>,
    /// The levels that go to standard error too.
    to_stderr: LevelFilter,
}

/// Starts logging; `foreground` says that standard error stays open. This can't fail: without a kernel log, messages go to standard error
/// alone.
pub fn start(foreground: bool) {
    let logger = KernelLog {
        kernel: OpenOptions::new().write(true).open(KERNEL_LOG).ok(),
        to_stderr: if foreground {
            LevelFilter::Info
        } else {
            LevelFilter::Warn
        },
    };
    if log::set_boxed_logger(Box::new(logger)).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

/// The priority of a message, with the facility "daemon" (syslog(3)).
fn priority(level: Level) -> u32 {
    const DAEMON: u32 = 3 << 3;
    DAEMON
        | match level {
            Level::Error => 3,
            Level::Warn => 4,
            Level::Info => 6,
            Level::Debug | Level::Trace => 7,
        }
}

/// A message in the form that the kernel takes: one line in one write.
fn line(level: Level, text: &str) -> String {
    let mut text = text.replace('\n', " ");
    if let Some((end, _)) = text.char_indices().find(|(at, _)| *at >= LENGTH_MAX) {
        text.truncate(end);
    }
    format!("<{}>pcsd: {text}\n", priority(level))
}

impl Log for KernelLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Info
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let text = record.args().to_string();
        if let Some(mut kernel) = self.kernel.as_ref() {
            // A failure can't be reported anywhere.
            let _ = kernel.write_all(line(record.level(), &text).as_bytes());
        }
        if record.level() <= self.to_stderr {
            // One write, because other programs write to the same console.
            let _ = std::io::stderr().write_all(format!("pcsd: {text}\n").as_bytes());
        }
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_of_bounded_length() {
        assert_eq!(line(Level::Warn, "a\nb"), "<28>pcsd: a b\n");
        let long = line(Level::Info, &"ä".repeat(5000));
        assert!(long.len() <= LENGTH_MAX + 20 && long.ends_with("ä\n"));
    }
}
