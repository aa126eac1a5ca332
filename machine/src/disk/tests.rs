use std::env;
use std::error::Error;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use imago::FormatCreateBuilder;
use imago::qcow2::{Qcow2, Qcow2CreateBuilder};
use kvmprof_devices::virtio::block::Extent;
use kvmprof_sandbox::Mode;
use tempfile::TempDir;

use super::*;

const BYTES: u64 = 1 << 20;

type Builder = Qcow2CreateBuilder<imago::file::File>;

struct Images {
    folder: TempDir,
}

impl Images {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn raw(&self, name: &str, content: &[u8]) -> PathBuf {
        fs::write(self.path(name), content).unwrap();
        self.path(name)
    }

    /// Makes an image whose backing file has this name and this format.
    fn qcow2(&self, name: &str, backing: Option<(&str, &str)>) -> PathBuf {
        self.qcow2_with(name, |builder| match backing {
            Some((name, format)) => builder.backing(name.to_owned(), format.to_owned()),
            None => builder,
        })
    }

    /// Makes a qcow2 image, writes to its first cluster, and returns the image's bytes.
    fn written(&self, name: &str) -> Vec<u8> {
        let path = self.qcow2(name, None);
        let disk = self.open(&format!("{name},format=qcow2")).unwrap();
        disk.image.write(&[7; 4096], 0).unwrap();
        disk.image.flush().unwrap();
        drop(disk);
        fs::read(path).unwrap()
    }

    fn qcow2_with(&self, name: &str, options: impl FnOnce(Builder) -> Builder) -> PathBuf {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        let path = self.path(name);
        let file = fs::File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        let storage = imago::file::File::try_from(file.unwrap()).unwrap();
        let builder = Qcow2::<imago::file::File>::create_builder(storage).size(BYTES);
        options(builder).create().unwrap();
        path
    }

    fn open(&self, words: &str) -> Result<Disk, DiskError> {
        let options: DiskOptions = words.parse().unwrap();
        Disk::open(&DiskOptions {
            path: self.folder.path().join(&options.path),
            ..options
        })
    }

    /// The message of the error when this disk is opened. It is one line.
    fn refusal(&self, words: &str) -> String {
        let error = self.open(words).unwrap_err();
        let cause = error.source().map(|cause| format!(": {cause}"));
        let line = format!("{error}{}", cause.unwrap_or_default());
        assert!(!line.contains('\n'), "{line}");
        line
    }
}

fn refuses(images: &Images, words: &str, expected: &str) {
    let refusal = images.refusal(words);
    assert!(refusal.contains(expected), "{words}: {refusal}");
}

fn read(disk: &Disk, offset: u64, bytes: usize) -> Vec<u8> {
    let mut content = vec![0xa5; bytes];
    disk.image.read(&mut content, offset).unwrap();
    content
}

#[test]
fn files_that_are_no_image_are_refused_by_name() {
    let images = Images::new();
    refuses(&images, "missing", "missing: No such file");
    fs::create_dir(images.path("folder")).unwrap();
    refuses(&images, "folder", "neither a regular file nor");
    refuses(&images, "folder,readonly", "neither a regular file nor");
    refuses(&images, "/dev/null", "neither a regular file nor");
    let pipe = std::ffi::CString::new(images.path("pipe").to_str().unwrap()).unwrap();
    // SAFETY: the path is a string that ends with a zero.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    refuses(&images, "pipe,readonly", "neither a regular file nor");
    images.raw("empty", b"");
    refuses(&images, "empty", "is empty");
    let path = images.raw("protected", &[1; 512]);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    refuses(&images, "protected", "write-protected: add ,readonly");
    assert!(images.open("protected,readonly").is_ok());
}

