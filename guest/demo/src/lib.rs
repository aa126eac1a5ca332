//! The embedded bare-metal guest.
