//! The output of a command.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::bail;

use crate::text;
use crate::text_writer::TextWriter;

/// Standard output and standard error of a command.
///
/// The output is for people ([`text`](Self::text)), for other programs ([`data`](Self::data)), or no text at all ([`binary`](Self::binary)). Names
/// in it come from guests, peers and files: whichever of these a command takes, none of them acts on a terminal.
pub struct Console<'a> {
    output: TextWriter<'a>,
    is_terminal: bool,
    messages: &'a mut dyn Write,
    name: &'a str,
    program: &'a clap::Command,
}

/// Moves a terminal's cursor to the top left, and clears the screen after it (ECMA-48, CUP and ED).
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";

impl<'a> Console<'a> {
    /// A console for a command of `program`, whose messages begin with `name`. Its output isn't a terminal.
    pub fn new(
        name: &'a str,
        program: &'a clap::Command,
        output: &'a mut dyn Write,
        messages: &'a mut dyn Write,
    ) -> Self {
        Self {
            output: TextWriter::new(output),
            is_terminal: false,
            messages,
            name,
            program,
        }
    }

    /// The same; `is_terminal` says whether its output is a terminal.
    #[must_use]
    pub fn on_terminal(self, is_terminal: bool) -> Self {
        Self {
            is_terminal,
            ..self
        }
    }

    /// Whether its output is a terminal.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Standard output for text that people read: a `TextWriter`. It is buffered: a command with live output flushes it.
    pub fn text(&mut self) -> &mut dyn Write {
        &mut self.output
    }

    /// Standard output for text that other programs read: it arrives as it is, unless a terminal shows it.
    pub fn data(&mut self) -> &mut dyn Write {
        if self.is_terminal {
            &mut self.output
        } else {
            self.output.as_it_is()
        }
    }

    /// Standard output for what is no text; `what` it is, and what to do `instead` of showing it on a terminal.
    ///
    /// # Errors
    /// It is a terminal.
    pub fn binary(&mut self, what: &str, instead: &str) -> anyhow::Result<&mut dyn Write> {
        if self.is_terminal {
            bail!("Standard output is a terminal, and {what} isn't text: {instead}");
        }
        Ok(self.output.as_it_is())
    }

    /// Clears the screen, if its output is a terminal.
    ///
    /// # Errors
    /// Writing failed.
    pub fn clear(&mut self) -> io::Result<()> {
        if self.is_terminal {
            self.output.as_it_is().write_all(CLEAR)?;
        }
        Ok(())
    }

    /// The whole program's command line.
    pub fn program(&self) -> &'a clap::Command {
        self.program
    }

    /// Prints `message` to standard error, after the program's name and earlier output. Ignores write errors.
    pub fn say(&mut self, message: impl Display) {
        // The output keeps an error until the command ends.
        let _ = self.output.flush();
        // Messages quote text from files, guests and peers.
        let message = text::message(&message.to_string());
        let _ = writeln!(self.messages, "{}: {message}", self.name);
    }

    /// Like [`say`](Self::say), for a warning.
    pub fn warn(&mut self, message: impl Display) {
        self.say(format_args!("warning: {message}"));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn messages_do_nothing_to_the_terminal() {
        let (mut output, mut messages) = (Vec::new(), Vec::new());
        let program = clap::Command::new("kvmprof");
        let mut console = Console::new("getpc", &program, &mut output, &mut messages);
        console.say("No file \x1b[2J\u{202e}:\n  none");
        console.warn("no names");
        let shown = String::from_utf8(messages).unwrap();
        assert_eq!(
            shown,
            "getpc: No file \u{fffd}[2J\u{fffd}:\n    none\ngetpc: warning: no names\n"
        );
    }

    #[test]
    fn names_have_no_effect_on_the_terminal_in_any_output() {
        const EVIL: &[u8] = b"a\x1b[2J";
        let program = clap::Command::new("kvmprof");
        let printed = |is_terminal: bool, print: &dyn Fn(&mut Console<'_>)| {
            let (mut output, mut messages) = (Vec::new(), Vec::new());
            let mut console = Console::new("kvmprof", &program, &mut output, &mut messages);
            console.is_terminal = is_terminal;
            print(&mut console);
            output
        };
        let text = |console: &mut Console<'_>| console.text().write_all(EVIL).unwrap();
        let data = |console: &mut Console<'_>| console.data().write_all(EVIL).unwrap();
        let clear = |console: &mut Console<'_>| console.clear().unwrap();
        let shown = "a\u{fffd}[2J".as_bytes();
        assert_eq!(printed(true, &text), shown);
        assert_eq!(printed(false, &text), shown);
        assert_eq!(printed(true, &data), shown);
        assert_eq!(printed(false, &data), EVIL);
        assert_eq!(printed(true, &clear), CLEAR);
        assert_eq!(printed(false, &clear), b"");
        let binary = |console: &mut Console<'_>| match console.binary("a recording", "name a file")
        {
            Ok(out) => out.write_all(EVIL).unwrap(),
            Err(error) => console.say(error),
        };
        assert_eq!(printed(true, &binary), b"");
        assert_eq!(printed(false, &binary), EVIL);
    }

    #[test]
    fn a_full_standard_error_is_ignored() {
        let mut output = Vec::new();
        let mut full = File::create("/dev/full").unwrap();
        let program = clap::Command::new("kvmprof");
        Console::new("kvmprof", &program, &mut output, &mut full).say("nobody sees this");
    }
}
