//! Installs links, manual pages and completions.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use clap::{Command, Subcommand};
use clap_complete::Shell;

use super::Tool;
use super::manual::{tool_command, write_pages};
use kvmprof_cli::command_line::{self, Console, ExitStatus};

/// Commands that install what goes with a program.
#[derive(Clone, Debug, Subcommand)]
pub enum Setup {
    /// Write the manual pages into a folder
    ///
    /// There is one page for the program, one for each of its commands (kvmprof-run.1) and one for each tool (getpc.1).
    #[command(after_help = "Example: kvmprof man /usr/local/share/man/man1")]
    Man {
        /// The folder; it is made if there is none
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Print the completion script for a shell
    #[command(
        after_help = "Examples:\n  kvmprof completions bash >/etc/bash_completion.d/kvmprof\n  \
            kvmprof completions zsh prfld >_prfld"
    )]
    Completions {
        /// The shell
        shell: Shell,
        /// The program to complete: this one, or a tool that is a link to it [default: this one]
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Make links to this program with the names of the tools
    ///
    /// Called by one of these names (getpc, pcstat, prfld, prfstat, prfdc, prfsnap, prfpr), the program is that
    /// tool. Existing links to this program are kept; other files are never replaced.
    #[command(after_help = "Example: kvmprof-tools install-links /usr/local/bin")]
    InstallLinks {
        /// The folder; it is made if there is none
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

/// Why an installation command failed.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A file or folder can't be made.
    #[error("Cannot write {}", path.display())]
    Write {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// There is another file.
    #[error("{} exists, and is no link to this program: remove it first", path.display())]
    InTheWay {
        /// The path.
        path: PathBuf,
    },
    /// The path of the program's file is unknown.
    #[error("Cannot find this program's own file")]
    Program(#[source] io::Error),
    /// Writing to standard output failed.
    #[error("Cannot write the completions")]
    Output(#[source] io::Error),
    /// Completions for an unknown name.
    #[error("'{name}' is neither {program} nor one of its tools: {}", Tool::NAMES.join(", "))]
    NoSuchName {
        /// The name.
        name: String,
        /// The program.
        program: String,
    },
}

impl command_line::Command for Setup {
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        match self {
            Self::Man { folder } => write_pages(console.program(), folder)?,
            Self::Completions { shell, name } => {
                let script = completions(console.program(), *shell, name.as_deref())?;
                let written = console.data().write_all(&script);
                written.map_err(SetupError::Output)?;
            }
            Self::InstallLinks { folder } => {
                let program = own_file().map_err(SetupError::Program)?;
                install_links(&program, folder)?;
            }
        }
        Ok(ExitStatus::SUCCESS)
    }
}

/// The running program's file; without /proc (in an early init, in a chroot), the one that a shell finds by the name of
/// the call.
fn own_file() -> io::Result<PathBuf> {
    std::env::current_exe().or_else(|error| {
        let name = PathBuf::from(std::env::args_os().next().unwrap_or_default());
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path);
        let candidates = std::iter::once(PathBuf::new()).chain(folders);
        let named_only = name.components().count() == 1;
        candidates
            .filter(|folder| named_only != folder.as_os_str().is_empty())
            .find_map(|folder| fs::canonicalize(folder.join(&name)).ok())
            .ok_or(error)
    })
}

pub(super) fn make_folder(folder: &Path) -> Result<(), SetupError> {
    fs::create_dir_all(folder).map_err(|source| SetupError::Write {
        path: folder.to_path_buf(),
        source,
    })
}

fn completions(command: &Command, shell: Shell, name: Option<&str>) -> Result<Vec<u8>, SetupError> {
    let program = command.get_name();
    let name = name.unwrap_or(program);
    let completed = if name == program {
        Some(command.clone())
    } else {
        Tool::NAMES
            .contains(&name)
            .then(|| tool_command(command, name))
            .flatten()
    };
    let mut completed = completed.ok_or_else(|| SetupError::NoSuchName {
        name: name.to_owned(),
        program: program.to_owned(),
    })?;
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut completed, name, &mut script);
    Ok(script)
}

fn install_links(program: &Path, folder: &Path) -> Result<(), SetupError> {
    make_folder(folder)?;
    for name in Tool::NAMES {
        let path = folder.join(name);
        match symlink(program, &path) {
            Ok(()) => (),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // The link must lead to the same file.
                let arrives = fs::canonicalize(&path).ok();
                if arrives.is_none() || arrives != fs::canonicalize(program).ok() {
                    return Err(SetupError::InTheWay { path });
                }
            }
            Err(source) => return Err(SetupError::Write { path, source }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        let command = Command::new("kvmprof").version("1.2.3").about("A profiler");
        Setup::augment_subcommands(Tool::augment_subcommands(command))
    }

    #[test]
    fn each_shell_has_completions_for_the_program_and_its_tools() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            for name in [None, Some("prfld")] {
                let script = completions(&command(), shell, name).unwrap();
                let script = String::from_utf8(script).unwrap();
                assert!(script.contains("no-slide"), "{shell}: {script}");
                assert!(script.contains(name.unwrap_or("kvmprof")));
            }
        }
        let error = completions(&command(), Shell::Bash, Some("man")).unwrap_err();
        assert!(error.to_string().contains("prfld"), "{error}");
    }

    #[test]
    fn links_are_made_once_and_replace_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("kvmprof-tools");
        fs::write(&program, "").unwrap();
        let links = folder.path().join("bin");
        for _ in 0..2 {
            install_links(&program, &links).unwrap();
        }
        for name in Tool::NAMES {
            assert_eq!(fs::read_link(links.join(name)).unwrap(), program);
        }
        fs::remove_file(links.join("prfdc")).unwrap();
        fs::write(links.join("prfdc"), "precious").unwrap();
        let error = install_links(&program, &links).unwrap_err();
        assert!(matches!(error, SetupError::InTheWay { .. }));
        assert_eq!(fs::read(links.join("prfdc")).unwrap(), b"precious");
    }
}
