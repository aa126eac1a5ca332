//! Decodes the bytes read from pcs.

use std::collections::BTreeMap;

use kvmprof_abi::pcs::{Format, Header, Record};

/// One buffer of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its header.
    pub header: Header,
    /// Its records.
    pub records: Vec<Record>,
}

/// The buffers of `size` bytes in `bytes`.
///
/// # Panics
/// If they violate the page: with a split record, unused bytes that don't add up or aren't zero, or a type that isn't the device's.
#[track_caller]
pub fn decode_blocks(format: Format, size: usize, bytes: &[u8]) -> Vec<Block> {
    assert_eq!(bytes.len() % size, 0, "no whole buffers");
    bytes
        .chunks_exact(size)
        .map(|block| decode_block(format, block))
        .collect()
}

fn decode_block(format: Format, block: &[u8]) -> Block {
    let header = Header::decode(format, block).unwrap();
    let end = block.len() - usize::from(header.unused);
    let records = &block[format.header_size()..end];
    assert_eq!(
        records.len() % format.record_size(),
        0,
        "{header:?}: a split record"
    );
    assert!(
        block[end..].iter().all(|&byte| byte == 0),
        "unused bytes aren't zero"
    );
    Block {
        header,
        records: records
            .chunks_exact(format.record_size())
            .map(|record| Record::decode(format, record).unwrap())
            .collect(),
    }
}

/// The type of a record.
pub(crate) fn kind_of(record: &Record) -> u8 {
    match record {
        Record::Sample(sample) => sample.kind,
        Record::Merged(merged) => merged.kind,
    }
}

/// The number of ticks of each record type.
pub fn ticks_by_kind<'a>(records: impl IntoIterator<Item = &'a Record>) -> BTreeMap<u8, u64> {
    let mut kinds = BTreeMap::new();
    for record in records {
        *kinds.entry(kind_of(record)).or_default() += record.ticks();
    }
    kinds
}
