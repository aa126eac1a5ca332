//! Guests of other VMMs on this host: finds them, and reads their memory and registers.

pub mod tracer;
