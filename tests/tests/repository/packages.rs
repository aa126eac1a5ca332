//! The Debian packages: built from the programs, installed into a folder that acts as a machine's root, and removed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvmprof_tests::{kvmprof, run_command};

use crate::clean_roots::new_systems_have_what_they_need;
use crate::deployment::the_image_has_the_packages_files;

/// Maximum bytes of the largest installed program: debug information is in a separate package.
const LARGEST: [(&str, u64); 2] = [
    ("usr/bin/kvmprof", 18_500_000),
    ("usr/bin/kvmprof-collect", 17_500_000),
];
pub const PACKAGES: [&str; 5] = [
    "kvmprof",
    "kvmprof-collect",
    "kvmprof-tools",
    "kvmprof-guest",
    "kvmprof-dbgsym",
];
const TOOLS: [&str; 7] = [
    "getpc", "pcstat", "prfld", "prfstat", "prfdc", "prfsnap", "prfpr",
];
/// Where dpkg and the programs that install services keep their records.
const RECORDS: [&str; 2] = ["var/lib/dpkg", "dpkg.log"];

/// A folder as the root of a machine without any package.
struct Root {
    folder: tempfile::TempDir,
}

impl Root {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("var/lib/dpkg");
        for part in ["info", "updates"] {
            fs::create_dir_all(state.join(part)).unwrap();
        }
        for file in ["status", "available"] {
            fs::write(state.join(file), "").unwrap();
        }
        Self { folder }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// Runs dpkg for this folder. Packages' scripts run on this machine, and get the folder by `DPKG_ROOT`.
    #[track_caller]
    fn dpkg<S: AsRef<std::ffi::OsStr>>(&self, arguments: impl IntoIterator<Item = S>) {
        let mut command = Command::new("dpkg");
        if !rustix::process::geteuid().is_root() {
            // File owners don't matter here.
            command = Command::new("fakeroot");
            command.arg("dpkg");
        }
        let folder = self.folder.path().display();
        command
            .arg(format!("--root={folder}"))
            .arg(format!("--log={folder}/dpkg.log"))
            .args(["--force-not-root", "--force-script-chrootless"])
            // Other files of a machine's root.
            .args(["--force-bad-path", "--force-depends"])
            .args(arguments)
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            );
        succeeds(&mut command);
    }

    /// The files and links, by their paths, except for the records of dpkg.
    fn files(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                let path = entry.path();
                let name = path.strip_prefix(self.folder.path()).unwrap();
                let name = name.to_str().unwrap().to_owned();
                if RECORDS.contains(&name.as_str()) {
                    continue;
                }
                if entry.file_type().unwrap().is_dir() {
                    folders.push(path);
                } else {
                    found.insert(name);
                }
            }
        }
        found
    }

    /// The output of an installed program called with `argument`.
    #[track_caller]
    fn says(&self, program: &str, argument: &str) -> String {
        succeeds(Command::new(self.path(program)).arg(argument))
    }

    /// An installed file that is packed by gzip.
    #[track_caller]
    fn unpacked(&self, path: &str) -> String {
        succeeds(Command::new("gzip").args(["-dc"]).arg(self.path(path)))
    }
}

/// Runs a command to its success. Returns what it prints.
#[track_caller]
pub fn succeeds(command: &mut Command) -> String {
    let ran = run_command(command);
    assert_eq!(ran.status, 0, "{ran:?}");
    ran.stdout
}

/// Builds all packages into `folder`.
fn build(folder: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/build-deb");
    let programs = kvmprof();
    succeeds(
        Command::new(script)
            .arg(folder)
            .arg(programs.parent().unwrap()),
    );
}

/// The file of a package in `folder`.
pub fn package(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}_{}_amd64.deb", env!("CARGO_PKG_VERSION")))
}

