//! What has started a guest's VMM, and what that calls the guest: by the VMM's command line, its folder, and its control group on this host.

use std::collections::BTreeMap;

use kvmprof_introspection::labels_of_group;

use super::name::{MAX_NAME, text};
use super::processes;

/// The folders in which Kata Containers keeps a sandbox's sockets: in one of its id.
const KATA_FOLDERS: [&[u8]; 2] = [b"/run/vc/vm/", b"/run/vc/firecracker/"];
/// The program with which Kata Containers runs sandboxes in itself (Dragonball).
const KATA_SHIM: &[u8] = b"containerd-shim-kata-v2";
/// What separates a namespace of containerd and the id of a VM in the name of its folder.
const NAMESPACE_END: u8 = b'#';
/// How a word of the kernel's command line begins that virtme-ng gives to all its guests.
const VIRTME: &[u8] = b"virtme_hostname=";

/// What is known of a VMM's process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence<'a> {
    /// Its arguments, with a NUL behind each.
    pub command_line: &'a [u8],
    /// The folder that it works in.
    pub folder: &'a [u8],
    /// The path of its control group.
    pub group: &'a str,
}

/// What has started a VMM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Its name; `None` if it isn't known.
    pub manager: Option<&'static str>,
    /// What it calls the guest, if that isn't what the VMM's options say.
    pub name: Option<String>,
    /// More that it says of the guest, by keys.
    pub labels: BTreeMap<String, String>,
}

/// What has started process `pid`, a VMM.
pub fn origin_of(pid: i32) -> Origin {
    let groups = processes::groups(pid);
    let groups = String::from_utf8_lossy(&groups);
    find(&Evidence {
        command_line: &processes::command_line(pid),
        folder: &processes::folder_of(pid),
        group: group_of(&groups),
    })
}

/// The group among those of a process (`/proc/PID/cgroup`, cgroups(7)): of version 2, or where that has only its root, that of systemd or of the
/// processor's controller.
pub fn group_of(groups: &str) -> &str {
    let mut lines = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_once(':')
    });
    let rank = |(controllers, path): &(&str, &str)| match *controllers {
        _ if *path == "/" => 3,
        "" => 0,
        "name=systemd" => 1,
        _ if controllers.split(',').any(|one| one == "cpu") => 2,
        _ => 4,
    };
    let best = lines.by_ref().min_by_key(rank);
    best.map_or("", |(_, path)| path)
}

/// What `evidence` says.
fn find(evidence: &Evidence<'_>) -> Origin {
    let groups = labels_of_group(evidence.group).into_iter();
    let mut origin = Origin {
        labels: groups.map(|(key, value)| (key.to_owned(), value)).collect(),
        ..Origin::default()
    };
    let arguments = Arguments(evidence.command_line);
    let found = kubevirt(arguments, &mut origin)
        .or_else(|| kata(arguments, &mut origin))
        .or_else(|| firecracker_containerd(evidence, &mut origin))
        .or_else(|| proxmox(arguments, &mut origin))
        .or_else(|| arguments.has(b"/libvirt/qemu/").then_some("libvirt"))
        .or_else(|| virtme(arguments, &mut origin))
        .or_else(|| krunvm(arguments, &mut origin));
    origin.manager = found;
    origin
}

impl Origin {
    fn label(&mut self, key: &str, value: &[u8]) {
        self.labels.insert(key.to_owned(), text(value));
    }
}

