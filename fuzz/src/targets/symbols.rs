//! Files that names come from: a kernel's debug file, a program and its debug information, and a perf map. The first byte
//! chooses which of them the rest is.

use std::fs;

use kvmprof_recording::Sample;
use kvmprof_recording::file::{Contents, Mapping, ProcessMappings};
use kvmprof_report::symbolize::{CodeAddress, Resolver, Sources};

const PID: i32 = 7;
const CODE: u64 = 0x40_0000;

/// Looks for names in the file.
pub fn run(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let put = |path: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    };
    let mut sources = Sources {
        sysroot: Some(folder.path().to_owned()),
        ..Sources::default()
    };
    match choice % 3 {
        0 => sources.vmlinux = Some(put("vmlinux")),
        1 => {
            put("usr/bin/program");
        }
        _ => {
            put("tmp/perf-7.map");
        }
    }
    let Ok(resolver) = Resolver::new(&contents(), &sources) else {
        return;
    };
    let mappings = resolver.mappings_of(&Sample {
        pid: PID,
        time: 2,
        ..Sample::default()
    });
    for (address, is_kernel) in [
        (CODE, false),
        (CODE + 0x10, false),
        (CODE + 0x1010, false),
        (CODE + 0x10_0000, false),
        (CODE + 0x10_0010, false),
        (0, false),
        (u64::MAX, false),
        (CODE + 0x20, true),
        (0xffff_ffff_8100_0010, true),
        (u64::MAX, true),
    ] {
        resolver.resolve(CodeAddress {
            mappings,
            address,
            is_kernel,
        });
    }
    resolver.take_notes();
}

/// A process with a program and memory of no file.
fn contents() -> Contents {
    let mapping = |begin, end, file: &str| Mapping {
        begin,
        end,
        offset: 0,
        file: file.to_owned(),
        binary: None,
    };
    Contents {
        mappings: vec![ProcessMappings {
            address_space: 0,
            pid: PID,
            name: "program".to_owned(),
            perf_map: format!("/tmp/perf-{PID}.map"),
            time: 1,
            mappings: vec![
                mapping(CODE, CODE + 0x2000, "/usr/bin/program"),
                mapping(CODE + 0x10_0000, CODE + 0x11_0000, "[anon]"),
            ],
        }],
        ..Contents::default()
    }
}

/// A perf map; programs are made by `fuzz/seeds`.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let map = b"\x02500000 20 LazyCompile:~f a.js:1\n0x500020 8 py::g\nnonsense\n";
    vec![("perf-map", map.to_vec())]
}
