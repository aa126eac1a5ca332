//! Detects a Linux kernel's panic message on the console. A kernel with `panic=-1` resets the machine
//! right after it, and only the message distinguishes this from a wanted reboot.

/// The start of every Linux panic message (kernel: kernel/panic.c).
const MARK: &[u8] = b"Kernel panic - not syncing";
/// Maximum length of a line, in bytes. The rest of a longer line is ignored.
const LINE_MAX: usize = 512;

/// Watches lines go by.
#[derive(Debug, Default)]
pub(super) struct PanicWatch {
    line: Vec<u8>,
    message: Option<String>,
}

impl PanicWatch {
    /// Looks at the next piece of console output.
    pub fn watch(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' {
                self.end_line();
            } else if self.line.len() < LINE_MAX {
                self.line.push(byte);
            }
        }
    }

    /// The first panic message seen, without the kernel's time stamp.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    fn end_line(&mut self) {
        if self.message.is_none()
            && let Some(start) = self.line.windows(MARK.len()).position(|part| part == MARK)
        {
            let printable = |byte: &&u8| byte.is_ascii_graphic() || **byte == b' ';
            let text = self.line[start..].iter().filter(printable);
            self.message = Some(text.map(|byte| char::from(*byte)).collect());
        }
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_found_in_fragments_and_without_its_time_stamp() {
        let mut watch = PanicWatch::default();
        watch.watch(b"hello\r\n[    1.234] Kernel pan");
        assert_eq!(watch.message(), None);
        watch.watch(b"ic - not syncing: sysrq triggered crash\r\n");
        watch.watch(b"[    1.3] ---[ end Kernel panic - not syncing: other ]---\n");
        let expected = "Kernel panic - not syncing: sysrq triggered crash";
        assert_eq!(watch.message(), Some(expected));
    }

    #[test]
    fn control_characters_never_reach_the_host_terminal() {
        let mut watch = PanicWatch::default();
        watch.watch(b"Kernel panic - not syncing\x1b[2J: \xff\n");
        assert_eq!(watch.message(), Some("Kernel panic - not syncing[2J: "));
    }

    #[test]
    fn an_endless_line_takes_no_memory() {
        let mut watch = PanicWatch::default();
        watch.watch(&vec![b'a'; 100_000]);
        assert_eq!(watch.line.len(), LINE_MAX);
    }
}
