//! Devices that a PC has always had.

pub mod power;
