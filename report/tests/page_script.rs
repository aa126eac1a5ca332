//! The page's script without a browser: the types in its comments by TypeScript, and its sums in Node.js by `readers/script.test.mjs`.

use crate::shared::used::{node, npm_readers};

/// Transforms, filters and totals of tables of stacks.
#[test]
fn the_script_adds_up() {
    let output = node()
        .args(["--test", "--test-reporter=tap"])
        .arg(npm_readers().join("script.test.mjs"))
        .output()
        .unwrap_or_else(|error| panic!("node: {error}: tests/run installs it"));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    // What ran none of them would succeed, too.
    assert!(
        said.contains("# fail 0\n") && !said.contains("# pass 0\n"),
        "{said}"
    );
}

/// Its types are in comments.
#[test]
fn the_script_has_the_types_that_it_says() {
    let output = node()
        .arg(npm_readers().join("node_modules/typescript/bin/tsc"))
        .arg("--project")
        .arg(npm_readers().join("tsconfig.json"))
        .output()
        .unwrap_or_else(|error| panic!("node: {error}: tests/run installs it"));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
}
