# A guest of kvmprof's, recorded from its first instruction on, and attached to in both ways at once.
start own --kernel /lab/vmlinux --initrd /lab/guest.cpio --memory 256M --hz 50 --record "$LAB_OUT/own.kvmprof" \
    --cmdline "console=ttyS0 $quick"
says 'workload running'
attach_both "$machine"
both 60
detach_both
tell over
ended
