# counted: waits for the guest's end. Its programs say what they have seen only when they end; until then they read a port
# that no device has.
counted() {
    until is_over; do
        status accesses && alive "$(sed 's/.*"unclaimed_accesses":{\([^}]*\)}.*/\1/' /run/accesses)"
        usleep 5000000
    done
    ended
}

cp /lab/series "$LAB_OUT"
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --cpus 2 --memory 512M --hz 100 \
    --cmdline "console=ttyS0 $quick"
counted

# Another, that may not count, with one series of kernels: it takes a minute.
[ "$(cat /lab/series)" = 6.1 ] || exit 0
start limited --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 512M --guest-access profil \
    --cmdline "console=ttyS0 $quick limited"
ended
