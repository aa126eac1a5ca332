//! Initial RAM disks: cpio archives, plain and packed.

use kvmprof_initramfs::Archive;
use kvmprof_profiling::binaries::Initrd;

/// Looks for files in it.
pub fn run(data: &[u8]) {
    if let Some(initrd) = Initrd::unpack(data) {
        for path in ["/init", "/bin/sh", "/loop", "/usr/bin/vi", "/../init"] {
            initrd.read(path);
        }
    }
}

/// An archive with files, a folder and links, alone and behind another one.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let archive = |init: &[u8]| {
        let mut archive = Archive::new();
        archive.folder("/bin", 0o755).unwrap();
        archive.file("/bin/busybox", 0o755, b"busybox").unwrap();
        archive.link("/bin/sh", "busybox").unwrap();
        archive.link("/loop", "loop").unwrap();
        archive.file("/init", 0o755, init).unwrap();
        archive.finish().unwrap()
    };
    let plain = archive(b"#!/bin/sh\n");
    let both = [archive(b"an earlier init"), plain.clone()].concat();
    vec![("plain", plain), ("two", both)]
}
