//! A line on the terminal while a command gathers something.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often the time is shown anew.
const INTERVAL: Duration = Duration::from_millis(250);

/// A line on standard error that says what is done, for how long, of which `time`, and a message. `None` if that is no
/// terminal.
pub fn live_line(what: &str, time: Option<Duration>) -> Option<ProgressBar> {
    // Hidden where standard error is no terminal.
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