#[test]
fn packages_can_be_installed_used_and_removed() {
    let debs = tempfile::tempdir().unwrap();
    build(debs.path());
    dependencies_of_packages_are_declared(debs.path());
    the_image_has_the_packages_files(debs.path());
    new_systems_have_what_they_need(debs.path());
    let root = Root::new();
    let files = PACKAGES.map(|name| package(debs.path(), name));
    let install = PathBuf::from("--install");
    root.dpkg([install].into_iter().chain(files));

    programs_run(&root);
    pages_are_there(&root);
    the_service_is_enabled(&root);
    symbols_are_found_by_build_id(&root);
    programs_can_profile_themselves(&root);
    let installed = root.files();
    for file in [
        "usr/include/kvmprof/pcs.h",
        "usr/include/kvmprof/prf.h",
        "usr/lib/x86_64-linux-gnu/libkvmprof.so.1",
        "usr/share/bash-completion/completions/kvmprof",
        "usr/share/zsh/vendor-completions/_getpc",
        "usr/share/fish/vendor_completions.d/prfld.fish",
        "usr/lib/systemd/system/kvmprof-collect.service",
        "usr/lib/systemd/system/kvmprof-launcher.service",
        "usr/share/doc/kvmprof-collect/examples/collect.toml",
        "usr/share/doc/kvmprof/copyright",
        "usr/share/doc/kvmprof-guest/third-party.gz",
    ] {
        assert!(installed.contains(file), "no {file} in {installed:#?}");
    }

    root.dpkg(["--remove"].into_iter().chain(PACKAGES));
    assert_eq!(root.files(), BTreeSet::new());
}

/// The files of other packages that the package's programs run or read. They are static, so that nothing else is
/// needed.
fn dependencies_of_packages_are_declared(folder: &Path) {
    for (name, needed) in [
        ("kvmprof", "kvmprof-tools"),
        ("kvmprof-collect", "ca-certificates, kvmprof"),
        ("kvmprof-tools", ""),
        ("kvmprof-guest", "kvmprof-tools"),
    ] {
        let field = |field| {
            let mut command = Command::new("dpkg-deb");
            command.arg("--field").arg(package(folder, name)).arg(field);
            succeeds(&mut command).trim().to_owned()
        };
        assert_eq!(field("Recommends"), needed, "{name}");
        assert_eq!(field("Depends"), "", "{name}");
    }
}

fn programs_run(root: &Root) {
    let version = env!("CARGO_PKG_VERSION");
    let says = root.says("usr/bin/kvmprof", "--version");
    assert_eq!(says, format!("kvmprof {version}\n"));
    let says = root.says("usr/bin/kvmprof-collect", "--version");
    assert_eq!(says, format!("kvmprof-collect {version}\n"));
    // It is found beside the program.
    let ran = run_command(Command::new(root.path("usr/bin/kvmprof")).args(["collect", "--help"]));
    assert!(ran.stdout.contains("--once"), "{ran:?}");
    let says = root.says("usr/sbin/pcsd", "--version");
    assert_eq!(says, format!("pcsd {version}\n"));
    for tool in TOOLS {
        let says = root.says(&format!("usr/bin/{tool}"), "--version");
        assert_eq!(says, format!("{tool} {version}\n"));
    }
    for (program, largest) in LARGEST {
        let length = fs::metadata(root.path(program)).unwrap().len();
        println!("{program}: {length} bytes");
        assert!(length < largest, "{program}: {length} bytes");
    }
}

