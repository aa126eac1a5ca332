//! Collects for the sinks until a signal ends the program, and changes to another configuration at SIGHUP.
//!
//! Where both can be open at once, what the new configuration needs is opened before the old one is closed: files are read, and the stores' options
//! are checked. The spool's folder and the address of metrics may be the same ones, so that they are opened afterwards. If they can't be opened, the former
//! configuration is used again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use kvmprof_cli::interrupt::Interrupt;
use kvmprof_recording::counters::Counters;
use kvmprof_recording::exits::ExitInterval;
use signal_hook::consts::SIGHUP;

use crate::batch::Batch;
use crate::collector::{Collector, Host, new_boot};
use crate::config::Config;
use crate::metrics::Metrics;
use crate::page::Page;
use crate::sinks::{self, Running};
use crate::spool::Spool;

/// The wait after a configuration that was in use before couldn't be started again.
const AGAIN: Duration = Duration::from_secs(5);
/// The interval at which a signal is checked meanwhile.
const POLL: Duration = Duration::from_millis(250);

/// A configuration, and its sinks.
pub struct Prepared {
    config: Config,
    sinks: Vec<sinks::Prepared>,
}

impl Prepared {
    /// Prepares the sinks of `config`, which read their files.
    ///
    /// # Errors
    /// [`sinks::Prepared::new`].
    pub fn new(config: Config) -> anyhow::Result<Self> {
        let sinks = config.sink.iter().map(sinks::Prepared::new);
        let sinks = sinks.collect::<anyhow::Result<_>>()?;
        Ok(Self { config, sinks })
    }

    /// Delivers the batches that wait in the spool, and collects nothing. Batches that the sinks don't take at the first attempt stay in the spool.
    ///
    /// # Errors
    /// The spool can't be opened, or the host gives no thread.
    pub fn hand_over(&self) -> anyhow::Result<()> {
        let mut sinks = Sinks::open(self)?;
        sinks.start(self)?;
        sinks.spool.drain();
        sinks.join();
        Ok(())
    }
}

/// The spool and its running sinks. When this is dropped, the sinks end, and batches that wait for them stay in the spool.
struct Sinks {
    spool: Arc<Spool>,
    running: Vec<Running>,
}

impl Sinks {
    /// Opens the spool. No sink runs yet.
    fn open(prepared: &Prepared) -> anyhow::Result<Self> {
        let config = &prepared.config;
        let names: Vec<&str> = config.sink.iter().map(|sink| sink.name.as_str()).collect();
        let limit = config.spool.mebibytes << 20;
        Ok(Self {
            spool: Arc::new(Spool::open(&config.spool.folder, limit, &names)?),
            running: Vec::with_capacity(prepared.sinks.len()),
        })
    }

    fn start(&mut self, prepared: &Prepared) -> anyhow::Result<()> {
        for sink in &prepared.sinks {
            self.running.push(sink.start(Arc::clone(&self.spool))?);
        }
        Ok(())
    }

    fn join(&mut self) {
        self.running.drain(..).for_each(Running::join);
    }
}

impl Drop for Sinks {
    fn drop(&mut self) {
        self.spool.close();
        self.join();
    }
}

/// Handles SIGHUP, which asks for another configuration.
pub struct Reload<'a> {
    raised: Arc<AtomicBool>,
    prepare: &'a dyn Fn() -> anyhow::Result<Prepared>,
    next: RefCell<Option<Prepared>>,
}

impl<'a> Reload<'a> {
    /// After SIGHUP, `prepare` is called on the thread that asks whether there is another configuration.
    ///
    /// # Errors
    /// The system refuses the signal's handler.
    pub fn on_signal(prepare: &'a dyn Fn() -> anyhow::Result<Prepared>) -> io::Result<Self> {
        let raised = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGHUP, Arc::clone(&raised))?;
        Ok(Self {
            raised,
            prepare,
            next: RefCell::default(),
        })
    }

    /// Whether there is another configuration. An invalid one is logged and ignored.
    fn is_asked_for(&self) -> bool {
        if self.raised.swap(false, Ordering::Relaxed) {
            match (self.prepare)() {
                Ok(next) => *self.next.borrow_mut() = Some(next),
                Err(error) => log::error!("{error:#}: the former configuration stays"),
            }
        }
        self.next.borrow().is_some()
    }

    fn take(&self) -> Option<Prepared> {
        self.next.take()
    }
}

