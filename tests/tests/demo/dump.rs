//! `kvmprof dump`: a core file of a guest, whoever runs it, or none.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use kvmprof_demo_guest::ELF;
use kvmprof_tests::{Boot, Guest, Ran, kvmprof, on_kvm, run, run_command, until};
use object::elf::{FileHeader64, PT_LOAD, PT_NOTE, ProgramHeader64};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{LittleEndian, Object, ObjectSection, SectionKind};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::attach_tracer::tracer;
use super::sandbox::threads;

const NO_OPTIONS: [&str; 0] = [];
/// How long a vCPU is held for other reasons at most.
const LOOK: Duration = Duration::from_secs(2);
/// Places in `NT_PRSTATUS`: of RIP, CS and RFLAGS.
const RIP: usize = 112 + 16 * 8;
const CS: usize = RIP + 8;
const RFLAGS: usize = CS + 8;

/// A core file.
struct Core {
    file: File,
    /// Its first bytes: headers and notes.
    begin: Vec<u8>,
}

impl Core {
    fn open(path: &Path) -> Self {
        let file = File::open(path).unwrap();
        let mut begin = vec![0; 64 << 10];
        file.read_exact_at(&mut begin, 0).unwrap();
        Self { file, begin }
    }

    /// The program headers.
    fn headers(&self) -> &[ProgramHeader64<LittleEndian>] {
        let header = FileHeader64::<LittleEndian>::parse(self.begin.as_slice()).unwrap();
        header
            .program_headers(LittleEndian, self.begin.as_slice())
            .unwrap()
    }

    /// The parts of memory: the address, the length, and the place in the file.
    fn memory(&self) -> Vec<(u64, u64, u64)> {
        let all = self.headers().iter();
        let memory = all.filter(|one| one.p_type(LittleEndian) == PT_LOAD);
        let values = memory.map(|one| {
            [
                one.p_paddr(LittleEndian),
                one.p_filesz(LittleEndian),
                one.p_offset(LittleEndian),
            ]
        });
        values
            .map(|[address, length, offset]| (address, length, offset))
            .collect()
    }

    /// The notes of this owner.
    fn notes(&self, owner: &str) -> Vec<Vec<u8>> {
        let first = &self.headers()[0];
        assert_eq!(first.p_type(LittleEndian), PT_NOTE);
        let mut notes = first
            .notes(LittleEndian, self.begin.as_slice())
            .unwrap()
            .unwrap();
        let mut found = Vec::new();
        while let Some(note) = notes.next().unwrap() {
            if note.name() == owner.as_bytes() {
                found.push(note.desc().to_vec());
            }
        }
        found
    }

    /// Guest memory from a physical address on.
    fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        let memory = self.memory().into_iter();
        let mut parts =
            memory.filter(|(begin, length, _)| (*begin..begin + length).contains(&address));
        let (begin, _, offset) = parts.next().unwrap();
        let mut found = vec![0; bytes];
        let place = offset + address - begin;
        self.file.read_exact_at(&mut found, place).unwrap();
        found
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The folder of a dump, and its path.
fn output() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guest.core");
    (folder, path)
}

/// Whether a folder is empty.
fn is_empty(folder: &TempDir) -> bool {
    fs::read_dir(folder.path()).unwrap().next().is_none()
}

fn command(guest: &Guest, path: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(kvmprof());
    command.args(["dump", &guest.pid().to_string(), "--output"]);
    command.arg(path).args(options).stderr(Stdio::piped());
    command
}

fn dump(guest: &Guest, path: &Path, options: &[&str]) -> Ran {
    run_command(&mut command(guest, path, options))
}

/// The code of the demo guest's image: physical address and content.
fn image_parts() -> Vec<(u64, &'static [u8])> {
    let image = ElfFile64::<LittleEndian>::parse(ELF).unwrap();
    let sections = image.sections();
    let code = sections.filter(|section| section.kind() == SectionKind::Text);
    let parts = code.map(|section| (section.address(), section.data().unwrap()));
    parts.collect()
}

