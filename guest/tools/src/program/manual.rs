//! Writes manual pages.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::setup::make_folder;
use super::{SetupError, Tool};

/// Sections for the paragraphs at the end of a command's help that begin with these words.
const SECTIONS: [(&str, &str); 3] = [
    ("Exit status: ", "EXIT STATUS"),
    ("Examples:\n", "EXAMPLES"),
    ("Example: ", "EXAMPLES"),
];

/// The command line of the tool `name`.
pub(super) fn tool_command(command: &Command, name: &str) -> Option<Command> {
    let tool = command.find_subcommand(name)?.clone();
    let version = command.get_version().unwrap_or_default().to_owned();
    Some(tool.version(version))
}

/// Writes a page for the program `command`, for each of its commands and for each tool into `folder`.
pub(super) fn write_pages(command: &Command, folder: &Path) -> Result<(), SetupError> {
    make_folder(folder)?;
    for (title, page) in pages(command) {
        let path = folder.join(format!("{title}.1"));
        let mut text = Vec::new();
        let written = render(command.get_name(), page, &title, &mut text)
            .and_then(|()| fs::write(&path, text));
        written.map_err(|source| SetupError::Write { path, source })?;
    }
    Ok(())
}

/// The titles of the pages, and their commands.
fn pages(command: &Command) -> Vec<(String, Command)> {
    let program = command.get_name();
    let version = command.get_version().unwrap_or_default().to_owned();
    let mut pages = vec![(program.to_owned(), command.clone())];
    for part in command.get_subcommands() {
        let name = part.get_name();
        if Tool::NAMES.contains(&name) {
            pages.extend(tool_command(command, name).map(|tool| (name.to_owned(), tool)));
            continue;
        }
        add_pages(&mut pages, program, program, part, &version);
    }
    pages
}

/// Adds the page of `part` of a command with this title and these words, and those of its own parts.
fn add_pages(
    pages: &mut Vec<(String, Command)>,
    title: &str,
    words: &str,
    part: &Command,
    version: &str,
) {
    let name = part.get_name();
    let (title, words) = (page_of(title, name), format!("{words} {name}"));
    let page = part.clone().name(title.clone()).bin_name(words.clone());
    pages.push((title.clone(), page.version(version.to_owned())));
    for part in part.get_subcommands() {
        add_pages(pages, &title, &words, part, version);
    }
}

fn render(program: &str, page: Command, title: &str, output: &mut Vec<u8>) -> io::Result<()> {
    let endings = page.get_after_help().map(ToString::to_string);
    let parts = page.has_subcommands().then(|| commands(&page));
    let man = Man::new(page.disable_help_subcommand(true)).title(title.to_uppercase());
    man.render_title(output)?;
    man.render_name_section(output)?;
    man.render_synopsis_section(output)?;
    man.render_description_section(output)?;
    man.render_options_section(output)?;
    if let Some(parts) = parts {
        parts.to_writer(output)?;
    }
    for paragraph in endings.iter().flat_map(|text| text.split("\n\n")) {
        section(paragraph).to_writer(output)?;
    }
    see_also(program, title).to_writer(output)?;
    man.render_version_section(output)
}

/// The title of the page for a part of the program.
fn page_of(program: &str, part: &str) -> String {
    if Tool::NAMES.contains(&part) {
        part.to_owned()
    } else {
        format!("{program}-{part}")
    }
}

/// The program's commands, with their pages.
fn commands(program: &Command) -> Roff {
    let mut roff = Roff::default();
    roff.control("SH", ["COMMANDS"]);
    for part in program.get_subcommands() {
        let page = page_of(program.get_name(), part.get_name());
        let about = part.get_about().map(ToString::to_string);
        roff.control("TP", []);
        roff.text([bold(page), roman("(1)")]);
        roff.text([roman(about.unwrap_or_default())]);
    }
    roff
}

/// The other pages of the program and its tools.
fn see_also(program: &str, title: &str) -> Roff {
    let mut text = Vec::new();
    let pages = std::iter::once(program).chain(Tool::NAMES);
    for page in pages.filter(|page| *page != title) {
        if !text.is_empty() {
            text.push(roman(", "));
        }
        text.extend([bold(page), roman("(1)")]);
    }
    let mut roff = Roff::default();
    roff.control("SH", ["SEE ALSO"]);
    roff.text(text);
    roff
}

/// A paragraph at the end of a command's help, as a section.
fn section(paragraph: &str) -> Roff {
    let mut roff = Roff::default();
    for (start, heading) in SECTIONS {
        if let Some(text) = paragraph.strip_prefix(start) {
            roff.control("SH", [heading]);
            if heading == "EXAMPLES" {
                roff.control("nf", []);
            }
            roff.text([roman(text)]);
            if heading == "EXAMPLES" {
                roff.control("fi", []);
            }
            return roff;
        }
    }
    roff.control("SH", ["NOTES"]);
    roff.text([roman(paragraph)]);
    roff
}

#[cfg(test)]
mod tests {
    use clap::Subcommand;

    use super::*;
    use crate::program::Setup;

    #[test]
    fn each_command_has_a_page() {
        let command = Command::new("kvmprof").version("1.2.3").about("A profiler");
        let command = Setup::augment_subcommands(Tool::augment_subcommands(command));
        let part = Command::new("list").about("Lists them");
        let command = command.subcommand(Command::new("pmc").subcommand(part));
        let folder = tempfile::tempdir().unwrap();
        let pages = folder.path().join("man1");
        write_pages(&command, &pages).unwrap();
        let own = ["kvmprof", "kvmprof-man", "kvmprof-pmc", "kvmprof-pmc-list"];
        for name in Tool::NAMES.into_iter().chain(own) {
            let page = fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
            let title = format!(".TH {} 1", name.to_uppercase());
            assert!(page.contains(&title), "{name}: {page}");
            assert!(page.contains("1.2.3"), "{name}: {page}");
        }
        let page = fs::read_to_string(pages.join("kvmprof.1")).unwrap();
        for part in [r"\fBprfld\fR(1)", r"\fBkvmprof\-man\fR(1)"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        let page = fs::read_to_string(pages.join("kvmprof-pmc.1")).unwrap();
        assert!(page.contains(r"\fBkvmprof\-pmc\-list\fR(1)"), "{page}");
        let page = fs::read_to_string(pages.join("kvmprof-pmc-list.1")).unwrap();
        assert!(page.contains(r"\fBkvmprof pmc list\fR"), "{page}");
        let page = fs::read_to_string(pages.join("prfld.1")).unwrap();
        for word in [
            "ENOSPC",
            ".SH \"EXIT STATUS\"\n0, and no",
            ".SH EXAMPLES\n.nf\n",
            "KVMPROF_SOCKET",
            "NAMELIST",
        ] {
            assert!(page.contains(word), "{word}: {page}");
        }
    }
}
