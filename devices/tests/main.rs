//! Tests of the devices as plain state machines. They are one program: each would link the whole crate
//! again.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod pcs_additions;
mod pcs_page;
mod pcs_properties;
mod pmc_page;
mod prf_page;
mod prf_properties;
mod profil_page;
mod support;
mod virtio;

// Shared with the fuzz targets.
use virtio::driver;
