//! Runs the live view on a terminal or a pipe.

use std::io::{self, IsTerminal, Write, stdout};
use std::mem::ManuallyDrop;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::Model;
use super::draw::draw;
use super::keyboard::{Keyboard, Keys};
use super::plain::print;
use super::view::{Action, View};
use kvmprof_recording::file::ReadError;

/// Maximum time in which a signal or new data waits for a key.
const POLL: Duration = Duration::from_millis(100);
/// Maximum number of keys that are handled before the stream is read again.
const KEYS: usize = 64;
/// The time between two updates of rows while data comes in: long enough for reading.
const REFRESH: Duration = Duration::from_millis(500);
/// Maximum number of pieces of the stream that are handled before the keyboard is read again.
const PIECES: usize = 64;

/// The recorder's stream: bytes, or an error that ends it. It is complete when the sender closes.
pub type Feed<E> = Receiver<Result<Vec<u8>, E>>;

/// The options of the live view.
#[derive(Clone, Debug)]
pub struct TopOptions {
    /// The length of the window.
    pub window: Duration,
    /// Time between two tables, without a terminal.
    pub interval: Duration,
    /// The number of tables, without a terminal; `None`: until the recording ends.
    pub count: Option<u64>,
    /// Maximum number of rows of a table, without a terminal.
    pub rows: usize,
    /// The key of a label of processes whose values are shown, too.
    pub by: Option<String>,
    /// Whether the frames of interpreters are shown, beside the functions of the language that they execute.
    pub native: bool,
    /// Whether colours may be used on a terminal.
    pub colours: bool,
}

impl TopOptions {
    /// A window without ticks, which begins with the view.
    fn model(&self) -> Model {
        Model::new(self.window, Duration::ZERO)
            .with_label(self.by.clone())
            .with_native(self.native)
    }
}

/// Why the view ended.
#[derive(Debug, thiserror::Error)]
pub enum TopError<E: std::error::Error + 'static> {
    /// The stream is invalid.
    #[error(transparent)]
    Stream(#[from] ReadError),
    /// The stream was interrupted.
    #[error("The guest's recorder can't be read on")]
    Source(#[source] E),
    /// Writing to the terminal or the pipe failed.
    #[error("Cannot show the view")]
    Output(#[from] io::Error),
}

/// Shows `feed` until the user quits: on a terminal as a screen, else as a sequence of tables. Closing the pipe counts
/// as quitting.
///
/// # Errors
/// [`TopError`]. The terminal has its former state.
pub fn run<E: std::error::Error + 'static>(
    feed: &Feed<E>,
    options: &TopOptions,
) -> Result<(), TopError<E>> {
    if stdout().is_terminal() {
        return match on_terminal(feed, options) {
            // The terminal is gone, so the user has quit.
            Err(TopError::Output(error))
                if error.raw_os_error() == Some(Errno::IO.raw_os_error()) =>
            {
                Ok(())
            }
            result => result,
        };
    }
    match in_pipe(feed, options, &mut stdout().lock()) {
        Err(TopError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Prints a table in each interval.
fn in_pipe<E: std::error::Error + 'static>(
    feed: &Feed<E>,
    options: &TopOptions,
    out: &mut dyn Write,
) -> Result<(), TopError<E>> {
    let begin = Instant::now();
    let mut model = options.model();
    let mut printed = 0;
    let mut due = options.interval;
    let mut is_over = false;
    while !is_over && options.count.is_none_or(|count| printed < count) {
        loop {
            match feed.recv_timeout(due.saturating_sub(begin.elapsed())) {
                Ok(bytes) => model.feed(&bytes.map_err(TopError::Source)?, begin.elapsed())?,
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    is_over = true;
                    break;
                }
            }
            // A stream without pauses mustn't delay the table.
            if begin.elapsed() >= due {
                break;
            }
        }
        model.advance(begin.elapsed());
        print(&model.snapshot(), options.rows, out)?;
        printed += 1;
        due = begin.elapsed().max(due) + options.interval;
    }
    Ok(())
}

fn on_terminal<E: std::error::Error + 'static>(
    feed: &Feed<E>,
    options: &TopOptions,
) -> Result<(), TopError<E>> {
    let end = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&end))?;
    }
    let keyboard = Keyboard::open()?;
    let _screen = Screen::enter()?;
    // Dropping it would show the cursor, which the screen does, and print failures to standard error: a panic if that
    // is gone too.
    let mut terminal = ManuallyDrop::new(Terminal::new(CrosstermBackend::new(stdout()))?);
    let begin = Instant::now();
    let mut model = options.model();
    let mut view = View::default();
    let mut snapshot = model.snapshot();
    let (mut refreshed, mut is_open) = (begin.elapsed(), true);
    terminal.draw(|frame| draw(frame, &snapshot, &mut view, options.colours))?;
    // A terminal that is gone counts as a user who quits.
    while !end.load(Ordering::Relaxed) && keyboard.wait(POLL)? != Keys::Gone {
        let mut is_changed = false;
        // Keys come first: a flood of data mustn't keep the user from quitting.
        for _ in 0..KEYS {
            let time = match keyboard.wait(Duration::ZERO)? {
                // The terminal has disappeared since the last look.
                Keys::Gone => break,
                Keys::None => Duration::ZERO,
                // crossterm 0.29 returns the key at once, unless it was pressed just as the window changed its size (`try_read` in
                // `src/event/source/unix/mio.rs` loses it until there are more).
                Keys::Waiting => POLL,
            };
            if !event::poll(time)? {
                if time == POLL {
                    keyboard.rouse()?;
                }
                break;
            }
            is_changed = true;
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
                && view.key(key, &snapshot) == Action::Quit
            {
                return Ok(());
            }
        }
        if is_open {
            is_open = take(feed, &mut model, begin)?;
        }
        if begin.elapsed() >= refreshed + REFRESH {
            refreshed = begin.elapsed();
            // After the guest's end the last state is shown until the user quits.
            if is_open {
                model.advance(refreshed);
            }
            snapshot = model.snapshot();
            is_changed = true;
        }
        if is_changed {
            terminal.draw(|frame| draw(frame, &snapshot, &mut view, options.colours))?;
        }
    }
    Ok(())
}

