use super::*;
use mutator::Mutator;

#[path = "../../../fuzz/src/mutator.rs"]
mod mutator;

/// Changed examples of [`damaged_configurations_are_refused_or_read`].
const DAMAGED: u32 = 5000;

fn config(text: &str) -> anyhow::Result<Config> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("collect.toml");
    std::fs::write(&path, text).unwrap();
    let config = Config::read(&path)?;
    config.check()?;
    Ok(config)
}

/// The example that is installed and that the page shows.
const EXAMPLE: &str = include_str!("../../../packaging/kvmprof-collect/collect.toml");

/// The example with its commented lines.
fn whole_example() -> String {
    EXAMPLE.replace("\n#", "\n").replace("\n ", "\n# ")
}

/// Any content of the file causes an error at most. This isn't a fuzz target because this crate's dependencies would have to be built with the
/// targets.
#[test]
fn damaged_configurations_are_refused_or_read() {
    let inputs = [whole_example(), EXAMPLE.to_owned()];
    let mut mutator = Mutator::new(1);
    let mut read = 0;
    for _ in 0..DAMAGED {
        let text = mutator.mutate(&inputs);
        let text = String::from_utf8_lossy(&text);
        match Config::parse(&text, Path::new("collect.toml")) {
            Ok(config) => {
                read += 1;
                config.policy();
                if let Err(error) = config.check() {
                    assert!(!error.to_string().is_empty());
                }
            }
            Err(error) => assert!(error.to_string().contains("collect.toml"), "{error}"),
        }
    }
    assert!(read > 0 && read < DAMAGED, "{read}");
}

#[test]
fn the_example_is_valid_and_complete() {
    let example = EXAMPLE;
    // Commented lines have to be valid, too.
    let all = config(&whole_example()).unwrap();
    assert_eq!(all.sink.len(), 6);
    assert!(all.host.is_some());
    assert!(!all.drop.is_empty() && !all.labels.is_empty());
    assert_eq!(all.metrics.labels, ["user"]);
    assert!(!all.attach.guests.is_empty() && !all.hash.processes.is_empty());
    assert_eq!(all.attach.rule.len(), 1);
    let plain = config(example).unwrap();
    assert_eq!(plain.sink, []);
    let Config { metrics, .. } = plain.clone();
    assert!(metrics.listen.unwrap().ip().is_loopback());
    assert_eq!(
        plain,
        Config {
            metrics,
            ..Config::default()
        }
    );
}

#[test]
fn invalid_settings_are_refused_with_their_line() {
    for (text, words) in [
        ("hz = 0", "hz = 0"),
        ("hz = 1\nwidow = 3", "line 2"),
        ("window = 0", "window"),
        ("sockets = []", "sockets"),
        ("sockets = ['a/***']", "a/***"),
        ("drop = ['[']", "drop"),
        ("limits.guests = 0", "limits"),
        ("hash.processes = ['[']", "hash.processes"),
        ("hash.key = 'x'", "unknown field"),
        ("attach.limit = 0", "attach.limit"),
        ("attach.guests = ['[']", "attach.guests"),
        (
            "[[attach.rule]]\ncommand_line = '('\nname = 'x'",
            "attach: rule 1: command_line is no regular expression",
        ),
        (
            "[[attach.rule]]\ncgroup = 'x'\nname = '${vm}'",
            "attach: rule 1: name has ${vm}",
        ),
        ("[[attach.rule]]\npid = 7", "unknown field"),
        ("attach.capture = 'magic'", "ptrace"),
        ("spool.mebibytes = 0", "mebibytes"),
        ("labels.Zone = 'a'", "Zone"),
        ("labels.host = 'a'", "host"),
        ("metrics.labels = ['a=']", "metrics.labels: a=:"),
        ("metrics.labels = ['user', 'user']", "user is there twice"),
        ("metrics.labels = ['pid']", "pid isn't in process_labels"),
        (
            "process_labels = ['pid', 'pid']",
            "process_labels: pid is there twice",
        ),
        (
            "labels.label_user = 'a'\nmetrics.labels = ['user']",
            "user is there twice",
        ),
    ] {
        let error = config(text).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}

#[test]
fn reserved_labels_are_refused() {
    for name in TAKEN {
        let error = config(&format!("labels.{name} = 'a'")).unwrap_err();
        let words = format!("{name} has a meaning of its own");
        assert!(error.to_string().contains(&words), "{error}");
    }
}

/// Values of headers and options may be secrets, even in a wrong place.
#[test]
fn errors_contain_no_values() {
    let sink = "[[sink]]\nname = 'a'\ntype = 'otlp'\nurl = 'http://x/?token=pa55'";
    for (text, words) in [
        (
            format!("{sink}\nheaders = 'pa55'"),
            "line 5: invalid type: string, expected a map",
        ),
        (format!("{sink}\nheaders = ['pa55']"), "line 5"),
        (format!("{sink}\nheaders.a = ['pa55']"), "line 5"),
        (
            format!("{sink}\nheader_files = 'pa55, expected x'"),
            "line 5",
        ),
        (format!("{sink}\noptions = 'pa55'"), "line 5"),
        (format!("{sink}\noptions.a = 'pa55"), "line 5"),
        (format!("{sink}\nheaders = Bearer pa55"), "line 5"),
        (
            format!("{sink}\nheaders = {{ Authorization = Bearer pa55 }}"),
            "line 5",
        ),
        (format!("{sink}\nheaders = 'a' 'pa55'"), "line 5"),
        (
            format!("{sink}\nheaders = {{ a = 'x', a = 'pa55' }}"),
            "line 5",
        ),
        (format!("{sink}\nseconds = 'pa55'"), "line 5"),
        (format!("{sink}\nfolder = 'pa55'"), "folder and seconds"),
        (
            "attach.capture = 'pa55'".to_owned(),
            "unknown variant, expected `ptrace`",
        ),
        (
            "hz = 'pa55'".to_owned(),
            "invalid type: string, expected u32",
        ),
    ] {
        let error = config(&text).unwrap_err().to_string();
        assert!(
            error.contains(words) && !error.contains("pa55"),
            "{text}: {error}"
        );
    }
}
