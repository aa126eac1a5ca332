cp /lab/series "$LAB_OUT"
# One guest, which has pcs open while the host gathers, and the other way round.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --cpus 2 --memory 512M \
    --cmdline "console=ttyS0 $quick"
says 'in use by the guest'
kvmprof getpc --socket "$socket" 1 2>"$LAB_OUT/beside" >"$LAB_OUT/beside.samples"
echo "status $?" >>"$LAB_OUT/beside"
tell go on
says free
gather host --all
tell go on
says ready
stop_gathering
tell off
ended
