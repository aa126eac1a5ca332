# A date that no clock that stands still would have.
date -s "2031-05-06 07:08:09" >/dev/null
head -c 2000000 /dev/urandom >/run/file
sum() { sha256sum <"$1" | cut -d ' ' -f 1 >"$LAB_OUT/$2.sum"; }
sum /run/file file

# resident: the memory of the guest's kvmprof in this machine, in KiB.
resident() { sed -n 's/^VmRSS:[[:space:]]*\([0-9]*\).*/\1/p' "/proc/$machine/status"; }

# until_balloon MEMBER LEAST: waits until a member of the balloon's status is at least that.
until_balloon() {
    until status balloon && [ "$(sed "s/.*\"$1\":\([0-9]*\).*/\1/" /run/balloon)" -ge "$2" ]; do
        is_over && fail 91 "over before $1 was $2"
        alive "$(sed 's/.*"held_bytes":\(.*reported_bytes":[0-9]*\).*/\1/' /run/balloon)"
        usleep 200000
    done
}

sockets listen unix:/run/vsock_1234 </run/file >/run/taken 2>/dev/null &
taking=$!
until [ -S /run/vsock_1234 ]; do usleep 20000; done
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 512M --cmdline "console=ttyS0 $quick" \
    --vsock 3,socket=/run/vsock --balloon
says "in "
date +%s >"$LAB_OUT/now"
wait $taking
sum /run/taken taken
says "listening"
{ printf 'CONNECT 52\n'; cat /run/file; } | sockets connect unix:/run/vsock >/run/answer
head -n 1 /run/answer >"$LAB_OUT/answer"
tail -n +2 /run/answer >/run/rest
sum /run/rest rest
says "served "
# Nobody listens there.
printf 'CONNECT 53\n' | sockets connect unix:/run/vsock >"$LAB_OUT/nobody"
printf 'HELLO\n' | sockets connect unix:/run/vsock >"$LAB_OUT/nonsense"

tell use
says "used"
resident >"$LAB_OUT/used"
status reported
before=$(sed 's/.*"reported_bytes":\([0-9]*\).*/\1/' /run/reported)
tell free
says "freed"
until_balloon reported_bytes $((before + 150000000))
resident >"$LAB_OUT/freed"
kvmprof control --socket "$socket" balloon 128M
until_balloon held_bytes 134217728
tell memory
says "memory"
kvmprof control --socket "$socket" info >"$LAB_OUT/info"
kvmprof status --socket "$socket" --json >"$LAB_OUT/full.json"
kvmprof control --socket "$socket" balloon 0
until_balloon deflated_bytes 134217728
kvmprof control --socket "$socket" balloon 1T 2>"$LAB_OUT/too-much"
kvmprof status --socket "$socket" --json >"$LAB_OUT/end.json"
tell off
ended
