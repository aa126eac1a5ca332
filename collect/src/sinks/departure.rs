//! The departure of a request: the moment after which it may arrive.
//!
//! A receiver ignores a request whose body is incomplete: by RFC 9112, section 8, for HTTP, and by the length before its message for gRPC. So the last byte
//! is held back until the spool has noted the departure. If the collector is killed before that, while it connects or sends the rest, the request counts as not sent.

use std::io::{self, ErrorKind, Read};
use std::sync::{Mutex, PoisonError};

use crate::spool::SpoolError;

/// The state of a request.
#[derive(Debug)]
enum Stage {
    /// Its last byte is held back.
    Held,
    /// The departure is noted: its last byte may be sent.
    Left,
    /// The attempt has ended: its last byte isn't sent any more.
    Over,
    /// The departure couldn't be noted: its last byte isn't sent.
    Failed(SpoolError),
}

/// Notes the departure of a request. Each attempt has its own.
pub struct Departure {
    write: Box<dyn Fn() -> Result<(), SpoolError> + Send + Sync>,
    stage: Mutex<Stage>,
}

impl Departure {
    /// A departure that `write` notes. It is called at most once.
    pub fn new(write: impl Fn() -> Result<(), SpoolError> + Send + Sync + 'static) -> Self {
        Self {
            write: Box::new(write),
            stage: Mutex::new(Stage::Held),
        }
    }

    /// Notes the departure, right before the last byte is sent.
    ///
    /// # Errors
    /// It can't be noted, or the attempt has ended. The caller must not send the last byte.
    pub fn note(&self) -> io::Result<()> {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*stage, Stage::Held) {
            *stage = match (self.write)() {
                Ok(()) => Stage::Left,
                Err(error) => Stage::Failed(error),
            };
        }
        match *stage {
            Stage::Left => Ok(()),
            _ => Err(ErrorKind::ConnectionAborted.into()),
        }
    }

    /// Ends the attempt: if the last byte is still held back, it isn't sent any more. Returns the error if the departure couldn't be noted.
    pub fn end(&self) -> Option<SpoolError> {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *stage, Stage::Over) {
            Stage::Failed(error) => Some(error),
            Stage::Held | Stage::Left | Stage::Over => None,
        }
    }
}

/// A body whose last byte is held back until its departure is noted.
pub struct HeldBack<'a> {
    rest: &'a [u8],
    departure: &'a Departure,
}

impl<'a> HeldBack<'a> {
    /// All of `body`.
    pub fn new(body: &'a [u8], departure: &'a Departure) -> Self {
        Self {
            rest: body,
            departure,
        }
    }
}

impl Read for HeldBack<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let free = match self.rest.len() {
            0 => 0,
            1 => {
                self.departure.note()?;
                1
            }
            more => more - 1,
        };
        let count = free.min(bytes.len());
        let (now, rest) = self.rest.split_at(count);
        bytes[..count].copy_from_slice(now);
        self.rest = rest;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn the_last_byte_is_sent_after_the_note() {
        let noted = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&noted);
        let departure = Departure::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        let mut body = HeldBack::new(b"12345", &departure);
        let mut bytes = [0; 16];
        assert_eq!(body.read(&mut bytes[..3]).unwrap(), 3);
        assert_eq!(body.read(&mut bytes[3..]).unwrap(), 1);
        assert_eq!(noted.load(Ordering::Relaxed), 0);
        assert_eq!(body.read(&mut bytes[4..]).unwrap(), 1);
        assert_eq!(noted.load(Ordering::Relaxed), 1);
        assert_eq!(body.read(&mut bytes[5..]).unwrap(), 0);
        assert_eq!(&bytes[..5], b"12345");
        departure.note().unwrap();
        assert_eq!(noted.load(Ordering::Relaxed), 1);
        assert!(departure.end().is_none());
        departure.note().unwrap_err();
    }

    #[test]
    fn without_a_note_the_last_byte_is_not_sent() {
        let damaged = || SpoolError::NotOwn("spool".into());
        let departure = Departure::new(move || Err(damaged()));
        let mut bytes = Vec::new();
        let mut body = HeldBack::new(b"12345", &departure);
        body.read_to_end(&mut bytes).unwrap_err();
        assert_eq!(bytes, b"1234");
        assert!(matches!(departure.end(), Some(SpoolError::NotOwn(_))));
        // A finished attempt writes nothing.
        let departure = Departure::new(|| unreachable!());
        assert!(departure.end().is_none());
        departure.note().unwrap_err();
    }
}