/// Of kvmprof's own guest; guests of other VMMs are in `linux::dump`.
#[test]
fn a_dump_has_a_guests_memory_and_registers() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--cpus", "2"]);
        // It runs by now.
        let recording = guest.folder().join("recording").display().to_string();
        assert_eq!(guest.record(50, &["--output", &recording]).status, 0);
        for options in [&[][..], &["--pause"], &["--sandbox", "off"]] {
            let (folder, path) = output();
            let ran = dump(&guest, &path, options);
            assert_eq!(ran.status, 0, "{ran:?}");
            assert!(ran.stderr.contains(": 64M of memory, "), "{ran:?}");
            assert!(ran.stderr.contains("No VMCOREINFO"), "{ran:?}");
            let core = Core::open(&path);
            let length: u64 = core.memory().iter().map(|(_, length, _)| length).sum();
            assert_eq!(length, 64 << 20);
            for (address, content) in image_parts() {
                let found = core.read(address, content.len());
                assert!(found == content, "{options:?} {address:#x}");
            }
            assert!(!image_parts().is_empty());
            let vcpus = core.notes("CORE");
            assert_eq!((vcpus.len(), core.notes("QEMU").len()), (2, 2));
            for (vcpu, state) in vcpus.iter().zip(core.notes("QEMU")) {
                // Bit 1 of RFLAGS is always set.
                assert_eq!(number(vcpu, RFLAGS) & 2, 2);
                assert!([0, 3].contains(&(number(vcpu, CS) & 3)));
                // RIP, and CR3, which is the address of a page in the guest's memory.
                assert_eq!(number(&state, 8 + 16 * 8), number(vcpu, RIP));
                let root = number(&state, 392 + 3 * 8) & !0xfff;
                assert!((0x1000..64 << 20).contains(&root), "{root:#x}");
            }
            let found = fs::metadata(&path).unwrap();
            assert_eq!(found.mode() & 0o777, 0o600);
            assert!(found.blocks() * 512 < found.len() / 2, "{found:?}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
        guest.stop();
    });
}

/// A dump of `guest` that has begun, and waits for its tracer, which is stopped.
struct Begun {
    child: Child,
    tracer: Pid,
    folder: TempDir,
}

impl Begun {
    fn of(guest: &Guest) -> Self {
        // It may be over before it is noticed.
        until("a dump is caught in the middle", || {
            let (folder, path) = output();
            let mut child = command(guest, &path, &[]).spawn().unwrap();
            until("its file is made", || {
                (!is_empty(&folder) || child.try_wait().unwrap().is_some()).then_some(())
            });
            let tracer = tracer(child.id()).and_then(|it| Pid::from_raw(it.cast_signed()));
            let tracer = tracer.filter(|it| kill_process(*it, Signal::STOP).is_ok());
            sleep(Duration::from_millis(100));
            if let Some(tracer) = tracer
                && child.try_wait().unwrap().is_none()
            {
                return Some(Self {
                    child,
                    tracer,
                    folder,
                });
            }
            child.wait().unwrap();
            None
        })
    }
}

#[test]
fn a_dump_that_is_killed_leaves_no_file() {
    on_kvm(|| {
        let guest = Guest::start_with_memory(Boot::Demo, "512M", NO_OPTIONS);
        for signal in [Signal::KILL, Signal::INT, Signal::TERM] {
            let mut begun = Begun::of(&guest);
            kill_process(Pid::from_child(&begun.child), signal).unwrap();
            assert!(!begun.child.wait().unwrap().success());
            kill_process(begun.tracer, Signal::CONT).unwrap();
            until("the file is gone", || is_empty(&begun.folder).then_some(()));
        }
        // The guest goes on.
        until("its vCPUs aren't traced", || {
            let threads = threads(guest.pid());
            let is_free = threads.values().all(|fields| fields["TracerPid"] == "0");
            is_free.then_some(())
        });
        guest.stop();
    });
}

fn has_memory(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| status.contains("VmSize"))
}

