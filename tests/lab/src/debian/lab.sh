# Boots a whole Debian system under kvmprof, from its first instruction to its end, once on each of the given networks. Arguments: virtual
# CPUs, memory, bytes of the file that the system fetches, networks, and the name of a recording, if the first boot is to be recorded.
cpus=$1 memory=$2 bytes=$3 networks=$4 recording=$5
if [ "$recording" ]; then set -- --record "$LAB_OUT/$recording"; else set --; fi

mount -t debugfs none /sys/kernel/debug
head -c "$bytes" /dev/urandom >/run/www/file
cp /lab/checks /run/www/checks
sha256sum </run/www/file | cut -d ' ' -f 1 >"$LAB_OUT/file.sum"
httpd -p 8080 -h /run/www
jailed virtiofsd /lab/virtiofsd
cp /lab/debian.qcow2 /run/debian.qcow2 && rm /lab/debian.qcow2

# fail STATUS WORD...: ends the script.
fail() {
    result=$1
    shift
    echo "$*" >&2
    exit "$result"
}

# says WORD: waits until a line of the console begins with the word, and ends the script if a check has failed.
says() {
    until grep -q "^$1" "$console"; do
        if [ ! -e "/proc/$machine/exe" ]; then
            grep -q "^$1" "$console" && return
            wait $machine
            status=$?
            [ $status != 3 ] || fail 103 "the guest has crashed, which happens in emulation"
            fail 99 "kvmprof ended with status $status before its guest said: $1"
        fi
        grep -q '^checks failed' "$console" && fail 97 "a check has failed on the network $name"
        usleep 200000
    done
}

tell() { echo "$*" >&3; }

# requests: the number of requests that the guest's disk has performed.
requests() {
    kvmprof status --socket /run/kvmprof.sock --json |
        sed 's/.*"disks":\[{[^]]*"flushes":\([0-9]*\),[^]]*"reads":\([0-9]*\),[^]]*"writes":\([0-9]*\),.*/\1 + \2 + \3/'
}

exits() { cat /sys/kernel/debug/kvm/exits; }

# run NAME HOST ARGUMENT...: boots, logs in, runs the checks, and shuts down.
run() {
    name=$1 host=$2
    shift 2
    console=$LAB_OUT/$name.console
    rm -rf /run/input /run/shared
    mkdir /run/shared
    head -c 1000000 /run/www/file >/run/shared/there
    mkfifo /run/input
    # The input is open for writing too, so that it never ends.
    exec 3<>/run/input
    : >"$console"
    kvmprof run --kernel /lab/vmlinuz --initrd /lab/initrd.img --cpus "$cpus" --memory "$memory" \
        --cmdline 'console=ttyS0 root=/dev/vda rw' --disk /run/debian.qcow2,format=qcow2 --socket /run/kvmprof.sock \
        --virtiofsd /run/jailed-virtiofsd --share /run/shared=shared "$@" </run/input >"$console" 2>"$LAB_OUT/$name.stderr" 3>&- &
    machine=$!
    tail -f "$console" 3>&- &
    shown=$!
    says 'debian login: '
    tell root
    says '.*root@debian:~# '
    tell "wget -q -O checks http://$host:8080/checks && sh checks $host || echo checks failed"
    says 'fio waits'
    exits_before=$(exits) requests_before=$(($(requests)))
    tell go
    says 'fio is done'
    exits=$(($(exits) - exits_before)) requests=$(($(requests) - requests_before))
    echo "$exits exits, $requests requests" >"$LAB_OUT/$name.fio"
    says 'checks passed'
    kvmprof status --socket /run/kvmprof.sock --json >"$LAB_OUT/$name.status.json"
    tell shutdown now
    wait $machine
    status=$?
    kill $shown
    echo $status >"$LAB_OUT/$name.status"
    [ $status = 0 ] || fail 98 "kvmprof ended with status $status: $(cat "$LAB_OUT/$name.stderr")"
    cmp -s /run/shared/there /run/shared/back || fail 95 "what was written to the shared folder isn't the file"
    grep -q "^fetched $(cat "$LAB_OUT/file.sum")" "$console" || fail 96 "what was fetched isn't the file"
}

for network in $networks; do
    case $network in
        passt)
            start_passt
            run passt 10.0.2.2 --net socket=/run/passt/socket "$@"
            kill -9 $passt
            ;;
        tap)
            make_tap
            # By the device's address the guest knows that there is no DHCP server.
            run tap 10.9.0.1 --net tap=tap0,mac=02:00:00:00:00:07 "$@"
            ;;
    esac
    set --
done
for network in $networks; do echo "fio, network $network: $(cat "$LAB_OUT/$network.fio")"; done
[ -z "$recording" ] || kvmprof report --sort total "$LAB_OUT/$recording"
