//! Guests with a note or with `--pid-at`, which say where their current process is.

mod location;
mod note;
mod pid_at;
mod places;

pub use note::identify;
pub use pid_at::{PidAtError, parse};
pub use places::places;
