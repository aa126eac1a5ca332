use kvmprof_recording::exits::{Exits, Histogram, OfReason, ReasonName};

use super::*;
use crate::batch::testing::batch;

fn metrics(config: &Config) -> (tempfile::TempDir, Arc<Spool>, Metrics) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spool");
    let spool = Arc::new(Spool::open(&path, 1 << 20, &["lake"]).unwrap());
    let metrics = Metrics::new(config, "host \"1\"", Arc::clone(&spool));
    (folder, spool, metrics)
}

#[test]
fn ticks_are_counted_by_guest_process_and_mode() {
    let mut config = Config::default();
    config.labels.insert("zone".to_owned(), "north".to_owned());
    let (_folder, spool, metrics) = metrics(&config);
    for start in [100, 110] {
        let batch = batch(start, &["a", "b"], 7);
        metrics.add(&batch);
        spool.push(&batch).unwrap();
    }
    metrics.note_guests(2, 0);
    let text = metrics.text().unwrap();
    for line in [
        r#"kvmprof_ticks_total{host="host \"1\"",zone="north",guest="a",fate="sampled"} 14"#,
        r#"kvmprof_ticks_total{host="host \"1\"",zone="north",guest="b",fate="idle"} 6"#,
        r#"kvmprof_samples_total{host="host \"1\"",zone="north",guest="a",process="worker",mode="user"} 14"#,
        r#"kvmprof_samples_total{host="host \"1\"",zone="north",guest="a",process="idle",mode="idle"} 6"#,
        r#"kvmprof_guest_kernel{host="host \"1\"",zone="north",guest="b",release="6.12.1"} 1"#,
        r#"kvmprof_jitter{host="host \"1\"",zone="north",guest="a"} 1"#,
        r#"kvmprof_guests{host="host \"1\"",zone="north"} 2"#,
        r#"kvmprof_spool_batches{host="host \"1\"",zone="north"} 2"#,
        r#"kvmprof_sink_waiting_batches{host="host \"1\"",zone="north",sink="lake"} 2"#,
        r#"kvmprof_sink_failed{host="host \"1\"",zone="north",sink="lake"} 0"#,
    ] {
        assert!(
            text.lines().any(|known| known == line),
            "no {line} in\n{text}"
        );
    }
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn exits_are_counted_by_reason_with_how_long_they_took() {
    let (_folder, _spool, metrics) = metrics(&Config::default());
    let of = |reason, vcpu, times: &[u64]| {
        let class = |time: &u64| (0..).find(|class| Histogram::begin(class + 1) > *time);
        let mut classes = vec![0; Histogram::CLASSES];
        for class in times.iter().map(class) {
            classes[class.unwrap()] += 1;
        }
        OfReason {
            reason,
            vcpu,
            exits: Exits {
                count: times.len() as u64,
                time: times.iter().sum(),
            },
            histogram: Histogram::new(classes),
            ..OfReason::default()
        }
    };
    let npf = ReasonName {
        name: "npf".to_owned(),
        is_halt: false,
    };
    let mut interval = ExitInterval {
        names: [(0x400, npf)].into(),
        ..ExitInterval::default()
    };
    interval.counts.reasons = vec![
        of(0x400, 0, &[900, 1100]),
        of(0x400, 1, &[2_000_000]),
        of(0x7b, 0, &[20_000_000_000]),
    ];
    // A guest without a window isn't known.
    metrics.note_exits("a", &interval);
    metrics.add(&batch(100, &["a"], 1));
    (0..2).for_each(|_| metrics.note_exits("a", &interval));
    let text = metrics.text().unwrap();
    let exits = |reason: &str, count: u64| {
        format!(
            r#"kvmprof_guest_exits_total{{host="host \"1\"",guest="a",reason="{reason}"}} {count}"#
        )
    };
    let seconds = |suffix: &str, end: &str, reason: &str, value: &str| {
        let end = if end.is_empty() {
            String::new()
        } else {
            format!(r#"le="{end}","#)
        };
        format!(
            r#"kvmprof_guest_exit_seconds_{suffix}{{host="host \"1\"",{end}guest="a",reason="{reason}"}} {value}"#
        )
    };
    for line in [
        exits("npf", 6),
        exits("0x7b", 2),
        seconds("sum", "", "npf", "0.004004"),
        seconds("count", "", "npf", "6"),
        seconds("bucket", "0.000001024", "npf", "2"),
        seconds("bucket", "0.000004096", "npf", "4"),
        seconds("bucket", "+Inf", "npf", "6"),
        seconds("bucket", "17.179869184", "0x7b", "0"),
        seconds("bucket", "+Inf", "0x7b", "2"),
    ] {
        let is_there = text.lines().any(|known| known == line);
        assert!(is_there, "no {line} in\n{text}");
    }
    // It has had no window for more than an hour.
    metrics.add(&batch(4000, &["b"], 1));
    assert!(!metrics.text().unwrap().contains("reason="));
}

#[test]
fn counts_of_guests_continue_over_restarts() {
    let (_folder, _spool, metrics) = metrics(&Config::default());
    let counts = |exits: u64| {
        let counter = |name: &str, vcpus| GuestCounter {
            name: name.to_owned(),
            vcpus,
            ..GuestCounter::default()
        };
        let missing = GuestCounter {
            missing: Some("not on this host".to_owned()),
            ..counter("halts", Vec::new())
        };
        GuestCounts {
            counters: vec![
                counter("exits", vec![exits, 1]),
                missing,
                counter("evil\"", vec![1]),
            ],
            ..GuestCounts::default()
        }
    };
    let lines_of = |metrics: &Metrics| -> Vec<String> {
        let text = metrics.text().unwrap();
        let lines = text.lines();
        lines
            .filter(|line| line.starts_with("kvmprof_guest_events_total"))
            .map(str::to_owned)
            .collect()
    };
    // A guest without a window isn't known.
    metrics.note_counts("a", &counts(5));
    assert!(lines_of(&metrics).is_empty());
    metrics.add(&batch(100, &["a"], 1));
    for (exits, total) in [(5, 6), (9, 10), (9, 10), (2, 13), (3, 14)] {
        metrics.note_counts("a", &counts(exits));
        let line = format!(
            r#"kvmprof_guest_events_total{{host="host \"1\"",guest="a",event="exits"}} {total}"#
        );
        assert_eq!(lines_of(&metrics), [line]);
    }
    metrics.add(&batch(100 + FORGET + 10, &["other"], 1));
    assert!(lines_of(&metrics).is_empty());
}

#[test]
fn samples_have_the_labels_of_processes_that_the_configuration_names() {
    let mut config = Config::default();
    config.metrics.labels = vec!["user".to_owned(), "none".to_owned()];
    config.limits.processes = 3;
    let (_folder, _spool, metrics) = metrics(&config);
    for user in ["0", "1000", "1001"] {
        let mut batch = batch(100, &["a"], 7);
        let labels = [("user", user), ("secret", "x")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        batch.label_sets = vec![labels.into()];
        batch.windows[0].rows[0].labels = Some(0);
        metrics.add(&batch);
    }
    let samples = |metrics: &Metrics| -> Vec<String> {
        let text = metrics.text().unwrap();
        let begin = "kvmprof_samples_total{host=\"host \\\"1\\\"\",guest=\"a\",";
        let lines = text.lines().filter_map(|line| line.strip_prefix(begin));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let expected = [
        r#"process="idle",mode="idle"} 9"#,
        r#"process="other",mode="user"} 7"#,
        r#"process="worker",mode="user",label_user="0"} 7"#,
        r#"process="worker",mode="user",label_user="1000"} 7"#,
    ];
    assert_eq!(samples(&metrics), expected);
    metrics.add(&batch(100 + FORGET + 10, &["other"], 1));
    assert!(samples(&metrics).is_empty());
}

#[test]
fn names_are_bounded_escaped_and_forgotten() {
    let mut config = Config::default();
    config.limits.processes = 2;
    let (_folder, _spool, metrics) = metrics(&config);
    for number in 0..50 {
        let mut batch = batch(100, &["g\"\\\n"], 1);
        let place = batch.windows[0].rows[0].process as usize;
        batch.names[place] = format!("evil{number}\"}} 1\n");
        metrics.add(&batch);
    }
    let text = metrics.text().unwrap();
    let samples = text
        .lines()
        .filter(|line| line.starts_with("kvmprof_samples_total"));
    let samples: Vec<&str> = samples.collect();
    // One name, idle, and all others.
    assert_eq!(samples.len(), 3, "{samples:#?}");
    assert!(
        text.contains(r#"guest="g\"\\\n",process="other",mode="user"} 49"#),
        "{text}"
    );
    assert!(text.contains(r#"process="evil0\"} 1\n""#), "{text}");
    metrics.add(&batch(100 + FORGET + 10, &["other"], 1));
    let text = metrics.text().unwrap();
    assert!(!text.contains(r#"guest="g"#), "{text}");
    assert!(text.contains(r#"guest="other""#));
}
