//! The tools that read profiles: same code on the host socket and on the guest nodes.

pub mod client;
pub mod device;
pub mod getpc;
pub mod interrupt;
pub mod pcstat;
pub mod prf;
pub mod program;
pub mod symbols;

/// An error and its causes, on one line.
pub fn one_line(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        line += &format!(": {cause}");
        source = cause.source();
    }
    line
}
