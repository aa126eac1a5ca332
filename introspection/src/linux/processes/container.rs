//! What the path of a control group says of the container, the pod and the unit that a process is in, by the names that their managers
//! give to groups (systemd's `systemd.unit(5)`; the drivers `cgroupfs` and `systemd` of Kubernetes' kubelet and of runc).

/// The names of groups of systemd that have a container's id between them and `.scope`, and the runtime that makes them.
const SCOPES: [(&str, &str); 4] = [
    ("docker-", "docker"),
    ("cri-containerd-", "containerd"),
    ("crio-", "cri-o"),
    ("libpod-", "podman"),
];
/// Groups that a runtime has its containers in, or whose names begin so, without systemd.
const PARENTS: [(&str, &str); 3] = [
    ("docker", "docker"),
    ("libpod_parent", "podman"),
    ("lxc", "lxc"),
];
/// What the names of LXC's groups begin with.
const LXC: &str = "lxc.payload.";
/// Digits of an id: a SHA-256, in hexadecimal.
const ID_LENGTH: usize = 64;
/// Characters of a pod's uid (RFC 9562).
const UID_LENGTH: usize = 36;

/// The labels of a process in the group at `path`: `container` and `runtime`, `pod` and `qos`, `unit`, as far as they are there. Of containers in
/// containers the innermost one.
pub fn labels(path: &str) -> Vec<(&'static str, String)> {
    let groups: Vec<&str> = path.split('/').filter(|group| !group.is_empty()).collect();
    let mut labels = Vec::new();
    let containers = (0..groups.len()).rev();
    let container = containers
        .filter_map(|index| container(&groups, index))
        .next();
    if let Some((id, runtime)) = container {
        labels.push(("container", id.to_owned()));
        labels.extend(runtime.map(|runtime| ("runtime", runtime.to_owned())));
    }
    if let Some(uid) = groups.iter().rev().find_map(|group| pod(group)) {
        labels.push(("pod", uid));
        labels.push(("qos", qos(&groups).to_owned()));
    }
    let units = groups.iter().rev();
    let is_unit = |group: &&&str| group.ends_with(".service") || group.ends_with(".scope");
    if let Some(unit) = units.clone().find(is_unit) {
        labels.push(("unit", (*unit).to_owned()));
    }
    labels
}

/// The container whose group is the one at `index`: its id, and the runtime, if the names say it.
fn container<'g>(groups: &[&'g str], index: usize) -> Option<(&'g str, Option<&'static str>)> {
    let group = *groups.get(index)?;
    if let Some(name) = group.strip_prefix(LXC).filter(|name| !name.is_empty()) {
        return Some((name, Some("lxc")));
    }
    let parent = index.checked_sub(1).and_then(|index| groups.get(index));
    let parents = parent.and_then(|parent| PARENTS.iter().find(|(name, _)| name == parent));
    let by_parent = parents.map(|(_, runtime)| *runtime);
    if by_parent == Some("lxc") {
        return Some((group, by_parent));
    }
    // Where runc isn't told to use systemd, it takes a name for systemd as one of a group: SLICE:PREFIX:ID.
    let (prefix, id) = match group.rsplit_once(':') {
        Some((before, id)) => (before.rsplit_once(':').map(|(_, prefix)| prefix), id),
        None => (None, group),
    };
    let named = |(name, runtime): &(&str, &'static str)| {
        let of_scope = group.strip_suffix(".scope")?.strip_prefix(name)?;
        Some((of_scope, Some(*runtime)))
    };
    let of_scope = SCOPES.iter().find_map(named);
    let (id, runtime) = of_scope.unwrap_or_else(|| {
        let mut scopes = SCOPES.iter();
        let by_name = scopes.find_map(|(name, runtime)| {
            let is_prefix = prefix.is_some_and(|prefix| name.strip_suffix('-') == Some(prefix));
            let begins = group.starts_with(name);
            (is_prefix || begins).then_some(*runtime)
        });
        let bare = SCOPES.iter().find_map(|(name, _)| id.strip_prefix(name));
        (bare.unwrap_or(id), by_name.or(by_parent))
    });
    let is_id = id.len() == ID_LENGTH && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then_some((id, runtime))
}

