# monitored NAME VCPUS WORDS ARGUMENT...: a guest of QEMU's that has a monitor.
monitored() {
    mkfifo "/run/$1.qmp.in" "/run/$1.qmp.out"
    qemu "$@" -chardev "pipe,id=qmp,path=/run/$1.qmp" -mon chardev=qmp,mode=control
}

# attach NAME GUEST ARGUMENT...: attaches to a guest, by its name or its VMM's pid.
attach() {
    what=$1 guest=$2
    shift 2
    socket=/run/$what.attached
    kvmprof attach "$guest" --socket "$socket" --record "$LAB_OUT/$what.kvmprof" --hz "${hz:-50}" "$@" \
        2>"$LAB_OUT/$what.attach" 3>&- &
    attached=$!
    gathered_before=0
    until status attached; do
        [ -e "/proc/$attached/exe" ] || fail 92 "attach ended: $(cat "$LAB_OUT/$what.attach")"
        usleep 50000
    done
}

# ticks: how many the clock has made.
ticks() {
    until status ticks; do usleep 50000; done
    sed 's/^{"clock":{[^}]*"ticks":\([0-9]*\).*/\1/' /run/ticks
}

# detach: ends it.
detach() {
    kvmprof status --socket "$socket" --json >"$LAB_OUT/$what.json"
    kill -TERM $attached
    attach_ended
}

attach_ended() {
    wait $attached
    echo $? >"$LAB_OUT/$what.attach.status"
}

# attach_both GUEST: attaches to it by both ways to capture at once, as traced and copied.
attach_both() {
    attach copied "$1" --capture kernel
    copied=$attached
    attach traced "$1"
    traced=$attached
}

# by WAY COUNT: waits until traced or copied has COUNT samples more. Each counts its own.
by() {
    what=$1 socket=/run/$1.attached
    gathered_before=$(count)
    sampled "$2"
}

# both COUNT: waits until each of the two has COUNT samples more.
both() {
    by traced "$1"
    by copied "$1"
}

# detach_both: ends the two.
detach_both() {
    what=traced attached=$traced socket=/run/traced.attached
    detach
    what=copied attached=$copied socket=/run/copied.attached
    detach
}
