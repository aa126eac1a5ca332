//! qcow2 images, and reads, writes, discards and zeroings of the disk in them. An image has small clusters, so that all of its tables fit
//! into an input. What is done with the disk comes first.

use std::fs;

use kvmprof_devices::virtio::block::Extent;
use kvmprof_machine::disk::{Disk, DiskFormat, DiskOptions};

use crate::input::{Input, block};

/// Accesses of one input.
const MAX_STEPS: usize = 30;
/// Most bytes of an access.
const MAX_LENGTH: u16 = 4096;
const CLUSTER: usize = 512;
/// Clusters of the disk.
const DISK: u64 = 16;

/// Opens the image, and uses the disk.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut steps = Input::new(input.block());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    fs::write(&path, input.rest()).unwrap();
    let readonly = steps.u8() % 2 == 1;
    let options = DiskOptions {
        readonly,
        format: Some(DiskFormat::Qcow2),
        ..path.to_str().unwrap().parse().unwrap()
    };
    let Ok(disk) = Disk::open(&options) else {
        return;
    };
    let bytes = disk.image.bytes();
    let mut buffer = vec![0; MAX_LENGTH.into()];
    for _ in 0..MAX_STEPS {
        if steps.is_empty() {
            break;
        }
        let kind = steps.u8();
        let length = u64::from(steps.u16() % MAX_LENGTH);
        let offset = steps.u64() % bytes.max(1);
        // As the guest's requests, within the disk.
        let length = length.min(bytes - offset);
        let part = &mut buffer[..usize::try_from(length).unwrap()];
        let extent = Extent {
            offset,
            length,
            unmap: kind & 0x80 != 0,
        };
        let _failed = match kind % 8 {
            0..=2 => disk.image.read(part, offset),
            _ if readonly => disk.image.flush(),
            3 | 4 => disk.image.write(part, offset),
            5 => disk.image.discard(extent),
            6 => disk.image.zero(extent),
            _ => disk.image.flush(),
        };
    }
}

/// An image with one cluster of data. Clusters of the file: header, refcount table, refcounts, level 1, level 2, data.
fn image(version: u32) -> Vec<u8> {
    let at = |cluster: u64| cluster * CLUSTER as u64;
    let mut header = Vec::new();
    header.extend(b"QFI\xfb");
    header.extend(version.to_be_bytes());
    // No backing file.
    header.extend([0; 12]);
    header.extend(CLUSTER.trailing_zeros().to_be_bytes());
    header.extend(at(DISK).to_be_bytes());
    // Not encrypted; one entry of level 1.
    header.extend([0, 0, 0, 0, 0, 0, 0, 1]);
    header.extend(at(3).to_be_bytes());
    header.extend(at(1).to_be_bytes());
    header.extend(1_u32.to_be_bytes());
    // No snapshots.
    header.extend([0; 12]);
    if version == 3 {
        // No features; refcounts of 16 bits; the header's length.
        header.extend([0; 24]);
        header.extend(4_u32.to_be_bytes());
        header.extend(104_u32.to_be_bytes());
    }
    let copied = 1 << 63;
    let counts = [1_u16; 6].map(u16::to_be_bytes).concat();
    let clusters = [
        header,
        at(2).to_be_bytes().to_vec(),
        counts,
        (at(4) | copied).to_be_bytes().to_vec(),
        (at(5) | copied).to_be_bytes().to_vec(),
        vec![7; CLUSTER],
    ];
    let whole = |mut cluster: Vec<u8>| {
        cluster.resize(CLUSTER, 0);
        cluster
    };
    clusters.into_iter().flat_map(whole).collect()
}

/// Images of both versions, with every kind of access.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let step = |kind: u8, length: u16, offset: u64| {
        [&[kind][..], &length.to_le_bytes(), &offset.to_le_bytes()].concat()
    };
    let steps = [
        vec![0],
        step(0, 4095, 0),
        step(3, 1024, 512),
        step(3, 100, 0),
        step(7, 0, 0),
        step(5, 512, 512),
        step(6, 512, 0),
        step(0x86, 1024, 4096),
        step(0, 4095, 4096),
    ]
    .concat();
    let readonly = [&[1][..], &step(0, 1000, 100), &step(3, 9, 0)].concat();
    vec![
        ("version-2", [block(&steps), image(2)].concat()),
        ("version-3", [block(&steps), image(3)].concat()),
        ("readonly", [block(&readonly), image(3)].concat()),
    ]
}
