# A guest with two vCPUs.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --cpus 2 --jitter \
    --cmdline "console=ttyS0 $quick printk.devkmsg=on"
says 'fight running'
record spin.kvmprof
sampled 800
stop_recording
echo go >"/run/$name.input"
says 'workload running'
# From now on its host has something else to do, too.
dd if=/dev/zero of=/dev/null 2>/dev/null & other=$!
record guest.kvmprof
sampled 1500
stop_recording
kill $machine
ended
kill $other
kvmprof stalls "$LAB_OUT/spin.kvmprof" --top 100000 --json >"$LAB_OUT/spin.stalls.json"
kvmprof stalls "$LAB_OUT/guest.kvmprof" >"$LAB_OUT/guest.stalls"
kvmprof stalls "$LAB_OUT/guest.kvmprof" --top 100000 --json >"$LAB_OUT/guest.stalls.json"
