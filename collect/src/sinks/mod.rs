//! Delivers batches of the spool to sinks, each on a thread of its own.
//!
//! One or more batches are sent in parts. The spool notes that a part is being sent before it can arrive, and that it has arrived with the next part's
//! note or at the end of the batches. A part that was being sent when the collector was killed isn't sent again. If sending a part twice does no harm, it is
//! sent again, and fewer notes are written.

mod departure;
#[cfg(feature = "grpc")]
mod grpc;
mod http;
#[cfg(feature = "object-store")]
mod objects;
mod otlp;
pub mod parquet;
mod pprof;
#[cfg(test)]
mod tests;
mod tls;

#[cfg(test)]
pub(crate) use self::otlp::request as otlp_request;
#[cfg(test)]
pub(crate) use self::pprof::profile as pprof_profile;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use rustix::rand::{GetRandomFlags, getrandom};

use self::departure::Departure;
use self::otlp::OtlpSink;
use self::parquet::ParquetSink;
use self::pprof::{Dialect, PprofSink};
use crate::backoff::Backoff;
use crate::batch::{Batch, Function, Row};
use crate::config::{SinkConfig, SinkKind};
use crate::spool::{Claim, Counts, Progress, Spool, SpoolError};

/// The wait before a failed attempt is repeated, to which a random part of up to its half is added.
const BACKOFF: Backoff = Backoff::between(Duration::from_millis(500), Duration::from_secs(30));
/// The maximum wait that a sink can ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(300);
/// The wait when the spool itself can't be used.
const SPOOL_WAIT: Duration = Duration::from_secs(5);

/// The frame of ticks without a stack: of vCPUs that were halted, and of samples beyond the limits.
fn no_stack(row: &Row) -> Function<&'static str> {
    let name = if row.ticks_are_idle() {
        "[halted]"
    } else {
        "[no stack]"
    };
    Function {
        name,
        module: "",
        build_id: "",
        is_kernel: true,
    }
}

/// The reason why a part wasn't accepted.
#[derive(Debug)]
enum Failure {
    /// It can be sent again: not before the time `after`, if the sink has named one.
    Retry {
        error: anyhow::Error,
        after: Option<Duration>,
    },
    /// It will never be accepted.
    Refused(anyhow::Error),
    /// Some of its windows were accepted, and the others never will be. It isn't known which ones.
    Partly(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Retry { error, after: None }
    }
}

/// A sink.
trait Sink: Send {
    /// Whether a part may be sent twice: then the second one replaces the first one.
    fn is_idempotent(&self) -> bool {
        false
    }

    /// The time span, in s, of the batches that it takes at once. 0: one batch at a time.
    fn span(&self) -> u64 {
        0
    }

    /// The number of parts of the batches, which is the same for the same batches. It is called before [`send`](Self::send).
    fn parts(&mut self, batches: &[Batch]) -> usize;

    /// The number of windows and of ticks in a part.
    fn part(&self, batches: &[Batch], part: usize) -> (u64, u64);

    /// Sends a part. Unless it may be sent twice, its `departure` is noted before all of it can have arrived.
    fn send(
        &mut self,
        batches: &[Batch],
        part: usize,
        departure: &Arc<Departure>,
    ) -> Result<(), Failure>;

    /// Forgets data about the batches that it has kept.
    fn forget(&mut self) {}
}

/// A sink that can be started: the files that its configuration names have been read.
pub struct Prepared {
    name: String,
    sink: Arc<Mutex<Box<dyn Sink>>>,
}

impl Prepared {
    /// The sink of this configuration. Nothing is sent yet.
    ///
    /// # Errors
    /// A file of the configuration can't be read, or the object store has no such options.
    pub fn new(config: &SinkConfig) -> anyhow::Result<Self> {
        let sink = new_sink(&config.kind).with_context(|| format!("Sink {}", config.name))?;
        Ok(Self {
            name: config.name.clone(),
            sink: Arc::new(Mutex::new(sink)),
        })
    }

