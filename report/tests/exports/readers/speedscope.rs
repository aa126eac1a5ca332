//! Checks the export with speedscope's schema, and reads it with speedscope in a browser.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use kvmprof_report::export::Format;
use serde_json::Value;

use crate::shared::browser::Browser;

use super::{PERIOD, exported, first, node, npm_readers, run};

/// The last heading of the table of functions.
const HEADING: &str = "Symbol Name";
/// How often a page is opened whose table has no rows yet.
const OPENINGS: usize = 10;

#[test]
fn speedscope_takes_its_format() {
    let (_folder, file, expected) = exported(Format::Speedscope);
    let validate = npm_readers().join("speedscope.mjs");
    assert_eq!(run(node().arg(validate).arg(&file)), "valid\n");

    let document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let frames = document["shared"]["frames"].as_array().unwrap();
    let mut own: HashMap<String, u64> = HashMap::new();
    for (vcpu, profile) in document["profiles"].as_array().unwrap().iter().enumerate() {
        assert_eq!(profile["name"], format!("vCPU {vcpu}"));
        let samples = profile["samples"].as_array().unwrap();
        let weights = profile["weights"].as_array().unwrap();
        assert_eq!(samples.len(), weights.len());
        let mut end = 0;
        for (stack, weight) in samples.iter().zip(weights) {
            let innermost = stack.as_array().unwrap().last().unwrap();
            let index = usize::try_from(innermost.as_u64().unwrap()).unwrap();
            let name = frames[index]["name"].as_str().unwrap();
            let weight = weight.as_u64().unwrap();
            *own.entry(name.to_owned()).or_default() += weight / PERIOD;
            end += weight;
        }
        assert_eq!(profile["endValue"], end);
    }
    assert_eq!(first(own), expected);
}

/// The texts of speedscope's page with the table of functions of the active profile in `document`.
fn page(folder: &Path, document: &Value) -> Vec<String> {
    let script = folder.join("load.js");
    let text = Value::String(document.to_string());
    let load = format!("speedscope.loadFileFromBase64('exported.speedscope.json', btoa({text}))");
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
        let texts = page(folder.path(), &document);
        assert!(texts.contains(&format!("({}/2)", vcpu + 1)), "{texts:?}");
        let begin = texts.iter().position(|text| text == HEADING);
        let rows = &texts[begin.unwrap() + 1..];
        for row in rows.chunks_exact(3) {
            *own.entry(row[2].clone()).or_default() += ticks_of(&row[1]);
        }
        let thread = [
            "batch (pid 230, tid 230)",
            "server worker (pid 101, tid 102)",
        ][vcpu];
        assert!(rows.iter().any(|text| text == thread), "{rows:?}");
    }
    assert_eq!(first(own), expected);
}
