//! The profiling devices, fed with the ticks of the virtual clock.

pub mod pcs;
mod phase;
pub mod pmc;
pub mod prf;
pub mod profil;

pub use pcs::{ClockRequest, Pcs};
pub use phase::Phase;
pub use pmc::Pmc;
pub use prf::{Prf, Switch};
pub use profil::Profile;
