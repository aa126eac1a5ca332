//! Record layouts, ioctl numbers and wire frames: one definition for guest, host and tests.
//!
//! This crate only converts between bytes and values; invalid bytes are an error. The pages `PCS.md`, `PRF.md`,
//! `PROFIL.md`, `RECORDER.md` and `WIRE.md` in its folder describe the same for programs in any language; tests compare them with
//! this code.
//!
//! ```
//! use kvmprof_abi::pcs::{Format, Psample, Record, kind};
//!
//! // USER, vCPU 1, pid 42, pc 0x401000.
//! let bytes = [2, 0, 1, 0, 42, 0, 0, 0, 0, 0x10, 0x40, 0, 0, 0, 0, 0];
//! let record = Record::decode(Format::Native, &bytes);
//! let expected = Psample { kind: kind::USER, sspace: 0, cpu: 1, pid: 42, pc: 0x40_1000 };
//! assert_eq!(record, Some(Record::Sample(expected)));
//! ```
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

pub mod commands;
pub mod control;
mod encoded;
pub mod errno;
pub mod kallsyms;
pub mod note;
pub mod pcs;
pub mod pmc;
pub mod prf;
pub mod profil;
pub mod recorder;
pub mod stream;
pub mod text;
pub mod wire;

pub use encoded::Encoded;
