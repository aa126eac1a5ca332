//! Record layouts, ioctl numbers and wire frames: one definition for guest, host and tests.
#![no_std]

pub mod errno;
pub mod note;
pub mod pcs;
pub mod prf;
pub mod recorder;
pub mod stream;
pub mod wire;
