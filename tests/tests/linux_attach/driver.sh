# attach NAME ARGUMENT...: attaches to the guest that runs, and waits until it has so many samples.
attach() {
    what=$1
    shift
    name=$what
    socket=/run/$what.attached
    kvmprof attach "$machine" --socket "$socket" --record "$LAB_OUT/$what.kvmprof" "$@" \
        2>"$LAB_OUT/$what.attach.stderr" 3>&- &
    attached=$!
    until status attached; do
        [ -e "/proc/$attached/exe" ] || fail 92 "attach ended: $(cat "$LAB_OUT/$what.attach.stderr")"
        usleep 50000
    done
}

# detach: ends it.
detach() {
    cp /run/attached "$LAB_OUT/$what.before.json"
    kvmprof status --socket "$socket" --json >"$LAB_OUT/$what.json"
    kill -TERM $attached
    wait $attached
    echo $? >"$LAB_OUT/$what.attach.status"
}

cp /lab/series "$LAB_OUT"
gathered_before=0

# A guest of kvmprof's.
start own --kernel /lab/vmlinuz --initrd /lab/guest.cpio --cpus 2 --memory 512M --hz 50 \
    --cmdline 'console=ttyS0 quiet panic=-1'
says 'workload running'
kvmprof list --json >"$LAB_OUT/own.list.json"
attach own_attached --hz 50
sampled 1000
detach
name=own
tell go on
says counted
ended
