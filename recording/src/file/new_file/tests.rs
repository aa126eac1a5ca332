use std::os::unix::fs::symlink;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

fn names(folder: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

#[test]
fn the_older_file_exists_until_the_new_one_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    fs::write(&path, "old").unwrap();
    let mut file = NewFile::create(&path).unwrap();
    file.write_all(b"ne").unwrap();
    assert!(file.would_replace());
    assert_eq!(fs::read(&path).unwrap(), b"old");
    file.keep().unwrap();
    file.write_all(b"w").unwrap();
    file.keep().unwrap();
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(names(folder.path()), ["out"]);
}

/// Writes a recording with these `words` to `path`, by as many intermediate names as it may have.
fn record(path: &Path, words: &[u8]) -> io::Result<()> {
    let mut file = NewFile::create_recording(path)?;
    file.write_all(&MAGIC)?;
    file.write_all(words)?;
    file.keep()?;
    // The second time it has its name already.
    file.keep()
}

#[test]
fn an_older_recording_keeps_its_content_under_another_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name);
    let words = |name| fs::read(path(name)).unwrap()[MAGIC.len()..].to_vec();
    record(&path("out"), b"first").unwrap();
    assert_eq!(names(folder.path()), ["out"]);
    record(&path("out"), b"second").unwrap();
    record(&path("out"), b"third").unwrap();
    assert_eq!(names(folder.path()), ["out", "out.old"]);
    // Nothing is renamed for a recording that isn't kept.
    drop(NewFile::create_recording(&path("out")).unwrap());
    assert_eq!(["out", "out.old"].map(words), [&b"third"[..], b"second"]);
    // One that was made meanwhile isn't lost either.
    let mut slow = NewFile::create_recording(&path("two")).unwrap();
    record(&path("two"), b"quick").unwrap();
    slow.keep().unwrap();
    assert_eq!(words("two.old"), b"quick");
    // Other files are replaced, and other results keep nothing.
    fs::write(path("text"), "kvmprof").unwrap();
    record(&path("text"), b"new").unwrap();
    write_new_file(&path("text"), b"newer").unwrap();
    let all = ["out", "out.old", "text", "two", "two.old"];
    assert_eq!(names(folder.path()), all);
}

#[test]
fn an_older_recording_without_a_free_name_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    record(&path, b"first").unwrap();
    fs::create_dir(folder.path().join("out.old")).unwrap();
    let found = refused(NewFile::create_recording(&path));
    assert_eq!(found, RefusedOutput::NoPlaceForOlder);
    assert_eq!(names(folder.path()), ["out", "out.old"]);
    assert_eq!(fs::read(&path).unwrap()[MAGIC.len()..], *b"first");
    // Without one, no name is needed.
    let other = folder.path().join("other");
    fs::create_dir(folder.path().join("other.old")).unwrap();
    record(&other, b"new").unwrap();
    assert_eq!(fs::read(&other).unwrap()[MAGIC.len()..], *b"new");
}

/// The obstacle was made meanwhile.
#[test]
fn an_older_recording_that_cannot_be_renamed_stays_and_the_error_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    record(&path, b"first").unwrap();
    let mut file = NewFile::create_recording(&path).unwrap();
    fs::create_dir(folder.path().join("out.old")).unwrap();
    let error = file.keep().unwrap_err().to_string();
    assert!(error.contains("can't be renamed to"), "{error}");
    assert!(error.contains("out.old"), "{error}");
    drop(file);
    assert_eq!(names(folder.path()), ["out", "out.old"]);
    assert_eq!(fs::read(&path).unwrap()[MAGIC.len()..], *b"first");
}

fn packed(content: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::default());
    packer.write_all(content).unwrap();
    packer.finish().unwrap()
}

#[test]
fn an_older_recording_is_kept_also_if_it_is_packed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name);
    let older = packed(&[&MAGIC[..], &b"older"[..]].concat());
    fs::write(path("packed"), &older).unwrap();
    symlink(path("packed"), path("link")).unwrap();
    assert!(is_recording(&path("packed")) && is_recording(&path("link")));
    record(&path("packed"), b"newer").unwrap();
    assert_eq!(fs::read(path("packed.old")).unwrap(), older);
    // Readers unpack all of its members.
    let members = [packed(b""), older].concat();
    fs::write(path("members"), members).unwrap();
    assert!(is_recording(&path("members")));
    for other in [packed(b"text"), packed(b""), vec![0x1f, 0x8b], Vec::new()] {
        fs::write(path("other"), &other).unwrap();
        assert!(!is_recording(&path("other")), "{other:?}");
    }
    assert!(!is_recording(&path("none")) && !is_recording(folder.path()));
}

/// A packed file can have any length without content.
#[test]
fn no_more_than_the_start_of_a_packed_file_is_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("blocks");
    // RFC 1952, 2.3: no name, no time. RFC 1951, 3.2.4: blocks that aren't compressed, each with its length and the complement of that.
    let header: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    let empty: [u8; 5] = [0, 0, 0, 0xff, 0xff];
    let last = [&[1, 8, 0, 0xf7, 0xff][..], &MAGIC[..]].concat();
    let most = usize::try_from(PACKED_START).unwrap() / empty.len();
    for (count, is_found) in [(3, true), (most, false)] {
        let content = [&header[..], &empty.repeat(count)[..], &last[..]].concat();
        fs::write(&path, content).unwrap();
        assert_eq!(is_recording(&path), is_found, "{count}");
    }
}

