# A guest with two vCPUs, and a host that has something else to do, too.
dd if=/dev/zero of=/dev/null 2>/dev/null & other=$!
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --cpus 2 --jitter \
    --cmdline "console=ttyS0 quiet panic=-1 printk.devkmsg=on"
says 'fight running'
record spin.kvmprof -F 1000
says 'fight over'
stop_recording
says 'workload running'
record guest.kvmprof
sampled 1500
stop_recording
kill $machine
ended
kill $other
kvmprof stalls "$LAB_OUT/spin.kvmprof" --top 100000 --json >"$LAB_OUT/spin.stalls.json"
kvmprof stalls "$LAB_OUT/guest.kvmprof" >"$LAB_OUT/guest.stalls"
kvmprof stalls "$LAB_OUT/guest.kvmprof" --top 100000 --json >"$LAB_OUT/guest.stalls.json"
