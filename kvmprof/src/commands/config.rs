//! The options of `kvmprof run` in a file. Its keys become arguments of the same parser, so that an option has only one
//! definition.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use kvmprof_cli::command_line::usage;
use toml::Value;
use toml::de::{DeTable, DeValue};

/// The command whose options a file may have.
const COMMAND: &str = "run";
/// The option that names the file.
const CONFIG: &str = "config";
/// Options that a file can't have, because they are about the file or print something else.
const NOT_IN_FILES: [&str; 5] = [CONFIG, "print-config", "share-helper", "help", "version"];
/// Maximum length of a file, in bytes: far more than any useful file.
const MAX_FILE: u64 = 1 << 20;

/// Inserts the options from the file of `--config`, if it is given, before those of the command line. An option on the
/// command line replaces that of the file. `arguments` begin with the program's name.
///
/// # Errors
/// [`UsageError`](kvmprof_cli::command_line::UsageError): the file can't be read, or a line of it isn't an option.
pub fn expand(program: &Command, arguments: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
    let is_option = |word: &OsString| word.as_encoded_bytes().starts_with(b"--config");
    if arguments.get(1).is_none_or(|word| word != COMMAND) || !arguments.iter().any(is_option) {
        return Ok(arguments);
    }
    let Some(command) = program.find_subcommand(COMMAND) else {
        return Ok(arguments);
    };
    // Errors on the command line are reported when all of it is parsed.
    let lenient = optional(command).ignore_errors(true);
    let Ok(given) = lenient.try_get_matches_from(&arguments[1..]) else {
        return Ok(arguments);
    };
    let Some(path) = given.get_one::<PathBuf>(CONFIG) else {
        return Ok(arguments);
    };
    let is_given =
        |name: &str| given.value_source(&id(command, name)) == Some(ValueSource::CommandLine);
    let words = read(command, path)?;
    let words = words.into_iter().filter(|(name, _)| !is_given(name));
    let mut expanded = arguments;
    let words: Vec<OsString> = words.flat_map(|(_, words)| words).collect();
    expanded.splice(2..2, words);
    Ok(expanded)
}

/// The options of `arguments` in the form of a file. Includes options with default values, but as comments if another
/// option that they need isn't given.
///
/// # Errors
/// A value isn't UTF-8, so a file can't contain it.
pub fn print(program: &Command, arguments: &[OsString]) -> anyhow::Result<String> {
    let command = program
        .find_subcommand(COMMAND)
        .context("There are no options")?;
    let matches = command.clone().try_get_matches_from(&arguments[1..])?;
    let mut text = String::new();
    for option in options(command) {
        let Some(value) = value_of(option, &matches)? else {
            continue;
        };
        let name = option.get_long().unwrap_or_default();
        let is_default =
            matches.value_source(option.get_id().as_str()) == Some(ValueSource::DefaultValue);
        let comment = if is_default && !can_be_given(command, arguments, name, &matches) {
            "# "
        } else {
            ""
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{comment}{name} = {value}");
    }
    Ok(text)
}

/// The options that a file may have.
fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    let names = command.get_arguments();
    names.filter(|option| {
        let name = option.get_long();
        name.is_some_and(|name| !NOT_IN_FILES.contains(&name))
    })
}

fn option<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    options(command).find(|option| option.get_long() == Some(name))
}

/// The parser's id of the option.
fn id(command: &Command, name: &str) -> String {
    let id = option(command, name).map(|option| option.get_id().to_string());
    id.unwrap_or_default()
}

/// The command without required arguments.
fn optional(command: &Command) -> Command {
    command
        .clone()
        .mut_args(|argument| argument.required(false))
}

/// The value of an option in the form of a file; `None` if the option isn't given.
fn value_of(option: &Arg, matches: &ArgMatches) -> anyhow::Result<Option<Value>> {
    let id = option.get_id().as_str();
    if !option.get_action().takes_values() {
        return Ok(matches.get_flag(id).then_some(Value::Boolean(true)));
    }
    let Some(raw) = matches.get_raw(id) else {
        return Ok(None);
    };
    let values: anyhow::Result<Vec<Value>> = raw.map(|word| value(option, word)).collect();
    let values = values?;
    if is_list(option) {
        return Ok(Some(Value::Array(values)));
    }
    Ok(values.into_iter().next())
}

fn value(option: &Arg, word: &OsStr) -> anyhow::Result<Value> {
    let word = word.to_str().ok_or_else(|| {
        let name = option.get_long().unwrap_or_default();
        usage(format_args!(
            "The value of --{name} isn't UTF-8: a file can't have it"
        ))
    })?;
    let number = word
        .parse::<i64>()
        .ok()
        .filter(|number| number.to_string() == word);
    Ok(number.map_or_else(|| Value::String(word.to_owned()), Value::Integer))
}

fn is_list(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::Append)
}

