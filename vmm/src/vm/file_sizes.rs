//! The maximum length of the files that a guest's process writes.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{FileType, fstat};

use super::VmConfig;
use kvmprof_machine::MemoryBacking;
use kvmprof_machine::console::Console;
use kvmprof_machine::disk::{DiskFormat, DiskOptions};

/// File lengths are rounded up to this number of bytes: a write to the end of a disk's last sector can make a file that much longer.
const ALIGNMENT: u64 = 4096;

/// Maximum length of the files that this guest's process writes once its memory exists, in bytes; `None` if one of them has no maximum
/// length.
pub(super) fn longest_file(config: &VmConfig) -> Option<u64> {
    if is_file(&rustix::stdio::stdout()) || is_file(&rustix::stdio::stderr()) {
        return None;
    }
    let console = match &config.console {
        Console::File(path) if can_grow(path) => config.console_limit?,
        _ => 0,
    };
    let recording = match &config.profiling.record {
        Some(record) if can_grow(&record.path) => record.file.limit?,
        _ => 0,
    };
    let memory = match &config.machine.memory.backing {
        MemoryBacking::Private => 0,
        _ => config.machine.memory.bytes,
    };
    let longest = console.max(recording).max(memory);
    let mut disks = config.disks.iter().filter(|disk| !disk.readonly);
    disks.try_fold(longest, |longest, disk| {
        Some(longest.max(disk_bytes(disk)?))
    })
}

/// Maximum length of a disk's image, in bytes. An image that doesn't contain the whole disk grows when the guest writes.
fn disk_bytes(disk: &DiskOptions) -> Option<u64> {
    let metadata = fs::metadata(&disk.path).ok()?;
    let is_whole = disk.format != Some(DiskFormat::Qcow2) && metadata.is_file();
    is_whole
        .then(|| metadata.len().checked_next_multiple_of(ALIGNMENT))
        .flatten()
}

/// Whether the path is, or will be, a file with a length.
fn can_grow(path: &Path) -> bool {
    fs::metadata(path).map_or(true, |metadata| metadata.is_file())
}

fn is_file(file: &impl AsFd) -> bool {
    fstat(file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::StackParts;
    use kvmprof_recording::file::FileOptions;

    use super::*;
    use kvmprof_machine::{KernelSource, MachineConfig, MemoryOptions};
    use kvmprof_profiling::RecordPlan;

    fn disk(path: &Path, readonly: bool, format: Option<DiskFormat>) -> DiskOptions {
        let words = path.to_str().unwrap();
        DiskOptions {
            readonly,
            format,
            ..words.parse().unwrap()
        }
    }

    #[test]
    fn an_image_is_bounded_by_its_disk_or_unbounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        fs::write(&path, [0; 5000]).unwrap();
        assert_eq!(disk_bytes(&disk(&path, false, None)), Some(8192));
        let qcow2 = Some(DiskFormat::Qcow2);
        assert_eq!(disk_bytes(&disk(&path, false, qcow2)), None);
        assert_eq!(disk_bytes(&disk(Path::new("/dev/null"), false, None)), None);
    }

    /// The process's standard output and error count, too, and those of a test may be files.
    #[test]
    fn outputs_without_a_limit_are_unbounded() {
        if is_file(&rustix::stdio::stdout()) || is_file(&rustix::stdio::stderr()) {
            return crate::not_run::not_run("standard output or error is a file");
        }
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("disk");
        fs::write(&image, [0; 1 << 13]).unwrap();
        let machine = MachineConfig {
            initrd: None,
            command_line: String::new(),
            memory: MemoryOptions::private(64 << 20),
            cpus: 1,
        };
        let mut config = VmConfig::new(KernelSource::Path("/nowhere".into()), machine);
        config.console = Console::None;
        assert_eq!(longest_file(&config), Some(0));
        config.console = Console::File(folder.path().join("console"));
        assert_eq!(longest_file(&config), None);
        config.console_limit = Some(1 << 10);
        assert_eq!(longest_file(&config), Some(1 << 10));
        config.disks = vec![disk(&image, true, None)];
        assert_eq!(longest_file(&config), Some(1 << 10));
        config.disks = vec![disk(&image, false, None)];
        assert_eq!(longest_file(&config), Some(1 << 13));
        config.profiling.record = Some(RecordPlan {
            path: folder.path().join("recording"),
            stacks: StackParts::default(),
            looks: None,
            event: None,
            file: FileOptions::default(),
        });
        assert_eq!(longest_file(&config), None);
        config.machine.memory.backing = MemoryBacking::Shared;
        if let Some(record) = &mut config.profiling.record {
            record.file.limit = Some(1 << 20);
        }
        assert_eq!(longest_file(&config), Some(64 << 20));
        config.console = Console::File("/dev/null".into());
        config.console_limit = None;
        assert_eq!(longest_file(&config), Some(64 << 20));
    }
}