#[test]
fn a_dropped_file_leaves_no_temporary_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let mut file = NewFile::create(&path).unwrap();
    file.write_all(b"new").unwrap();
    // Two at a time don't conflict.
    let second = NewFile::create(&path).unwrap();
    assert!(!file.would_replace());
    drop((file, second));
    assert!(names(folder.path()).is_empty());
}

fn refused<T: std::fmt::Debug>(result: io::Result<T>) -> RefusedOutput {
    let error = result.unwrap_err();
    *error.get_ref().unwrap().downcast_ref().unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn files_are_for_their_user_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (new, in_place) = (folder.path().join("new"), folder.path().join("in place"));
    NewFile::create(&new).unwrap().keep().unwrap();
    create_in_place(&in_place).unwrap();
    assert_eq!((mode(&new), mode(&in_place)), (0o600, 0o600));
    let outer = folder.path().join("outer");
    for _ in 0..2 {
        create_folder(&outer.join("inner")).unwrap();
        assert_eq!((mode(&outer), mode(&outer.join("inner"))), (0o700, 0o700));
    }
}

#[test]
fn files_left_by_a_killed_program_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    for name in [".out.1-0", ".out.77-3", ".other.1-0", "out.1", ".out"] {
        fs::write(folder.path().join(name), "half").unwrap();
    }
    write_new_file(&path, b"whole").unwrap();
    NewFile::remove_unfinished(&path).unwrap();
    assert_eq!(names(folder.path()), [".other.1-0", ".out", "out", "out.1"]);
    assert_eq!(fs::read(&path).unwrap(), b"whole");
}

#[test]
fn links_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name);
    fs::write(path("precious"), "old").unwrap();
    symlink(path("precious"), path("link")).unwrap();
    symlink(path("none"), path("loose")).unwrap();
    for link in ["link", "loose"] {
        assert_eq!(refused(NewFile::create(&path(link))), RefusedOutput::Link);
        assert_eq!(refused(create_in_place(&path(link))), RefusedOutput::Link);
        let appended = open_to_append(&path(link), false);
        assert_eq!(refused(appended), RefusedOutput::Link);
    }
    assert_eq!(fs::read(path("precious")).unwrap(), b"old");
    symlink(folder.path(), path("folder")).unwrap();
    for link in ["folder", "loose"] {
        assert_eq!(refused(create_folder(&path(link))), RefusedOutput::Link);
    }
    let file = create_folder(&path("precious"));
    assert_eq!(refused(file), RefusedOutput::NoFolder);
    assert_eq!(
        names(folder.path()),
        ["folder", "link", "loose", "precious"]
    );
}

#[test]
fn devices_that_are_named_are_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("nothing");
    symlink("/dev/null", &link).unwrap();
    create_in_place(&link).unwrap().write_all(b"lost").unwrap();
    // Standard output of tests is a pipe or a file.
    NewFile::create(Path::new("/dev/stdout")).unwrap();
    let mut null = NewFile::create(Path::new("/dev/null")).unwrap();
    null.write_all(b"nothing").unwrap();
    null.keep().unwrap();
    assert!(fs::metadata("/dev/null").is_ok_and(|found| !found.is_file()));
    let pipe = folder.path().join("pipe");
    let owner = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, owner).unwrap();
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    let mut options = OpenOptions::new();
    let mut reader = options
        .read(true)
        .custom_flags(nonblock)
        .open(&pipe)
        .unwrap();
    let mut writer = NewFile::create(&pipe).unwrap();
    writer.write_all(b"through").unwrap();
    drop(writer);
    let mut text = String::new();
    io::Read::read_to_string(&mut reader, &mut text).unwrap();
    assert_eq!(text, "through");
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert!(create_in_place(&socket).is_err());
}

#[test]
fn files_and_pipes_of_others_are_not_written_into() {
    if !rustix::process::geteuid().is_root() {
        return crate::not_run::not_run("only root can give files away");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("theirs");
    fs::write(&path, "theirs").unwrap();
    std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
    let other = RefusedOutput::OtherOwner(65534);
    assert_eq!(refused(create_in_place(&path)), other);
    assert_eq!(refused(open_to_append(&path, false)), other);
    assert_eq!(fs::read(&path).unwrap(), b"theirs");
    let their_folder = folder.path().join("their folder");
    fs::create_dir(&their_folder).unwrap();
    std::os::unix::fs::chown(&their_folder, Some(65534), None).unwrap();
    assert_eq!(refused(create_folder(&their_folder)), other);
    // A new file replaces theirs, and belongs to the user.
    let mut file = NewFile::create(&path).unwrap();
    file.write_all(b"ours").unwrap();
    file.keep().unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (0, 0o600));
}

#[test]
fn a_missing_folder_and_an_existing_folder_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    assert!(NewFile::create(&folder.path().join("none/out")).is_err());
    assert!(NewFile::create(folder.path()).is_err());
    assert!(names(folder.path()).is_empty());
}
