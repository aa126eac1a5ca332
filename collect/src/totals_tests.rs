//! All that shows or takes samples agrees on the totals of containers: `report --by container`, pprof, OTLP, Prometheus and Parquet.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::sync::Arc;

use kvmprof_recording::file::{ProcessLabels, Recording, Unobserved};
use kvmprof_report::profile::{Profile, Selection, by_label};
use kvmprof_report::symbolize::Resolver;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;

use crate::batch::Batch;
use crate::config::Config;
use crate::gather::tests::{SECOND, at, begin, block, close, policy, ticks};
use crate::gather::{Gather, Policy};
use crate::metrics::Metrics;
use crate::sinks::{otlp_request, parquet as lake, pprof_profile};
use crate::spool::Spool;

const ID: &str = "4f1d0a5e9c3b7788a0b1c2d3e4f5061728394a5b6c7d8e9f00112233445566ff";
const OTHER_ID: &str = "00000000000000000000000000000000000000000000000000000000000000aa";

/// Samples and idle ticks by container; those without one under an empty name.
type Totals = BTreeMap<String, u64>;

fn add(totals: &mut Totals, container: &str, ticks: u64) {
    *totals.entry(container.to_owned()).or_default() += ticks;
}

fn labels(pid: i32, time: u64, labels: &[(&str, &str)]) -> Vec<u8> {
    let labels = labels.iter();
    let labels = ProcessLabels {
        pid,
        time,
        labels: labels
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
    };
    labels.to_block().unwrap()
}

/// Process 1 is in no container, 2 and 3 are in one, and 4 moves from this one to another.
fn recording() -> Vec<u8> {
    let of = |id| [("container", id), ("user", "0")];
    let secret = [("container", ID), ("arguments", "--secret")];
    let known = [
        labels(1, 0, &[("user", "0")]),
        labels(2, 0, &of(ID)),
        labels(3, 0, &secret),
        labels(4, 0, &of(ID)),
        labels(4, 5 * SECOND, &of(OTHER_ID)),
    ];
    let mut all = Vec::new();
    for (pid, second, count) in [(1, 1, 2), (2, 1, 3), (3, 2, 4), (4, 3, 5), (4, 6, 6)] {
        all.extend((0..count).map(|_| ticks(second, pid, "worker")));
    }
    [begin(), known.concat(), block(&all)].concat()
}

fn reported(recording: &[u8]) -> Totals {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.kvmprof");
    fs::write(&path, recording).unwrap();
    let recording = Recording::open(&path).unwrap();
    let resolver = Resolver::from_contents(&recording.contents().unwrap());
    let profile = Profile::read(&recording, Selection::default(), resolver, &Unobserved).unwrap();
    let rows = by_label(&profile, "container").into_iter();
    let rows = rows.map(|row| (row.value.unwrap_or_default(), row.modes.iter().sum()));
    rows.collect()
}

fn of_pprof(batch: &Batch) -> Totals {
    let profile = pprof_profile(batch, &batch.windows[0]);
    let text = |place: i64| &profile.string_table[usize::try_from(place).unwrap()];
    let mut totals = Totals::new();
    for sample in &profile.sample {
        let mut own = sample.label.iter();
        let own = own.find(|label| text(label.key) == "container");
        let ticks = u64::try_from(sample.value[0]).unwrap();
        add(&mut totals, own.map_or("", |label| text(label.str)), ticks);
    }
    totals
}

fn of_otlp(batch: &Batch) -> Totals {
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    let request = otlp_request(batch, &batch.windows);
    let tables = request.dictionary.unwrap();
    let mut totals = Totals::new();
    let resources = request.resource_profiles.iter();
    let profiles = resources.flat_map(|resource| &resource.scope_profiles[0].profiles);
    for sample in profiles.flat_map(|profile| &profile.samples) {
        let attributes = sample.attribute_indices.iter();
        let mut attributes =
            attributes.map(|place| &tables.attribute_table[usize::try_from(*place).unwrap()]);
        let container = attributes.find_map(|attribute| {
            let key = usize::try_from(attribute.key_strindex).unwrap();
            let value = attribute.value.as_ref().unwrap().value.as_ref().unwrap();
            match value {
                Value::StringValue(id) if tables.string_table[key] == "container.id" => {
                    Some(id.as_str())
                }
                _ => None,
            }
        });
        let ticks = u64::try_from(sample.values[0]).unwrap();
        add(&mut totals, container.unwrap_or_default(), ticks);
    }
    totals
}

fn of_prometheus(batch: &Batch) -> Totals {
    let mut config = Config::default();
    config.metrics.labels = vec!["container".to_owned()];
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(&folder.path().join("spool"), 1 << 20, &[]).unwrap();
    let metrics = Metrics::new(&config, "host", Arc::new(spool));
    metrics.add(batch);
    let text = metrics.text().unwrap();
    let mut totals = Totals::new();
    for line in text.lines() {
        let Some(series) = line.strip_prefix("kvmprof_samples_total{") else {
            continue;
        };
        let (labels, ticks) = series.rsplit_once("} ").unwrap();
        let container = labels.split_once("label_container=\"");
        let container = container.map(|(_, after)| after.split_once('"').unwrap().0);
        let ticks = ticks.parse().unwrap();
        add(&mut totals, container.unwrap_or_default(), ticks);
    }
    totals
}