#[test]
fn a_format_is_never_guessed() {
    let images = Images::new();
    images.qcow2("image", None);
    refuses(&images, "image", "looks like a qcow2 image");
    refuses(&images, "image,readonly", "looks like a qcow2 image");
    let raw = images.open("image,format=raw").unwrap();
    assert_eq!(read(&raw, 0, 4), b"QFI\xfb");
    drop(raw);
    let qcow2 = images.open("image,format=qcow2").unwrap();
    assert_eq!(qcow2.description.sectors, BYTES / 512);
    images.raw("raw", &[1; 512]);
    refuses(&images, "raw,format=qcow2", "is not a qcow2 image");
}

#[test]
fn a_writable_image_is_locked_for_one_guest() {
    let images = Images::new();
    images.raw("image", &[1; 512]);
    let writer = images.open("image").unwrap();
    refuses(&images, "image", "is in use");
    refuses(&images, "image,readonly", "is in use");
    drop(writer);
    let readers = ["image,readonly"; 2].map(|words| images.open(words).unwrap());
    refuses(&images, "image", "is in use");
    drop(readers);
    assert!(images.open("image").is_ok());
    // A backing file is locked, too.
    images.qcow2("top", Some(("image", "raw")));
    let top = images.open("top,format=qcow2").unwrap();
    refuses(&images, "image", "is in use");
    drop(top);
}

#[test]
fn damaged_qcow2_images_are_refused() {
    let images = Images::new();
    let whole = images.written("whole");
    let mut refused = 0;
    for length in [4, 71, 72, 500, 4096, 65_536, 131_072, 196_608, 262_144] {
        images.raw("short", &whole[..length.min(whole.len())]);
        if let Err(error) = images.open("short,format=qcow2") {
            let expected = matches!(error, DiskError::Damaged { .. } | DiskError::Qcow2 { .. });
            assert!(expected, "{length}: {error}");
            refused += 1;
        }
    }
    assert!(refused >= 5, "{refused}");
    let with = |at: usize, bytes: &[u8]| {
        let mut damaged = whole.clone();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        images.raw("damaged", &damaged);
        images.refusal("damaged,format=qcow2")
    };
    assert!(with(4, &[0, 0, 0, 9]).contains("its version is 9"));
    assert!(with(20, &[0, 0, 0, 40]).contains("clusters of 2^40 bytes"));
    assert!(with(32, &[0, 0, 0, 1]).contains("encrypted"));
    assert!(with(36, &[0xff; 4]).contains("level 1 table is too large"));
    assert!(with(40, &[0xff; 8]).contains("level 1 table is beyond its end"));
    assert!(with(48, &[0x7f; 8]).contains("refcount table is beyond its end"));
    assert!(with(56, &[0x7f; 4]).contains("refcount table is beyond its end"));
    assert!(with(56, &[0; 4]).contains("no refcount table"));
    assert!(with(79, &[4]).contains("data is in another file"));
    let refcounts = usize::try_from(u64::from_be_bytes(whole[48..56].try_into().unwrap())).unwrap();
    assert!(with(refcounts, &[0; 8]).contains("refcount table has a gap: add ,readonly"));
    assert!(images.open("damaged,format=qcow2,readonly").is_ok());
    let level_1 = usize::try_from(u64::from_be_bytes(whole[40..48].try_into().unwrap())).unwrap();
    assert!(with(level_1, &[0x80, 0, 0x0f, 0, 0, 0, 0, 0]).contains("a level 2 table at byte"));
}

