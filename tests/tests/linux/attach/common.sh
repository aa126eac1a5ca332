# qemu NAME VCPUS WORDS ARGUMENT...: a guest of QEMU's, with more words on its kernel's command line.
qemu() {
    name=$1 vcpus=$2 words=$3
    shift 3
    console=$LAB_OUT/$name.console
    mkfifo "/run/$name.input" "/run/$name.qmp.in" "/run/$name.qmp.out"
    exec 3<>"/run/$name.input"
    : >"$console"
    /usr/bin/qemu-system-x86_64 -name "guest=$name" -accel kvm -cpu host -smp "$vcpus" "$@" \
        -no-reboot -nic none -vga none -display none -serial stdio \
        -chardev "pipe,id=qmp,path=/run/$name.qmp" -mon chardev=qmp,mode=control \
        -kernel /lab/vmlinuz -initrd /lab/guest.cpio -append "console=ttyS0 quiet panic=-1 $words" \
        <"/run/$name.input" >"$console" 2>"$LAB_OUT/$name.stderr" 3>&- &
    machine=$!
}

# attach NAME GUEST ARGUMENT...: attaches to a guest, by its name or its VMM's pid.
attach() {
    what=$1 guest=$2
    shift 2
    socket=/run/$what.attached
    kvmprof attach "$guest" --socket "$socket" --record "$LAB_OUT/$what.kvmprof" --hz 50 "$@" \
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
