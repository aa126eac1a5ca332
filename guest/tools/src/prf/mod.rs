//! The commands of `profiler(1M)`: prfld, prfstat, prfdc, prfsnap, prfpr.

mod error;
mod local_time;
mod log;
mod prfdc;
mod prfld;
mod prfpr;
mod prfsnap;
mod prfstat;
mod profiler;
mod report;
mod table;

pub use error::PrfError;
pub use log::{Log, LogEnd, LogError, Record, append};
pub use prfdc::{PrfdcArguments, record_periodically};
pub use prfld::PrfldArguments;
pub use prfpr::PrfprArguments;
pub use prfsnap::{PrfsnapArguments, snap};
pub use prfstat::{PrfstatArguments, set_and_show};
pub use profiler::{Counters, Profiler};
pub use report::{Names, write_interval};
pub use table::table;
