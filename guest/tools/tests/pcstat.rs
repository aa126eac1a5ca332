//! Tests of pcstat with streams of known contents, complete and damaged. The expected reports are files in
//! `tests/data`.

use kvmprof_abi::pcs::{
    BUF_INCR, Format, Ledger, Msample, PCS_SETFORMAT, PROF_KERNEL, PROF_LIST, Psample, Record,
    Status, kind,
};
use kvmprof_abi::stream::{Comm, Isample, Pstat, StreamRecord};
use kvmprof_tools::pcstat::{Profile, read_profile, to_json, write_report};

fn sample(kind: u8, pid: i32, pc: u64) -> StreamRecord {
    StreamRecord::Device(Record::Sample(Psample {
        kind,
        pid,
        pc,
        ..Psample::default()
    }))
}

fn merged(kind: u8, count: u32) -> StreamRecord {
    StreamRecord::Device(Record::Merged(Msample {
        kind,
        cpu: 0,
        count,
    }))
}

fn comm(pid: i32, name: &[u8]) -> StreamRecord {
    let mut comm = [0; 16];
    comm[..name.len()].copy_from_slice(name);
    StreamRecord::Comm(Comm { pid, comm })
}

fn ioctl(command: u32, data: [i32; 5]) -> StreamRecord {
    StreamRecord::Ioctl(Isample { command, data })
}

/// The records of the device in all streams of these tests.
fn data() -> Vec<StreamRecord> {
    let mut records = vec![sample(kind::USER, 42, 0x40_1000); 300];
    records.extend(vec![sample(kind::USER, 42, 0x40_1010); 100]);
    records.extend(vec![sample(kind::USER, 7, 0x7f00_0000_1234); 50]);
    records.extend(vec![sample(kind::KERNEL, 42, 0xffff_ffff_8100_0000); 30]);
    records.extend(vec![sample(kind::KERNEL, 7, 0xffff_ffff_8100_0000); 15]);
    records.extend(vec![sample(kind::KERNELI, -1, 0xffff_ffff_8100_0040); 5]);
    records.push(merged(kind::IDLE, 400));
    records.push(merged(kind::MUSER, 75));
    records.push(merged(kind::MKERNELI, 5));
    records
}

/// The account of these streams.
const LEDGER: Ledger = Ledger {
    ticks: 1_000,
    recorded: 500,
    merged: 480,
    ungathered: 1,
    stolen: 12,
    lost: 7,
    pending: 0,
    discarded: 0,
};

fn stream(format: Format) -> Vec<u8> {
    stream_with(format, LEDGER)
}

fn stream_with(format: Format, ledger: Ledger) -> Vec<u8> {
    let mut records = vec![StreamRecord::Start(1_700_000_000)];
    if format == Format::Classic {
        records.push(ioctl(PCS_SETFORMAT, [1, 0, 0, 0, 0]));
    }
    records.push(ioctl(BUF_INCR, [2, 0, 0, 0, 0]));
    records.push(ioctl(PROF_LIST, [42, 7, 0, 0, 0]));
    records.push(ioctl(PROF_KERNEL, [0; 5]));
    records.extend(data());
    records.push(StreamRecord::Stop(1_700_000_005));
    let status = Status {
        ledger,
        hz: 100,
        vcpus: 2,
        buffer_size: 1024,
        buffers: 5,
        modes: 0o22,
        format,
    };
    let span = 5_010_000_000;
    records.push(StreamRecord::Pstat(Pstat { status, span }));
    records.push(comm(42, b"busy loop"));
    records.push(comm(7, b"sh\x1b[31m"));
    encoded(format, &records)
}

fn encoded(format: Format, records: &[StreamRecord]) -> Vec<u8> {
    let bytes = records.iter().map(|record| record.encode(format).to_vec());
    bytes.flatten().collect()
}

fn read(stream: &[u8]) -> Profile {
    read_profile(&mut &*stream, "the stream", None).unwrap()
}

fn report(profile: &Profile, top: usize) -> String {
    let mut text = Vec::new();
    write_report(profile, top, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn a_native_stream_is_reported_completely() {
    let profile = read(&stream(Format::Native));
    assert_eq!(profile.problems, [] as [String; 0]);
    assert_eq!(report(&profile, 3), include_str!("data/native.txt"));
}

#[test]
fn a_classic_stream_has_no_loss_and_no_rate() {
    let profile = read(&stream(Format::Classic));
    assert_eq!(profile.problems, [] as [String; 0]);
    assert_eq!(report(&profile, 10), include_str!("data/classic.txt"));
}

#[test]
fn json_has_the_same_data() {
    let json = to_json(&read(&stream(Format::Native)), 1);
    assert_eq!(json["ledger"]["stolen"], 12);
    assert_eq!(json["types"]["USER"], 450);
    assert_eq!(json["hits"], 980);
    assert_eq!(json["processes"][0]["pid"], 42);
    assert_eq!(json["processes"][0]["name"], "busy loop");
    assert_eq!(json["program_counters"][0]["pc"], "0x401000");
    assert_eq!(json["program_counters"].as_array().map(Vec::len), Some(1));
    assert!((json["real_hz"].as_f64().unwrap() - 99.8).abs() < 0.01);
    let json = to_json(&read(&stream(Format::Classic)), 1);
    assert!(json["ledger"].is_null() && json["hz"].is_null() && json["real_hz"].is_null());
    assert_eq!(json["processes"][2]["pid"], -1);
}

/// A program parses the object, and expects all rows.
#[test]
fn json_is_complete_and_the_report_short() {
    const COUNTERS: u64 = 15;
    let mut records = vec![StreamRecord::Start(1_700_000_000)];
    records.extend((0..COUNTERS).map(|number| sample(kind::USER, 42, 0x40_1000 + number)));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), encoded(Format::Native, &records)).unwrap();
    let said = |words: &[&str]| {
        let mut tools = std::process::Command::new(env!("CARGO_BIN_EXE_kvmprof-tools"));
        let ran = tools.arg("pcstat").arg(file.path()).args(words).output();
        String::from_utf8(ran.unwrap().stdout).unwrap()
    };
    let counters = |words: &[&str]| {
        let json: serde_json::Value = serde_json::from_str(&said(words)).unwrap();
        json["program_counters"].as_array().unwrap().len() as u64
    };
    assert_eq!(counters(&["--json"]), COUNTERS);
    assert_eq!(counters(&["--json", "--top", "12"]), 12);
    let report = said(&[]);
    let rest = "and 5 other program counters (--top shows more)";
    assert!(report.contains(rest), "{report}");
}

