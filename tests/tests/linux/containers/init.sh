# Programs in control groups with the names that managers of containers give them. Each is in its group before it has its name.
id=4f1d0a5e9c3b7788a0b1c2d3e4f5061728394a5b6c7d8e9f00112233445566ff
other=00000000000000000000000000000000000000000000000000000000000000aa
pod=1f4e7b1c_3a5d_4c0e_9b11_0a2b3c4d5e6f
mkdir -p /cg /cpu
mount -t cgroup2 none /cg
mount -t cgroup -o cpu none /cpu
web=/cg/system.slice/web.service
pods=/cg/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod$pod.slice/cri-containerd-$id.scope
odd="/cg/$(printf 'odd"\033[1m')"
first=/cg/docker/$id
second=/cg/docker/$other
old=/cpu/docker/$other
mkdir -p "$web" "$pods" "$odd" "$first" "$second" "$old"

# run GROUP PROGRAM ARGUMENT...: executes the program in the group.
run() {
    echo 0 >"$1/cgroup.procs"
    shift
    exec "$@"
}
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
echo the process has moved
read -r word
poweroff -f