fn pages_are_there(root: &Root) {
    let of_collect = [
        "kvmprof-collect",
        "kvmprof-collect-demo",
        "kvmprof-collect-launcher",
    ];
    let others = ["kvmprof", "kvmprof-run", "kvmprof-record", "getpc", "prfpr"];
    for page in of_collect.into_iter().chain(others) {
        let text = root.unpacked(&format!("usr/share/man/man1/{page}.1.gz"));
        assert!(text.contains(".SH NAME"), "{page}: {text}");
    }
    for (page, name) in [
        ("profil", "PROFIL"),
        ("pcsample", "PCSAMPLE"),
        ("pmc", "PMC"),
        ("pmc_lwp", "PMC"),
        ("pmc_stop_profiling", "PMC"),
        ("PMC_ENABLED", "PMC"),
    ] {
        let text = root.unpacked(&format!("usr/share/man/man3/{page}.3kvmprof.gz"));
        assert!(text.starts_with(&format!(".TH {name} ")), "{page}: {text}");
    }
    // pcsd's page is written by hand: it has to have each option.
    let text = root
        .unpacked("usr/share/man/man8/pcsd.8.gz")
        .replace('\\', "");
    let help = root.says("usr/sbin/pcsd", "--help");
    let words = help.split_whitespace();
    let options: Vec<&str> = words.filter(|word| word.starts_with("--")).collect();
    assert!(options.len() > 5, "{help}");
    for option in options {
        assert!(text.contains(option), "no {option} in {text}");
    }
}

fn the_service_is_enabled(root: &Root) {
    let unit = fs::read_to_string(root.path("usr/lib/systemd/system/pcsd.service")).unwrap();
    let mut lines = unit.lines();
    let start = lines.find_map(|line| line.strip_prefix("ExecStart=/"));
    let program = start.unwrap().split(' ').next().unwrap();
    assert!(root.path(program).is_file(), "{program}");
    let link = root.path("etc/systemd/system/multi-user.target.wants/pcsd.service");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}

/// Programs in C are compiled and linked with the installed files.
fn programs_can_profile_themselves(root: &Root) {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("program.c");
    let program = folder.path().join("program");
    let headers = root.path("usr/include/kvmprof");
    let libraries = root.path("usr/lib/x86_64-linux-gnu");
    for (header, kind) in [
        ("profil.h", "-rdynamic"),
        ("pcsample.h", "-static"),
        ("mon.h", "-rdynamic"),
        ("sys/pmc.h", "-rdynamic"),
        ("sys/pmc.h", "-static"),
    ] {
        let call = match header {
            "pcsample.h" => "pcsample(0, -1) == -1",
            "mon.h" => "profil(0, 0, 0, 0) == -1",
            "sys/pmc.h" => "pmc_get_num_counters() == 0",
            _ => "(profil(0, 0, 0, 0), 1)",
        };
        let text = format!("#include <{header}>\nint main(void) {{ return !({call}); }}\n");
        fs::write(&source, text).unwrap();
        let mut compiler = Command::new("cc");
        compiler
            .arg("-I")
            .arg(&headers)
            .arg("-I")
            .arg(headers.join("aix"));
        compiler.arg(kind).arg("-o").arg(&program).arg(&source);
        compiler.arg("-L").arg(&libraries).arg("-lkvmprof");
        succeeds(&mut compiler);
        succeeds(Command::new(&program).env("LD_LIBRARY_PATH", &libraries));
    }
}

fn symbols_are_found_by_build_id(root: &Root) {
    let program = root.path("usr/bin/kvmprof");
    let id = build_id(&program);
    let (begin, rest) = id.split_at(2);
    let debug = root.path(&format!("usr/lib/debug/.build-id/{begin}/{rest}.debug"));
    assert_eq!(build_id(&debug), id);
    let [installed, all] =
        [program, debug].map(|file| succeeds(Command::new("nm").arg(file)).lines().count());
    // The program keeps kvmprof's own functions, and not those of libraries.
    assert!(installed > 1000 && all > 2 * installed, "{installed} {all}");
}

/// The build id of an ELF file, in hexadecimal.
fn build_id(file: &Path) -> String {
    let notes = succeeds(Command::new("readelf").arg("--notes").arg(file));
    let mut lines = notes.lines();
    let id = lines.find_map(|line| line.trim().strip_prefix("Build ID: "));
    id.unwrap_or_else(|| panic!("{notes}")).to_owned()
}
