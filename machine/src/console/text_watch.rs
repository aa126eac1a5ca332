//! Detects a text in the console's output, which ends the guest.

use std::sync::Arc;

use vmm_sys_util::eventfd::EventFd;

/// Watches the output, which comes in pieces, until the text has come.
#[derive(Debug)]
pub struct TextWatch {
    text: Vec<u8>,
    /// The last bytes of the output, fewer than twice as many as the text has.
    recent: Vec<u8>,
    /// The events that are written to once, when the text has come.
    found: Vec<Arc<EventFd>>,
}

impl TextWatch {
    /// A watch that writes to each of `found` when the output has this text, which isn't empty, within a line or over several lines.
    #[must_use]
    pub fn new(text: &str, found: Vec<Arc<EventFd>>) -> Self {
        Self {
            text: text.as_bytes().to_vec(),
            recent: Vec::new(),
            found,
        }
    }

    /// Looks at the next piece of output.
    pub fn watch(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if self.found.is_empty() {
                return;
            }
            self.recent.push(byte);
            if self.recent.ends_with(&self.text) {
                for found in self.found.drain(..) {
                    // A full counter has been seen already.
                    let _ = found.write(1);
                }
            } else if self.recent.len() >= 2 * self.text.len() {
                self.recent.drain(..=self.text.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use vmm_sys_util::eventfd::EFD_NONBLOCK;

    use super::*;

    #[test]
    fn a_text_is_found_wherever_it_is_in_pieces_of_any_length() {
        let output = b"aab: aaab\r\nlogin: \r\nlogin: ";
        for (text, is_there) in [
            ("aaab", true),
            ("ab\r\nlog", true),
            ("l", true),
            ("login: ", true),
            ("aaaa", false),
            ("login:  ", false),
        ] {
            for length in 1..=output.len() {
                let events = [(); 2].map(|()| Arc::new(EventFd::new(EFD_NONBLOCK).unwrap()));
                let mut watch = TextWatch::new(text, events.to_vec());
                for piece in output.chunks(length) {
                    watch.watch(piece);
                    assert!(watch.recent.len() <= 2 * text.len());
                }
                for event in events {
                    assert_eq!(event.read().ok(), is_there.then_some(1), "{text} {length}");
                }
            }
        }
    }
}
