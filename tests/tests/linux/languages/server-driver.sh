# The function is known before the recording begins that is looked at.
start server --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 1G --jitter --hz 500 --cmdline "console=ttyS0 $quick"
says 'workload running'
record first.kvmprof
first=$recorder
until kvmprof export --format folded "$recording" 2>/dev/null 3>&- | grep -qF "$function"; do
    is_over && fail 90 "over before its functions were known"
    alive "$(count) samples without its functions"
    usleep 500000
done
record server.kvmprof
kill -TERM $first
wait $first || fail 94 "the first recorder failed"
sampled $samples
stop_recording
tell stop
says served
ended