/// A domain of libvirt in a pod of KubeVirt: `NAMESPACE_VM`, of which neither has an underscore.
fn kubevirt(arguments: Arguments<'_>, origin: &mut Origin) -> Option<&'static str> {
    arguments.has(b"/kubevirt-private/").then_some(())?;
    let value = arguments.value_of(b"-name")?;
    let domain = super::name::guest(value);
    let place = domain.iter().position(|byte| *byte == b'_')?;
    let (namespace, vm) = (domain.get(..place)?, domain.get(place + 1..)?);
    origin.label("namespace", namespace);
    origin.label("vm", vm);
    origin.name = Some(format!("{}/{}", text(namespace), text(vm)));
    Some("kubevirt")
}

/// A sandbox of Kata Containers: its id is in the paths of sockets, and an option of Kata's own program.
fn kata(arguments: Arguments<'_>, origin: &mut Origin) -> Option<&'static str> {
    let is_shim = arguments.program() == KATA_SHIM;
    let by_path = KATA_FOLDERS
        .iter()
        .find_map(|folder| arguments.below(folder));
    let id = match is_shim {
        true => arguments.value_of(b"-id"),
        false => by_path,
    };
    let id = id?;
    if let Some(namespace) = arguments.value_of(b"-namespace").filter(|_| is_shim) {
        origin.label("namespace", namespace);
    }
    origin.label("sandbox", id);
    origin.name = Some(text(id));
    Some("kata")
}

/// A VM of firecracker-containerd: its folder is `NAMESPACE#VMID`.
fn firecracker_containerd(evidence: &Evidence<'_>, origin: &mut Origin) -> Option<&'static str> {
    let arguments = Arguments(evidence.command_line);
    (arguments.program() == b"firecracker").then_some(())?;
    let paths = [arguments.value_of(b"--api-sock"), Some(evidence.folder)];
    let mut parts = (paths.into_iter().flatten()).flat_map(|path| path.split(|byte| *byte == b'/'));
    let (namespace, id) = parts.find_map(|part| {
        let place = part.iter().position(|byte| *byte == NAMESPACE_END)?;
        let (namespace, id) = (part.get(..place)?, part.get(place + 1..)?);
        (!namespace.is_empty() && !id.is_empty()).then_some((namespace, id))
    })?;
    origin.label("namespace", namespace);
    origin.label("vm", id);
    origin.name = Some(format!("{}/{}", text(namespace), text(id)));
    Some("firecracker-containerd")
}

/// A guest of Proxmox VE: its number is an option, and in the path of the file with its pid.
fn proxmox(arguments: Arguments<'_>, origin: &mut Origin) -> Option<&'static str> {
    arguments.has(b"/run/qemu-server/").then_some(())?;
    if let Some(id) = arguments.value_of(b"-id") {
        origin.label("vmid", id);
    }
    Some("proxmox")
}

/// A guest of virtme-ng, which has the guest's name on the kernel's command line, too.
fn virtme(arguments: Arguments<'_>, origin: &mut Origin) -> Option<&'static str> {
    let name = arguments.behind(VIRTME)?;
    let name = name.split(u8::is_ascii_whitespace).next()?;
    if arguments.value_of(b"-name").is_none() && !name.is_empty() {
        origin.name = Some(text(name));
    }
    Some("virtme-ng")
}

/// A guest of krunvm, which is its own VMM: `krunvm start NAME`.
fn krunvm(arguments: Arguments<'_>, origin: &mut Origin) -> Option<&'static str> {
    (arguments.program() == b"krunvm").then_some(())?;
    let words = arguments.words().skip_while(|word| *word != b"start");
    let name = words.skip(1).find(|word| !word.starts_with(b"-"));
    origin.name = name.filter(|name| !name.is_empty()).map(text);
    Some("krunvm")
}

/// The arguments of a process, with a NUL behind each.
#[derive(Clone, Copy, Debug)]
struct Arguments<'a>(&'a [u8]);

impl<'a> Arguments<'a> {
    fn words(self) -> impl Iterator<Item = &'a [u8]> {
        self.0.split(|byte| *byte == 0)
    }

    /// The file's name of the program.
    fn program(self) -> &'a [u8] {
        let first = self.words().next().unwrap_or_default();
        first
            .rsplit(|byte| *byte == b'/')
            .next()
            .unwrap_or_default()
    }

    /// What follows `part`, up to the end of the argument; `None` if no argument has it.
    fn behind(self, part: &[u8]) -> Option<&'a [u8]> {
        let place = self.0.windows(part.len()).position(|own| own == part)?;
        self.0
            .get(place + part.len()..)?
            .split(|byte| *byte == 0)
            .next()
    }

    fn has(self, part: &[u8]) -> bool {
        self.behind(part).is_some()
    }

    /// The name of what is below `folder` in the first path with it.
    fn below(self, folder: &[u8]) -> Option<&'a [u8]> {
        let name = self.behind(folder)?;
        let name = name.split(|byte| b"/,".contains(byte)).next()?;
        (!name.is_empty() && name.len() <= MAX_NAME).then_some(name)
    }

    /// The value of an option, in the next argument or behind an equals sign.
    fn value_of(self, option: &[u8]) -> Option<&'a [u8]> {
        let mut words = self.words().skip(1);
        while let Some(word) = words.next() {
            if word == option {
                return words.next().filter(|value| !value.is_empty());
            }
            let value = word.strip_prefix(option);
            if let Some(value) = value.and_then(|value| value.strip_prefix(b"=")) {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "4f1d0a5e9c3b7788a0b1c2d3e4f5061728394a5b6c7d8e9f00112233445566ff";
    const UID: &str = "1f4e7b1c-3a5d-4c0e-9b11-0a2b3c4d5e6f";

    /// Manager, name and labels by a command line in which ID stands for an id, as words.
    fn found(command_line: &str, folder: &str) -> String {
        let words = command_line.replace("ID", ID);
        let line: Vec<u8> = words
            .split(' ')
            .flat_map(|word| [word.as_bytes(), &[0]].concat())
            .collect();
        let origin = find(&Evidence {
            command_line: &line,
            folder: folder.as_bytes(),
            group: "/",
        });
        let Origin {
            manager,
            name,
            labels,
        } = origin;
        let labels = labels.iter().map(|(key, value)| format!("{key}={value}"));
        let labels: Vec<String> = labels.collect();
        let words = [manager.unwrap_or("-"), name.as_deref().unwrap_or("-")];
        let words = format!("{} {}", words.join(" "), labels.join(" "));
        words.replace(ID, "ID").trim_end().to_owned()
    }

    /// Command lines as these programs make them, without the rest of their options.
    #[test]
    fn managers_are_known_by_the_command_lines_that_they_make() {
        for (line, expected) in [
            (
                "/usr/libexec/qemu-kvm -name guest=default_web-1,debug-threads=on -object {\"file\":\"/var/run/kubevirt-private/libvirt/qemu/lib/domain-1-default_web-1/master-key.aes\"}",
                "kubevirt default/web-1 namespace=default vm=web-1",
            ),
            (
                "/usr/bin/qemu-system-x86_64 -name guest=db1,debug-threads=on -object {\"file\":\"/var/lib/libvirt/qemu/domain-1-db1/master-key.aes\"}",
                "libvirt -",
            ),
            (
                "/usr/bin/kvm -id 100 -name db1,debug-threads=on -pidfile /var/run/qemu-server/100.pid",
                "proxmox - vmid=100",
            ),
            (
                "/opt/kata/bin/qemu-system-x86_64 -name sandbox-ID,debug-threads=on -qmp unix:path=/run/vc/vm/ID/qmp.sock,server=on,wait=off",
                "kata ID sandbox=ID",
            ),
            (
                "/opt/kata/bin/cloud-hypervisor --api-socket /run/vc/vm/ID/clh-api.sock",
                "kata ID sandbox=ID",
            ),
            (
                "/opt/kata/bin/firecracker --id x --api-sock /run/vc/firecracker/ID/root/run/firecracker.socket",
                "kata ID sandbox=ID",
            ),
            (
                "/opt/kata/runtime-rs/bin/containerd-shim-kata-v2 -namespace k8s.io -id ID -address /run/containerd/containerd.sock",
                "kata ID namespace=k8s.io sandbox=ID",
            ),
            (
                "/usr/local/bin/firecracker --api-sock /var/lib/firecracker-containerd/shim-base/build#vm-7/firecracker.sock",
                "firecracker-containerd build/vm-7 namespace=build vm=vm-7",
            ),
            (
                "qemu-system-x86_64 -append virtme_hostname=virtme-ng",
                "virtme-ng virtme-ng",
            ),
            (
                "qemu-system-x86_64 -name box -append virtme_hostname=box",
                "virtme-ng -",
            ),
            ("krunvm start --cpus fedora", "krunvm fedora"),
            ("qemu-system-x86_64 -name db1", "- -"),
            ("firecracker --api-sock /tmp/#7", "- -"),
            ("qemu -name guest=x -blockdev /kubevirt-private/", "- -"),
            ("x /run/vc/vm/", "- -"),
            ("", "- -"),
        ] {
            assert_eq!(found(line, ""), expected, "{line}");
        }
        let relative = "firecracker --api-sock firecracker.sock";
        let folder = "/var/lib/firecracker-containerd/shim-base/a#b";
        assert_eq!(
            found(relative, folder),
            "firecracker-containerd a/b namespace=a vm=b"
        );
    }

    #[test]
    fn a_pod_is_known_by_the_control_group() {
        let slice = format!(
            "/kubepods.slice/kubepods-pod{}.slice",
            UID.replace('-', "_")
        );
        let path = format!("{slice}/cri-containerd-{ID}.scope");
        for groups in [
            format!("0::{path}\n"),
            format!("12:cpu,cpuacct:/other\n1:name=systemd:{path}\n0::/\n"),
            format!("9:memory:/other\n12:cpu,cpuacct:{path}\n0::/\n"),
        ] {
            let group = group_of(&groups);
            let origin = find(&Evidence {
                group,
                ..Evidence::default()
            });
            let labels = [&origin.labels["pod"], &origin.labels["container"]];
            assert_eq!(labels, [UID, ID], "{groups}");
            assert_eq!(origin.manager, None);
        }
        assert_eq!(group_of(""), "");
        assert_eq!(group_of("0::/\n"), "/");
        assert_eq!(group_of("nonsense\n::\n"), "");
    }

    proptest! {
        #[test]
        fn any_command_line_gives_bounded_names(
            begin in 0..4_usize,
            bytes in prop::collection::vec(any::<u8>(), 0..2000),
        ) {
            let begins = [b"x\0/run/vc/vm/".as_slice(), b"firecracker\0--api-sock\0a#", b"krunvm\0start\0", b"x\0virtme_hostname="];
            let line = [begins[begin], &bytes].concat();
            let origin = find(&Evidence { command_line: &line, folder: &bytes, group: "/" });
            prop_assert!(origin.name.is_none_or(|name| name.len() <= 2 * MAX_NAME * 3 + 1));
            prop_assert!(origin.labels.values().all(|value| value.len() <= MAX_NAME * 3));
        }
    }
}
