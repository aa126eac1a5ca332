head -c 1048576 /dev/urandom >/run/www/file
head -c 50331648 /dev/urandom >/run/www/long
sha256sum /run/www/file | cut -d ' ' -f 1 >"$LAB_OUT/file.sum"
sha256sum /run/www/long | cut -d ' ' -f 1 >"$LAB_OUT/long.sum"
httpd -p 8080 -h /run/www

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

boot="console=ttyS0 $quick"

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

make_tap
take tap
start tap --kernel /lab/vmlinuz --initrd /lab/tap.cpio --cmdline "$boot" --net tap=tap0,mac=02:00:00:00:00:07
says "sent all"
taken tap
says "again "
shares end

# A tap that is somebody's is nobody else's.
fails busy --kernel /lab/vmlinuz --net tap=tap0
name=tap
ip link del tap0
says "carrier 0"
shares down
make_tap
says "looking"
shares gone
tell off
ended
fails kind --kernel /lab/vmlinuz --net tap=dummy0
