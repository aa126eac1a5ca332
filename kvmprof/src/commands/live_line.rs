//! A line on the terminal while a command collects data.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The period at which the time is updated.
const INTERVAL: Duration = Duration::from_millis(250);

/// A line on standard error with the activity, its duration, the limit `time`, and a message. `None` if standard error
/// isn't a terminal.
pub fn live_line(what: &str, time: Option<Duration>) -> Option<ProgressBar> {
    // Hidden if standard error isn't a terminal.
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if bar.is_hidden() {
        return None;
    }
    let end = match time {
        Some(time) => format!("of {:.0} s", time.as_secs_f64().ceil()),
        None => "(Ctrl-C ends it)".to_owned(),
    };
    let style = ProgressStyle::with_template(&format!("{what} {{elapsed}} {{prefix}}: {{msg}}"));
    let bar = bar
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
        .with_prefix(end);
    bar.enable_steady_tick(INTERVAL);
    Some(bar)
}
