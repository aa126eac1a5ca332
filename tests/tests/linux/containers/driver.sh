start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --jitter \
    --cmdline "console=ttyS0 $quick"
says 'workload running'
record guest.kvmprof
sampled 1500
kvmprof processes --socket "$socket" --json >"$LAB_OUT/processes.json"
kvmprof processes --socket "$socket" --tree >"$LAB_OUT/processes.txt"
tell move
says 'the process has moved'
gathered_before=$(count)
sampled 1500
stop_recording
tell end
ended
# What the options for reports make of the labels.
kvmprof report --by container --json "$LAB_OUT/guest.kvmprof" >"$LAB_OUT/containers.json"
kvmprof report --label container=4f1d --by container --json "$LAB_OUT/guest.kvmprof" >"$LAB_OUT/one.json"
