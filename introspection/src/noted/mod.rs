//! Guests that say where their current process is: in an ELF note of their image, or by `--pid-at`.

mod location;
mod note;
mod pid_at;

pub use note::identify;
pub use pid_at::{PidAtError, parse};
