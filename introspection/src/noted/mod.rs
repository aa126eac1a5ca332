//! Guests with a note or with `--pid-at`, which give the place of the current process's identity.

mod location;
mod note;
mod note_places;
mod pid_at;

pub use note::identify;
pub use note_places::places;
pub use pid_at::{PidAt, PidAtError};
