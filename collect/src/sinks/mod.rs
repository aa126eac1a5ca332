//! Hands batches out of the spool to sinks, each in a thread of its own.
//!
//! A batch, or several, are handed over in parts. Before a part may arrive that is noted in the spool, and with the next part's note, or at the
//! batches' end, that it has. Whatever is in between when the collector is killed isn't sent again. Where sending it twice does nothing, it is, and less is
//! noted.

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

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use rustix::rand::{GetRandomFlags, getrandom};

use self::departure::Departure;
use self::otlp::OtlpSink;
use self::parquet::ParquetSink;
use self::pprof::{Dialect, PprofSink};
use crate::batch::Batch;
use crate::config::{SinkConfig, SinkKind};
use crate::spool::{Claim, Counts, Progress, Spool, SpoolError};

/// Waits before a sink that has failed is tried again: each twice the one before, all of them by chance up to half as long again.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The longest wait that a sink can ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(300);
/// The frames of ticks without a stack: of samples beyond the limits, and of vCPUs that were halted.
const NO_STACK: [&str; 2] = ["[no stack]", "[halted]"];
/// The wait when the spool itself can't be used.
const SPOOL_WAIT: Duration = Duration::from_secs(5);

/// Why a part wasn't taken.
#[derive(Debug)]
enum Failure {
    /// It can be tried again, not before so much time if the sink has said so.
    Retry {
        error: anyhow::Error,
        after: Option<Duration>,
    },
    /// It is never going to be taken.
    Refused(anyhow::Error),
    /// Some of its windows were taken, and the others never will be. Which ones isn't known.
    Partly(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Retry { error, after: None }
    }
}

/// A sink.
trait Sink: Send {
    /// Whether a part may be sent twice: the second one takes the first one's place.
    fn is_idempotent(&self) -> bool {
        false
    }

    /// How many seconds of batches it takes at a time; 0: each alone.
    fn span(&self) -> u64 {
        0
    }

    /// How many parts the batches have: the same number for the same batches. It is asked first.
    fn parts(&mut self, batches: &[Batch]) -> usize;

    /// Windows and ticks in a part.
    fn part(&self, batches: &[Batch], part: usize) -> (u64, u64);

    /// Hands a part over. If it may not be sent twice, its `departure` is noted before all of it can have arrived.
    fn send(
        &mut self,
        batches: &[Batch],
        part: usize,
        departure: &Arc<Departure>,
    ) -> Result<(), Failure>;

    /// Forgets what it has kept of the batches.
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
    /// The configuration names files that can't be read, or an object store has no such options.
    pub fn new(config: &SinkConfig) -> anyhow::Result<Self> {
        let sink = new_sink(&config.kind).with_context(|| format!("Sink {}", config.name))?;
        Ok(Self {
            name: config.name.clone(),
            sink: Arc::new(Mutex::new(sink)),
        })
    }

    /// Starts it on `spool`. It ends when the spool is closed or drained: what it can't hand over then at once stays there. When it has
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

/// Tells of a sink that ends by a fault of the program when that happens: nobody joins it before the end.
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

/// A sink at work.
pub struct Running(JoinHandle<()>);

impl Running {
    /// Waits for its end, which comes after [`Spool::close`] or [`Spool::drain`].
    pub fn join(self) {
        // If it has panicked, that has been told.
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

/// What has become of a part that isn't sent again.
type Fate = fn(&mut Progress) -> &mut Counts;

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

    /// False when the spool was closed before all of it was taken: the next start goes on with the part after the last one that was.
    fn hand_over(&mut self, claim: &Claim) -> Result<bool, SpoolError> {
        let done = self.hand_over_parts(claim);
        self.sink.forget();
        if !done? {
            // What was noted in memory alone, and that nothing is being sent.
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
            // An earlier collector was killed while it was sent.
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
            // Written with the note that the next one leaves: one for each part is the most that is written. Where parts may be sent twice it isn't written
            // each time: those since then are sent again after a kill, and are counted by then.
            self.spool.change_later(&self.name, |progress| {
                count(progress);
                progress.go_on(part + 1, false);
            });
        }
        self.spool.finish(&self.name, |_| ())?;
        Ok(true)
    }

    /// Sends a part, until it isn't sent again. `None` if the spool was closed before that.
    fn send(&mut self, batches: &[Batch], part: usize) -> Result<Option<Fate>, SpoolError> {
        let mut wait = FIRST_WAIT;
        loop {
            let departure = Arc::new(self.departure(part));
            let sent = self.sink.send(batches, part, &departure);
            if let Some(error) = departure.end() {
                // It hasn't left: a collector that was killed then would have sent it again.
                return Err(error);
            }
            let (error, fate): (_, Fate) = match sent {
                Ok(()) => (None, |progress| &mut progress.delivered),
                Err(Failure::Refused(error)) => (Some(error), |progress| &mut progress.refused),
                Err(Failure::Partly(error)) => (Some(error), |progress| &mut progress.unsure),
                Err(Failure::Retry { error, after }) => {
                    let asked = after.unwrap_or_default().min(LONGEST_ASKED);
                    self.tell(&error, "It is tried again");
                    self.note(part, |progress| progress.retries += 1)?;
                    if self.spool.wait_ended(jittered(wait, chance()).max(asked)) {
                        return Ok(None);
                    }
                    wait = longer(wait);
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

    /// Notes that a part leaves, right before it can have arrived.
    fn departure(&self, part: usize) -> Departure {
        let (spool, name) = (Arc::clone(&self.spool), self.name.clone());
        Departure::new(move || spool.try_change(&name, |progress| progress.go_on(part, true)))
    }

    /// Notes that `part` is the next one and isn't being sent, and what else has changed.
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

    /// Tells of an error, once until there is another one.
    fn tell(&mut self, error: &anyhow::Error, what: &str) {
        let message = format!("{error:#}");
        if message != self.last_error {
            log::warn!("Sink {}: {message}. {what}", self.name);
            self.last_error = message;
        }
    }
}

/// The wait that follows `wait`.
fn longer(wait: Duration) -> Duration {
    (2 * wait).min(LONGEST_WAIT)
}

/// `wait`, or up to half as long again, by `chance`.
fn jittered(wait: Duration, chance: u8) -> Duration {
    wait + wait * u32::from(chance) / 512
}

/// A random number.
fn chance() -> u8 {
    let mut byte = [0];
    // Without chance, all come at once: that is no failure.
    let _ = getrandom(&mut byte, GetRandomFlags::empty());
    byte[0]
}
