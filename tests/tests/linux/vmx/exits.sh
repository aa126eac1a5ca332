# The same guest as with SVM, with one vCPU.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 512M --hz 0 --cmdline "console=ttyS0 $quick nokaslr memmap=16M\$0x18000000"
says 'workload running'
grep -q ' /sys/kernel/tracing ' /proc/mounts || mount -t tracefs tracefs /sys/kernel/tracing || fail 90 "there is no tracefs"
beside_perf
kill -CONT "$machine"
record_faults
tell call
says calling
hz=100
attach calls "$machine" --capture kernel
sampled 300
detach
tell over
ended
