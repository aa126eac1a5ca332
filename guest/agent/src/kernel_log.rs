//! Messages to the kernel's log, where they can be read before there is any other.

use std::fs::{File, OpenOptions};
use std::io::Write;

use log::{Level, LevelFilter, Log, Metadata, Record};

/// Where the kernel takes messages (`Documentation/ABI/testing/dev-kmsg`).
const KERNEL_LOG: &str = "/dev/kmsg";
/// The kernel cuts longer messages into lines.
const LENGTH_MAX: usize = 900;

/// Writes to the kernel's log, and to standard error, which is nowhere once the program is in the
/// background.
struct KernelLog {
    kernel: Option<File>,
    /// What goes to standard error too.
    to_stderr: LevelFilter,
}

/// Starts logging; `foreground` says that standard error is there for good. It can't fail: without
/// a kernel log there is standard error.
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

/// One message as the kernel takes it: one line, one write.
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
            // There is nowhere to tell of a failure.
            let _ = kernel.write_all(line(record.level(), &text).as_bytes());
        }
        if record.level() <= self.to_stderr {
            // In one piece: others write to the same console.
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