/// Collects with `present`, and with the configurations that replace it at SIGHUP, until there is an interrupt.
///
/// # Errors
/// `present` can't be started. If a later configuration can't be, that is logged, and the former one is used again.
pub fn run(
    mut present: Prepared,
    interrupt: &Interrupt,
    reload: &Reload<'_>,
) -> anyhow::Result<()> {
    let mut work = Some(ActiveConfig::start(&present)?);
    while let Some(started) = work.take() {
        started.collect(&present.config, interrupt, reload);
        work = start_again(&mut present, interrupt, reload);
    }
    Ok(())
}

/// Starts the configuration that was asked for, or else `present`, and tries again until one of them starts. `None` if there is an interrupt.
fn start_again(
    present: &mut Prepared,
    interrupt: &Interrupt,
    reload: &Reload<'_>,
) -> Option<ActiveConfig> {
    while !interrupt.is_raised() {
        if let Some(next) = reload.take() {
            match ActiveConfig::start(&next) {
                Ok(work) => {
                    *present = next;
                    return Some(work);
                }
                Err(error) => log::error!("{error:#}: the former configuration stays"),
            }
        }
        match ActiveConfig::start(present) {
            Ok(work) => return Some(work),
            Err(error) => log::error!("{error:#}: it is tried again"),
        }
        let until = Instant::now() + AGAIN;
        while Instant::now() < until && !interrupt.is_raised() && !reload.is_asked_for() {
            sleep(POLL);
        }
    }
    None
}

/// A configuration that is in use.
struct ActiveConfig {
    sinks: Sinks,
    metrics: Arc<Metrics>,
    /// Only held, so that it ends with this.
    _page: Option<Page>,
    boot: String,
}

impl ActiveConfig {
    fn start(prepared: &Prepared) -> anyhow::Result<Self> {
        let config = &prepared.config;
        let mut sinks = Sinks::open(prepared)?;
        let metrics = Metrics::new(config, &config.host_name(), Arc::clone(&sinks.spool));
        let metrics = Arc::new(metrics);
        let page = config.metrics.listen;
        let page = page.map(|address| Page::start(address, Arc::clone(&metrics)));
        let page = page.transpose()?;
        if let Some(page) = &page {
            log::info!("Metrics are at http://{}/metrics", page.address());
        }
        sinks.start(prepared)?;
        Ok(Self {
            sinks,
            metrics,
            _page: page,
            boot: new_boot()?,
        })
    }

    /// Collects until a signal. Then the sinks end, and batches that wait for them stay in the spool.
    fn collect(self, config: &Config, interrupt: &Interrupt, reload: &Reload<'_>) {
        let mut always = SpoolCollection {
            interrupt,
            reload,
            spool: &self.sinks.spool,
            metrics: &self.metrics,
            left_out: Cell::new(0),
        };
        Collector::new(config, config.host_name(), self.boot.clone()).run(&mut always);
    }
}

/// Puts batches into the spool, for the sinks.
struct SpoolCollection<'a> {
    interrupt: &'a Interrupt,
    reload: &'a Reload<'a>,
    spool: &'a Spool,
    metrics: &'a Metrics,
    left_out: Cell<usize>,
}

impl Host for SpoolCollection<'_> {
    fn is_over(&self) -> bool {
        self.interrupt.is_raised() || self.reload.is_asked_for()
    }

    fn take(&mut self, batch: Batch, open: BTreeMap<u64, u64>) {
        self.metrics.add(&batch);
        if let Err(error) = self.spool.push_noting(&batch, open) {
            log::error!("{error:?}: windows are lost");
        }
    }

    fn note_open(&mut self, open: BTreeMap<u64, u64>) {
        if let Err(error) = self.spool.note_open(open) {
            log::error!("{error:?}");
        }
    }

    fn note_guests(&mut self, followed: usize, left_out: usize) {
        if left_out > 0 && self.left_out.replace(left_out) == 0 {
            log::warn!("{left_out} guests are left out: raise limits.guests or attach.limit");
        }
        self.metrics.note_guests(followed, left_out);
    }

    fn note_counts(&mut self, guest: &str, counts: &Counters) {
        self.metrics.note_counts(guest, counts);
    }

    fn note_exits(&mut self, guest: &str, interval: &ExitInterval) {
        self.metrics.note_exits(guest, interval);
    }
}
