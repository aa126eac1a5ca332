//! A guest's name: from its VMM's command line, or from the jail that its VMM runs in.

use super::{jail, processes};

/// Maximum number of bytes of a name; longer names are cut.
pub const MAX_NAME: usize = 256;

/// The name of the guest of process `pid`: the one on its command line, or else the one of its jail. `None` if there is neither.
pub fn name_of_guest(pid: i32) -> Option<String> {
    let by_arguments = name_of(&processes::command_line(pid));
    by_arguments.or_else(|| jail::name_of(pid).map(|name| text(&name)))
}

/// A name, cut to the maximum length.
pub fn text(name: &[u8]) -> String {
    let name = name.get(..MAX_NAME).unwrap_or(name);
    String::from_utf8_lossy(name).into_owned()
}

/// The guest's name by `command_line`, the VMM's arguments with a NUL behind each (`/proc/PID/cmdline`): QEMU's `-name`,
/// crosvm's and kvmtool's `--name`, Firecracker's `--id`. `None` without such an option.
fn name_of(command_line: &[u8]) -> Option<String> {
    let mut arguments = command_line.split(|byte| *byte == 0).skip(1);
    while let Some(argument) = arguments.next() {
        let option = argument
            .strip_prefix(b"--")
            .or_else(|| argument.strip_prefix(b"-"));
        let Some(option) = option else {
            continue;
        };
        let (option, value) = match option.iter().position(|byte| *byte == b'=') {
            Some(equals) => (option.get(..equals)?, option.get(equals + 1..)),
            None => (option, None),
        };
        let is_name = option == b"name";
        if !is_name && option != b"id" {
            continue;
        }
        let value = value.or_else(|| arguments.next())?;
        let name = if is_name {
            guest(value)
        } else {
            value.to_vec()
        };
        if !name.is_empty() {
            return Some(text(&name));
        }
    }
    None
}

/// The guest's name in a value of QEMU's `-name`: `NAME`, or `guest=NAME`, among other options, with each comma of the
/// name doubled.
pub fn guest(value: &[u8]) -> Vec<u8> {
    let options = options(value);
    let named = options
        .iter()
        .find_map(|option| option.strip_prefix(b"guest="));
    let first = options.first().filter(|first| {
        // The first option may come without its key.
        let keys: [&[u8]; 2] = [b"process=", b"debug-threads="];
        !keys.iter().any(|key| first.starts_with(key))
    });
    named
        .or(first.map(Vec::as_slice))
        .unwrap_or_default()
        .to_vec()
}

/// The options of `value`, separated by commas. A doubled comma stands for a comma in an option.
fn options(value: &[u8]) -> Vec<Vec<u8>> {
    let mut options = vec![Vec::new()];
    let mut rest = value.iter().peekable();
    while let Some(&byte) = rest.next() {
        let is_separator = byte == b',' && rest.next_if(|next| **next == b',').is_none();
        if is_separator {
            options.push(Vec::new());
        } else if let Some(last) = options.last_mut() {
            last.push(byte);
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_those_of_the_options_of_each_vmm() {
        for (line, name) in [
            ("qemu-system-x86_64 -m 512 -name db1 -nographic", "db1"),
            ("qemu -name guest=db1,debug-threads=on -m 5", "db1"),
            ("qemu -name debug-threads=on,guest=db1 -m 5", "db1"),
            ("qemu -name db1,process=vm -m 5", "db1"),
            ("qemu -name a,,b,process=vm -m 5", "a,b"),
            ("qemu -name debug-threads=on -m 5", ""),
            ("qemu-system-x86_64 --name x", "x"),
            ("firecracker --api-sock /s --id vm-7", "vm-7"),
            ("firecracker --id=vm=7", "vm=7"),
            ("crosvm run --name=box", "box"),
            ("kvmprof run --kernel k", ""),
            // The program's own name is none.
            ("--name x", ""),
            ("qemu -name", ""),
            ("qemu -device id=x -id", ""),
        ] {
            let found = name_of(format!("{line} ").replace(' ', "\0").as_bytes());
            assert_eq!(found.unwrap_or_default(), name, "{line}");
        }
        assert_eq!(name_of(b""), None);
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_bounded_name_or_none(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let line = [b"x\0-name\0".as_slice(), &bytes].concat();
            prop_assert!(name_of(&line).is_none_or(|name| name.len() <= MAX_NAME * 3));
        }
    }
}
