boot() {
    name=$1 kernel=$2
    shift 2
    start "$name" --kernel "/lab/$kernel" --initrd /lab/guest.cpio --memory 128M \
        --cmdline "console=ttyS0 $quick" --on-reset exit "$@"
    says ready
}

# Asks where the kernel is, once a sample has shown it.
place() {
    until status place && grep -q '"slide":[0-9]' /run/place; do
        is_over && fail 95 "over before the kernel was found"
        usleep 100000
    done
    cp /run/place "$LAB_OUT/$name.placement"
}

boot reboot vmlinuz-6.12
gather s --all --hz 40
place
tell reboot
gathered
ended

boot panic vmlinuz-6.12
gather s --all --hz 40
place
tell panic
gathered
ended

# Nobody has looked at this one before it panics.
boot unseen vmlinuz-6.1
tell panic
ended

boot stopped vmlinuz-6.12 --cpus 2
gather s --all --hz 40
place
kill -TERM $machine
gathered
ended

# A kernel that doesn't describe itself.
boot undescribed vmlinux-undescribed
tell burn
says burns
gather s --all --hz 40
sampled 60
kvmprof status --socket "$socket" >"$LAB_OUT/$name.told"
kvmprof record --socket "$socket" --seconds 2 --output /run/told.kvmprof >"$LAB_OUT/$name.recorded" 2>&1
kvmprof report /run/told.kvmprof >"$LAB_OUT/$name.reported"
stop_gathering
kill -TERM $machine
ended

# Nothing is to be known of it.
boot blind vmlinux-undescribed --pid-at none
gather s --all --hz 40
tell poweroff
gathered
ended
