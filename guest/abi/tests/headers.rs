//! Compares `pcs.h`, `prf.h` and `sys/pmc.h` with the Rust definitions: a program that prints every number, and every structure with
//! a value in each field, is compiled as C and as C++.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvmprof_abi::commands::of_device;
use kvmprof_abi::pcs::{
    self, Format, Header, Ledger, MAX_LIST, Msample, Psample, Record, Status, kind,
};
use kvmprof_abi::pmc::{self, CounterId, CounterSource};
use kvmprof_abi::prf;
use kvmprof_abi::stream::{Comm, Isample, Pstat, StreamRecord};
use kvmprof_abi::wire::device;

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// A folder for compiler output, which is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It is below the target folder, where leftovers are harmless.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn compile(compiler: &str, options: &[&str], source: &Path, output: &Path) {
    let ran = Command::new(compiler)
        .args(WARNINGS)
        .args(options)
        .arg("-I")
        .arg(folder("include"))
        .arg("-o")
        .arg(output)
        .arg(source)
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}; tests/run installs it"));
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{compiler} {options:?}: {said}");
}

/// The program's output, by name.
#[track_caller]
fn printed(compiler: &str, options: &[&str], scratch: &Scratch) -> BTreeMap<String, String> {
    let program = scratch.0.join("records");
    let source = folder("tests/headers/records.c");
    compile(compiler, options, &source, &program);
    let ran = Command::new(&program).output().unwrap();
    assert!(ran.status.success());
    let text = String::from_utf8(ran.stdout).unwrap();
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let twice = all.insert(name.to_owned(), value.to_owned());
        assert_eq!(twice, None, "{name}");
    }
    all
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn size(size: usize) -> u64 {
    u64::try_from(size).unwrap()
}

fn numbers_of_pcs() -> Vec<(&'static str, u64)> {
    vec![
        ("KERNEL", kind::KERNEL.into()),
        ("USER", kind::USER.into()),
        ("IDLE", kind::IDLE.into()),
        ("MKERNEL", kind::MKERNEL.into()),
        ("MUSER", kind::MUSER.into()),
        ("START", kind::START.into()),
        ("STOP", kind::STOP.into()),
        ("IOCTL", kind::IOCTL.into()),
        ("KERNELI", kind::KERNELI.into()),
        ("MKERNELI", kind::MKERNELI.into()),
        ("PCS_PSTAT", kind::PSTAT.into()),
        ("PCS_COMM", kind::COMM.into()),
        ("BSIZE", size(pcs::BSIZE)),
        ("DEF_BUFNO", size(pcs::DEF_BUFNO)),
        ("MAX_BUFS", size(pcs::MAX_BUFS)),
        ("MAX_LIST", size(pcs::MAX_LIST)),
        ("PROF_MASK", pcs::PROF_MASK.into()),
        ("PCS_FORMAT_NATIVE", Format::Native.number().into()),
        ("PCS_FORMAT_CLASSIC", Format::Classic.number().into()),
        ("PCS_MIN_BSIZE", size(pcs::MIN_BSIZE)),
        ("PCS_MAX_BSIZE", size(pcs::MAX_BSIZE)),
        ("PCS_MIN_HZ", pcs::MIN_HZ.into()),
        ("PCS_MAX_HZ", pcs::MAX_HZ.into()),
        ("PCS_MERGE_TICKS", pcs::MERGE_TICKS),
        ("PCS_UNUSED_BOUND", pcs::UNUSED_BOUND.into()),
    ]
}

/// The commands of pcs and prf.
fn commands() -> Vec<(&'static str, u64)> {
    let commands = of_device(device::PCS).chain(of_device(device::PRF));
    let numbers = commands.map(|command| (command.name, command.number.into()));
    numbers.collect()
}

fn numbers_of_prf() -> Vec<(&'static str, u64)> {
    vec![
        ("PRF_STATUS_ON", prf::STATUS_ON.into()),
        ("PRF_STATUS_LOADED", prf::STATUS_LOADED.into()),
        ("PRF_ALL_VCPUS", prf::ALL_VCPUS.into()),
        ("PRF_RATE_HZ", prf::RATE_HZ.into()),
        ("PRF_WORD_SIZE", size(prf::WORD_SIZE)),
        ("PRF_MIN_ADDRESSES", size(prf::MIN_ADDRESSES)),
        ("PRF_MAX_ADDRESSES", size(prf::MAX_ADDRESSES)),
        ("PRF_EXTRA_COUNTERS", size(prf::EXTRA_COUNTERS)),
        ("PRF_READ_SIZE(1000)", size(prf::read_size(1000))),
    ]
}

