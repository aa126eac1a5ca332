# A guest whose exits are recorded from its first instruction on.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M \
    --cmdline "console=ttyS0 $quick printk.devkmsg=on" \
    --record "$LAB_OUT/guest.kvmprof" --event exits:3
says 'workload running'
gathered_before=$(count)
sampled 2000
status guest.status.json
cp /run/guest.status.json "$LAB_OUT"
kill $machine
ended
kvmprof report "$LAB_OUT/guest.kvmprof" --sort total --top 25 >"$LAB_OUT/guest.report"
# The same guest by the clock: while a client records, and by port reads alone.
start again --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M \
    --cmdline "console=ttyS0 $quick printk.devkmsg=on"
says 'workload running'
record clock.kvmprof
sampled 200
stop_recording
record reads.kvmprof --event port-read:1
sampled 500
stop_recording
# What only the kernel around the guest counts.
record all.kvmprof --event kvm-exits:3
sampled 1000
stop_recording
record time.kvmprof --event guest-time:10ms
sampled 200
stop_recording
kill $machine
ended
