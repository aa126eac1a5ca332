//! A terminal for a program under test.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::stdio::stdin;
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// Time between two checks whether the program still runs.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// The type of the terminal, for the variable `TERM`: without a type, programs assume a terminal without abilities, and show nothing.
pub const TERMINAL_TYPE: &str = "xterm-256color";

/// A pseudo-terminal, and the output on it.
#[derive(Debug)]
pub struct Terminal {
    controller: File,
    terminal: OwnedFd,
    shown: Vec<u8>,
}

impl Terminal {
    /// Opens a pseudo-terminal with `columns` columns and `rows` rows.
    ///
    /// # Panics
    /// If none is available.
    pub fn open(columns: u16, rows: u16) -> Self {
        let controller =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = open(&name, flags, Mode::empty()).unwrap();
        let terminal = Self {
            controller: File::from(controller),
            terminal,
            shown: Vec::new(),
        };
        terminal.resize(columns, rows);
        terminal
    }

    /// The program's side of the terminal.
    ///
    /// # Panics
    /// If there are too many open files.
    pub fn stdio(&self) -> Stdio {
        Stdio::from(self.terminal.try_clone().unwrap())
    }

    /// Starts `command` on the terminal, in a session that it controls, so that its keys send signals.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn start(&self, command: &mut Command) -> Child {
        command
            .stdin(self.stdio())
            .stdout(self.stdio())
            .stderr(self.stdio());
        // SAFETY: the closure only makes system calls, which may be made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                setsid()?;
                Ok(ioctl_tiocsctty(stdin())?)
            });
        }
        command.spawn().unwrap()
    }

    /// Changes the size of the terminal.
    ///
    /// # Panics
    /// If this fails.
    pub fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.terminal, size).unwrap();
    }

    /// Types `keys`.
    ///
    /// # Panics
    /// If this fails.
    pub fn press(&mut self, keys: &str) {
        self.controller.write_all(keys.as_bytes()).unwrap();
    }

    /// Whether keys go to the program one by one, and aren't echoed.
    ///
    /// # Panics
    /// If the terminal's modes can't be read.
    pub fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        !modes.contains(LocalModes::ICANON) && !modes.contains(LocalModes::ECHO)
    }

    /// All output that has been read so far.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown).into_owned()
    }

    /// Reads the new output: a program with much output blocks until it is read.
    ///
    /// # Panics
    /// If it can't be read.
    pub fn catch_up(&mut self) {
        let mut bytes = [0; 4096];
        loop {
            let mut readable = [PollFd::new(&self.controller, PollFlags::IN)];
            if poll(&mut readable, Some(&Timespec::default())).unwrap() == 0 {
                return;
            }
            let count = self.controller.read(&mut bytes).unwrap();
            self.shown.extend(&bytes[..count]);
        }
    }

    /// Reads until `child` has shown `word`. Programs don't draw unchanged text again.
    ///
    /// # Panics
    /// If `child` ends without showing it.
    pub fn until_shown(&mut self, word: &str, child: &mut Child) {
        let from = self.shown.len();
        let mut bytes = [0; 4096];
        let mut has_ended = false;
        while !String::from_utf8_lossy(&self.shown[from..]).contains(word) {
            let mut readable = [PollFd::new(&self.controller, PollFlags::IN)];
            let some = poll(&mut readable, Some(&PAUSE)).unwrap();
            if some > 0 {
                let count = self.controller.read(&mut bytes).unwrap();
                self.shown.extend(&bytes[..count]);
                continue;
            }
            assert!(
                !has_ended,
                "it ended without {word:?}: {:?}",
                String::from_utf8_lossy(&self.shown)
            );
            // The program's last output may have arrived just now.
            has_ended = child.try_wait().unwrap().is_some();
        }
    }
}
