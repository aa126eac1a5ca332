//! Python.

use std::path::PathBuf;

use kvmprof_lab::{LabError, debian_11_package, debian_12_package};

use super::Program;

const FUNCTIONS: [(&str, &[&str]); 5] = [
    ("card", &["<module>", "first_room", "sort_threads"]),
    ("comb", SECOND_ROOM),
    ("weave", &["<module>", "first_room"]),
    ("Dyer.dye", SECOND_ROOM),
    ("press", SECOND_ROOM),
];
const SECOND_ROOM: &[&str] = &[
    "Thread._bootstrap",
    "Thread._bootstrap_inner",
    "Thread.run",
    "second_room",
];

pub const PYTHON_3_11: Program = Program {
    name: "python3.11",
    executes: "python3.11",
    files: || {
        let packages = ["python3.11-minimal", "libpython3.11-minimal"];
        files("python3.11", packages.map(debian_12_package))
    },
    release: debian_12_package,
    libraries: &[&[("libc6", "libutil.so.1"), ("libexpat1", "libexpat.so.1")]],
    file: "loom.py",
    text: include_str!("loom.py"),
    begin: "/usr/bin/python3.11 -S /loom.py",
    functions: FUNCTIONS,
    native: "_PyEval_EvalFrameDefault",
    has_qualified_names: true,
    lines_before_code: 0,
};

/// Its frames are held in registers.
pub const PYTHON_3_9: Program = Program {
    name: "python3.9",
    executes: "python3.9",
    files: || {
        let packages = ["python3.9-minimal", "libpython3.9-minimal"];
        files("python3.9", packages.map(debian_11_package))
    },
    begin: "/usr/bin/python3.9 -S /loom.py",
    has_qualified_names: false,
    ..PYTHON_3_11
};

/// The interpreter and its modules, in two packages.
fn files(name: &str, packages: [Result<PathBuf, LabError>; 2]) -> Vec<(PathBuf, String)> {
    let [program, modules] = packages.map(Result::unwrap);
    let places = [(program, "bin"), (modules, "lib")].into_iter();
    let files = places.map(|(package, folder)| {
        let place = format!("usr/{folder}/{name}");
        (package.join(&place), format!("/{place}"))
    });
    files.collect()
}
