//! The output of a command.

use std::fmt::Display;
use std::io::Write;

use crate::text::visible_lines;

/// Standard output and standard error of a command.
pub struct Console<'a> {
    /// Standard output. It is buffered: a command with live output flushes it.
    pub output: &'a mut dyn Write,
    messages: &'a mut dyn Write,
    name: &'a str,
    program: &'a clap::Command,
}

impl<'a> Console<'a> {
    /// A console for a command of `program`, whose messages begin with `name`.
    pub fn new(
        name: &'a str,
        program: &'a clap::Command,
        output: &'a mut dyn Write,
        messages: &'a mut dyn Write,
    ) -> Self {
        Self {
            output,
            messages,
            name,
            program,
        }
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
        let message = visible_lines(&message.to_string());
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
        let shown = String::from_utf8(messages).unwrap();
        assert_eq!(shown, "getpc: No file \u{fffd}[2J\u{fffd}:\n  none\n");
    }

    #[test]
    fn messages_carry_the_programs_name() {
        let (mut output, mut messages) = (Vec::new(), Vec::new());
        let program = clap::Command::new("kvmprof");
        let mut console = Console::new("getpc", &program, &mut output, &mut messages);
        console.say("3 samples were lost");
        console.warn("no names");
        assert_eq!(
            messages,
            b"getpc: 3 samples were lost\ngetpc: warning: no names\n"
        );
    }

    #[test]
    fn a_full_device_for_messages_is_no_failure() {
        let mut output = Vec::new();
        let mut full = File::create("/dev/full").unwrap();
        let program = clap::Command::new("kvmprof");
        Console::new("kvmprof", &program, &mut output, &mut full).say("nobody sees this");
    }
}
