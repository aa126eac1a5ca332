# A guest that runs perf for a while; for as long it is recorded from outside.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 512M --jitter \
    --cmdline 'console=ttyS0 quiet panic=-1'
says 'perf begins'
kvmprof record --socket "$socket" --output "$LAB_OUT/guest.kvmprof" 3>&- &
recording=$!
says 'perf ends'
# A shell's background jobs don't hear SIGINT.
kill -TERM $recording
wait $recording || exit 94
says 'perf reported'
kill $machine
ended
