# The same workload, seen from within and from the host.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 512M --cpus 2 \
    --cmdline "console=ttyS0 quiet panic=-1"
says 'seen from within'
gather picture --all --hz 80
sampled 150
stop_gathering
tell go
says 'all done'
ended