    /// Starts it on `spool`. It ends when the spool is closed or drained: batches that it can't deliver then at the first attempt stay there. When it has
    /// ended, it can be started again.
    ///
    /// # Errors
    /// The host gives no thread.
    pub fn start(&self, spool: Arc<Spool>) -> anyhow::Result<Running> {
        let (name, sink) = (self.name.clone(), Arc::clone(&self.sink));
        let thread = Builder::new().name("sink".into()).spawn(move || {
            let _watch = Watch {
                name: name.clone(),
                spool: Arc::clone(&spool),
            };
            let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
            let mut runner = Runner {
                name,
                sink: sink.as_mut(),
                spool,
                last_error: String::new(),
            };
            runner.run();
        });
        Ok(Running(thread.context("No thread")?))
    }
}

/// Logs and notes that a sink's thread has panicked as soon as it does: it isn't joined before the end.
struct Watch {
    name: String,
    spool: Arc<Spool>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            log::error!(
                "Sink {} has ended by a fault of the program: what waits for it stays in the spool until SIGHUP or the next start",
                self.name
            );
            self.spool.note_failed(&self.name);
        }
    }
}

/// A running sink.
pub struct Running(JoinHandle<()>);

impl Running {
    /// Waits for its end, which comes after [`Spool::close`] or [`Spool::drain`].
    pub fn join(self) {
        // A panic has been logged already.
        let _ = self.0.join();
    }
}

fn new_sink(kind: &SinkKind) -> anyhow::Result<Box<dyn Sink>> {
    Ok(match kind {
        SinkKind::Parquet { folder, seconds } => {
            let target = parquet::Folder(folder.clone());
            Box::new(ParquetSink::new(Box::new(target), *seconds))
        }
        #[cfg(feature = "object-store")]
        SinkKind::Objects { bucket, seconds } => {
            let target = objects::Objects::new(bucket)?;
            Box::new(ParquetSink::new(Box::new(target), *seconds))
        }
        #[cfg(not(feature = "object-store"))]
        SinkKind::Objects { .. } => {
            anyhow::bail!("This kvmprof-collect is built without the feature object-store")
        }
        SinkKind::Pyroscope(endpoint) => Box::new(PprofSink::new(endpoint, Dialect::Pyroscope)?),
        SinkKind::Parca(endpoint) => Box::new(PprofSink::new(endpoint, Dialect::Parca)?),
        SinkKind::Otlp(endpoint) => {
            let sender = otlp::Http::new(endpoint)?;
            Box::new(OtlpSink::new(Box::new(sender)))
        }
        #[cfg(feature = "grpc")]
        SinkKind::OtlpGrpc(endpoint) => {
            let sender = grpc::Grpc::new(endpoint)?;
            Box::new(OtlpSink::new(Box::new(sender)))
        }
        #[cfg(not(feature = "grpc"))]
        SinkKind::OtlpGrpc(_) => {
            anyhow::bail!("This kvmprof-collect is built without the feature grpc")
        }
    })
}

/// The count in which a part belongs that isn't sent again.
type FinalCount = fn(&mut Progress) -> &mut Counts;

struct Runner<'a> {
    name: String,
    sink: &'a mut dyn Sink,
    spool: Arc<Spool>,
    last_error: String,
}