/// Handles the data that has arrived. Returns false if no more can come.
fn take<E: std::error::Error + 'static>(
    feed: &Feed<E>,
    model: &mut Model,
    begin: Instant,
) -> Result<bool, TopError<E>> {
    for _ in 0..PIECES {
        match feed.try_recv() {
            Ok(bytes) => model.feed(&bytes.map_err(TopError::Source)?, begin.elapsed())?,
            Err(TryRecvError::Empty) => return Ok(true),
            Err(TryRecvError::Disconnected) => return Ok(false),
        }
    }
    Ok(true)
}

/// The terminal in raw mode with an alternate screen. Dropping it restores the former state.
struct Screen;

impl Screen {
    fn enter() -> io::Result<Self> {
        // A panic's message would be lost with the alternate screen.
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            restore();
            hook(panic);
        }));
        enable_raw_mode()?;
        let screen = Self;
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal and ignores errors, which come from a terminal that is gone.
fn restore() {
    let _ = execute!(stdout(), Show, LeaveAlternateScreen);
    let _ = disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::super::testing::{process, stream};
    use super::*;

    fn options(count: Option<u64>) -> TopOptions {
        TopOptions {
            window: Duration::from_secs(10),
            interval: Duration::from_millis(1),
            count,
            rows: 20,
            by: None,
            native: false,
            colours: false,
        }
    }

    #[test]
    fn a_pipe_gets_a_table_at_the_recordings_end() {
        let (sender, feed) = sync_channel::<Result<Vec<u8>, io::Error>>(4);
        let mut stream = stream();
        sender.send(Ok(stream.begin())).unwrap();
        let samples = stream.samples(&[process(77, &[0x2000, 0x1000])]);
        sender.send(Ok(samples)).unwrap();
        sender.send(Ok(stream.end())).unwrap();
        drop(sender);
        let mut out = Vec::new();
        in_pipe(&feed, &options(None), &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        for part in ["the guest has ended", "     77 some ", "k copy_page"] {
            assert!(out.contains(part), "{out}");
        }
    }

    #[test]
    fn the_requested_number_of_tables_is_printed() {
        let (_sender, feed) = sync_channel::<Result<Vec<u8>, io::Error>>(4);
        let mut out = Vec::new();
        in_pipe(&feed, &options(Some(3)), &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert_eq!(out.matches("waiting for the guest").count(), 3, "{out}");
    }

    #[test]
    fn a_stream_that_breaks_off_gives_an_error() {
        let (sender, feed) = sync_channel(4);
        sender.send(Err(io::Error::other("gone"))).unwrap();
        let error = in_pipe(&feed, &options(None), &mut Vec::new()).unwrap_err();
        assert!(matches!(error, TopError::Source(_)), "{error:?}");
    }
}
