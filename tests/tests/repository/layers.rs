//! The folders of a crate are in layers: none at its root uses a module that uses it, directly or
//! indirectly.

use std::collections::{BTreeMap, BTreeSet};

use crate::pages::{files, root};

/// By module, the other modules that it uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// The code without comments and tests.
fn code(text: &str) -> String {
    let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    product
        .lines()
        .filter(is_code)
        .collect::<Vec<_>>()
        .join("\n")
}

/// The modules at the crate's root that `code` names by `crate::`.
fn named(code: &str) -> BTreeSet<String> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut names = BTreeSet::new();
    for (begin, path) in code.match_indices("crate::") {
        if code[..begin].ends_with(is_word) {
            continue;
        }
        let rest = &code[begin + path.len()..];
        let end = match rest.strip_prefix('{') {
            Some(_) => rest.find('}'),
            None => rest.find(|letter| !is_word(letter)),
        };
        let words = rest[..end.unwrap_or(rest.len())].split(|letter| !is_word(letter));
        names.extend(words.map(str::to_owned));
    }
    names
}

/// The uses of the modules at the root of each crate, by the crate's folder.
fn uses() -> BTreeMap<String, Uses> {
    let mut crates: BTreeMap<String, Uses> = BTreeMap::new();
    for (file, text) in files(".rs") {
        let file = file.strip_prefix(root()).unwrap().to_str().unwrap();
        let Some((folder, inner)) = file.split_once("/src/") else {
            continue;
        };
        if inner.contains("test") {
            continue;
        }
        let module = inner.split('/').next().unwrap().trim_end_matches(".rs");
        let mut used = named(&code(&text));
        used.remove(module);
        let modules = crates.entry(folder.to_owned()).or_default();
        modules.entry(module.to_owned()).or_default().extend(used);
    }
    for modules in crates.values_mut() {
        let known: BTreeSet<String> = modules.keys().cloned().collect();
        for used in modules.values_mut() {
            used.retain(|used| known.contains(used));
        }
    }
    crates
}

/// All modules that `from` uses, directly or indirectly.
fn reached(uses: &Uses, from: &str) -> BTreeSet<String> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(module) = left.pop() {
        for used in uses.get(&module).into_iter().flatten() {
            if reached.insert(used.clone()) {
                left.push(used.clone());
            }
        }
    }
    reached
}

#[test]
fn no_folder_uses_a_module_that_uses_it() {
    let crates = uses();
    assert!(crates.len() > 15, "{:?}", crates.keys());
    assert!(crates["vmm"]["vm"].contains("vcpu"));
    let circles: Vec<String> = crates
        .iter()
        .flat_map(|(folder, uses)| {
            let source = root().join(folder).join("src");
            let folders = uses
                .keys()
                .filter(move |module| source.join(module).is_dir());
            let circle = folders.filter(|module| reached(uses, module).contains(*module));
            circle.map(move |module| format!("{folder}: {module} uses {:?}", uses[module]))
        })
        .collect();
    assert!(circles.is_empty(), "{circles:#?}");
}
