use super::*;

fn config(text: &str) -> Result<Config, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("collect.toml");
    std::fs::write(&path, text).unwrap();
    let config = Config::read(&path)?;
    config.check()?;
    Ok(config)
}

/// The example that is installed, and the page shows.
#[test]
fn the_example_has_all_and_is_sound() {
    let example = include_str!("../../../packaging/kvmprof-collect/collect.toml");
    // What is commented out has to be right, too.
    let all = example.replace("\n#", "\n").replace("\n ", "\n# ");
    let all = config(&all).unwrap();
    assert_eq!(all.sink.len(), 6);
    assert!(!all.drop.is_empty() && !all.labels.is_empty());
    assert!(!all.attach.guests.is_empty() && !all.hash.processes.is_empty());
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
fn what_makes_no_sense_is_refused_with_its_place() {
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
        ("attach.capture = 'magic'", "ptrace"),
        ("spool.mebibytes = 0", "mebibytes"),
        ("labels.Zone = 'a'", "Zone"),
        ("labels.host = 'a'", "host"),
    ] {
        let error = config(text).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}
