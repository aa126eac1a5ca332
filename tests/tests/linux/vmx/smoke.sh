# The demo guest.
name=demo socket=/run/demo.sock
kvmprof demo --socket "$socket" 2>"$LAB_OUT/demo.stderr" &
machine=$!
until status demo; do
    is_over && fail 93 "the demo ended: $(cat "$LAB_OUT/demo.stderr")"
    usleep 50000
done
record demo.kvmprof
sampled 200
stop_recording
kill $machine
wait $machine

# A kernel of Debian's, whose guest then looks at itself. Without jitter all ticks may fall into the interrupts of its timer, which keep in step.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --jitter --cmdline "console=ttyS0 $quick"
says 'workload running'
knows_kernel
record guest.kvmprof
sampled 300
stop_recording
status guest.json && cp /run/guest.json "$LAB_OUT"
tell go
says 'all done'
ended
