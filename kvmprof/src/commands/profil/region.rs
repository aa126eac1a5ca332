//! The region to profile: the code that the user has named, as addresses of the process.

use anyhow::bail;
use kvmprof_report::symbolize::Code;

use super::process::Process;

/// Maximum number of names in an error.
const MAX_LISTED: usize = 6;

/// Code of a process with its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamedCode<'a> {
    /// The function; `None` for the whole file.
    pub function: Option<&'a str>,
    /// The path of the file in the guest, or its last part; `None` for the process's program.
    pub module: Option<&'a str>,
}

/// The addresses of the code with the name `named`.
///
/// # Errors
/// There is no such code, or there is more than one match.
pub fn find(process: &Process, named: NamedCode<'_>) -> anyhow::Result<Code> {
    let (resolver, mappings) = (&process.resolver, process.mappings());
    let pid = process.pid;
    let files = resolver.files_in(mappings);
    let is_wanted = |code: &Code| named.module.is_none_or(|module| code.is_of(module));
    if let Some(module) = named.module
        && !files.iter().any(|file| file.is_of(module))
    {
        bail!(
            "Process {pid} executes no file called {module}: it has {}",
            list(&files, Code::shown_file)
        );
    }
    let Some(function) = named.function else {
        let mut wanted = files.into_iter().filter(is_wanted);
        return match (wanted.next(), wanted.next(), named.module) {
            (Some(file), None, _) | (Some(file), _, None) => Ok(file),
            (Some(one), Some(other), _) => bail!(
                "Process {pid} has more than one such file: name one by its path, such as {} or {}",
                one.shown_file(),
                other.shown_file()
            ),
            (None, ..) => bail!(
                "Process {pid} runs outside of all files: give --offset ADDRESS and --bufsiz BYTES"
            ),
        };
    };
    let mut found = resolver.functions_called(mappings, function);
    found.retain(is_wanted);
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => bail!(
            "Process {pid} has no function called {function}: kvmprof top shows names, --sysroot adds those of files"
        ),
        _ => bail!(
            "Process {pid} has {} functions called {function}: give --module FILE, or --offset ADDRESS and --bufsiz BYTES; \
             they are at {}",
            found.len(),
            list(&found, |code| format!(
                "{:#x} in {}",
                code.begin,
                code.shown_file()
            ))
        ),
    }
}

fn list(all: &[Code], show: impl Fn(&Code) -> String) -> String {
    let mut shown: Vec<String> = all.iter().take(MAX_LISTED).map(show).collect();
    if all.len() > MAX_LISTED {
        shown.push(format!("{} more", all.len() - MAX_LISTED));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvmprof_recording::file::{Block, Kind, header};

    /// A process of a guest without mappings.
    fn process(symbols: &str) -> Process {
        let mut process = Process::new(7, None).unwrap();
        let block = Block::encode(Kind::Symbols, symbols.as_bytes()).unwrap();
        process.feed(&[header().to_vec(), block].concat()).unwrap();
        process
    }

    fn region(
        process: &Process,
        function: Option<&str>,
        module: Option<&str>,
    ) -> Result<(u64, u64), String> {
        let found = find(process, NamedCode { function, module });
        found
            .map(|code| (code.begin, code.end))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn functions_and_files_are_found_by_name() {
        let process = process("1000 t weave\n1040 t card\n1080 t end\n");
        assert_eq!(region(&process, Some("weave"), None), Ok((0x1000, 0x1040)));
        assert_eq!(
            region(&process, Some("card"), Some("[user]")),
            Ok((0x1040, 0x1080))
        );
        let all = (0x1000, 0x1080 + (64 << 10));
        assert_eq!(region(&process, None, None), Ok(all));
        assert_eq!(region(&process, None, Some("[user]")), Ok(all));
    }

    #[test]
    fn unknown_and_ambiguous_names_are_errors() {
        let process = process("1000 t weave\n1040 t weave\n1080 t end\n");
        for (function, module, expected) in [
            (Some("dye"), None, "no function called dye"),
            (
                Some("weave"),
                None,
                "2 functions called weave: give --module",
            ),
            (Some("weave"), None, "0x1000 in [user], 0x1040 in [user]"),
            (
                None,
                Some("libc.so.6"),
                "no file called libc.so.6: it has [user]",
            ),
        ] {
            let error = region(&process, function, module).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let nothing = super::tests::process("");
        let error = region(&nothing, None, None).unwrap_err();
        assert!(error.contains("give --offset"), "{error}");
    }
}
