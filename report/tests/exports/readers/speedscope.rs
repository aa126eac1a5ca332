//! Checks the export with speedscope's schema, and reads it with speedscope in a browser.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use kvmprof_report::export::Format;
use serde_json::{Value, json};

use crate::exports::export;
use crate::exports::recording::{info, recording, ticks};
use crate::exports::totals::numbers;
use crate::shared::browser::Browser;

use super::{PERIOD, ROUNDS, exported, first, run};
use crate::shared::used::{node, npm_readers};

/// The last heading of the table of functions.
const HEADING: &str = "Symbol Name";
/// The name of a file of speedscope's own format.
const NAME: &str = "exported.speedscope.json";
/// Maximum number of attempts to open a page with a filled table.
const OPENINGS: usize = 10;

#[test]
fn speedscope_takes_its_format() {
    let (_folder, file, _) = exported(Format::Speedscope);
    let validate = npm_readers().join("speedscope.mjs");
    assert_eq!(run(node().arg(validate).arg(&file)), "valid\n");

    let document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let mut gaps = Vec::new();
    let profiles = document["profiles"].as_array().unwrap();
    for (vcpu, profile) in profiles.iter().enumerate() {
        assert_eq!(profile["name"], format!("vCPU {vcpu}"));
        let samples = profile["samples"].as_array().unwrap();
        let weights = numbers(&profile["weights"]);
        assert_eq!(samples.len(), weights.len());
        let without = samples
            .iter()
            .zip(&weights)
            .filter(|(stack, _)| **stack == json!([]));
        gaps.push(without.map(|(_, weight)| weight / PERIOD).sum::<u64>());
        // All vCPUs have the recording's time.
        assert_eq!(profile["startValue"], 0);
        assert_eq!(profile["endValue"], weights.iter().sum::<u64>());
        assert_eq!(profile["endValue"], profiles[0]["endValue"]);
    }
    // What isn't a tick, because it was stolen, or because the other vCPU has later samples.
    let began = info().began_monotonic_ns;
    let (mut counts, mut ends) = ([0; 2], [0; 2]);
    for (ticks, _) in ticks(ROUNDS) {
        counts[usize::from(ticks.vcpu)] += 1 + ticks.idle;
        ends[usize::from(ticks.vcpu)] = (ticks.sample.unwrap().time - began) / PERIOD;
    }
    let end = ends[0].max(ends[1]);
    assert!(counts[0] < ends[0] && ends[1] < end, "{counts:?} {ends:?}");
    assert_eq!(gaps, counts.map(|count| end - count));
    assert_eq!(profiles[0]["endValue"], end * PERIOD);
}

/// The texts of speedscope's page with the table of functions of the active profile in `document`, a file called `name`.
fn page(folder: &Path, name: &str, document: String) -> Vec<String> {
    let script = folder.join("load.js");
    let text = Value::String(document);
    let load = format!(
        "const bytes = new TextEncoder().encode({text});\
         speedscope.loadFileFromBase64('{name}', btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join('')))"
    );
    fs::write(&script, load).unwrap();
    let index = npm_readers().join("node_modules/speedscope/dist/release/index.html");
    let url = format!(
        "file://{}#view=sandwich&localProfilePath={}",
        index.display(),
        script.display()
    );
    let browser = Browser::new(folder);
    let mut texts = Vec::new();
    // On a busy host the page may be printed before its table has rows.
    for _ in 0..OPENINGS {
        let dom = browser.foreign_page(&url);
        let parts = dom.split('<').filter_map(|part| part.split_once('>'));
        let parts = parts.map(|(_, text)| text.trim().to_owned());
        texts = parts.filter(|text| !text.is_empty()).collect();
        if (texts.iter().skip_while(|text| *text != HEADING).nth(1)).is_some() {
            break;
        }
    }
    texts
}

/// A time such as `1.20s (50%)`, in ticks.
fn ticks_of(text: &str) -> u64 {
    let (time, _) = text.split_once(' ').unwrap();
    let digits = time.trim_end_matches(|letter: char| letter.is_alphabetic());
    let unit = match &time[digits.len()..] {
        "ns" => 1,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        other => panic!("{other} in {text}"),
    };
    // It has two decimals.
    digits.replace('.', "").parse::<u64>().unwrap() * unit / 100 / PERIOD
}

#[test]
fn speedscope_shows_its_format() {
    let (folder, file, expected) = exported(Format::Speedscope);
    let mut document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let mut own: HashMap<String, u64> = HashMap::new();
    for vcpu in 0..2 {
        document["activeProfileIndex"] = vcpu.into();
        let texts = page(folder.path(), NAME, document.to_string());
        assert!(texts.contains(&format!("({}/2)", vcpu + 1)), "{texts:?}");
        let begin = texts.iter().position(|text| text == HEADING);
        let rows = &texts[begin.unwrap() + 1..];
        for row in rows.chunks_exact(3) {
            *own.entry(row[2].clone()).or_default() += ticks_of(&row[1]);
        }
        let threads = [
            "batch (pid 230, tid 230)",
            "server worker (pid 101, tid 102)",
        ];
        assert!(rows.contains(&threads[vcpu].to_owned()), "{rows:?}");
    }
    assert_eq!(first(own), expected);
}

/// It makes a profile of each thread, by the times between samples.
#[test]
fn speedscope_shows_perf_script() {
    let (folder, path) = recording(ROUNDS);
    let of_batch = &["0x402080", "[cut short]", "update_process_times"];
    for (pids, profiles, functions) in [
        (&[][..], 6, &["[halted]"][..]),
        (&[101], 2, &["copy_page_to_iter", "server+0x401300"]),
        (&[230], 1, of_batch),
    ] {
        let text = String::from_utf8(export(&path, pids, Format::PerfScript)).unwrap();
        let texts = page(folder.path(), "exported.linux-perf.txt", text);
        if profiles > 1 {
            assert!(texts.contains(&format!("(1/{profiles})")), "{texts:?}");
        }
        for function in functions.iter().map(|name| (*name).to_owned()) {
            assert!(texts.contains(&function), "{function}: {texts:?}");
        }
    }
}
