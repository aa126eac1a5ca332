//! The pages agree with the source tree: their links have targets, and the messages that `docs/troubleshooting.md`
//! explains are in the programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Shorter pieces don't identify a message.
const LEAST_PIECE: usize = 4;
/// Maximum number of lines of the README.
const README_LINES: usize = 180;
/// Maximum number of words of all pages together.
const WORDS: usize = 30_000;

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// All files below the workspace's folder whose names end with `ending`, each with its text. Folders with other
/// projects' packages and with build output are excluded.
pub fn files(ending: &str) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let is_foreign = name == "target" || name == "node_modules" || name.starts_with('.');
            if path.is_dir() && !is_foreign {
                folders.push(path);
            } else if path.is_file() && name.ends_with(ending) {
                let text = fs::read_to_string(&path).unwrap();
                found.insert(path, text);
            }
        }
    }
    found
}

/// `text` without its blocks of code.
fn prose(text: &str) -> String {
    let mut in_block = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        in_block ^= fence;
        !in_block && !fence && !line.starts_with("    ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The targets of the links in a page's text.
fn links(text: &str) -> Vec<String> {
    let text = prose(text);
    let targets = text.split("](").skip(1);
    targets
        .filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()))
        .collect()
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> Vec<String> {
    let text = prose(text);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

#[test]
fn links_have_targets() {
    let pages = files(".md");
    assert!(pages.len() > 10, "{:?}", pages.keys());
    let mut broken = Vec::new();
    for (page, text) in &pages {
        for link in links(text) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() {
                page.clone()
            } else {
                page.parent().unwrap().join(file)
            };
            let has_anchor = |target: &Path| {
                let text = fs::read_to_string(target).unwrap_or_default();
                anchors(&text).iter().any(|known| known == anchor)
            };
            if !target.exists() || !anchor.is_empty() && !has_anchor(&target) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// A link whose text is the name of a test leads to the file that has the test.
#[test]
fn tests_named_by_a_page_exist() {
    let page = root().join("SECURITY.md");
    let text = prose(&fs::read_to_string(page).unwrap());
    let is_name = |text: &str| {
        text.contains('_')
            && text
                .bytes()
                .all(|it| it == b'_' || it.is_ascii_alphanumeric())
    };
    let mut named = 0;
    for (before, behind) in text.match_indices("](").map(|(at, _)| text.split_at(at)) {
        let name = before.rsplit('[').next().unwrap_or_default();
        let target = behind[2..].split(')').next().unwrap_or_default();
        if !is_name(name) || !target.ends_with(".rs") {
            continue;
        }
        named += 1;
        let source = fs::read_to_string(root().join(target)).unwrap();
        assert!(source.contains(&format!("fn {name}(")), "{target}: {name}");
    }
    assert!(named > 50, "{named}");
}

/// The table of fuzz targets has a row for each, with its cases and edges.
#[test]
fn fuzz_targets_have_rows_with_their_numbers() {
    let page = fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let words: Vec<&str> = page.split_whitespace().collect();
    let is_number = |word: &&str| word.replace(',', "").parse::<u64>().is_ok();
    let targets = fs::read_dir(root().join("fuzz/corpus")).unwrap();
    let mut count = 0;
    for target in targets {
        let name = target.unwrap().file_name().into_string().unwrap();
        let is_row = |row: &[&str]| row[0] == name && row[1..].iter().all(is_number);
        assert!(words.windows(3).any(is_row), "{name} has no row");
        count += 1;
    }
    assert!(count > 20, "{count}");
}

#[test]
fn pages_are_short() {
    let pages = files(".md");
    let words = pages.values().map(|page| page.split_whitespace().count());
    let words: usize = words.sum();
    assert!(words <= WORDS, "{words} words");
}

#[test]
fn the_readme_is_short() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let lines = readme.lines().count();
    assert!(lines <= README_LINES, "{lines} lines");
}

/// The messages before the colon of the page's list items, in which `…` stands for variable text.
fn messages(page: &str) -> Vec<String> {
    let joined = page.replace("\n  ", " ");
    let items = joined.lines().filter_map(|line| line.strip_prefix("- `"));
    items
        .flat_map(|item| {
            let named = item.split("`: ").next().unwrap_or_default();
            let spans = named.split('`').step_by(2);
            spans.map(str::to_owned).collect::<Vec<_>>()
        })
        .filter(|message| !message.is_empty())
        .collect()
}

/// The source's text with strings over several lines joined.
fn joined(source: &str) -> String {
    let mut text = String::new();
    let mut rest = source;
    while let Some((before, after)) = rest.split_once("\\\n") {
        text.push_str(before);
        rest = after.trim_start();
    }
    text.push_str(rest);
    text.replace("\\\"", "\"")
}

#[test]
fn explained_messages_exist_in_the_programs() {
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let source: String = files(".rs").values().map(|text| joined(text)).collect();
    let messages = messages(&page);
    assert!(messages.len() > 30, "{messages:?}");
    let pieces = messages.iter().flat_map(|message| message.split('…'));
    let unknown: Vec<&str> = pieces
        .map(str::trim)
        .filter(|piece| piece.len() >= LEAST_PIECE && !source.contains(piece))
        .collect();
    assert!(unknown.is_empty(), "no longer in any program: {unknown:#?}");
}
