//! JavaScript.

use std::path::PathBuf;

use kvmprof_lab::{debian_12_package, debian_13_package};
use kvmprof_tests::linux::Release;

use super::Program;

pub const NODE_18: Program = Program {
    name: "node18",
    executes: "node",
    files: || files(debian_12_package, &SCRIPTS[1..]),
    release: debian_12_package,
    libraries: &[&OF_BOTH, &OF_DEBIAN_12],
    file: "loom.js",
    text: include_str!("loom.js"),
    begin: "/usr/bin/node /loom.js",
    functions: [
        ("card", &["(anonymous)", "firstRoom", "sortThreads"]),
        ("comb", &["(anonymous)", "secondRoom"]),
        ("weave", &["(anonymous)", "firstRoom"]),
        ("dye", &["(anonymous)", "secondRoom", "(anonymous)"]),
        ("press", &["(anonymous)", "secondRoom"]),
    ],
    native: "libnode.so.108",
    has_qualified_names: false,
    lines_before_code: 0,
};

pub const NODE_20: Program = Program {
    name: "node20",
    files: || files(debian_13_package, &SCRIPTS),
    release: debian_13_package,
    libraries: &[&OF_BOTH, &OF_DEBIAN_13],
    native: "libnode.so.115",
    ..NODE_18
};

/// What it reads when it starts, in a folder for scripts. The first one is new in Debian 13.
const SCRIPTS: [(&str, &str); 6] = [
    ("node-minimatch", "minimatch/dist/cjs/index.bundle.js"),
    ("node-acorn", "acorn/dist/acorn.js"),
    ("node-acorn", "acorn-walk/dist/walk.js"),
    ("node-cjs-module-lexer", "cjs-module-lexer/lexer.js"),
    ("node-cjs-module-lexer", "cjs-module-lexer/dist/lexer.js"),
    ("node-undici", "undici/undici-fetch.js"),
];
/// Libraries whose packages have the same names in both releases, and the others.
const OF_BOTH: [(&str, &str); 5] = [
    ("libbrotli1", "libbrotlicommon.so.1"),
    ("libbrotli1", "libbrotlidec.so.1"),
    ("libbrotli1", "libbrotlienc.so.1"),
    ("libnghttp2-14", "libnghttp2.so.14"),
    ("libstdc++6", "libstdc++.so.6"),
];
const OF_DEBIAN_12: [(&str, &str); 8] = [
    ("libnode108", "libnode.so.108"),
    ("libuv1", "libuv.so.1"),
    ("libc-ares2", "libcares.so.2"),
    ("libssl3", "libssl.so.3"),
    ("libssl3", "libcrypto.so.3"),
    ("libicu72", "libicui18n.so.72"),
    ("libicu72", "libicuuc.so.72"),
    ("libicu72", "libicudata.so.72"),
];
const OF_DEBIAN_13: [(&str, &str); 8] = [
    ("libnode115", "libnode.so.115"),
    ("libuv1t64", "libuv.so.1"),
    ("libcares2", "libcares.so.2"),
    ("libssl3t64", "libssl.so.3"),
    ("libssl3t64", "libcrypto.so.3"),
    ("libicu76", "libicui18n.so.76"),
    ("libicu76", "libicuuc.so.76"),
    ("libicu76", "libicudata.so.76"),
];

/// The program and its scripts.
fn files(release: Release, scripts: &[(&'static str, &str)]) -> Vec<(PathBuf, String)> {
    let mut files = vec![(
        release("nodejs").unwrap().join("usr/bin/node"),
        "/usr/bin/node".to_owned(),
    )];
    files.extend(scripts.iter().map(|&(package, script)| {
        let place = format!("usr/share/nodejs/{script}");
        (release(package).unwrap().join(&place), format!("/{place}"))
    }));
    files
}
