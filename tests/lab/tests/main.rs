//! Tests of the lab. They are one program: each would link the whole crate again.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod command;
mod machine;
mod vmx;
