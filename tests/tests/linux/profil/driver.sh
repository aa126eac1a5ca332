cp /lab/series "$LAB_OUT"
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --cpus 2 --memory 512M --hz 300 \
    --cmdline "console=ttyS0 $quick"
says 'the rates are next'
record rates.kvmprof
until status recording && grep -q '"recording":true' /run/recording; do usleep 50000; done
tell go
says 'the rates are over'
stop_recording
says 'children have counted'
status children || fail 93 "no status"
cp /run/children "$LAB_OUT/children.status"
tell go on
ended

# Another, that may not profile itself, with one series of kernels: it takes a minute.
[ "$(cat /lab/series)" = 6.1 ] || exit 0
start limited --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 512M --guest-access prf \
    --cmdline "console=ttyS0 $quick limited"
ended
