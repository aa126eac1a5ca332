//! PCS.md.

use kvmprof_abi::pcs::{self, Format, Header, Msample, Psample, Record};
use kvmprof_abi::wire::device;

use super::{compare, says, says_numbers};

const PCS: &str = include_str!("../../PCS.md");

#[test]
fn dumps_of_records() {
    let sample = Record::Sample(Psample {
        kind: pcs::kind::USER,
        sspace: 0,
        cpu: 1,
        pid: 42,
        pc: 0x40_1000,
    });
    let merged = Record::Merged(Msample {
        kind: pcs::kind::IDLE,
        cpu: 1,
        count: 100,
    });
    let header = |format: Format| {
        let unused = u16::try_from(format.wasted_per_buffer(pcs::BSIZE)).unwrap();
        Header { unused, lost: 3 }.encode(format).to_vec()
    };
    let record = |record: Record, format| record.encode(format).to_vec();
    compare(
        PCS,
        &[
            ("native-psample", record(sample, Format::Native)),
            ("native-msample", record(merged, Format::Native)),
            ("classic-psample", record(sample, Format::Classic)),
            ("native-header", header(Format::Native)),
            ("classic-header", header(Format::Classic)),
        ],
    );
}

#[track_caller]
#[test]
fn numbers_of_pcs() {
    says_numbers(PCS, device::PCS, &[]);
    says(PCS, &format!("more than its {}", pcs::DEF_BUFNO));
    says(PCS, &format!("more than {} in all", pcs::MAX_BUFS));
    says(PCS, &format!("1 to {} processes", pcs::MAX_LIST));
    let (least, most) = (pcs::MIN_BSIZE, pcs::MAX_BSIZE);
    says(PCS, &format!("a power of two, {least} to {most}"));
    says(PCS, &format!("{} to {} Hz", pcs::MIN_HZ, pcs::MAX_HZ));
    says(PCS, &format!("stores {} bytes", pcs::STATUS_SIZE));
    says(PCS, &format!("sequence of buffers, {} bytes", pcs::BSIZE));
    says(PCS, &format!("every {} ticks", pcs::MERGE_TICKS));
    says(PCS, &format!("below {}", pcs::UNUSED_BOUND));
    for (format, name) in [(Format::Native, "native"), (Format::Classic, "classic")] {
        says(PCS, &format!("{} {name}", format.number()));
    }
}