fn of_parquet(batch: &Batch) -> Totals {
    let folder = tempfile::tempdir().unwrap();
    let target = lake::Folder(folder.path().to_owned());
    lake::write(&target, std::slice::from_ref(batch)).unwrap();
    let pattern = folder.path().join("*/*/*/*.parquet");
    let files = glob::glob(pattern.to_str().unwrap()).unwrap();
    let mut totals = Totals::new();
    for file in files {
        let file = fs::File::open(file.unwrap()).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        for row in reader.get_row_iter(None).unwrap() {
            let row = row.unwrap();
            let column = |wanted| {
                let mut columns = row.get_column_iter();
                columns.find(|(name, _)| *name == wanted).unwrap().1.clone()
            };
            let (Field::Long(ticks), Field::MapInternal(labels)) =
                (column("ticks"), column("labels"))
            else {
                panic!("{row:?}");
            };
            let own = labels.entries().iter().find_map(|entry| match entry {
                (Field::Str(key), Field::Str(id)) if key == "container" => Some(id.clone()),
                _ => None,
            });
            add(&mut totals, &own.unwrap_or_default(), ticks.unsigned_abs());
        }
    }
    totals
}

#[test]
fn all_views_and_sinks_agree_on_containers() {
    let recording = recording();
    let mut gather = Gather::default();
    gather.feed(&recording, at(8, 0)).unwrap();
    let batch = close(&mut gather, 0, &policy(9, 9, &[]));
    let expected = Totals::from([
        // 20 idle ticks, and process 1.
        (String::new(), 22),
        (ID.to_owned(), 12),
        (OTHER_ID.to_owned(), 6),
    ]);
    assert_eq!(reported(&recording), expected, "report");
    assert_eq!(of_pprof(&batch), expected, "pprof");
    assert_eq!(of_otlp(&batch), expected, "OTLP");
    assert_eq!(of_prometheus(&batch), expected, "Prometheus");
    assert_eq!(of_parquet(&batch), expected, "Parquet");
    // What tells processes apart stays on the host unless the configuration says otherwise.
    let text = serde_json::to_string(&batch).unwrap();
    assert!(!text.contains("secret"), "{text}");
}

/// A process's own label counts before that of its guest.
#[test]
fn all_rows_of_a_guest_have_its_labels() {
    let labels = [("container", "guest"), ("stays", "here"), ("tenant", "a")];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let mut gather = Gather::with_labels(labels.into());
    gather.feed(&recording(), at(8, 0)).unwrap();
    let keys = ["container", "tenant"].map(str::to_owned).to_vec();
    let policy = Policy {
        labels: keys,
        ..policy(9, 9, &[])
    };
    let batch = close(&mut gather, 0, &policy);
    let expected = Totals::from([
        ("guest".to_owned(), 22),
        (ID.to_owned(), 12),
        (OTHER_ID.to_owned(), 6),
    ]);
    assert_eq!(of_pprof(&batch), expected, "pprof");
    assert_eq!(of_prometheus(&batch), expected, "Prometheus");
    assert_eq!(of_parquet(&batch), expected, "Parquet");
    let mut rows = 0;
    for row in batch.windows.iter().flat_map(|window| &window.rows) {
        let labels: Vec<(&str, &str)> = batch.labels(row).collect();
        assert!(
            labels.len() == 2 && labels.contains(&("tenant", "a")),
            "{labels:?}"
        );
        rows += 1;
    }
    assert!(rows > 2);
}

#[test]
fn keys_of_the_configuration_leave_the_host() {
    let mut gather = Gather::default();
    gather.feed(&recording(), at(8, 0)).unwrap();
    let keys = ["pid", "arguments"].map(str::to_owned).to_vec();
    let policy = Policy {
        labels: keys,
        ..policy(9, 9, &[])
    };
    let batch = close(&mut gather, 0, &policy);
    let sets: HashSet<String> = (batch.label_sets.iter())
        .map(|set| serde_json::to_string(set).unwrap())
        .collect();
    let expected = [
        r#"{"pid":"1"}"#,
        r#"{"pid":"2"}"#,
        r#"{"arguments":"--secret","pid":"3"}"#,
        r#"{"pid":"4"}"#,
    ];
    assert_eq!(sets, expected.map(str::to_owned).into());
    // Integers are such in OTLP.
    let request = otlp_request(&batch, &batch.windows);
    let text = format!("{:?}", request.dictionary.unwrap().attribute_table);
    assert!(text.contains("IntValue(3)"), "{text}");
    assert!(text.contains("StringValue(\"--secret\")"), "{text}");
}

/// Of 10,000 groups with names of 4 KiB, those with the most ticks have their labels; the ticks of all are there.
#[test]
fn endless_groups_take_bounded_memory() {
    let mut gather = Gather::default();
    gather.feed(&begin(), at(1, 0)).unwrap();
    let mut all = Vec::new();
    for pid in 1..=10_000 {
        let name = format!("/{pid}\n\"\u{202e}\u{1b}[2J{}", "x".repeat(4000));
        gather
            .feed(&labels(pid, 0, &[("cgroup", &name)]), at(1, 0))
            .unwrap();
        all.push(ticks(1, pid, "worker"));
    }
    all.extend((0..9).map(|_| ticks(2, 1, "worker")));
    gather.feed(&block(&all), at(3, 0)).unwrap();
    let batch = close(&mut gather, 0, &policy(9, 9, &[]));
    let window = &batch.windows[0];
    assert_eq!(window.account.samples, 10_009);
    let bytes: usize = (batch.label_sets.iter().flatten())
        .map(|(key, value)| key.len() + value.len())
        .sum();
    assert!((1 << 19..=1 << 20).contains(&bytes), "{bytes}");
    let rows = window.rows.iter().filter(|row| row.labels.is_some());
    let most = rows.max_by_key(|row| row.ticks).unwrap();
    assert_eq!(most.ticks, 10);
    let most = batch.labels(most).next().unwrap();
    assert!(
        most.1.starts_with("/1\u{fffd}\"\u{fffd}\u{fffd}[2J"),
        "{most:?}"
    );
}
