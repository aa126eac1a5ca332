# The same workload, seen from within and from the host.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 512M --cpus 2 \
    --cmdline "console=ttyS0 $quick"

# until_sampled COUNT: lets the guest look at itself until so many samples were taken.
until_sampled() {
    gathered_before=$(count)
    sampled "$1"
    tell enough
}

says 'gathers within'
until_sampled 250
says 'seen from within'
gather picture --all --hz 80
sampled 150
stop_gathering
tell go
says 'gathers of the group'
until_sampled 300
says 'prf counts'
until_sampled 400
says 'all done'
ended
