# boot NAME KERNEL GUEST WORDS ARGUMENT...: a guest that says when it is ready.
boot() {
    name=$1 kernel=$2 guest=$3 words=$4
    shift 4
    start "$name" --kernel "/lab/$kernel" --initrd "/lab/$guest.cpio" --memory 160M \
        --cmdline "console=ttyS0 $quick $words" "$@"
    starts 1
}

# starts COUNT: waits until the guest has been ready so often.
starts() {
    until [ "$(grep -c '^ready' "$console")" -ge "$1" ]; do
        is_over && fail 99 "over before its start number $1"
        alive "$(wc -c <"$console") bytes on the console, waiting for start $1"
        usleep 100000
    done
}

# place NAME: waits until the kernel has been found, and keeps where.
place() {
    until status place && grep -q '"slide":[0-9]' /run/place; do
        is_over && fail 95 "over before the kernel was found"
        usleep 100000
    done
    cp /run/place "$LAB_OUT/$1.placement"
}

control() { kvmprof control --socket "$socket" "$1" || fail 92 "control $1"; }

# heard: waits until the guest's kernel listens to the power button.
heard() {
    until kvmprof control --socket "$socket" info --json | grep -q '"power_button":true'; do
        is_over && fail 91 "over before it listened"
        usleep 100000
    done
}

# until_stderr WORD: waits until kvmprof has said so.
until_stderr() {
    until grep -q "$1" "$LAB_OUT/$name.stderr"; do
        is_over && fail 90 "over before kvmprof said $1"
        usleep 50000
    done
}

# SIGTERM, and a guest that listens.
boot signal vmlinuz control ''
heard
kill -TERM $machine
ended

# A guest without the driver: the first signal ends it.
boot deaf vmlinuz control deaf
kill -TERM $machine
ended

# A guest with the driver in which nobody reacts: the second one does.
boot idle vmlinuz control idle
heard
kill -TERM $machine
until_stderr pressed
kill -TERM $machine
ended

# Paused for longer than its watchdog waits, then reset, from within and from outside, while it is recorded.
boot control vmlinuz control '' --cpus 2 --record "$LAB_OUT/control.kvmprof" --hz 40
control pause
status paused
sleep 10
status still
cp /run/paused "$LAB_OUT/paused"
cp /run/still "$LAB_OUT/still"
control resume
tell lockups
says lockups
place first
tell reboot
starts 2
place second
control reset
starts 3
place last
gathered_before=$(count)
sampled 60
heard
control power-button
ended

boot reboot vmlinuz-6.12 end '' --on-reset exit
gather s --all --hz 40
place $name
tell reboot
gathered
ended

boot panic vmlinuz-6.12 end '' --on-reset exit
gather s --all --hz 40
place $name
tell panic
gathered
ended

# Nobody has looked at this one before it panics.
boot unseen vmlinuz-6.1 end '' --on-reset exit
tell panic
ended

boot stopped vmlinuz-6.12 end '' --on-reset exit --cpus 2
gather s --all --hz 40
place $name
kill -TERM $machine
gathered
ended

# A kernel that doesn't describe itself.
boot undescribed vmlinux-undescribed end '' --on-reset exit
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
boot blind vmlinux-undescribed end '' --on-reset exit --pid-at none
gather s --all --hz 40
tell poweroff
gathered
ended

# A kernel that isn't Linux.
start memtest --kernel /lab/memtest --memory 64M --record "$LAB_OUT/memtest.kvmprof"
gathered_before=$(count)
sampled 200
kill $machine
ended
