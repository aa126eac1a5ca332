//! Collecting for the sinks until a signal, and going on with another configuration at SIGHUP.
//!
//! Everything the new configuration needs is opened before the old one is closed, where both can exist at once: files are read, the stores' options
//! are checked. The spool's folder and the address of metrics may be the same ones, and come after. If they can't be had, the former
//! configuration goes on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use kvmprof_recording::counters::Counters;
use kvmprof_tools::interrupt::Interrupt;
use signal_hook::consts::SIGHUP;

use crate::batch::Batch;
use crate::collector::{Collector, Host, new_boot};
use crate::config::Config;
use crate::metrics::Metrics;
use crate::page::Page;
use crate::sinks::{self, Running};
use crate::spool::Spool;

/// The wait before a configuration that had been at work is started again, when it can't be.
const AGAIN: Duration = Duration::from_secs(5);
/// How often a signal is looked for meanwhile.
const POLL: Duration = Duration::from_millis(250);

/// A configuration, and its sinks.
pub struct Prepared {
    config: Config,
    sinks: Vec<sinks::Prepared>,
}

impl Prepared {
    /// Has the sinks of `config` read their files.
    ///
    /// # Errors
    /// [`sinks::Prepared::new`].
    pub fn new(config: Config) -> anyhow::Result<Self> {
        let sinks = config.sink.iter().map(sinks::Prepared::new);
        let sinks = sinks.collect::<anyhow::Result<_>>()?;
        Ok(Self { config, sinks })
    }

    /// Hands over what waits in the spool, and collects nothing. What the sinks don't take at once stays there.
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

/// The spool, and the sinks at work on it. Dropped, they end, and what waits for them stays in the spool.
struct Sinks {
    spool: Arc<Spool>,
    running: Vec<Running>,
}

impl Sinks {
    /// Opens the spool. No sink is at work yet.
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

/// SIGHUP, and the configuration that it asks for.
pub struct Reload<'a> {
    raised: Arc<AtomicBool>,
    prepare: &'a dyn Fn() -> anyhow::Result<Prepared>,
    next: RefCell<Option<Prepared>>,
}

impl<'a> Reload<'a> {
    /// Has SIGHUP call `prepare`, in the thread that asks whether there is another configuration.
    ///
    /// # Errors
    /// The signal can't be had.
    pub fn on_signal(prepare: &'a dyn Fn() -> anyhow::Result<Prepared>) -> io::Result<Self> {
        let raised = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGHUP, Arc::clone(&raised))?;
        Ok(Self {
            raised,
            prepare,
            next: RefCell::default(),
        })
    }

    /// Whether there is another configuration. One that is wrong is none: the log says what is wrong with it.
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

/// Collects with `present`, and what takes its place at SIGHUP, until there is an interrupt.
///
/// # Errors
/// `present` can't be started. What comes after it may be wrong: that is logged, and what was before goes on.
pub fn run(
    mut present: Prepared,
    interrupt: &Interrupt,
    reload: &Reload<'_>,
) -> anyhow::Result<()> {
    let mut work = Some(Work::start(&present)?);
    while let Some(started) = work.take() {
        started.collect(&present.config, interrupt, reload);
        work = start_again(&mut present, interrupt, reload);
    }
    Ok(())
}

/// Starts the configuration that was asked for, else `present`, as soon as one can be. `None` when there is an interrupt.
fn start_again(present: &mut Prepared, interrupt: &Interrupt, reload: &Reload<'_>) -> Option<Work> {
    while !interrupt.is_raised() {
        if let Some(next) = reload.take() {
            match Work::start(&next) {
                Ok(work) => {
                    *present = next;
                    return Some(work);
                }
                Err(error) => log::error!("{error:#}: the former configuration stays"),
            }
        }
        match Work::start(present) {
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

/// What is there while it is collected.
struct Work {
    sinks: Sinks,
    metrics: Arc<Metrics>,
    /// Only held: it ends with this.
    _page: Option<Page>,
    boot: String,
}

impl Work {
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

    /// Collects until a signal. Then the sinks end, and what waits for them stays in the spool.
    fn collect(self, config: &Config, interrupt: &Interrupt, reload: &Reload<'_>) {
        let mut always = Always {
            interrupt,
            reload,
            spool: &self.sinks.spool,
            metrics: &self.metrics,
            left_out: Cell::new(0),
        };
        Collector::new(config, config.host_name(), self.boot.clone()).run(&mut always);
    }
}

/// Collects into the spool, for the sinks.
struct Always<'a> {
    interrupt: &'a Interrupt,
    reload: &'a Reload<'a>,
    spool: &'a Spool,
    metrics: &'a Metrics,
    left_out: Cell<usize>,
}

impl Host for Always<'_> {
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
            log::warn!("{left_out} guests are left out: limits.guests, attach.limit");
        }
        self.metrics.note_guests(followed, left_out);
    }

    fn note_counts(&mut self, guest: &str, counts: &Counters) {
        self.metrics.note_counts(guest, counts);
    }
}
