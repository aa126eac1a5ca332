//! Java.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use kvmprof_lab::{debian_12_package, debian_13_package};
use kvmprof_tests::linux::Release;
use tempfile::TempDir;

use super::Program;

const FUNCTIONS: [(&str, &[&str]); 5] = [
    (
        "Loom.card",
        &["Loom.main", "Loom.firstRoom", "Loom.sortThreads"],
    ),
    ("Loom.comb", SECOND_ROOM),
    ("Loom.weave", &["Loom.main", "Loom.firstRoom"]),
    ("Loom$Dyer.dye", SECOND_ROOM),
    ("Loom.press", SECOND_ROOM),
];
const SECOND_ROOM: &[&str] = &["Loom$1.run", "Loom.secondRoom"];

pub const JAVA_17: Program = Program {
    name: "java17",
    executes: "java",
    files: || files(debian_12_package, "17"),
    release: debian_12_package,
    libraries: &[&[("libstdc++6", "libstdc++.so.6")]],
    file: "Loom.java",
    text: include_str!("Loom.java"),
    begin: "/usr/lib/jvm/java-17-openjdk-amd64/bin/java -XX:+UseSerialGC -XX:-UsePerfData -cp / Loom",
    functions: FUNCTIONS,
    native: "libjvm.so",
    has_qualified_names: true,
    lines_before_code: 1,
};

pub const JAVA_21: Program = Program {
    name: "java21",
    files: || files(debian_13_package, "21"),
    release: debian_13_package,
    begin: "/usr/lib/jvm/java-21-openjdk-amd64/bin/java -XX:+UseSerialGC -XX:-UsePerfData -cp / Loom",
    ..JAVA_17
};

pub const JAVA_25: Program = Program {
    name: "java25",
    files: || files(debian_13_package, "25"),
    begin: "/usr/lib/jvm/java-25-openjdk-amd64/bin/java -XX:+UseSerialGC -XX:-UsePerfData -cp / Loom",
    ..JAVA_21
};

/// What the JVM reads, in its folder of the package, and what is a link there to where it is installed, with its place in the package.
const OF_JVM: [&str; 10] = [
    "bin/java",
    "lib/libjli.so",
    "lib/server/libjvm.so",
    "lib/server/classes.jsa",
    "lib/libjava.so",
    "lib/libjimage.so",
    "lib/libnet.so",
    "lib/libnio.so",
    "lib/libzip.so",
    MODULES,
];
const MODULES: &str = "lib/modules";
const LINKED: [(&str, &str); 2] = [
    ("lib/jvm.cfg", "jvm-amd64.cfg"),
    ("conf/security/java.security", "security/java.security"),
];
/// The program's classes.
const CLASSES: [&str; 4] = ["Loom", "Loom$1", "Loom$Dyer", "Loom$Step"];

/// The JVM of this version, and the program's classes.
fn files(release: Release, version: &str) -> Vec<(PathBuf, String)> {
    let home = format!("/usr/lib/jvm/java-{version}-openjdk-amd64");
    let of_jvm = of_jvm(release, version).into_iter();
    let of_jvm = of_jvm.map(|(file, place)| (file, format!("{home}/{place}")));
    let classes = CLASSES.map(|class| {
        let class = format!("{class}.class");
        (classes().join(&class), format!("/{class}"))
    });
    of_jvm.chain(classes).collect()
}

/// The files of the JVM of this version, and their places in its folder.
fn of_jvm(release: Release, version: &str) -> Vec<(PathBuf, &'static str)> {
    let name: &'static str = match version {
        "17" => "openjdk-17-jre-headless",
        "21" => "openjdk-21-jre-headless",
        _ => "openjdk-25-jre-headless",
    };
    let package = release(name).unwrap();
    let home = package.join(format!("usr/lib/jvm/java-{version}-openjdk-amd64"));
    let linked = package.join(format!("etc/java-{version}-openjdk"));
    let own = OF_JVM.map(|place| (home.join(place), place));
    let linked = LINKED.map(|(place, file)| (linked.join(file), place));
    own.into_iter().chain(linked).collect()
}

/// The folder with the program's classes, compiled by Debian 12's JVM.
fn classes() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(compile).path()
}

fn compile() -> TempDir {
    let folder = TempDir::new().unwrap();
    for (file, place) in of_jvm(debian_12_package, "17") {
        let place = folder.path().join(place);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        if file.ends_with(MODULES) {
            symlink(file, place).unwrap();
        } else {
            // The JVM looks for others beside these, wherever links lead.
            fs::copy(file, place).unwrap();
        }
    }
    let source = folder.path().join("Loom.java");
    fs::write(&source, include_str!("Loom.java")).unwrap();
    let compiled = Command::new(folder.path().join("bin/java"))
        .args(["-m", "jdk.compiler/com.sun.tools.javac.Main"])
        .arg(source)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said}");
    folder
}
