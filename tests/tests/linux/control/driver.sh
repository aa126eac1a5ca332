# boot NAME ARGUMENT...: a guest that says when it is ready.
boot() {
    name=$1
    words=$2
    shift 2
    start "$name" --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 160M \
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
boot signal ''
heard
kill -TERM $machine
ended

# A guest without the driver: the first signal ends it.
boot deaf deaf
kill -TERM $machine
ended

# A guest with the driver in which nobody reacts: the second one does.
boot idle idle
heard
kill -TERM $machine
until_stderr pressed
kill -TERM $machine
ended

# Paused for longer than its watchdog waits, then reset, from within and from outside, while it is recorded.
boot control '' --cpus 2 --record "$LAB_OUT/control.kvmprof" --hz 40
control pause
status paused
sleep 10
status still
cp /run/paused "$LAB_OUT/paused"
cp /run/still "$LAB_OUT/still"
control resume
tell lockups
says lockups
place=1
for cause in reboot reset; do
    until status place && grep -q '"slide":[0-9]' /run/place; do
        is_over && fail 95 "over before the kernel was found"
        usleep 100000
    done
    cp /run/place "$LAB_OUT/$cause.placement"
    case $cause in
    reboot) tell reboot ;;
    reset) control reset ;;
    esac
    place=$((place + 1))
    starts $place
done
until status place && grep -q '"slide":[0-9]' /run/place; do
    is_over && fail 95 "over before the kernel was found"
    usleep 100000
done
cp /run/place "$LAB_OUT/last.placement"
gathered_before=$(count)
sampled 60
heard
control power-button
ended
