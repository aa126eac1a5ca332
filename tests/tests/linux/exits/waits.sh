# Faults of guest memory for which the host waits: pages in swap, and pages that the handler of a userfaultfd brings.

# start_in_group ARGUMENT...: starts a guest in a control group of its own.
group=/sys/fs/cgroup/guest
start_in_group() {
    mount -t cgroup2 none /sys/fs/cgroup && echo '+cpu +memory' >/sys/fs/cgroup/cgroup.subtree_control && mkdir $group &&
        echo 0 >$group/cgroup.procs || fail 74 "no control group"
    start "$@"
    echo 0 >/sys/fs/cgroup/cgroup.procs
}

# throttled: counts while the guest's group has quota for a fifth of a processor.
throttled() {
    grep throttled $group/cpu.stat >"$LAB_OUT/throttled.begin"
    count_exits throttled $machine
    echo '20000 100000' >$group/cpu.max || fail 71 "no quota"
    alive 'the guest has little quota'
    sleep 5
    echo max >$group/cpu.max
    grep throttled $group/cpu.stat >"$LAB_OUT/throttled.end"
    counted
}

# in_memory: how much of the group's memory could be in swap, and isn't, in KiB.
in_memory() { awk '/^(anon|shmem|swapcached) / { bytes += $2 } END { print int(bytes / 1024) }' $group/memory.stat; }

# swap_out: has the host's kernel put the guest's memory into swap. Pages are free once they are written and reclaimed again.
swap_out() {
    # The file's pages aren't the group's.
    dd if=/dev/zero of=/run/swap bs=1M count=1024 2>/dev/null
    losetup /dev/loop0 /run/swap && mkswap /dev/loop0 >/dev/null && swapon /dev/loop0 || fail 73 "no swap"
    # A page at a time.
    echo 0 >/proc/sys/vm/page-cluster
    stand_still $machine
    until [ "$(in_memory)" -le 64 ]; do
        # It fails if it can't have as much.
        echo 1G >$group/memory.reclaim 2>/dev/null
        alive "$(in_memory) KiB of the guest aren't in swap"
        usleep 100000
    done
    kill -CONT $machine
}

# record_userfaults: faults of a guest whose VMM brings each page after a line: 32 with its interrupts off, and 32 with them on.
record_userfaults() (
    mkfifo /run/lazy.input
    /lab/lazy_memory </run/lazy.input >"$LAB_OUT/lazy.pages" 2>"$LAB_OUT/lazy.vmm" 3>&- &
    machine=$!
    exec 3>/run/lazy.input
    start_recording lazy page-faults:1
    for interrupts in off on; do
        for page in $(seq 32); do
            pages=$(grep -c pages "$LAB_OUT/lazy.pages")
            tell $interrupts
            until [ "$(grep -c pages "$LAB_OUT/lazy.pages")" -gt "$pages" ]; do
                is_over && fail 72 "over before it had its pages: $(cat "$LAB_OUT/lazy.vmm")"
                usleep 10000
            done
        done
    done
    end_recording lazy
    kill $machine
)