/// Whether the command line could also have this option with its value.
fn can_be_given(
    command: &Command,
    arguments: &[OsString],
    name: &str,
    matches: &ArgMatches,
) -> bool {
    let Some(value) = matches
        .get_raw(&id(command, name))
        .and_then(|mut raw| raw.next())
    else {
        return false;
    };
    let words = arguments[1..].iter().cloned().chain([word(name, value)]);
    command.clone().try_get_matches_from(words).is_ok()
}

/// `--name=value`.
fn word(name: &str, value: &OsStr) -> OsString {
    let mut word = OsString::from(format!("--{name}="));
    word.push(value);
    word
}

/// The options of the file by name, each with its words on a command line.
fn read(command: &Command, path: &Path) -> anyhow::Result<Vec<(String, Vec<OsString>)>> {
    let place = path.display();
    let cannot = |why: &dyn std::fmt::Display| {
        usage(format_args!("Cannot read the options in {place}: {why}"))
    };
    let length = fs::metadata(path).map_err(|error| cannot(&error))?.len();
    if length > MAX_FILE {
        return Err(cannot(&format_args!("it has more than {MAX_FILE} bytes")));
    }
    let text = fs::read_to_string(path).map_err(|error| cannot(&error))?;
    let line = |offset: usize| {
        1 + text
            .bytes()
            .take(offset)
            .filter(|byte| *byte == b'\n')
            .count()
    };
    let wrong = |offset: usize, why: &dyn std::fmt::Display| {
        usage(format_args!("{place}, line {}: {why}", line(offset)))
    };
    let table = DeTable::parse(&text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        wrong(offset, &error.message())
    })?;
    let known: BTreeSet<&str> = options(command).filter_map(Arg::get_long).collect();
    let mut all = Vec::new();
    for (key, value) in table.get_ref() {
        let name = key.get_ref().as_ref();
        let at = key.span().start;
        let Some(option) = known.get(name).and_then(|name| option(command, name)) else {
            return Err(wrong(
                at,
                &format_args!("'{name}' is no option that a file may have"),
            ));
        };
        let words = words(option, name, value.get_ref()).map_err(|why| wrong(at, &why))?;
        check(command, &words).map_err(|why| wrong(at, &why))?;
        all.push((line(at), name.to_owned(), words));
    }
    all.sort();
    Ok(all
        .into_iter()
        .map(|(_, name, words)| (name, words))
        .collect())
}

/// An option with its value as words of a command line. The error says why the value is invalid.
fn words(option: &Arg, name: &str, value: &DeValue<'_>) -> Result<Vec<OsString>, String> {
    if !option.get_action().takes_values() {
        return match value {
            DeValue::Boolean(true) => Ok(vec![format!("--{name}").into()]),
            DeValue::Boolean(false) => Ok(Vec::new()),
            _ => Err(format!("'{name}' has to be true or false")),
        };
    }
    match value {
        DeValue::Array(values) if is_list(option) => {
            let values = values.iter().map(|value| scalar(name, value.get_ref()));
            let words = values.map(|value| Ok(word(name, value?.as_ref())));
            words.collect()
        }
        DeValue::Array(_) => Err(format!("'{name}' has one value, not a list")),
        value => Ok(vec![word(name, scalar(name, value)?.as_ref())]),
    }
}

fn scalar(name: &str, value: &DeValue<'_>) -> Result<OsString, String> {
    match value {
        DeValue::String(text) => Ok(text.as_ref().into()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().into()),
        _ => Err(format!(
            "'{name}' has to be a text in quotes, or a decimal number"
        )),
    }
}

/// Checks that the parser accepts an option alone. The error says why not. Other options that it needs are checked when
/// all are parsed.
fn check(command: &Command, words: &[OsString]) -> Result<(), String> {
    let line = [OsString::from(COMMAND)]
        .into_iter()
        .chain(words.iter().cloned());
    let Err(error) = optional(command).try_get_matches_from(line) else {
        return Ok(());
    };
    if error.kind() == ErrorKind::MissingRequiredArgument {
        return Ok(());
    }
    // Without the usage, which applies to a command line.
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let mut line = first.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    if let Some(ContextValue::Strings(valid)) = error.get(ContextKind::ValidValue)
        && !line.contains("possible values")
        && !valid.is_empty()
    {
        // Writing to a String cannot fail.
        let _ = write!(line, ": one of {}", valid.join(", "));
    }
    Err(line.trim_start_matches("error: ").to_owned())
}

