//! What the tools read: streams of getpc, logs of prf, lists of symbols, the status document, and records that clients get.
//! The first byte chooses.

use std::io::sink;
use std::path::Path;

use kvmprof_abi::pcs::{Format, Header, Ledger, Record};
use kvmprof_abi::stream::{Isample, Pstat, StreamRecord};
use kvmprof_abi::{pcs, pmc, profil};
use kvmprof_cli::text::{message, visible_json};
use kvmprof_recording::status::{ConsumerStatus, PcsStatus, Status};
use kvmprof_tools::pcstat::{read_profile, to_json, write_report};
use kvmprof_tools::prf::{self, Log, Names, write_interval};
use kvmprof_tools::symbols::{parse_listing, slide_to};

use crate::input::Input;

/// Reads the bytes as what the first one says.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.u8();
    let bytes = input.rest();
    match choice % 6 {
        0 => stream(bytes),
        1 => log(bytes),
        2 => {
            if let Ok(symbols) = parse_listing(bytes, "fuzzed") {
                slide_to(&symbols, &symbols);
            }
            let text = String::from_utf8_lossy(bytes);
            message(&text);
            visible_json(&text);
        }
        3 => {
            if let Ok(status) = Status::from_json(bytes) {
                status.to_json().unwrap();
            }
        }
        4 => records(bytes),
        _ => {
            let text = String::from_utf8_lossy(bytes);
            kvmprof_report::symbolize::Symbols::parse(&text).find(0xffff_ffff_8100_0000);
            kvmprof_report::symbolize::demangle(&text);
        }
    }
}

fn stream(bytes: &[u8]) {
    for format in [None, Some(Format::Native), Some(Format::Classic)] {
        if let Ok(profile) = read_profile(&mut &bytes[..], "fuzzed", format) {
            to_json(&profile, 20);
            write_report(&profile, 20, &mut sink()).unwrap();
        }
    }
}

fn log(bytes: &[u8]) {
    let Ok(mut log) = Log::read(bytes, Path::new("fuzzed")) else {
        return;
    };
    let names = Names::new(Vec::new(), 0);
    let mut before = prf::Record {
        counters: vec![0; log.addresses().len() + 2],
        ..prf::Record::default()
    };
    while let Ok(Some(record)) = log.next_record() {
        let addresses = log.addresses();
        write_interval(&mut sink(), addresses, &names, &before, &record, 1.0).unwrap();
        before = record;
    }
    log.is_cut_off();
}

fn records(bytes: &[u8]) {
    for format in [Format::Native, Format::Classic] {
        Header::decode(format, bytes);
        if let Some(record) = Record::decode(format, bytes) {
            record.ticks();
        }
    }
    pcs::Status::decode(bytes);
    pmc::Call::decode(bytes);
    profil::Call::decode(bytes);
    profil::Range::decode(bytes);
    profil::Status::decode(bytes);
}

/// One of each.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let of = |choice: u8, bytes: &[u8]| [&[choice][..], bytes].concat();
    let stream = |format| {
        let mut bytes = vec![0];
        for record in [
            StreamRecord::Start(1_700_000_000),
            StreamRecord::Ioctl(Isample::default()),
            StreamRecord::Stop(1_700_000_001),
            StreamRecord::Pstat(Pstat::default()),
        ] {
            bytes.extend_from_slice(&record.encode(format));
        }
        bytes
    };
    let log: Vec<u8> = [3, 0, 0x1000, 0x2000, 100, 1, 2, 3, 4, 5, 110, 2, 3, 4, 5, 9]
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect();
    let listing = b"ffffffff81000000 T _text\nffffffffc0001000 t init\t[fuse]\n";
    let status = Status {
        consumers: vec![ConsumerStatus::Pcs(PcsStatus::new(
            true,
            true,
            Ledger::default(),
        ))],
        ..Status::default()
    };
    vec![
        ("native", stream(Format::Native)),
        ("classic", stream(Format::Classic)),
        ("log", of(1, &log)),
        ("listing", of(2, listing)),
        ("status", of(3, status.to_json().unwrap().as_bytes())),
        ("records", of(4, &[0; 64])),
        ("kallsyms", of(5, listing)),
        ("mangled", of(5, b"_ZN6Server5serveERKSs")),
        ("mangled-rust", of(5, b"_RNvCs1234_6server4spin")),
    ]
}
