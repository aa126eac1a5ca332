# Programs in control groups with the names that managers of containers give them. Each is in its group before it has its name.
id=4f1d0a5e9c3b7788a0b1c2d3e4f5061728394a5b6c7d8e9f00112233445566ff
other=00000000000000000000000000000000000000000000000000000000000000aa
pod=1f4e7b1c_3a5d_4c0e_9b11_0a2b3c4d5e6f
mkdir -p /cpu
mount -t sysfs none /sys
# Where runc expects it.
groups=/sys/fs/cgroup
mount -t cgroup2 none $groups
mount -t cgroup -o cpu none /cpu
web=$groups/system.slice/web.service
pods=$groups/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod$pod.slice/cri-containerd-$id.scope
odd="$groups/$(printf 'odd"\033[1m')"
first=$groups/docker/$id
second=$groups/docker/$other
old=/cpu/docker/$other
mkdir -p "$web" "$pods" "$odd" "$first" "$second" "$old"

# run GROUP PROGRAM ARGUMENT...: executes the program in the group.
run() {
    echo 0 >"$1/cgroup.procs"
    shift
    exec "$@"
}
# contain LETTER MODE: starts the program contained in a container whose id begins with the letter, as podman has runc do it.
contain() {
    mkdir -p "/bundles/$1/root"
    cat >"/bundles/$1/config.json" <<END
{
    "ociVersion": "1.0.2",
    "process": {"args": ["/bin/contained", "$1", "$2"], "cwd": "/", "user": {"uid": 0, "gid": 0}},
    "root": {"path": "root"},
    "mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/bin", "type": "bind", "source": "/bin", "options": ["bind"]}
    ],
    "linux": {
        "cgroupsPath": "$(printf '/machine.slice/libpod-%s%063d.scope' "$1" 0)",
        "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "cgroup"}]
    }
}
END
    # The root of an initial RAM disk can't be exchanged.
    runc run --detach --no-pivot --bundle "/bundles/$1" "$1"
}
contain a storm
contain b
runc exec --detach --pid-file /executed.pid a /bin/contained e
run "$web" web &
run "$pods" storm storm &
run "$odd" odd &
run "$old" old &
run "$first" moves & moves=$!
# A process in a pid namespace of its own, whose parent waits for it outside.
run "$pods" unshare -f -p inner --token 7 &
root &
echo workload running
read -r word
echo $moves >"$second/cgroup.procs"
rmdir "$first"
mkdir "$first"
cat /executed.pid >"$second/cgroup.procs"
runc delete --force b
contain c
echo the process has moved
read -r word
poweroff -f
