//! Golden files in `tests/data`.

use std::path::Path;

/// The environment variable that renews the files.
const RENEW: &str = "KVMPROF_BLESS";

/// Compares `contents` with the file `name`.
///
/// # Panics
/// They differ. The message says how to renew the file.
pub fn check(name: &str, contents: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let path = folder.join(name);
    if std::env::var_os(RENEW).is_some() {
        std::fs::write(&path, contents).unwrap();
    }
    let expected = std::fs::read(&path).unwrap_or_default();
    if expected != contents {
        let line = differing_line(&expected, contents);
        panic!(
            "{} isn't as it was, from line {line} on. If that is meant: {RENEW}=1 cargo nextest run \
             --cargo-profile release -p kvmprof-report, and look at git diff. Now it is:\n{}",
            path.display(),
            String::from_utf8_lossy(contents)
        );
    }
}

fn differing_line(expected: &[u8], found: &[u8]) -> usize {
    let same = expected
        .iter()
        .zip(found)
        .take_while(|(left, right)| left == right);
    1 + same.filter(|(byte, _)| **byte == b'\n').count()
}
