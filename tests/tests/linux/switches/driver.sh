# One vCPU: whoever goes on has taken it from another one. The programs' files are there from the first sample on.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --hz 200 --jitter \
    --cmdline "console=ttyS0 $quick $(cat /lab/words)" --record "$LAB_OUT/guest.kvmprof"
says 'workload running'
gathered_before=$(count)
sampled 3000
kill $machine
ended
