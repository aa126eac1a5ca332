//! `kvmprof profil` and `kvmprof pcsample`: a histogram and an array of program counters of one process.

mod arguments;
mod command;
mod device;
mod document;
mod gmon;
mod histogram;
mod pcsample;
mod process;
mod region;
mod session;
mod table;

pub use command::ProfilArguments;
pub use pcsample::PcsampleArguments;