fn numbers_of_pmc() -> Vec<(String, u64)> {
    let upper = |name: &str| name.to_uppercase().replace('-', "_");
    let events = CounterId::ALL.map(|counter| {
        let name = format!("PMC_EVENT_{}", upper(counter.name()));
        (name, counter.number() as u64)
    });
    let sources = [
        CounterSource::Kvmprof,
        CounterSource::Kvm,
        CounterSource::Processor,
    ];
    let types = sources.map(|source| {
        let name = format!("PMC_TYPE_{}", upper(source.name()));
        (name, source as u64)
    });
    let bits = sources.map(|source| {
        let name = format!("PMC_HAS_{}", upper(source.name()));
        (name, source.bit().into())
    });
    let children = pmc::VALUE_FLAGS_CHILDREN.into();
    let others = [
        ("PMC_VALUE_FLAGS_CHILDREN".to_owned(), children),
        ("sizeof(curlwp) == sizeof(struct lwp *)".to_owned(), 1),
    ];
    let all = events.into_iter().chain(types).chain(bits);
    all.chain(others).collect()
}

/// The bytes of a `struct pmc_counter_cfg` with the program's values.
fn configuration() -> Vec<u8> {
    let event = 0x0102_0304_u64.to_le_bytes();
    let reset_value = 0x1112_1314_1516_1718_u64.to_le_bytes();
    let flags = 0x2122_2324_u64.to_le_bytes();
    [event, reset_value, flags].concat()
}

/// The sizes of the historical names in `format`.
fn sizes(format: Format) -> Vec<(&'static str, u64)> {
    let record = |kind| size(kvmprof_abi::stream::record_size(format, kind).unwrap());
    vec![
        ("NUMSAMPS", size(format.samples_per_buffer(pcs::BSIZE))),
        ("NUMWASTE", size(format.wasted_per_buffer(pcs::BSIZE))),
        ("sizeof(struct LOGBUF)", size(pcs::BSIZE)),
        ("sizeof(buffer.lb_buf_hdr)", size(format.header_size())),
        ("sizeof(struct PSAMPLE)", record(kind::USER)),
        ("sizeof(struct MSAMPLE)", record(kind::IDLE)),
        ("sizeof(struct SSAMPLE)", record(kind::START)),
        ("sizeof(struct ISAMPLE)", record(kind::IOCTL)),
    ]
}

/// The records of one format, with the program's values.
fn records(format: Format) -> Vec<(String, Vec<u8>)> {
    let native = format == Format::Native;
    let ioctl = |first: i32| Isample {
        command: pcs::PROF_LIST,
        data: [0, 1, 2, 3, 4].map(|at| first + at),
    };
    let header = Header {
        unused: 0x0102,
        lost: if native { 0x0304_0506 } else { 0x0304 },
    };
    let sample = Record::Sample(Psample {
        kind: kind::KERNELI,
        sspace: 0xf0,
        cpu: 0x0102,
        pid: if native { 0x0304_0506 } else { 0x0102 },
        pc: 0xffff_ffff_8100_1234,
    });
    let merged = Record::Merged(Msample {
        kind: kind::MUSER,
        cpu: 0x0102,
        count: if native { 0x0304_0506 } else { 0x0102 },
    });
    let stream = |record: StreamRecord| record.encode(format).to_vec();
    let (time, first) = if native {
        (0x0102_0304_0506_0708, 0x0102_0304)
    } else {
        (0x0102_0304, 0x0102)
    };
    let all = [
        ("header", header.encode(format).to_vec()),
        ("psample", sample.encode(format).to_vec()),
        ("msample", merged.encode(format).to_vec()),
        ("ssample", stream(StreamRecord::Stop(time))),
        ("isample", stream(StreamRecord::Ioctl(ioctl(first)))),
    ];
    let prefix = if native { "native" } else { "classic" };
    let named = all.map(|(name, bytes)| (format!("{prefix}_{name}"), bytes));
    named.into()
}

