# The disk's image is on a file system that is frozen later: what is written to it then waits. That the kernel has something to say of that every
# two minutes isn't progress.
echo 0 >/proc/sys/kernel/hung_task_timeout_secs
mkdir /run/backing
losetup /dev/loop0 /lab/backing.img && mount -t ext4 /dev/loop0 /run/backing || fail 93 "no file system for the disk"
dd if=/dev/zero of=/run/backing/disk.img bs=4k count=64 2>/dev/null
# All looks from the first instruction on, and then more of them, for a client.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --cpus 2 \
    --cmdline "console=ttyS0 $quick $(cat /lab/words)" --record "$LAB_OUT/guest.kvmprof" --tasks=20 \
    --disk /run/backing/disk.img,format=raw
says 'the disk is next'
fsfreeze --freeze /run/backing || fail 92 "the file system can't be frozen"
# Kvmprof can't end before its disk's threads: if the guest crashes, they go on.
(
    while cat "/proc/$machine/task/"*/comm | grep -q '^vcpu '; do sleep 1; done
    fsfreeze --unfreeze /run/backing
) 2>/dev/null 3>&- &
tell go
says 'truth is told'
record late.kvmprof --tasks=1
sampled 300
stop_recording
record pipe.kvmprof --tasks --pid "$(grep '^truth on-pipe' "$console" | cut -d ' ' -f 3)"
sampled 100
stop_recording
# The disk's thread could not end.
fsfreeze --unfreeze /run/backing
kill $machine
ended
kvmprof report --tasks --json "$LAB_OUT/pipe.kvmprof" >"$LAB_OUT/pipe.json"
kvmprof report --tasks "$LAB_OUT/late.kvmprof" >"$LAB_OUT/late.report"
kvmprof report --tasks --json --top 1000 "$LAB_OUT/late.kvmprof" >"$LAB_OUT/late.json"
kvmprof flamegraph --tasks "$LAB_OUT/late.kvmprof" --output "$LAB_OUT/late.svg"