impl Runner<'_> {
    fn run(&mut self) {
        loop {
            let done = match self.spool.claim(&self.name, self.sink.span()) {
                Ok(Some(claim)) => self.hand_over(&claim),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            match done {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    log::warn!("Sink {}: {error}", self.name);
                    if self.spool.wait_ended(SPOOL_WAIT) {
                        return;
                    }
                }
            }
        }
    }

    /// Delivers the claimed batches. False if the spool was closed before that was done: the next start goes on with the first part that wasn't done.
    fn hand_over(&mut self, claim: &Claim) -> Result<bool, SpoolError> {
        let done = self.hand_over_parts(claim);
        self.sink.forget();
        if !done? {
            // Also writes changes that are in memory only.
            self.spool.change(&self.name, |progress| {
                if let Some(attempt) = &mut progress.attempt {
                    attempt.is_sent = false;
                }
            })?;
            return Ok(false);
        }
        Ok(true)
    }

    fn hand_over_parts(&mut self, claim: &Claim) -> Result<bool, SpoolError> {
        let batches = &claim.batches;
        let parts = self.sink.parts(batches);
        let mut first = usize::try_from(claim.attempt.part).unwrap_or(usize::MAX);
        if claim.attempt.is_sent && !self.sink.is_idempotent() {
            // An earlier collector was killed while it sent this part.
            let (windows, ticks) = self.sink.part(batches, first);
            first = first.saturating_add(1);
            self.note(first, |progress| progress.unsure.add_part(windows, ticks))?;
        }
        for part in first..parts {
            if self.spool.is_closed() {
                return Ok(false);
            }
            let Some(fate) = self.send(batches, part)? else {
                return Ok(false);
            };
            let (windows, ticks) = self.sink.part(batches, part);
            let count = |progress: &mut Progress| fate(progress).add_part(windows, ticks);
            if part + 1 == parts {
                self.spool.finish(&self.name, count)?;
                return Ok(true);
            }
            // It is written with the note of the next part's departure, so that there is one note for each part at most. If parts may be sent twice, it is written
            // less often: after a kill, the parts since then are sent again, and are counted then.
            self.spool.change_later(&self.name, |progress| {
                count(progress);
                progress.go_on(part + 1, false);
            });
        }
        self.spool.finish(&self.name, |_| ())?;
        Ok(true)
    }

    /// Sends a part, and repeats that until the sink has accepted or refused it. `None` if the spool was closed before that.
    fn send(&mut self, batches: &[Batch], part: usize) -> Result<Option<FinalCount>, SpoolError> {
        let mut backoff = BACKOFF;
        loop {
            let departure = Arc::new(self.departure(part));
            let sent = self.sink.send(batches, part, &departure);
            if let Some(error) = departure.end() {
                // The part hasn't been sent: without the note, it would be sent again after a kill.
                return Err(error);
            }
            let (error, fate): (_, FinalCount) = match sent {
                Ok(()) => (None, |progress| &mut progress.delivered),
                Err(Failure::Refused(error)) => (Some(error), |progress| &mut progress.refused),
                Err(Failure::Partly(error)) => (Some(error), |progress| &mut progress.unsure),
                Err(Failure::Retry { error, after }) => {
                    let asked = after.unwrap_or_default().min(LONGEST_ASKED);
                    self.tell(&error, "It is tried again");
                    self.note(part, |progress| progress.retries += 1)?;
                    let wait = jittered(backoff.advance(), chance());
                    if self.spool.wait_ended(wait.max(asked)) {
                        return Ok(None);
                    }
                    continue;
                }
            };
            match error {
                None => self.last_error.clear(),
                Some(error) => self.tell(&error, "It is not sent again"),
            }
            return Ok(Some(fate));
        }
    }

    /// The departure of a part, which notes that the part is being sent right before it can have arrived.
    fn departure(&self, part: usize) -> Departure {
        let (spool, name) = (Arc::clone(&self.spool), self.name.clone());
        Departure::new(move || spool.try_change(&name, |progress| progress.go_on(part, true)))
    }

    /// Notes that `part` is the next one and isn't being sent, and makes `change`.
    fn note(&self, part: usize, change: impl FnOnce(&mut Progress)) -> Result<(), SpoolError> {
        let change = |progress: &mut Progress| {
            progress.go_on(part, false);
            change(progress);
        };
        if self.sink.is_idempotent() {
            self.spool.change_later(&self.name, change);
            return Ok(());
        }
        self.spool.change(&self.name, change)
    }

    /// Logs an error, unless it is the same as the last one.
    fn tell(&mut self, error: &anyhow::Error, what: &str) {
        let message = format!("{error:#}");
        if message != self.last_error {
            log::warn!("Sink {}: {message}. {what}", self.name);
            self.last_error = message;
        }
    }
}

/// `wait` and up to half of it in addition, in proportion to `chance`.
fn jittered(wait: Duration, chance: u8) -> Duration {
    wait + wait * u32::from(chance) / 512
}

/// A random number. 0 if the system gives none.
fn chance() -> u8 {
    let mut byte = [0];
    // Without random numbers all collectors come at the same time, which does no harm.
    let _ = getrandom(&mut byte, GetRandomFlags::empty());
    byte[0]
}
