# A guest that runs perf; for as long it is recorded from outside, until that has samples enough.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 512M --jitter \
    --cmdline "console=ttyS0 $quick"
says 'perf begins'
record guest.kvmprof
sampled 1000
tell enough
says 'perf ends'
stop_recording
says 'perf reported'
kill $machine
ended
