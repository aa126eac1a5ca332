# Guests that are recorded until so many samples were taken of all that they do.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --jitter \
    --cmdline "console=ttyS0 $quick nokaslr"
says 'workload running'
record guest.kvmprof
sampled 8000
stop_recording
tell end
ended

# The same hooks in an older kernel.
start older --kernel /lab/vmlinuz-6.1 --initrd /lab/older.cpio --memory 256M --jitter \
    --cmdline "console=ttyS0 $quick nokaslr"
says 'workload running'
record older.kvmprof
sampled 4000
stop_recording
tell end
ended

start modules --kernel /lab/vmlinuz --initrd /lab/modules.cpio --memory 256M --jitter \
    --cmdline "console=ttyS0 $quick nokaslr"
says 'modules come and go'
record modules.kvmprof
sampled 6000
stop_recording
tell end
ended
