//! The backend of a vCPU's clock: timers, and the host scheduler's statistics of the vCPU's thread.

use std::io;
use std::sync::Arc;

use super::halted::RunTimeAlarm;
use super::host_tick::HostTick;
use super::run_delay::RunDelay;
use super::timer::{PosixTimer, ThreadTimer};
use super::{Grid, Ticker};
use crate::perf_event;
use crate::vcpu::signals;

/// The timers and the scheduler statistics of one vCPU's thread.
///
/// [`VcpuClock`](super::VcpuClock) uses no other source of time, so that its tests can simulate time.
pub trait ClockBackend {
    /// Signals the thread at `first` (ns of CLOCK_MONOTONIC), on which a tick of `grid` is due, and at
    /// each later tick if the grid is even. `hz` is the rate of the grid.
    fn start_timer(&mut self, hz: u32, first: u64, grid: &Grid);

    /// Ends what [`start_timer`](Self::start_timer) began. A signal that is pending stays pending.
    fn stop_timer(&mut self);

    /// Signals the thread once, after it has used `run_time` ns of processor time from now on. False
    /// if the host cannot do that.
    fn start_alarm(&mut self, run_time: u64) -> bool;

    /// Ends what [`start_alarm`](Self::start_alarm) began. A signal that is pending stays pending.
    fn stop_alarm(&mut self);

    /// How much processor time the thread has used since the alarm was started, in ns; 0 if the host
    /// does not say.
    fn run_time(&self) -> u64;

    /// How long the thread was runnable but waited for a processor since the last call, in ns.
    fn take_run_delay(&mut self) -> u64;

    /// How much the ticker's thread was late since the last call, in ns; 0 without a ticker.
    fn take_ticker_delay(&mut self) -> u64;

    /// When the ticker's thread last kicked this thread, in ns of CLOCK_MONOTONIC; 0 without a ticker.
    fn kicked(&self) -> u64;
}

/// The alarm of halted vCPUs.
#[derive(Debug)]
enum Alarm {
    /// It hasn't been needed yet.
    Unmade,
    Made(RunTimeAlarm),
    /// The host refuses perf_event_open(2).
    Refused,
}

impl Alarm {
    fn made(&self) -> Option<&RunTimeAlarm> {
        match self {
            Self::Made(alarm) => Some(alarm),
            Self::Unmade | Self::Refused => None,
        }
    }
}

#[derive(Debug)]
enum Driver {
    Timer(ThreadTimer),
    Ticker(TickerShare),
}

/// A vCPU's share of the ticker.
///
/// Where the host's kernel ticks anyway, a timer of the thread's own costs less than a kick: it adds no interrupt. So it makes the ticks that
/// coincide, and the ticker makes the others.
#[derive(Debug)]
struct TickerShare {
    ticker: Arc<Ticker>,
    vcpu: u16,
    // None if this user has too many timers: then the ticker makes all ticks.
    timer: Option<PosixTimer>,
    host: HostTick,
}

impl TickerShare {
    fn new(ticker: Arc<Ticker>, vcpu: u16) -> Self {
        let timer = PosixTimer::new(signals::kick());
        if let Err(error) = &timer {
            log::debug!("The ticker makes all ticks of vCPU {vcpu}: {error}");
        }
        Self {
            ticker,
            vcpu,
            timer: timer.ok(),
            host: HostTick::of_this_host(),
        }
    }

    fn start(&self, hz: u32, first: u64, grid: &Grid) {
        let coincident = self.timer.as_ref().and_then(|timer| {
            let distance = self.host.coincidence(grid.period())?;
            timer.set(first.next_multiple_of(distance), distance);
            Some(distance)
        });
        self.ticker.set(self.vcpu, hz, first, coincident);
    }

    fn stop(&self) {
        if let Some(timer) = &self.timer {
            timer.set(0, 0);
        }
        self.ticker.set(self.vcpu, 0, 0, None);
    }
}

/// The backend on a real host: a POSIX timer or the [`Ticker`], a perf task-clock event, and
/// `/proc/thread-self/schedstat`.
#[derive(Debug)]
pub struct ThreadBackend {
    driver: Driver,
    alarm: Alarm,
    run_delay: RunDelay,
    // The ticker's delay up to the last call that took it, in ns.
    ticker_delay: u64,
}

impl ThreadBackend {
    /// The backend for the calling thread, which runs vCPU number `vcpu`. `ticker` drives the clock if there
    /// is one, or else a timer of the thread's own.
    ///
    /// # Errors
    /// timer_create(2) fails: this user has too many timers or pending signals.
    pub fn for_this_thread(vcpu: u16, ticker: Option<Arc<Ticker>>) -> io::Result<Self> {
        let driver = match ticker {
            Some(ticker) => Driver::Ticker(TickerShare::new(ticker, vcpu)),
            None => Driver::Timer(ThreadTimer::for_this_thread(signals::kick())?),
        };
        Ok(Self {
            driver,
            alarm: Alarm::Unmade,
            run_delay: RunDelay::of_this_thread(),
            ticker_delay: 0,
        })
    }

    /// Makes the alarm if that hasn't been tried before. This may take milliseconds, so it is done before a clock starts and not when
    /// the guest starts.
    pub fn prepare_alarm(&mut self) {
        if matches!(self.alarm, Alarm::Unmade) {
            self.alarm = match RunTimeAlarm::for_this_thread(signals::alarm()) {
                Ok(alarm) => Alarm::Made(alarm),
                Err(error) => {
                    log::warn!(
                        "No perf task clock on this host ({}): halted vCPUs wake up for each tick",
                        perf_event::why_not(&error)
                    );
                    Alarm::Refused
                }
            };
        }
    }
}

impl ClockBackend for ThreadBackend {
    fn start_timer(&mut self, hz: u32, first: u64, grid: &Grid) {
        match &self.driver {
            Driver::Timer(timer) => timer.arm(first, grid),
            Driver::Ticker(ticked) => ticked.start(hz, first, grid),
        }
    }

    fn stop_timer(&mut self) {
        match &self.driver {
            Driver::Timer(timer) => timer.disarm(),
            Driver::Ticker(ticked) => ticked.stop(),
        }
    }

    fn start_alarm(&mut self, run_time: u64) -> bool {
        let Some(alarm) = self.alarm.made() else {
            return false;
        };
        if let Err(error) = alarm.arm(run_time) {
            log::warn!("The perf task clock failed ({error}): halted vCPUs wake up for each tick");
            self.alarm = Alarm::Refused;
            return false;
        }
        true
    }

    fn stop_alarm(&mut self) {
        if let Some(alarm) = self.alarm.made() {
            alarm.disarm();
        }
    }

    fn run_time(&self) -> u64 {
        let alarm = self.alarm.made();
        alarm.and_then(RunTimeAlarm::run_time).unwrap_or(0)
    }

    fn take_run_delay(&mut self) -> u64 {
        self.run_delay.take()
    }

    fn take_ticker_delay(&mut self) -> u64 {
        let Driver::Ticker(ticked) = &self.driver else {
            return 0;
        };
        let total = ticked.ticker.delay().max(self.ticker_delay);
        let grown = total - self.ticker_delay;
        self.ticker_delay = total;
        grown
    }

    fn kicked(&self) -> u64 {
        match &self.driver {
            Driver::Timer(_) => 0,
            Driver::Ticker(ticked) => ticked.ticker.kicked(ticked.vcpu),
        }
    }
}