#[test]
fn the_end_of_the_guest_or_of_the_tracer_is_an_error_and_leaves_no_file() {
    on_kvm(|| {
        for is_guest in [true, false] {
            let mut guest = Guest::start_with_memory(Boot::Demo, "512M", NO_OPTIONS);
            let begun = Begun::of(&guest);
            let words = if is_guest {
                guest.signal(Signal::KILL);
                // It stays a zombie while the tracer hasn't waited for its thread.
                until("its memory is gone", || {
                    (!has_memory(guest.pid())).then_some(())
                });
                kill_process(begun.tracer, Signal::CONT).unwrap();
                "has ended"
            } else {
                kill_process(begun.tracer, Signal::KILL).unwrap();
                "that traces"
            };
            let ended = begun.child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&ended.stderr).into_owned();
            assert_eq!(ended.status.code(), Some(1), "{said}");
            assert!(
                said.contains(words) && said.contains("guest.core"),
                "{said}"
            );
            assert!(is_empty(&begun.folder));
            match is_guest {
                true => drop(guest.wait()),
                false => guest.stop(),
            }
        }
    });
}

#[test]
fn a_full_disk_is_an_error_and_an_older_file_stays() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, NO_OPTIONS);
        let folder = tempfile::tempdir().unwrap();
        let script = "mount -t tmpfs -o size=64k none $1 && echo older >$1/core && \
            $2 dump $3 -o $1/core; echo $?; ls -A $1; cat $1/core";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]);
        command.arg(folder.path()).arg(kvmprof());
        let ran = run_command(command.arg(guest.pid().to_string()));
        assert_eq!(ran.stdout, "1\ncore\nolder\n", "{ran:?}");
        assert!(ran.stderr.contains("No space left on device"), "{ran:?}");
        guest.stop();
    });
}

/// Whatever the process that asks does meanwhile: it is stopped here for longer than a vCPU is held for anything else.
#[test]
fn a_paused_guest_stands_still_until_its_memory_is_copied() {
    on_kvm(|| {
        let guest = Guest::start_with_memory(Boot::Demo, "512M", NO_OPTIONS);
        let name = "vcpu 0";
        let is_held = || threads(guest.pid())[name]["TracerPid"] != "0";
        let thread = until("the vCPU has its thread", || {
            threads(guest.pid())
                .get(name)
                .map(|thread| thread["Pid"].clone())
        });
        // Its time on a processor, in ns.
        let run_time = || -> u64 {
            let path = format!("/proc/{}/task/{thread}/schedstat", guest.pid());
            let times = fs::read_to_string(path).unwrap();
            times.split(' ').next().unwrap().parse().unwrap()
        };
        let (child, folder) = until("a paused dump is caught", || {
            let (folder, path) = output();
            let mut child = command(&guest, &path, &["--pause"]).spawn().unwrap();
            until("it holds the vCPU", || {
                (is_held() || child.try_wait().unwrap().is_some()).then_some(())
            });
            kill_process(Pid::from_child(&child), Signal::STOP).ok()?;
            if is_held() {
                return Some((child, folder));
            }
            let _ = kill_process(Pid::from_child(&child), Signal::CONT);
            child.wait().unwrap();
            None
        });
        // The tracer goes on until the vCPU stands still.
        let before = until("it stands still", || {
            let before = run_time();
            sleep(LOOK / 4);
            (run_time() == before).then_some(before)
        });
        sleep(LOOK + LOOK / 2);
        assert!(is_held());
        assert_eq!(run_time(), before);
        kill_process(Pid::from_child(&child), Signal::CONT).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        until("the guest runs again", || {
            (run_time() > before).then_some(())
        });
        guest.stop();
    });
}

#[test]
fn what_cannot_be_dumped_has_a_clear_error() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, NO_OPTIONS);
        run(["dump", "nobody", "-o", "/nowhere"]).assert_refused(1, &["no guest nobody"]);
        run(["dump", "nobody"]).assert_refused(2, &["--output"]);
        for path in ["/dev/null", "/nowhere/core"] {
            let ran = dump(&guest, Path::new(path), &[]);
            ran.assert_refused(1, &["Cannot write", path]);
        }
        guest.signal(Signal::STOP);
        let (folder, path) = output();
        dump(&guest, &path, &[]).assert_refused(1, &["is stopped (SIGSTOP"]);
        assert!(is_empty(&folder));
        guest.signal(Signal::CONT);
        guest.stop();
    });
}
