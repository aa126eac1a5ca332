# attach_it GUEST: lists it, and attaches by both ways to capture.
attach_it() {
    kvmprof list --json >"$LAB_OUT/$name.list.json"
    done_at listed
    for capture in ptrace kernel; do
        attach "$name.$capture" "$1" --capture $capture
        sampled 100
        detach
    done
    done_at attached
    tell over
    ended
}

hz=100
# A guest of kvmprof's own: by the clock of the host's kernel, and by events, also those of KVM's tracepoints.
start own --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --clock kernel --cmdline "console=ttyS0 $quick"
says 'workload running'
knows_kernel
gather clock --all
sampled 100
stop_gathering
record own.recorded.kvmprof
sampled 60
status own.recorded.json && cp /run/own.recorded.json "$LAB_OUT"
stop_recording
for event in exits:1 kvm-exits:20 halt:1; do
    record "own.${event%:*}.kvmprof" --event $event
    sampled 20
    stop_recording
done
record own.page-faults.kvmprof --event page-faults:1
tell touch
sampled 20
stop_recording
attach_it "$machine"

# The same guest by another VMM.
qemu qemu 1 '' -M pc -m 256
says 'workload running'
attach_it qemu
