//! Device models as plain state machines: samples and requests in, bytes and errnos out.
//!
//! This crate uses neither KVM nor threads or sockets.
//!
//! ```
//! use kvmprof_abi::pcs::{Format, PCS_FLUSH, PROF_ALL, Record};
//! use kvmprof_devices::profiling::Pcs;
//! use kvmprof_recording::{Mode, Sample, Ticks};
//!
//! let mut pcs = Pcs::new(1);
//! pcs.open(100)?;
//! pcs.ioctl(PROF_ALL, 0, &[])?;
//!
//! let sample = Sample { pid: 42, pc: 0x40_1000, mode: Mode::User, ..Sample::default() };
//! pcs.feed(&Ticks { sample: Some(sample), ..Ticks::default() });
//!
//! // A buffer that isn't full is delivered when a client asks for it: a header of 8 bytes, then records.
//! pcs.ioctl(PCS_FLUSH, 0, &[])?;
//! let mut buffer = Vec::new();
//! pcs.read(1024, &mut buffer)?;
//! let record = Record::decode(Format::Native, &buffer[8..]);
//! assert!(matches!(record, Some(Record::Sample(sample)) if sample.pid == 42 && sample.pc == 0x40_1000));
//! assert!(pcs.ledger().balances());
//! # Ok::<(), kvmprof_abi::errno::Errno>(())
//! ```
#![forbid(unsafe_code)]

pub mod endpoint;
pub mod legacy;
pub mod profiling;
pub mod virtio;
