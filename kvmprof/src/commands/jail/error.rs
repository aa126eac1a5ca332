//! The error of making a jail.

use std::io;
use std::path::{Path, PathBuf};

/// The host refuses a step of making the jail.
#[derive(Debug, thiserror::Error)]
#[error("The jail can't be made: {step} {}: {source}{}", path.display(), hint(source, advice))]
pub struct JailError {
    step: &'static str,
    path: PathBuf,
    source: io::Error,
    advice: &'static str,
}

fn hint(source: &io::Error, advice: &str) -> String {
    match source.kind() {
        _ if !advice.is_empty() => format!("; {advice}"),
        io::ErrorKind::PermissionDenied => {
            "; root in a container may lack the rights: start it on the host".to_owned()
        }
        _ => String::new(),
    }
}

/// An error at `path` in a step whose description has a verb: `cannot mount`.
pub fn failed<'a, E: Into<io::Error>>(
    step: &'static str,
    path: &'a Path,
) -> impl FnOnce(E) -> JailError + 'a {
    failed_with(step, path, "")
}

/// The same error with advice for the user.
pub fn failed_with<'a, E: Into<io::Error>>(
    step: &'static str,
    path: &'a Path,
    advice: &'static str,
) -> impl FnOnce(E) -> JailError + 'a {
    move |error| JailError {
        step,
        path: path.to_owned(),
        source: error.into(),
        advice,
    }
}
