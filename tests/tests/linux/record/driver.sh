mkdir -p /run/guest/bin
cp /lab/plain /run/guest/bin/plain
cp /lab/plain /run/guest/bin/calls
# A guest that is recorded from its first instruction on, until so many samples were taken of all that it does.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --jitter \
    --cmdline "console=ttyS0 $quick $(cat /lab/words)" --record "$LAB_OUT/guest.kvmprof" \
    --sysroot /run/guest
says 'workload running'
says 'another file is executed'
gathered_before=$(count)
sampled 2000
tell count
says counted
status guest.status.json
cp /run/guest.status.json "$LAB_OUT"
# What a recorder that starts now is told of processes that have been there for long.
record late.kvmprof
sampled 300
stop_recording
kill $machine
ended
# The lab's own program reads it, too.
kvmprof report --sort total --top 60 --json "$LAB_OUT/guest.kvmprof" >"$LAB_OUT/guest.report.json"