/// Records that exist in one format only.
fn others() -> Vec<(String, Vec<u8>)> {
    let status = Status {
        ledger: Ledger {
            ticks: 1,
            recorded: 2,
            merged: 3,
            ungathered: 4,
            stolen: 5,
            lost: 6,
            pending: 7,
            discarded: 0x0102_0304_0506_0708,
        },
        hz: 11,
        vcpus: 12,
        format: Format::Classic,
        buffer_size: 13,
        buffers: 14,
        modes: 15,
    };
    let pstat = StreamRecord::Pstat(Pstat {
        status,
        span: 0x0102_0304_0506_0708,
    });
    let comm = StreamRecord::Comm(Comm {
        pid: 0x0102_0304,
        comm: *b"0123456789abcdef",
    });
    let list = [i32::try_from(MAX_LIST).unwrap(), 101, 102, 103, 104, 105];
    let list = list.map(i32::to_le_bytes).concat();
    let all = [
        ("status", status.encode().to_vec()),
        ("pstat", pstat.encode(Format::Native).to_vec()),
        ("comm", comm.encode(Format::Native).to_vec()),
        ("pid_list", list),
    ];
    all.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

#[track_caller]
fn check(mut printed: BTreeMap<String, String>, format: Format) {
    let mut expected = vec![
        ("PCS_NODE".to_owned(), pcs::NODE.to_owned()),
        ("PRF_NODE".to_owned(), prf::NODE.to_owned()),
        ("pmc_counter_cfg".to_owned(), hexadecimal(&configuration())),
    ];
    let parts = [
        numbers_of_pcs(),
        numbers_of_prf(),
        commands(),
        sizes(format),
    ];
    let numbers = parts.concat().into_iter();
    let numbers = numbers.map(|(name, value)| (name.to_owned(), value));
    let numbers = numbers.chain(numbers_of_pmc());
    expected.extend(numbers.map(|(name, value)| (name, value.to_string())));
    let dumps = [records(Format::Native), records(Format::Classic), others()].concat();
    expected.extend(
        dumps
            .into_iter()
            .map(|(name, bytes)| (name, hexadecimal(&bytes))),
    );
    for (name, value) in expected {
        assert_eq!(printed.remove(&name).as_ref(), Some(&value), "{name}");
    }
    assert!(printed.is_empty(), "nothing to compare with: {printed:?}");
}

#[test]
fn the_headers_agree_with_the_definitions() {
    let scratch = Scratch::new("headers");
    for (compiler, options) in [
        ("cc", &["-std=c99"][..]),
        ("cc", &["-std=c17", "-O2"]),
        ("c++", &["-x", "c++", "-std=c++11"]),
        ("c++", &["-x", "c++", "-std=c++20"]),
    ] {
        check(printed(compiler, options, &scratch), Format::Native);
        let classic = [options, &["-DPCS_USE_CLASSIC"]].concat();
        check(printed(compiler, &classic, &scratch), Format::Classic);
    }
}

/// Each header can be included first, and alone.
#[test]
fn each_header_is_complete() {
    let scratch = Scratch::new("alone");
    let headers = "pcs.h prf.h pcsample.h profil.h kvmprof.h aix/mon.h sys/pmc.h machine/pmc.h";
    for header in headers.split(' ') {
        let source = scratch.0.join("alone.c");
        let text = format!("#include \"{header}\"\nextern int unused;\n");
        std::fs::write(&source, text).unwrap();
        let output = scratch.0.join("alone.o");
        compile("cc", &["-std=c99", "-c"], &source, &output);
        compile("c++", &["-x", "c++", "-std=c++11", "-c"], &source, &output);
    }
}

/// Everything that the headers define is compared.
#[test]
fn every_definition_is_compared() {
    let program = std::fs::read_to_string(folder("tests/headers/records.c")).unwrap();
    for header in ["pcs.h", "prf.h", "sys/pmc.h", "machine/pmc.h"] {
        let text = std::fs::read_to_string(folder("include").join(header)).unwrap();
        let defined = text.lines().filter_map(|line| {
            let name = line
                .strip_prefix("#define ")
                .or_else(|| line.strip_prefix("struct "))?;
            name.split([' ', '(', ';']).next()
        });
        for name in defined.filter(|name| !name.starts_with("KVMPROF_") && *name != "LOGBUF_HDR") {
            let used = program
                .split(|byte: char| !byte.is_ascii_alphanumeric() && byte != '_')
                .any(|word| word == name);
            assert!(used, "{header}: {name}");
        }
    }
}
