# monitor COMMAND [ARGUMENTS]: has QEMU do it.
monitor() {
    command=$1 arguments=${2-}
    echo "{\"execute\": \"$command\", \"arguments\": {$arguments}}" >/run/qemu.qmp.in
}

# listed NAME: how much memory the host sees that guest have.
listed() { kvmprof list --json >"$LAB_OUT/$1.list.json"; }

# bytes NAME: the number in it.
bytes() { sed -n 's/.*"memory_bytes": *\([0-9]*\).*/\1/p' "$LAB_OUT/$1.list.json"; }

# What the guest has from the start is a file. For what is added there are huge pages.
mkdir /run/ram
mount -t tmpfs none /run/ram
echo 140 >/proc/sys/vm/nr_hugepages
[ "$(cat /proc/sys/vm/nr_hugepages)" = 140 ] || fail 89 "the host has no huge pages"
monitored qemu 2 memhp_default_state=online_movable -M pc,memory-backend=ram -m 512,slots=1,maxmem=2G \
    -object memory-backend-file,id=ram,mem-path=/run/ram/guest,size=512M,share=on -device virtio-balloon-pci,id=balloon
says 'workload running'
cat /run/qemu.qmp.out >"$LAB_OUT/qmp" &
monitor qmp_capabilities
listed before
attach_both qemu
both 100

# A slot more.
monitor object-add '"qom-type": "memory-backend-memfd", "id": "more", "size": 268435456, "hugetlb": true, "hugetlbsize": 2097152'
monitor device_add '"driver": "pc-dimm", "id": "dimm", "memdev": "more"'
tell grown 600000
says grown
listed grown
both 200
# The guest's programs have taken some of it meanwhile.
sed -n 's/^HugePages_\(Total\|Free\|Rsvd\): */\1 /p' /proc/meminfo >"$LAB_OUT/huge"

# The balloon takes pages out of the memory behind the slots.
monitor balloon '"value": 738197504'
until grep -q 'BALLOON_CHANGE.*738197504\|738197504.*BALLOON_CHANGE' "$LAB_OUT/qmp"; do
    is_over && fail 91 "over before the balloon was full"
    alive "$(tail -n 1 "$LAB_OUT/qmp")"
    usleep 200000
done
both 100

# The slot goes.
monitor balloon '"value": 805306368'
tell leave
says left
monitor device_del '"id": "dimm"'
tell shrunk 550000
says shrunk
until listed shrunk && [ "$(bytes shrunk)" = "$(bytes before)" ]; do
    is_over && fail 90 "over before its memory had gone"
    usleep 200000
done
both 100

detach_both
tell over
ended
