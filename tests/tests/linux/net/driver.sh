# A network of the lab's own, so that there is something to give to guests: passt takes address and router of the interface
# with the default route.
ip addr add 10.0.2.15/24 dev dummy0
ip link set dummy0 up
ip route add default via 10.0.2.2
mkdir -p /run/www /run/passt
chmod 777 /run/passt
head -c 1048576 /dev/urandom >/run/www/file
head -c 50331648 /dev/urandom >/run/www/long
sha256sum /run/www/file | cut -d ' ' -f 1 >"$LAB_OUT/file.sum"
sha256sum /run/www/long | cut -d ' ' -f 1 >"$LAB_OUT/long.sum"
httpd -p 8080 -h /run/www

# passt makes a root folder of its own.
jailed passt /lab/passt

start_passt() {
    rm -f /run/passt/socket
    /run/jailed-passt --foreground -4 -s /run/passt/socket --runas 65534 >>"$LAB_OUT/passt.stderr" 2>&1 3>&- &
    passt=$!
    until [ -S /run/passt/socket ]; do
        [ -e "/proc/$passt/exe" ] || fail 90 "passt has ended: $(cat "$LAB_OUT/passt.stderr")"
        usleep 20000
    done
}

mkfifo /run/never
exec 5<>/run/never

# take NAME: what a guest sends to port 9000.
take() {
    # Its input stays open: at its end it would end the connection.
    nc -l -p 9000 <&5 >"/run/$1.taken" 3>&- &
    taking=$!
}

# taken NAME: waits for the end of that.
taken() {
    wait $taking
    sha256sum "/run/$1.taken" | cut -d ' ' -f 1 >"$LAB_OUT/$1.taken.sum"
}

shares() { kvmprof status --socket "$socket" --json >"$LAB_OUT/$name.$1.json"; }

# moved BYTES: waits until the guest has got that many.
moved() {
    until status moved && [ "$(sed 's/.*"received":{"bytes":\([0-9]*\).*/\1/' /run/moved)" -ge "$1" ]; do
        is_over && fail 91 "over before it had $1 bytes"
        alive "$(cat /run/moved)"
        usleep 200000
    done
}

boot="console=ttyS0 quiet panic=-1"

take passt
start_passt
start passt --kernel /lab/vmlinuz --initrd /lab/passt.cpio --cmdline "$boot" --net socket=/run/passt/socket
says "sent all"
taken passt
says "fetching again"
moved 6000000
kill -9 $passt
says "carrier 0"
shares down
start_passt
says "done"
shares end
tell off
ended
kill -9 $passt

tunctl -t tap0
ip addr add 10.9.0.1/24 dev tap0
ip link set tap0 up
take tap
start tap --kernel /lab/vmlinuz --initrd /lab/tap.cpio --cmdline "$boot" --net tap=tap0,mac=02:00:00:00:00:07
says "sent all"
taken tap
says "fetching again"
moved 6000000
ip link del tap0
says "carrier 0"
shares down
tunctl -t tap0
ip addr add 10.9.0.1/24 dev tap0
ip link set tap0 up
says "done"
shares end

# A tap that is somebody's is nobody else's.
fails busy --kernel /lab/vmlinuz --net tap=tap0
name=tap
tell off
ended
fails kind --kernel /lab/vmlinuz --net tap=dummy0