#[test]
fn backing_files_are_those_of_the_same_folder() {
    let images = Images::new();
    images.raw("folder-base", &[9; 4096]);
    fs::create_dir_all(images.path("folder/inner")).unwrap();
    images.raw("folder/base", &[5; 4096]);
    images.raw("folder/inner/base", &[6; 4096]);
    let first = |words: &str| read(&images.open(words).unwrap(), 0, 1)[0];
    images.qcow2("folder/a", Some(("base", "raw")));
    assert_eq!(first("folder/a,format=qcow2"), 5);
    images.qcow2("folder/b", Some(("inner/base", "raw")));
    assert_eq!(first("folder/b,format=qcow2"), 6);
    images.qcow2("folder/c", Some(("a", "qcow2")));
    assert_eq!(first("folder/c,format=qcow2"), 5);
    images.qcow2("folder/up", Some(("../folder-base", "raw")));
    assert_eq!(first("folder/up,format=qcow2,backing=anywhere"), 9);
    symlink("../folder-base", images.path("folder/link")).unwrap();
    let elsewhere = "isn't in the same folder";
    for (name, backing, expected) in [
        ("passwd", ("/etc/passwd", "raw"), "backing file /etc/passwd"),
        ("linked", ("link", "raw"), elsewhere),
        // The backing file is in the folder, but its own backing file isn't.
        ("late", ("up", "qcow2"), elsewhere),
        ("none", ("nothing", "raw"), "No such file"),
        ("circle", ("circle", "qcow2"), "too long a chain"),
    ] {
        let name = format!("folder/{name}");
        images.qcow2(&name, Some(backing));
        refuses(&images, &format!("{name},format=qcow2,readonly"), expected);
    }
    refuses(&images, "folder/up,format=qcow2", elsewhere);
}

/// The image that names a backing file determines its format: a guest may have written anything to a raw disk.
#[test]
fn a_raw_backing_file_may_begin_as_a_qcow2_image_does() {
    let images = Images::new();
    let whole = fs::read(images.qcow2("whole", None)).unwrap();
    let damaged = [b"QFI\xfb".as_slice(), &[9; 4092]].concat();
    for (name, content) in [("intact", &whole), ("damaged", &damaged)] {
        images.raw(name, content);
        let top = format!("on-{name}");
        images.qcow2(&top, Some((name, "raw")));
        let disk = images.open(&format!("{top},format=qcow2")).unwrap();
        assert_eq!(read(&disk, 0, 512), content[..512]);
        // There are zeroes beyond the end of a raw file.
        assert_eq!(read(&disk, BYTES - 512, 512), [0; 512]);
    }
    images.qcow2("on-qcow2", Some(("damaged", "qcow2")));
    refuses(&images, "on-qcow2,format=qcow2", "its version is");
    images.qcow2("on-whole", Some(("whole", "qcow2")));
    let disk = images.open("on-whole,format=qcow2").unwrap();
    assert_eq!(read(&disk, 0, 512), [0; 512]);
}

#[test]
fn a_backing_file_is_only_read() {
    let images = Images::new();
    let base = images.raw("base", &[5; 8192]);
    images.qcow2("top", Some(("base", "raw")));
    let disk = images.open("top,format=qcow2").unwrap();
    disk.image.write(&[6; 512], 512).unwrap();
    assert_eq!(read(&disk, 0, 1024), [[5; 512], [6; 512]].concat());
    assert_eq!(read(&disk, 8192, 512), [0; 512]);
    disk.image.flush().unwrap();
    drop(disk);
    assert_eq!(fs::read(base).unwrap(), [5; 8192]);
}

#[test]
fn zeroing_and_discarding_leave_the_rest() {
    let images = Images::new();
    images.raw("raw", &vec![5; usize::try_from(BYTES).unwrap()]);
    images.qcow2("qcow2", None);
    for words in ["raw", "qcow2,format=qcow2"] {
        let disk = images.open(words).unwrap();
        disk.image
            .write(&vec![5; usize::try_from(BYTES).unwrap()], 0)
            .unwrap();
        for unmap in [false, true] {
            let extent = Extent {
                offset: 512,
                length: 200_704,
                unmap,
            };
            disk.image.zero(extent).unwrap();
            assert_eq!(read(&disk, 0, 512), [5; 512]);
            assert!(read(&disk, 512, 200_704).iter().all(|byte| *byte == 0));
            assert_eq!(read(&disk, 512 + 200_704, 512), [5; 512]);
            disk.image.write(&[5; 200_704], 512).unwrap();
            disk.image.discard(extent).unwrap();
            assert_eq!(read(&disk, 0, 512), [5; 512]);
            assert_eq!(read(&disk, 512 + 200_704, 512), [5; 512]);
            disk.image.write(&[5; 200_704], 512).unwrap();
        }
        disk.image.flush().unwrap();
    }
    assert_eq!(fs::metadata(images.path("raw")).unwrap().len(), BYTES);
}

