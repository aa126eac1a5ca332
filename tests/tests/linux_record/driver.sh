mkdir -p /run/guest/bin
cp /lab/plain /run/guest/bin/plain
cp /lab/plain /run/guest/bin/calls
# A guest that is recorded from its first instruction on, until so many samples were taken of it.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --jitter \
    --cmdline "console=ttyS0 quiet panic=-1 $(cat /lab/words)" --record "$LAB_OUT/guest.kvmprof" \
    --sysroot /run/guest
says 'workload running'
gathered_before=$(count)
sampled 2000
tell count
says counted
kvmprof status --socket "$socket" >"$LAB_OUT/guest.text"
# What a recorder that starts now is told of processes that have been there for long.
kvmprof record --socket "$socket" --output "$LAB_OUT/late.kvmprof" --seconds 2 >/dev/null
status end
cp /run/end "$LAB_OUT/guest.json"
kill $machine
ended
# The lab's own program reads it, too.
kvmprof report --sort total --top 60 "$LAB_OUT/guest.kvmprof" >"$LAB_OUT/guest.report"
