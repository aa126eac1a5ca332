//! Gets Debian packages from apt, as any user.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::LabError;

/// Sources of packages beside the machine's own.
pub(super) struct Sources {
    /// What they are called.
    name: &'static str,
    /// The folder for their lists, among the packages.
    folder: &'static str,
    /// As sources.list(5) has them.
    lines: &'static str,
}

/// The sources of Debian 12, which has both kernel series that the lab needs. Other releases, and Ubuntu, do not, so they use these sources
/// beside the machine's own.
pub(super) const DEBIAN_12: Sources = Sources {
    name: "Debian 12",
    folder: ".apt",
    lines: "\
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian-security bookworm-security main
",
};

/// Newer versions of some of Debian 12's packages.
pub(super) const BACKPORTS: Sources = Sources {
    name: "Debian 12's backports",
    folder: ".apt-backports",
    lines: "\
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm-backports main
",
};

/// Older versions of programs.
pub(super) const DEBIAN_11: Sources = Sources {
    name: "Debian 11",
    folder: ".apt-11",
    lines: "\
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bullseye main
",
};

/// Newer versions of programs.
pub(super) const DEBIAN_13: Sources = Sources {
    name: "Debian 13",
    folder: ".apt-13",
    lines: "\
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main
",
};

/// A set of package lists.
pub(super) struct Apt {
    options: Vec<String>,
}

impl Apt {
    /// The machine's own lists, without an update.
    pub(super) fn of_machine() -> Self {
        // The sandbox's user could not write into the caller's folder.
        Self::with(["APT::Sandbox::User=root".to_owned()])
    }

    /// The lists of `sources`, kept beside the packages in `packages` and updated.
    pub(super) fn of_debian(packages: &Path, sources: &Sources) -> Result<Self, LabError> {
        let Sources {
            name,
            folder,
            lines,
        } = sources;
        let folder = packages.join(folder);
        let lists = folder.join("lists");
        let cache = folder.join("cache");
        for needed in [lists.join("partial"), cache.join("archives/partial")] {
            fs::create_dir_all(&needed).map_err(LabError::file("create", &needed))?;
        }
        let list = folder.join("sources.list");
        fs::write(&list, lines).map_err(LabError::file("write", &list))?;
        let place = |kind: &str, path: &Path| format!("Dir::{kind}={}", path.display());
        let apt = Self::with([
            "APT::Sandbox::User=root".to_owned(),
            // The machine may have another release or architecture.
            "APT::Architecture=amd64".to_owned(),
            "APT::Architectures=amd64".to_owned(),
            place("Etc::SourceList", &list),
            place("Etc::SourceParts", Path::new("/dev/null")),
            place("State::Lists", &lists),
            // What the machine has installed may be newer.
            place("State::status", Path::new("/dev/null")),
            place("Cache", &cache),
        ]);
        eprintln!("lab: fetching package lists of {name}");
        run(apt.command("apt-get").arg("update"))?;
        Ok(apt)
    }

    fn with<const N: usize>(settings: [String; N]) -> Self {
        let options = settings
            .into_iter()
            .flat_map(|setting| ["--option".to_owned(), setting])
            .collect();
        Self { options }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("--quiet").args(&self.options);
        command
    }

    /// Names of all packages that match a regular expression.
    pub(super) fn search(&self, pattern: &str) -> Result<Vec<String>, LabError> {
        let search = ["search", "--names-only", pattern];
        let listed = run(self.command("apt-cache").args(search))?;
        Ok(String::from_utf8_lossy(&listed.stdout)
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect())
    }

    /// Downloads a package into a folder. Returns the path of its file.
    pub(super) fn download(&self, package: &str, folder: &Path) -> Result<PathBuf, LabError> {
        run(self
            .command("apt-get")
            .args(["download", package])
            .current_dir(folder))?;
        fs::read_dir(folder)
            .map_err(LabError::file("list", folder))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .ok_or_else(|| LabError::Fetch {
                command: format!("apt-get download {package}"),
                message: "it brought no package".to_owned(),
            })
    }
}

/// Unpacks a package without installing it.
pub(super) fn unpack(archive: &Path, folder: &Path) -> Result<(), LabError> {
    run(Command::new("dpkg").arg("-x").arg(archive).arg(folder)).map(drop)
}

pub(super) fn run(command: &mut Command) -> Result<Output, LabError> {
    let shown = shown(command);
    let failed = |message: String| LabError::Fetch {
        command: shown,
        message,
    };
    match command.output() {
        Ok(output) if output.status.success() => Ok(output),
        Ok(output) => Err(failed(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        )),
        Err(error) => Err(failed(format!(
            "{error}; the lab takes its kernels and busybox from Debian packages"
        ))),
    }
}

/// The command as a user would type it.
fn shown(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_failing_commands_have_their_output() {
        let error = run(Command::new("sh").args(["-c", "echo broken >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert_eq!(text, "`sh -c echo broken >&2; exit 3` failed: broken");
    }

    #[test]
    fn settings_are_passed_as_options() {
        let command = Apt::of_machine().command("apt-get");
        let words: Vec<_> = command.get_args().collect();
        assert_eq!(words, ["--quiet", "--option", "APT::Sandbox::User=root"]);
    }
}