/// The uid in the name of a pod's group: `podUID`, or `kubepods-QOS-podUID.slice` with underscores in place of hyphens.
fn pod(group: &str) -> Option<String> {
    let group = group.split(':').next()?;
    let slice = group.strip_suffix(".slice").unwrap_or(group);
    let (before, uid) = slice.rsplit_once("pod")?;
    let is_pods = before.is_empty() || before.starts_with("kubepods") && before.ends_with('-');
    let uid = uid.replace('_', "-");
    let is_uid = uid.len() == UID_LENGTH
        && uid
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    // A static pod's uid is a hash.
    let is_hash = uid.len() == 32 && uid.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_pods && (is_uid || is_hash)).then_some(uid)
}

/// The class of service of a pod in these groups (Kubernetes' "Pod Quality of Service Classes").
fn qos(groups: &[&str]) -> &'static str {
    let classes = ["burstable", "besteffort"];
    let named = classes.into_iter().find(|class| {
        groups
            .iter()
            .any(|group| group == class || group.starts_with(&format!("kubepods-{class}")))
    });
    named.unwrap_or("guaranteed")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4f1d0a5e9c3b7788a0b1c2d3e4f5061728394a5b6c7d8e9f00112233445566ff";
    const UID: &str = "1f4e7b1c-3a5d-4c0e-9b11-0a2b3c4d5e6f";

    /// The labels of a path in which `ID`, `UID` and `U_I_D` stand for these, as words.
    fn labelled(path: &str) -> String {
        let path = path.replace("U_I_D", &UID.replace('-', "_"));
        let labels = labels(&path.replace("UID", UID).replace("ID", ID));
        let words = labels.into_iter().map(|(key, value)| {
            let value = value.replace(ID, "ID").replace(UID, "UID");
            format!("{key}={value}")
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn managers_names_tell_containers_pods_and_units() {
        for (path, expected) in [
            ("/", ""),
            ("/init.scope", "unit=init.scope"),
            ("/system.slice/nginx.service", "unit=nginx.service"),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/editor.scope",
                "unit=editor.scope",
            ),
            (
                "/system.slice/docker-ID.scope",
                "container=ID runtime=docker unit=docker-ID.scope",
            ),
            ("/docker/ID", "container=ID runtime=docker"),
            (
                "/machine.slice/libpod-ID.scope/container",
                "container=ID runtime=podman unit=libpod-ID.scope",
            ),
            ("/libpod_parent/libpod-ID", "container=ID runtime=podman"),
            ("/default/ID", "container=ID"),
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_I_D.slice/cri-containerd-ID.scope",
                "container=ID runtime=containerd pod=UID qos=burstable unit=cri-containerd-ID.scope",
            ),
            (
                "/kubepods.slice/kubepods-podU_I_D.slice/crio-ID.scope",
                "container=ID runtime=cri-o pod=UID qos=guaranteed unit=crio-ID.scope",
            ),
            (
                "/kubepods/besteffort/podUID/ID",
                "container=ID pod=UID qos=besteffort",
            ),
            (
                "/system.slice/containerd.service/kubepods-besteffort-podU_I_D.slice:cri-containerd:ID",
                "container=ID runtime=containerd pod=UID qos=besteffort unit=containerd.service",
            ),
            (
                "/lxc.payload.web/init.scope",
                "container=web runtime=lxc unit=init.scope",
            ),
            ("/lxc/web", "container=web runtime=lxc"),
            // A container in a container.
            (
                "/docker/0000000000000000000000000000000000000000000000000000000000000000/docker/ID",
                "container=ID runtime=docker",
            ),
            // Monitors of containers, short and long ids.
            (
                "/machine.slice/libpod-conmon-ID.scope",
                "unit=libpod-conmon-ID.scope",
            ),
            ("/docker/4f1d0a5e9c3b", ""),
            ("/docker/ID0", ""),
            ("/tripods/podfather", ""),
            ("/pod", ""),
            (".../podUID/ID", "container=ID pod=UID qos=guaranteed"),
        ] {
            assert_eq!(labelled(path), expected, "{path}");
        }
    }
}
