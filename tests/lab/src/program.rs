//! The paths of this source's programs, which are built on demand or taken from a folder.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::LabError;

/// The environment variable with the folder of programs that are used as they are. Cargo compiles one package with other
/// features of its dependencies than the whole workspace, so that a build on demand would compile all of them once more.
const PROGRAMS: &str = "KVMPROF_LAB_PROGRAMS";

/// Returns the path of a program of this workspace (`kvmprof`): the one in the folder `KVMPROF_LAB_PROGRAMS`, or one that cargo builds with
/// the release profile if it is not up to date. It is linked statically, so it runs in the lab without libraries.
///
/// # Errors
/// [`LabError::Build`] if cargo fails or names no such program, or if the folder has none.
pub fn build_program(package: &str) -> Result<PathBuf, LabError> {
    build_program_of(package, package)
}

/// Like [`build_program`], for a program whose name differs from its package's.
///
/// # Errors
/// As [`build_program`].
pub fn build_program_of(package: &str, program: &str) -> Result<PathBuf, LabError> {
    let failed = |reason: String| LabError::Build {
        package: package.to_owned(),
        reason,
    };
    if let Some(folder) = env::var_os(PROGRAMS) {
        return program_in(Path::new(&folder), program).map_err(failed);
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args([
            "build",
            "--quiet",
            "--release",
            "--bins",
            "--package",
            package,
        ])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !built.status.success() {
        return Err(failed("see cargo's messages above".to_owned()));
    }
    String::from_utf8_lossy(&built.stdout)
        .lines()
        .find_map(|line| executable(line, program))
        .ok_or_else(|| failed("it has no such program".to_owned()))
}

/// The path of a program in a folder, or why there is none.
fn program_in(folder: &Path, program: &str) -> Result<PathBuf, String> {
    let path = folder.join(program);
    match path.is_file() {
        true => Ok(path),
        false => Err(format!(
            "{PROGRAMS} is set, but {} is no file",
            path.display()
        )),
    }
}

/// The path in a message of cargo, if the message is about the named program (The Cargo Book, External tools, Artifact messages).
fn executable(message: &str, name: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    if message.get("reason")? != "compiler-artifact" || message.get("target")?.get("name")? != name
    {
        return None;
    }
    Some(PathBuf::from(message.get("executable")?.as_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_the_program_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let reason = program_in(folder.path(), "kvmprof").unwrap_err();
        assert!(reason.starts_with("KVMPROF_LAB_PROGRAMS is set, but /"));
        let program = folder.path().join("kvmprof");
        std::fs::write(&program, "").unwrap();
        assert_eq!(program_in(folder.path(), "kvmprof"), Ok(program));
    }

    #[test]
    fn only_the_named_programs_path_is_taken() {
        let message = |reason: &str, name: &str, executable: &str| {
            format!(
                r#"{{"reason":"{reason}","target":{{"name":"{name}"}},"executable":{executable}}}"#
            )
        };
        let artifact = "compiler-artifact";
        let found = |message: String| executable(&message, "kvmprof");
        let path = r#""/target/kvmprof""#;
        assert_eq!(
            found(message(artifact, "kvmprof", path)).unwrap(),
            Path::new("/target/kvmprof")
        );
        assert_eq!(found(message(artifact, "kvmprof", "null")), None);
        assert_eq!(found(message(artifact, "other", path)), None);
        assert_eq!(found(message("build-finished", "kvmprof", path)), None);
        assert_eq!(found("not json".to_owned()), None);
    }
}
