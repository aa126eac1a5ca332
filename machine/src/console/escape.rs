//! The escape key, with which a user at a raw terminal quits the guest.

/// How to quit, for messages and help texts.
pub const ESCAPE_HELP: &str = "Ctrl-A x quits; Ctrl-A Ctrl-A sends Ctrl-A to the guest";

/// Ctrl-A, as in QEMU and screen.
const ESCAPE: u8 = 0x01;
const QUIT: u8 = b'x';

/// Takes the escape sequences out of what a user types.
#[derive(Debug, Default)]
pub(super) struct EscapeFilter {
    escaped: bool,
}

/// What a user typed, without escape sequences.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TypedInput {
    /// The bytes for the guest.
    pub bytes: Vec<u8>,
    /// Whether the user wants to quit. What was typed after that is dropped.
    pub quit: bool,
}

impl EscapeFilter {
    /// Filters the next piece of input. The output may have one byte more than the input: an
    /// escape key that turned out to start no sequence.
    pub fn filter(&mut self, input: &[u8]) -> TypedInput {
        let mut typed = TypedInput::default();
        for &byte in input {
            match (std::mem::take(&mut self.escaped), byte) {
                (false, ESCAPE) => self.escaped = true,
                (true, QUIT) => {
                    typed.quit = true;
                    return typed;
                }
                (true, ESCAPE) | (false, _) => typed.bytes.push(byte),
                (true, _) => typed.bytes.extend([ESCAPE, byte]),
            }
        }
        typed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest_gets(pieces: &[&[u8]]) -> (Vec<u8>, bool) {
        let mut filter = EscapeFilter::default();
        let mut bytes = Vec::new();
        for piece in pieces {
            let typed = filter.filter(piece);
            bytes.extend(typed.bytes);
            if typed.quit {
                return (bytes, true);
            }
        }
        (bytes, false)
    }

    #[test]
    fn only_escape_x_quits() {
        for (pieces, passed, quits) in [
            (&[&b"ls -x\r"[..]][..], &b"ls -x\r"[..], false),
            (&[b"a\x01x"], b"a", true),
            (&[b"a\x01", b"xb"], b"a", true),
            // A doubled escape is sent once, and an unknown sequence as it is.
            (&[b"\x01\x01x"], b"\x01x", false),
            (&[b"\x01", b"q"], b"\x01q", false),
        ] {
            let expected = (passed.to_vec(), quits);
            assert_eq!(guest_gets(pieces), expected, "{pieces:?}");
        }
    }
}
