//! Legacy devices of a PC.

pub mod power;
