cp /lab/series "$LAB_OUT"
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --cpus 2 --memory 512M --hz 300 \
    --cmdline "console=ttyS0 $quick"
says 'children have counted'
status children || fail 93 "no status"
cp /run/children "$LAB_OUT/children.status"
tell go on
# One program says what it has seen only when it ends; until then it reads a port that no device has.
until is_over; do
    status accesses && alive "$(sed 's/.*"unclaimed_accesses":{\([^}]*\)}.*/\1/' /run/accesses)"
    usleep 5000000
done
ended
