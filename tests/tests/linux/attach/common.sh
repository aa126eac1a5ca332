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
