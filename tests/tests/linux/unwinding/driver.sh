# A guest that is recorded until so many samples were taken of all that it does.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --jitter \
    --cmdline "console=ttyS0 $quick nokaslr"
says 'workload running'
record guest.kvmprof
sampled 4000
stop_recording
kill $machine
ended
