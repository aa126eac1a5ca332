# Runs guests under kvmprof in the lab and leaves their results in $LAB_OUT, by the guest's name: NAME.console, NAME.stderr, NAME.status
# (the exit status), NAME.STREAM.samples and .json. The file times has the time of each step.

# Words on every guest's kernel's command line. The kernel's tests of its cryptography would take a third of the boot's time.
quick="quiet panic=-1 cryptomgr.notests"

# done_at WORD...: notes the time of a step, in seconds since the machine's start.
done_at() {
    read -r uptime rest </proc/uptime
    echo "$uptime $name: $*" >>"$LAB_OUT/times"
}

# prepare NAME: makes the console of a guest, and its input.
prepare() {
    name=$1 is_own=
    console=$LAB_OUT/$name.console
    mkfifo "/run/$name.input"
    # The input is open for writing too, so that it never ends.
    exec 3<>"/run/$name.input"
    : >"$console"
    done_at prepared
}

# start NAME ARGUMENT...: starts a guest whose console is read and written here.
start() {
    prepare "$1"
    is_own=1
    socket=/run/$name.sock
    shift
    kvmprof run --socket "$socket" "$@" \
        <"/run/$name.input" >"$console" 2>"$LAB_OUT/$name.stderr" 3>&- &
    machine=$!
    until [ -S "$socket" ] || is_over; do usleep 10000; done
}

# qemu NAME VCPUS WORDS ARGUMENT...: starts a guest of QEMU, or of the one in $qemu_program, with the scenario's guest.cpio, and with more words on its
# kernel's command line.
qemu() {
    prepare "$1"
    vcpus=$2 words=$3
    shift 3
    "${qemu_program:-/usr/bin/qemu-system-x86_64}" -name "guest=$name" -accel kvm -cpu host -smp "$vcpus" "$@" \
        -no-reboot -nic none -vga none -display none -serial stdio \
        -kernel /lab/vmlinuz -initrd /lab/guest.cpio -append "console=ttyS0 $quick $words" \
        <"/run/$name.input" >"$console" 2>"$LAB_OUT/$name.stderr" 3>&- &
    machine=$!
}

is_over() { [ ! -e "/proc/$machine/exe" ]; }

# alive WORD...: reports new progress of the guest to the host, which considers a silent machine as hung.
alive() {
    [ "$*" = "$shown" ] && return
    shown=$*
    echo "$name: $*" >&2
}

# fail STATUS WORD...: ends the script, with a message.
fail() {
    result=$1
    shift
    echo "$name: $*" >&2
    # Why the machine is over, if it is, and what those that were attached to it have said.
    if is_over; then
        wait "$machine"
        status=$?
        echo "$name: it ended with status $status" >&2
        # Other VMMs end so, and say nothing.
        [ "$is_own$status" != 0 ] || echo "$name: the guest has reset itself" >&2
        dmesg | tail -n 3 >&2
    fi
    for said in "$LAB_OUT"/*.attach; do
        [ ! -s "$said" ] || sed "s|^|${said##*/}: |" "$said" >&2
    done
    exit "$result"
}

# says WORD: waits until a line of the guest begins with the word.
says() {
    until grep -q "^$1" "$console"; do
        if is_over; then
            grep -q "^$1" "$console" && return
            fail 99 "over before it said: $1"
        fi
        alive "$(wc -c <"$console") bytes on the console"
        usleep 50000
    done
    done_at "has said $1"
}

# tell WORD...: types a line.
tell() { echo "$*" >&3; }

# gather STREAM ARGUMENT...: starts getpc, and waits until it gathers.
gather() {
    stream=$LAB_OUT/$name.$1
    shift
    gathered_before=$(count)
    kvmprof getpc --socket "$socket" --buffers 10 --buffer-size 65536 \
        --output "$stream.samples" "$@" 3>&- &
    gathering=$!
    until status running && grep -q '"gathering":true' /run/running; do
        [ -e "/proc/$gathering/exe" ] || fail 98 "getpc ended before it gathered"
        usleep 50000
    done
}

status() { kvmprof status --socket "$socket" --json >"/run/$1" 2>/dev/null; }

# knows_kernel: waits until kvmprof has read the guest's kernel, without which samples have no process.
knows_kernel() {
    until status kernel && ! grep -q 'not known yet' /run/kernel; do
        is_over && fail 92 "over before its kernel was read"
        alive "the guest's kernel is being read"
        usleep 50000
    done
}

# count: the ticks that were sampled since the guest's start.
count() {
    kvmprof status --socket "$socket" --json >"$LAB_OUT/$name.count" 2>/dev/null
    sed 's/^{"clock":{[^}]*"sampled":\([0-9]*\).*/\1/' "$LAB_OUT/$name.count"
}

# sampled COUNT: waits until the last gather has COUNT samples, however slow the machine is.
sampled() {
    until now=$(count) && [ "$now" -ge $((gathered_before + $1)) ]; do
        is_over && fail 95 "over before it had the samples"
        alive "$now samples, waiting for $((gathered_before + $1))"
        # Each look takes processors that the guest needs.
        usleep 500000
    done
    done_at "$1 samples"
}

# gathered: waits for getpc's end and keeps the accounts at that time.
gathered() {
    wait $gathering || fail 97 "getpc failed"
    kvmprof status --socket "$socket" --json >"$stream.status" 2>/dev/null
    kvmprof pcstat --json "$stream.samples" >"$stream.json" || fail 96 "pcstat failed"
    done_at gathered
}

# stop_gathering: ends getpc with SIGTERM, because background jobs of a shell ignore SIGINT.
stop_gathering() {
    kill -TERM $gathering
    gathered
}

# record NAME ARGUMENT...: starts a recorder beside the guest.
record() {
    recording=$LAB_OUT/$1
    shift
    gathered_before=$(count)
    kvmprof record --socket "$socket" --output "$recording" "$@" 3>&- >/dev/null &
    recorder=$!
}

# stop_recording: ends the recorder.
stop_recording() {
    kill -TERM $recorder
    wait $recorder || fail 94 "the recorder failed"
    done_at recorded
}

# ended: waits for the guest's end.
ended() {
    wait $machine
    echo $? >"$LAB_OUT/$name.status"
    exec 3>&-
    done_at ended
}

# fails NAME ARGUMENT...: runs a kvmprof that has to end by itself, with a status of its own.
fails() {
    name=$1
    shift
    kvmprof run --console none "$@" </dev/null >"$LAB_OUT/$name.stdout" 2>"$LAB_OUT/$name.stderr"
    echo $? >"$LAB_OUT/$name.status"
}
