# A guest that uses its ports.
start ports --kernel /lab/vmlinuz --initrd /lab/ports.cpio \
    --cmdline "console=ttyS0 $quick"
says ready
kvmprof status --socket "$socket" --json >"$LAB_OUT/ports.status.json"
tell off
ended

# A guest whose only console is hvc0, on a terminal of the lab's.
name=terminal
console=$LAB_OUT/terminal.console
mkfifo /run/keys
exec 3<>/run/keys
cat >/run/on-terminal <<'END'
tty >/run/terminal
stty -g >/run/before
kvmprof run --kernel /lab/vmlinuz --initrd /lab/terminal.cpio --console hvc \
    --cmdline "console=hvc0 $quick" 2>$LAB_OUT/terminal.stderr
echo $? >$LAB_OUT/terminal.status
stty -g | cmp - /run/before && echo "terminal restored"
END
/lab/terminal sh /run/on-terminal </run/keys >"$console" 3>&- &
machine=$!
says ready
stty -F "$(cat /run/terminal)" rows 44 cols 122
says resized
tell off
wait $machine

# A guest with sockets and a clock, which gets a date that no clock that stands still would have.
date -s "2031-05-06 07:08:09" >/dev/null
head -c 2000000 /dev/urandom >/run/file
sum() { sha256sum <"$1" | cut -d ' ' -f 1 >"$LAB_OUT/$2.sum"; }
sum /run/file file

sockets listen unix:/run/vsock_1234 </run/file >/run/taken 2>/dev/null &
taking=$!
until [ -S /run/vsock_1234 ]; do usleep 20000; done
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 512M --cmdline "console=ttyS0 $quick" \
    --vsock 3,socket=/run/vsock
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

kvmprof status --socket "$socket" --json >"$LAB_OUT/end.json"
tell off
ended

# A guest that is recorded while the date of the host jumps.
date -s "2031-05-06 07:08:09" >/dev/null
start demo --kernel /lab/demo.elf --memory 64M --console none

# recorded NAME: records for five seconds, by whatever clock kvmprof has, and tells how long that took in hundredths of a second.
recorded() {
    read -r began _ </proc/uptime
    kvmprof record --socket "$socket" --output "$LAB_OUT/$1.kvmprof" --seconds 5 3>&- >/dev/null || fail 94 "the recorder failed"
    read -r now _ </proc/uptime
    echo $((${now%.*}${now#*.} - ${began%.*}${began#*.})) >"$LAB_OUT/$1.took"
    : >"/run/$1.over"
}

recorded quiet

# The date jumps by decades in both directions, and by a second.
recorded steps &
steps=0
while [ ! -e /run/steps.over ]; do
    for day in 1970-01-02 2099-12-31 2031-05-06 2000-02-29 2038-01-20; do
        date -s "$day 03:14:08" >/dev/null
        usleep 60000
        date -s "$day 03:14:07" >/dev/null
        usleep 60000
        steps=$((steps + 2))
    done
    alive "$steps steps"
    kvmprof status --socket "$socket" --json >"$LAB_OUT/steps.json" || fail 93 "the status isn't told after $steps steps"
done
wait $!
echo $steps >"$LAB_OUT/steps"
kill $machine
ended