/// From 5 % of lost or stolen ticks on, the shares of the others mislead; below, there is no warning.
#[test]
fn many_lost_ticks_have_a_warning() {
    let of = |lost, stolen| Ledger {
        ticks: 981 + lost + stolen,
        lost,
        stolen,
        ..LEDGER
    };
    let read_with = |ledger| read(&stream_with(Format::Native, ledger));
    let profile = read_with(of(15, 37));
    assert_eq!(profile.problems, [] as [String; 0]);
    let warning = "5.0 % of the ticks have no sample (3.6 % stolen by the host, 1.5 % lost)";
    let text = report(&profile, 3);
    let line = text.lines().find(|line| line.contains("Warning: "));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains(&format!("Warning: {warning}")), "{line}");
    let json = to_json(&profile, 3);
    let warnings = json["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].as_str().unwrap().starts_with(warning), "{json}");

    let profile = read_with(of(15, 36));
    assert!(!report(&profile, 3).contains("Warning"));
    assert_eq!(to_json(&profile, 3)["warnings"], serde_json::json!([]));
}

#[test]
fn an_empty_run_has_no_hits() {
    let records = [StreamRecord::Start(5), StreamRecord::Stop(5)];
    let text = report(&read(&encoded(Format::Classic, &records)), 10);
    assert!(text.contains("No hits."), "{text}");
}

/// The hits of all complete records in the first `length` bytes of a stream.
fn hits_before(stream: &[u8], format: Format, length: usize) -> u64 {
    let (mut hits, mut place) = (0, 0);
    while let Ok((record, size)) = StreamRecord::decode(format, &stream[place..length]) {
        place += size;
        hits += match record {
            StreamRecord::Device(Record::Sample(_)) => 1,
            StreamRecord::Device(Record::Merged(merged)) => u64::from(merged.count),
            _ => 0,
        };
    }
    hits
}

#[test]
fn a_stream_cut_anywhere_is_reported_up_to_there() {
    for format in [Format::Native, Format::Classic] {
        let whole = stream(format);
        let start = format.record_size();
        for length in (start..whole.len()).step_by(7) {
            let profile = read(&whole[..length]);
            assert_eq!(profile.format, format);
            let hits = hits_before(&whole, format, length);
            assert_eq!(profile.tally.total(), hits, "{format:?} {length}");
            // A native stream without its last record, a name, counts as complete.
            let ends_with_a_name = format == Format::Native && whole.len() - length <= 48;
            let problems = profile.problems.join("\n");
            let words = ["cut short", "No STOP", "No PSTAT"];
            let cut = words.iter().any(|words| problems.contains(words));
            assert!(cut || ends_with_a_name, "{format:?} {length}: {problems}");
            assert!(!report(&profile, 10).is_empty());
        }
    }
}

#[test]
fn garbage_is_reported_up_to_there() {
    let mut bytes = stream(Format::Native);
    // The third sample of the device.
    let place = 16 + 3 * 32 + 2 * 16;
    bytes[place] = 99;
    let profile = read(&bytes);
    assert_eq!(profile.tally.total(), 2);
    let expected = format!("Byte {place}: No record has type 99; the rest is left out");
    assert_eq!(profile.problems, [expected]);
}

#[test]
fn records_out_of_place_end_the_report() {
    let (start, stop) = (StreamRecord::Start(1), StreamRecord::Stop(2));
    let user = sample(kind::USER, 1, 1);
    for (records, expected) in [
        (&[start, start][..], "another run starts here"),
        (&[start, stop, user], "a record after STOP"),
        (&[start, comm(1, b"x")], "before STOP"),
    ] {
        let problems = read(&encoded(Format::Native, records)).problems;
        assert!(problems[0].contains(expected), "{problems:?}");
    }
}

#[test]
fn missing_records_show_in_the_account() {
    let mut bytes = stream(Format::Native);
    // The device's first record.
    bytes.drain(112..128);
    let missing = "Records are missing: the stream has 499 samples and 480 merged ticks, the device delivered 500 and 480";
    assert_eq!(read(&bytes).problems, [missing]);
}

#[test]
fn other_inputs_are_refused_as_streams() {
    for (bytes, expected) in [
        (b"".as_slice(), "the stream is empty"),
        (b"\x7fELF and more", "no stream of getpc"),
        (&[kind::START], "no stream of getpc"),
    ] {
        let error = read_profile(&mut &*bytes, "the stream", None).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_long_stream_is_read_in_pieces() {
    let mut records = vec![StreamRecord::Start(1)];
    records.extend((0..50_000).map(|pc| sample(kind::USER, 1, pc)));
    records.push(StreamRecord::Stop(2));
    let profile = read(&encoded(Format::Native, &records));
    assert_eq!(profile.tally.count(kind::USER), 50_000);
    assert_eq!(profile.program_counters.len(), 50_000);
}