#[cfg(test)]
mod tests {
    use clap::{Args, CommandFactory, Parser, Subcommand};
    use kvmprof_cli::command_line::UsageError;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(subcommand)]
        command: Commands,
    }

    #[derive(Debug, Subcommand)]
    enum Commands {
        Run(Options),
    }

    /// Options of each kind.
    #[derive(Debug, Args)]
    struct Options {
        #[arg(long)]
        kernel: PathBuf,
        #[arg(long, default_value = "512M")]
        memory: String,
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
        cpus: u16,
        #[arg(long)]
        wait: bool,
        #[arg(long)]
        record: Option<PathBuf>,
        #[arg(long, default_value = "kernel,user", requires = "record")]
        stacks: String,
        #[arg(long)]
        disk: Vec<String>,
        #[arg(long)]
        config: Option<PathBuf>,
    }

    fn expanded(file: &str, arguments: &[&str]) -> anyhow::Result<Vec<OsString>> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("guest.toml");
        fs::write(&path, file)?;
        let mut words: Vec<OsString> = ["kvmprof", "run", "--config"].map(OsString::from).into();
        words.push(path.into());
        words.extend(arguments.iter().map(OsString::from));
        expand(&Program::command(), words)
    }

    fn options_of(file: &str, arguments: &[&str]) -> Options {
        let words = expanded(file, arguments).unwrap();
        let Commands::Run(options) = Program::parse_from(words).command;
        options
    }

    fn refusal(file: &str) -> String {
        let error = expanded(file, &[]).unwrap_err();
        assert!(error.is::<UsageError>(), "{error}");
        error.to_string()
    }

    #[test]
    fn a_file_has_the_options_of_the_command_line() {
        let file =
            "kernel = \"a b\"\nmemory = \"1G\"\ncpus = 4\nwait = true\ndisk = [\"one\", \"two\"]\n";
        let options = options_of(file, &[]);
        assert_eq!(options.kernel, Path::new("a b"));
        assert_eq!((options.memory.as_str(), options.cpus), ("1G", 4));
        assert!(options.wait);
        assert_eq!(options.disk, ["one", "two"]);
    }

    #[test]
    fn the_command_line_takes_the_place_of_the_file() {
        let file = "kernel = \"file\"\ncpus = 4\nwait = false\ndisk = [\"one\", \"two\"]\n";
        let options = options_of(file, &["--cpus", "2", "--disk=three", "--kernel", "line"]);
        assert_eq!(options.kernel, Path::new("line"));
        assert_eq!((options.cpus, options.wait), (2, false));
        assert_eq!(options.disk, ["three"]);
        let one = options_of("kernel = \"k\"\ndisk = \"one\"\n", &[]);
        assert_eq!(one.disk, ["one"]);
    }

    #[test]
    fn errors_name_the_line() {
        for (file, place, words) in [
            ("kernel = \"k\"\n\nmemroy = \"1G\"\n", "line 3", "'memroy'"),
            ("kernel = \"k\"\nconfig = \"x\"\n", "line 2", "'config'"),
            ("cpus = 65\n", "line 1", "65"),
            ("\ncpus = \"many\"\n", "line 2", "many"),
            ("wait = 1\n", "line 1", "true or false"),
            ("kernel = true\n", "line 1", "in quotes"),
            ("kernel = [\"a\", \"b\"]\n", "line 1", "not a list"),
            ("disk = [[\"a\"]]\n", "line 1", "in quotes"),
            ("[disk]\npath = \"a\"\n", "line 1", "in quotes"),
            ("kernel = \"k\"\ncpus = 1\ncpus = 2\n", "line 3", ""),
            ("kernel = k\n", "line 1", ""),
        ] {
            let message = refusal(file);
            assert!(message.contains("guest.toml"), "{message}");
            assert!(
                message.contains(place) && message.contains(words),
                "{message}"
            );
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }

    #[test]
    fn other_command_lines_stay_as_they_are() {
        for words in [
            &["kvmprof"][..],
            &["kvmprof", "status", "--config", "x"],
            &["kvmprof", "run"],
        ] {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            assert_eq!(expand(&Program::command(), words.clone()).unwrap(), words);
        }
        let missing = ["kvmprof", "run", "--config", "/nowhere/at-all"].map(OsString::from);
        let error = expand(&Program::command(), missing.into()).unwrap_err();
        assert!(error.to_string().contains("/nowhere/at-all"), "{error}");
    }

    #[test]
    fn printed_configurations_round_trip() {
        let line = [
            "--kernel", "k\"\\ x", "--disk", "a,ro", "--disk", "7", "--wait",
        ];
        let mut words: Vec<OsString> = ["kvmprof", "run"].map(OsString::from).into();
        words.extend(line.iter().map(OsString::from));
        let program = Program::command();
        let printed = print(&program, &words).unwrap();
        assert!(printed.contains("memory = \"512M\"\n"), "{printed}");
        // This option needs --record.
        assert!(printed.contains("\n# stacks = "), "{printed}");
        let again = expanded(&printed, &[]).unwrap();
        assert_eq!(print(&program, &again).unwrap(), printed);
        let Commands::Run(options) = Program::parse_from(again).command;
        assert_eq!(options.kernel, Path::new("k\"\\ x"));
        assert_eq!(options.disk, ["a,ro", "7"]);
        assert!(options.wait);
    }
}