#[test]
fn an_incomplete_last_sector_is_padded_with_zeroes() {
    let images = Images::new();
    let path = images.raw("raw", &[5; 700]);
    let disk = images.open("raw").unwrap();
    assert_eq!(disk.description.sectors, 2);
    assert_eq!(read(&disk, 512, 512), [vec![5; 188], vec![0; 324]].concat());
    disk.image.write(&[6; 512], 512).unwrap();
    drop(disk);
    assert_eq!(fs::metadata(path).unwrap().len(), 1024);
}

#[test]
fn host_errors_are_reported_to_the_guest() {
    let images = Images::new();
    images.raw("raw", &[5; 4096]);
    // The disk is opened read-only, so that writes fail like on a removed disk.
    let disk = images.open("raw,readonly").unwrap();
    assert!(disk.image.write(&[6; 512], 0).is_err());
    let extent = Extent {
        offset: 0,
        length: 512,
        unmap: true,
    };
    assert!(disk.image.zero(extent).is_err() && disk.image.discard(extent).is_err());
}

#[test]
fn reads_beyond_a_truncated_image_fail() {
    let images = Images::new();
    let whole = images.written("whole");
    let mut errors = 0;
    for length in (0..whole.len()).step_by(65_536).skip(1) {
        images.raw("cut", &whole[..length]);
        let mut bytes = [0xa5; 512];
        let opened = images.open("cut,format=qcow2,readonly");
        match opened.map(|disk| disk.image.read(&mut bytes, 0)) {
            Ok(Ok(())) => assert_eq!(bytes, [7; 512], "{length} bytes"),
            Ok(Err(_)) | Err(_) => errors += 1,
        }
    }
    assert!(errors > 0);
}

/// The variable that tells a child process the path of the image.
const CHILD: &str = "KVMPROF_TEST_READ_DISK";

/// The thread that reads the guest's programs also writes. When imago's cache of tables is full, a table that the guest has changed is
/// written back; all remaining ones are written at the end, if the thread is the last owner of the image.
#[test]
fn the_filter_of_the_program_reader_allows_disk_images() {
    const CLUSTER: usize = 512;
    /// Number of bytes of the disk whose places are in one table.
    const OF_A_TABLE: u64 = 64 * 512;
    /// More tables than the 128 that imago (0.2.6) caches.
    const TABLES: u64 = 300;
    if let Ok(path) = env::var(CHILD) {
        let disk = Disk::open(&format!("{path},format=qcow2").parse().unwrap()).unwrap();
        for table in 0..TABLES {
            let written = disk.image.write(&[7; CLUSTER], table * OF_A_TABLE);
            written.unwrap();
        }
        kvmprof_sandbox::filters::prepare(Mode::On, || {}).unwrap();
        let reading = thread::spawn(move || {
            kvmprof_sandbox::enter(kvmprof_sandbox::Thread::Binaries);
            assert_eq!(read(&disk, 0, CLUSTER), [7; CLUSTER]);
            drop(disk);
        });
        reading.join().unwrap();
        return;
    }
    let images = Images::new();
    let path = images.qcow2_with("image", |builder| {
        builder.cluster_size(CLUSTER).size(TABLES * OF_A_TABLE)
    });
    let ran = Command::new(env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("disk::tests::the_filter_of_the_program_reader_allows_disk_images")
        .env(CHILD, path)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let disk = images.open("image,format=qcow2,readonly").unwrap();
    for table in 0..TABLES {
        assert_eq!(read(&disk, table * OF_A_TABLE, CLUSTER), [7; CLUSTER]);
    }
}
